//! A text that edits change, and what they look up in it. Everything is computed at most once, since many edits are tried on
//! the same text.

use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeSet,
};

use grammar::{
    attr, for_each_tensor_use,
    ir::{BlockId, Program, Stmt, StmtId, SymbolId, TensorId},
    ops::{AccessMode, Op, OpClass},
    span::LineIndex,
};
use hir_ir::{
    blocks::inner_blocks,
    streams::{StreamValue, captured_name},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    edit::InsertionPoint,
    exclusive_arms::ExclusiveArms,
    numbered_lines::{NumberedLine, NumberedLines},
    stmt_places::StmtPlaces,
    stream_operand::StreamOperands,
};

/// A text and the program parsed from it.
pub struct EditableText {
    /// The lines of the text.
    pub lines: NumberedLines,
    /// The text.
    pub text: String,
    /// The index of its lines.
    pub index: LineIndex,
    /// The program.
    pub program: Program,
    places: OnceCell<StmtPlaces>,
    arms: ExclusiveArms,
    defined: OnceCell<FxHashSet<SymbolId>>,
    is_keyword_style: OnceCell<bool>,
    new_stream_names: OnceCell<[String; 2]>,
    captured_entry_stream: OnceCell<Option<EntryCapture>>,
    closing_line: OnceCell<Option<usize>>,
    works: OnceCell<FxHashMap<u32, Work>>,
    viewed: OnceCell<FxHashSet<TensorId>>,
    bound: OnceCell<FxHashMap<(BlockId, TensorId), BTreeSet<usize>>>,
    block_ends: RefCell<FxHashMap<BlockId, u32>>,
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

impl EditableText {
    /// Creates the text of lines that contain `program`.
    pub fn new(lines: NumberedLines, program: Program) -> Self {
        let text = lines.text();
        Self {
            index: LineIndex::new(&text),
            lines,
            text,
            program,
            places: OnceCell::new(),
            arms: ExclusiveArms::default(),
            defined: OnceCell::new(),
            is_keyword_style: OnceCell::new(),
            new_stream_names: OnceCell::new(),
            captured_entry_stream: OnceCell::new(),
            closing_line: OnceCell::new(),
            works: OnceCell::new(),
            viewed: OnceCell::new(),
            bound: OnceCell::new(),
            block_ends: RefCell::default(),
        }
    }

    /// Returns the places of the statements.
    pub fn places(&self) -> &StmtPlaces {
        self.places.get_or_init(|| StmtPlaces::of(&self.program))
    }

    /// Returns whether branches show that no rank executes both of two statements.
    pub fn exclude(&self, one: StmtId, other: StmtId) -> bool {
        self.arms.exclude(&self.program, self.places(), one, other)
    }

    /// Returns whether branches show that each rank executes one of some statements.
    pub fn reach_all_ranks(&self, stmts: &[StmtId]) -> bool {
        self.arms.reach_all_ranks(&self.program, self.places(), stmts)
    }

    /// Returns the operand of a Synchronize; see `StreamOperands::text`.
    pub fn stream_operand(
        &self,
        index: i64,
        stmt: Option<StmtId>,
        insertion: Option<&InsertionPoint>,
    ) -> String {
        let defined = self.defined.get_or_init(|| {
            let symbol = |(_, it): (StmtId, &Stmt)| if let Stmt::Let(it, _) = it { Some(*it) } else { None };
            self.program.stmts.iter().filter_map(symbol).collect()
        });
        StreamOperands { program: &self.program, places: self.places(), defined }.text(index, stmt, insertion)
    }

    /// Returns true if operands follow the operator without parentheses, as in the syntax before January
    /// 2026.
    pub fn is_keyword_style(&self) -> bool {
        const OLD: [&str; 4] =
            ["GetCurrentStream into", "SetCurrentStream to", "Synchronize Stream", "Wait Communication"];
        let is_old = |it: &NumberedLine| OLD.iter().any(|old| it.text.trim_start().starts_with(old));
        *self.is_keyword_style.get_or_init(|| self.lines.lines.iter().any(is_old))
    }

    /// Returns two names for streams that do not occur in the text.
    pub fn new_stream_names(&self) -> &[String; 2] {
        self.new_stream_names.get_or_init(|| {
            let words: FxHashSet<&str> =
                self.text.split(|it: char| !it.is_alphanumeric() && it != '_').collect();
            let names = (0..words.len() + 2).map(|it| format!("s{it}"));
            let mut free = names.filter(|it| !words.contains(it.as_str()));
            [free.next().unwrap_or_default(), free.next().unwrap_or_default()]
        })
    }

    /// Returns the 0-based line of a statement, or `None` if another statement precedes it on that line.
    pub fn line_of(&self, stmt: StmtId) -> Option<usize> {
        let start = self.program.stmt_span(stmt).start;
        let line = (self.index.line(start) as usize).checked_sub(1)?;
        let before = (self.index.column(start) - 1) as usize;
        let is_first = self.lines.lines[line].text.get(..before)?.trim().is_empty();
        is_first.then_some(line)
    }

    /// Returns the first GetCurrentStream that executes while the entry stream is current.
    pub fn captured_entry_stream(&self) -> Option<&EntryCapture> {
        self.captured_entry_stream.get_or_init(|| self.find_captured_entry_stream()).as_ref()
    }

    fn find_captured_entry_stream(&self) -> Option<EntryCapture> {
        let streams = &self.places().streams;
        let is_plain = |it: &StmtId| self.program.stmts[*it].op().is_some();
        let stmts = self.program.body().iter().copied().take_while(is_plain);
        let mut before = stmts.take_while(|it| streams.current(*it) == Some(StreamValue::Entry));
        let (stmt, stream) = before.find_map(|it| Some((it, captured_name(&self.program, it)?)))?;
        Some(EntryCapture { line: self.line_of(stmt)?, stream })
    }

    /// Returns the end of the last statement of a block, or of the blocks in it.
    pub fn block_end(&self, block: BlockId) -> u32 {
        if let Some(known) = self.block_ends.borrow().get(&block) {
            return *known;
        }
        let mut end = 0;
        for stmt in self.program.block(block) {
            end = end.max(self.program.stmt_span(*stmt).end);
            for inner in inner_blocks(&self.program, *stmt).into_iter().flatten() {
                end = end.max(self.block_end(inner));
            }
        }
        self.block_ends.borrow_mut().insert(block, end);
        end
    }

    /// Returns the 0-based line behind the statements of the program: that of the brace that closes it, or where its HostUnits begin.
    pub fn closing_line(&self) -> Option<usize> {
        *self.closing_line.get_or_init(|| {
            let last = self.index.line(self.block_end(self.program.body?).checked_sub(1)?) as usize;
            let is_end = |(at, it): (usize, &NumberedLine)| {
                let text = it.text.trim_start();
                let is_section = text.starts_with("HostUnit") || at > 0;
                text.starts_with('}') || is_section && !text.is_empty() && !text.starts_with("//")
            };
            Some(last + self.lines.lines.get(last..)?.iter().enumerate().position(is_end)?)
        })
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
            let mut visit = |stmt: StmtId| {
                if let Stmt::Op(it) = &self.program.stmts[stmt] {
                    viewed.extend(it.get(attr::ALIAS));
                    if matches!(it.op.def().class, OpClass::View) {
                        viewed.extend(Program::tensors_of(&it.args));
                    }
                }
            };
            self.program.body.into_iter().for_each(|body| self.program.walk(body, &mut visit));
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
                for_each_tensor_use(&self.program, it, &mut |tensor, mode| {
                    for (block, position) in outer.iter().filter(|_| mode == AccessMode::Bind) {
                        bound.entry((*block, tensor)).or_default().insert(*position);
                    }
                });
            }
            bound
        });
        bound.get(&(block, tensor)).is_some_and(|it| it.range(positions).next().is_some())
    }
}
