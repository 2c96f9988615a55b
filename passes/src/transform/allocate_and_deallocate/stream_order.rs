//! Finds where storage may be freed if several streams use it.
//!
//! An allocator gives freed storage to the next ALLOCATE on the same stream without waiting for other streams. So a tensor
//! that other streams use is deallocated behind the statements that make the stream of its allocation wait for them.

use std::ops::Range;

use grammar::{
    ir::{BlockId, OpStmt, Operand, Program, Stmt, StmtId, Stream},
    ops::Op,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::blocks;

/// The stream on which a statement issues its work, as the text names it.
#[derive(Clone, PartialEq, Eq, Hash)]
enum CurrentStream {
    /// The stream that is current at entry.
    AtEntry,
    /// The stream that a SetCurrentStream names.
    Set(Stream),
    /// The stream at the start of an iteration that depends on the iteration before it.
    Unknown(BlockId),
}

/// The current stream of each statement of a container.
pub(super) struct CurrentStreams {
    before: FxHashMap<StmtId, CurrentStream>,
    /// The streams that GetCurrentStream has named.
    captured: FxHashMap<u32, CurrentStream>,
}

impl CurrentStreams {
    pub(super) fn of(program: &Program, body: BlockId) -> Self {
        let mut this = Self { before: FxHashMap::default(), captured: FxHashMap::default() };
        this.block(program, body, CurrentStream::AtEntry);
        this
    }

    /// Follows the statements of a block, and returns the stream that is current behind it.
    fn block(&mut self, program: &Program, block: BlockId, mut current: CurrentStream) -> CurrentStream {
        for stmt in program.block(block) {
            self.before.insert(*stmt, current.clone());
            match &program.stmts[*stmt] {
                Stmt::Op(it) => match it.op {
                    Op::SetCurrentStream => current = self.operand(program, &it.args).unwrap_or(current),
                    Op::GetCurrentStream => {
                        if let [Operand::Stream(stream)] = it.outs[..]
                            && let Stream::Named(number) = program.streams[stream]
                        {
                            self.captured.entry(number).or_insert_with(|| current.clone());
                        }
                    }
                    _ => (),
                },
                Stmt::Let(..) => (),
                Stmt::For(it) => {
                    let sets = blocks::sets_stream(program, it.body);
                    let start = if sets { CurrentStream::Unknown(it.body) } else { current.clone() };
                    let end = self.block(program, it.body, start);
                    current = if sets { end } else { current };
                }
                Stmt::If(it) => {
                    let then = self.block(program, it.then_block, current.clone());
                    let other = match it.else_block {
                        Some(block) => self.block(program, block, current),
                        None => current,
                    };
                    current = if then == other { then } else { CurrentStream::Unknown(it.then_block) };
                }
            }
        }
        current
    }

    /// Returns the stream that the operand of a statement denotes.
    fn operand(&self, program: &Program, operands: &[Operand]) -> Option<CurrentStream> {
        let [Operand::Stream(stream)] = operands else { return None };
        let stream = &program.streams[*stream];
        let captured = match stream {
            Stream::Named(number) => self.captured.get(number).cloned(),
            Stream::Index(_) => None,
        };
        Some(captured.unwrap_or_else(|| CurrentStream::Set(stream.clone())))
    }

    /// Returns the index in `block` of the first statement, at least `last`, behind which the stream of the first of `uses`
    /// waits for all other streams on which statements of `uses` are. Returns the index of the last statement if no
    /// statement certainly waits.
    pub(super) fn index_behind_waits(
        &self,
        program: &Program,
        (block, indices): (BlockId, Range<usize>),
        uses: &FxHashSet<StmtId>,
    ) -> usize {
        let stmts = program.block(block);
        let (mut owner, mut pending) = (None, FxHashSet::default());
        for (at, top) in stmts.iter().enumerate().skip(indices.start) {
            blocks::walk(program, *top, &mut |stmt| {
                let Some(current) = self.before.get(&stmt) else { return };
                if uses.contains(&stmt) && owner.get_or_insert(current) != &current {
                    pending.insert(current.clone());
                }
                if let (Stmt::Op(it), Some(owner)) = (&program.stmts[stmt], owner)
                    && let Some(other) = self.waits_for(program, it).filter(|_| owner == current)
                {
                    pending.remove(&other);
                }
            });
            if at + 1 >= indices.end && pending.is_empty() {
                return at;
            }
        }
        stmts.len().saturating_sub(1)
    }

    fn waits_for(&self, program: &Program, it: &OpStmt) -> Option<CurrentStream> {
        if it.op == Op::Synchronize { self.operand(program, &it.args) } else { None }
    }
}
