//! Where the statements of a program are: their blocks, loops and groups. Collected once for all edits of a program.

use grammar::{BlockId, Op, Program, Stmt, StmtId};
use rustc_hash::FxHashMap;

/// The place of a statement.
#[derive(Clone, Copy, Debug)]
pub struct StmtPlace {
    /// The block that contains the statement.
    pub block: BlockId,
    /// Its index in the block.
    pub position: usize,
    /// The StartCoalescing of the group that contains it.
    pub group_start: Option<StmtId>,
}

/// The places of all statements.
#[derive(Debug, Default)]
pub struct StmtPlaces {
    places: FxHashMap<StmtId, StmtPlace>,
    /// The loop or branch that contains a block.
    parents: FxHashMap<BlockId, StmtId>,
}

impl StmtPlaces {
    /// Collects the places of all statements of a program.
    pub fn of(program: &Program) -> Self {
        let mut it = Self::default();
        for stmt in program.stmts.ids() {
            for block in program.inner_blocks(stmt) {
                it.parents.entry(block).or_insert(stmt);
            }
        }
        for block in program.blocks.ids() {
            it.add_block(program, block);
        }
        it
    }

    /// Adds the statements of a block.
    fn add_block(&mut self, program: &Program, block: BlockId) {
        let mut group_start = None;
        for (position, id) in program.block(block).iter().enumerate() {
            let op = if let Stmt::Op(it) = &program.stmts[*id] { Some(it.op) } else { None };
            if op == Some(Op::StartCoalescing) {
                group_start = Some(*id);
            }
            self.places.insert(*id, StmtPlace { block, position, group_start });
            if op == Some(Op::EndCoalescing) {
                group_start = None;
            }
        }
    }

    /// Returns the place of a statement.
    pub fn of_stmt(&self, stmt: StmtId) -> Option<StmtPlace> {
        self.places.get(&stmt).copied()
    }

    /// Returns the loops and branches around a statement, innermost first: the block of each that contains the statement, and
    /// the loop or branch.
    pub fn around(&self, stmt: StmtId) -> impl Iterator<Item = (BlockId, StmtId)> {
        let outer = |stmt: StmtId| {
            let block = self.of_stmt(stmt)?.block;
            Some((block, *self.parents.get(&block)?))
        };
        std::iter::successors(outer(stmt), move |it| outer(it.1))
    }
}
