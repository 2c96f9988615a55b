//! Finds where storage may be freed if several streams use it.
//!
//! An allocator gives freed storage to the next ALLOCATE on the same stream without waiting for other streams. So a tensor
//! that other streams use is deallocated behind the statements that make the stream of its allocation wait for them.

use grammar::{BlockId, Op, Program, Stmt, StmtId};
use hir_ir::streams::{StreamFacts, StreamValue};
use rustc_hash::FxHashMap;

use super::storage_users::Users;
use crate::analysis::stmt_path::StmtPaths;

/// The streams of the statements of a container, and which of them wait for each other.
pub(super) struct StreamOrder {
    facts: StreamFacts,
    /// The statements that make a stream wait for another one, by both streams, as indices of `StmtPaths::order`.
    waits: FxHashMap<(StreamValue, StreamValue), Vec<usize>>,
}

impl StreamOrder {
    pub(super) fn of(program: &Program, places: &StmtPaths) -> Self {
        let facts = StreamFacts::of(program);
        let mut waits: FxHashMap<_, Vec<usize>> = FxHashMap::default();
        for (at, stmt) in places.order.iter().enumerate() {
            if matches!(&program.stmts[*stmt], Stmt::Op(it) if it.op == Op::Synchronize)
                && let Some(both) = facts.current(*stmt).zip(facts.operand(*stmt))
            {
                waits.entry(both).or_default().push(at);
            }
        }
        Self { facts, waits }
    }

    /// Returns the stream that is current at a statement.
    pub(super) fn current(&self, stmt: StmtId) -> Option<StreamValue> {
        self.facts.current(stmt)
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
        let Some(owner) = self.current(first) else { return last };
        let mut end = last;
        for (other, at) in users.last_on_stream.iter().filter(|(other, _)| **other != owner) {
            let waits = self.waits.get(&(owner, *other));
            let behind = waits.into_iter().flat_map(|it| &it[it.partition_point(|wait| wait < at)..]);
            // A branch need not be taken.
            let is_branch =
                |it: &(BlockId, usize)| matches!(program.stmts[program.block(it.0)[it.1]], Stmt::If(_));
            let mut paths = behind.filter_map(|it| places.paths.get(&places.order[*it]));
            let path = paths.find(|path| !path.iter().skip_while(|it| it.0 != block).any(is_branch));
            let index = path.and_then(|path| path.iter().find(|it| it.0 == block)).map(|it| it.1);
            end = end.max(index.unwrap_or_else(|| program.block(block).len().saturating_sub(1)));
        }
        end
    }
}
