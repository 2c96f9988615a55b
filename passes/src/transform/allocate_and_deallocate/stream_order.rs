//! Finds where storage may be freed if several streams use it.
//!
//! An allocator gives freed storage to the next ALLOCATE on the same stream without waiting for other streams. So a tensor
//! that other streams use is deallocated behind the statements that make the stream of its allocation wait for them.

use grammar::{
    ir::{BlockId, OpStmt, Operand, Program, Stmt, StmtId, Stream},
    ops::Op,
};
use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::storage_users::Users;
use crate::analysis::{blocks, stmt_path::StmtPaths};

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

/// The number of a stream in `CurrentStreams`.
pub(super) type StreamNumber = usize;

/// The current stream of each statement of a container.
pub(super) struct CurrentStreams {
    streams: IndexSet<CurrentStream>,
    before: FxHashMap<StmtId, StreamNumber>,
    /// The streams that GetCurrentStream has named.
    captured: FxHashMap<u32, CurrentStream>,
    /// The statements that make a stream wait for another one, by both streams, as indices of `StmtPaths::order`.
    waits: FxHashMap<(StreamNumber, StreamNumber), Vec<usize>>,
}

impl CurrentStreams {
    pub(super) fn of(program: &Program, body: BlockId, places: &StmtPaths) -> Self {
        let mut this = Self {
            streams: IndexSet::new(),
            before: FxHashMap::default(),
            captured: FxHashMap::default(),
            waits: FxHashMap::default(),
        };
        this.block(program, body, CurrentStream::AtEntry);
        for (at, stmt) in places.order.iter().enumerate() {
            if let (Stmt::Op(it), Some(own)) = (&program.stmts[*stmt], this.before(*stmt))
                && let Some(other) = this.waits_for(program, it)
            {
                this.waits.entry((own, other)).or_default().push(at);
            }
        }
        this
    }

    /// Returns the stream that is current at a statement.
    pub(super) fn before(&self, stmt: StmtId) -> Option<StreamNumber> {
        self.before.get(&stmt).copied()
    }

    /// Follows the statements of a block, and returns the stream that is current behind it.
    fn block(&mut self, program: &Program, block: BlockId, mut current: CurrentStream) -> CurrentStream {
        for stmt in program.block(block) {
            let (number, _) = self.streams.insert_full(current.clone());
            self.before.insert(*stmt, number);
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
                Stmt::If(branch) => {
                    let then = self.block(program, branch.then_block, current.clone());
                    let other = match branch.else_block {
                        Some(block) => self.block(program, block, current),
                        None => current,
                    };
                    current = if then == other { then } else { CurrentStream::Unknown(branch.then_block) };
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

    /// Returns the index in `block` of the first statement, at least `last`, behind which the stream of the first of the
    /// users waits for all other streams on which users are. Returns the index of the last statement if no
    /// statement certainly waits.
    pub(super) fn index_behind_waits(
        &self,
        program: &Program,
        places: &StmtPaths,
        (block, last): (BlockId, usize),
        first: StmtId,
        users: &Users,
    ) -> usize {
        let Some(owner) = self.before(first) else { return last };
        let mut end = last;
        for (other, at) in users.last_on_stream.iter().filter(|(other, _)| **other != owner) {
            let waits = self.waits.get(&(owner, *other));
            let next = waits.and_then(|it| it.get(it.partition_point(|wait| wait < at)));
            let path = next.and_then(|it| places.paths.get(&places.order[*it]));
            let index = path.and_then(|path| path.iter().find(|it| it.0 == block)).map(|it| it.1);
            end = end.max(index.unwrap_or_else(|| program.block(block).len().saturating_sub(1)));
        }
        end
    }

    fn waits_for(&self, program: &Program, it: &OpStmt) -> Option<StreamNumber> {
        let other = if it.op == Op::Synchronize { self.operand(program, &it.args) } else { None };
        other.and_then(|it| self.streams.get_index_of(&it))
    }
}
