//! A text that edits change, and what they look up in it. Everything is computed at most once, since many edits are tried on
//! the same text.

use std::{cell::OnceCell, collections::BTreeSet, ops::Deref, sync::Arc};

use grammar::{AccessMode, BlockId, ExprId, Op, OpClass, Program, Stmt, StmtId, SymbolId, TensorId, attr};
use hir_ir::{
    edit::ProgramText,
    streams::{StreamValue, captured_name},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::repair::NamedStmt;

/// A text and the program parsed from it.
pub struct EditableText {
    inner: ProgramText,
    /// The ranks on which the predicates of the program are false or true, as far as the text determines it.
    pub(super) predicates: OnceCell<FxHashMap<ExprId, Vec<Option<bool>>>>,
    defined: OnceCell<FxHashSet<SymbolId>>,
    captured_entry_stream: OnceCell<Option<EntryCapture>>,
    works: OnceCell<FxHashMap<u32, Work>>,
    viewed: OnceCell<FxHashSet<TensorId>>,
    bound: OnceCell<FxHashMap<(BlockId, TensorId), BTreeSet<usize>>>,
}

/// The first GetCurrentStream that executes while the entry stream is current.
pub struct EntryCapture {
    /// The 0-based line of the statement.
    pub line: usize,
    /// The number of the stream object that it captures.
    pub stream: u32,
}

/// The statements of the communications with a number.
#[derive(Default)]
struct Work {
    posts: Vec<StmtId>,
    waits: Vec<StmtId>,
}

impl Deref for EditableText {
    type Target = ProgramText;

    fn deref(&self) -> &ProgramText {
        &self.inner
    }
}

impl EditableText {
    /// Creates the text of a program.
    pub fn new(text: Arc<String>, program: Program) -> Self {
        Self {
            inner: ProgramText::new(text, program),
            predicates: OnceCell::new(),
            defined: OnceCell::new(),
            captured_entry_stream: OnceCell::new(),
            works: OnceCell::new(),
            viewed: OnceCell::new(),
            bound: OnceCell::new(),
        }
    }

    /// Returns a statement, named by its line.
    pub fn named(&self, stmt: StmtId) -> NamedStmt {
        NamedStmt { stmt: Some(stmt), name: format!("line {}", self.line_number(stmt)) }
    }

    /// Returns the scalars that statements define.
    pub fn defined(&self) -> &FxHashSet<SymbolId> {
        self.defined.get_or_init(|| {
            let symbol = |(_, it): (StmtId, &Stmt)| if let Stmt::Let(it, _) = it { Some(*it) } else { None };
            self.program.stmts.iter().filter_map(symbol).collect()
        })
    }

    /// Returns the first GetCurrentStream that executes while the entry stream is current.
    pub fn captured_entry_stream(&self) -> Option<&EntryCapture> {
        self.captured_entry_stream.get_or_init(|| self.find_captured_entry_stream()).as_ref()
    }

    fn find_captured_entry_stream(&self) -> Option<EntryCapture> {
        let is_plain = |it: &StmtId| self.program.stmts[*it].op().is_some();
        let stmts = self.program.body().iter().copied().take_while(is_plain);
        let mut before = stmts.take_while(|it| self.streams().current(*it) == Some(StreamValue::Entry));
        let (stmt, stream) = before.find_map(|it| Some((it, captured_name(&self.program, it)?)))?;
        Some(EntryCapture { line: self.line_of(stmt)?, stream })
    }

    /// Returns the statements that post a communication with a number.
    pub fn posts_of(&self, number: u32) -> &[StmtId] {
        self.work(number).map_or(&[], |it| &it.posts)
    }

    /// Returns the Waits for communications with a number.
    pub fn waits_of(&self, number: u32) -> &[StmtId] {
        self.work(number).map_or(&[], |it| &it.waits)
    }

    /// Returns the number of the communication that a Wait waits for.
    pub fn awaited_number(&self, stmt: StmtId) -> Option<u32> {
        self.program.stmts[stmt].op().filter(|it| it.op == Op::Wait)?.get(attr::WORK)
    }

    fn work(&self, number: u32) -> Option<&Work> {
        let works = self.works.get_or_init(|| {
            let mut works: FxHashMap<u32, Work> = FxHashMap::default();
            for stmt in self.program.stmts.ids() {
                if let Some(number) = self.program.posted_work(stmt) {
                    works.entry(number).or_default().posts.push(stmt);
                }
                if let Some(number) = self.awaited_number(stmt) {
                    works.entry(number).or_default().waits.push(stmt);
                }
            }
            works
        });
        works.get(&number)
    }

    /// Returns whether other tensors are views of a tensor.
    pub fn is_viewed(&self, tensor: TensorId) -> bool {
        let viewed = self.viewed.get_or_init(|| {
            let mut viewed = FxHashSet::default();
            for (_, it) in self.program.ops() {
                viewed.extend(it.get(attr::ALIAS));
                if matches!(it.op.def().class, OpClass::View) {
                    viewed.extend(Program::tensors_of(&it.args));
                }
            }
            viewed
        });
        viewed.contains(&tensor)
    }

    /// Returns whether statements of a block, or statements in them, with a position in `positions` bind a tensor.
    pub fn is_bound_in(&self, block: BlockId, tensor: TensorId, positions: std::ops::Range<usize>) -> bool {
        let bound = self.bound.get_or_init(|| {
            let mut bound: FxHashMap<_, BTreeSet<usize>> = FxHashMap::default();
            for (id, stmt) in self.program.stmts.iter() {
                let (Stmt::Op(it), Some(place)) = (stmt, self.places().of_stmt(id)) else { continue };
                let mut outer: Vec<(BlockId, usize)> = vec![(place.block, place.position)];
                let around = self.places().around(id).filter_map(|it| self.places().of_stmt(it.1));
                outer.extend(around.map(|it| (it.block, it.position)));
                for (tensor, mode) in it.tensor_uses(&self.program) {
                    for (block, position) in outer.iter().filter(|_| mode == AccessMode::Bind) {
                        bound.entry((*block, tensor)).or_default().insert(*position);
                    }
                }
            }
            bound
        });
        bound.get(&(block, tensor)).is_some_and(|it| it.range(positions).next().is_some())
    }
}
