//! Computes the path of nested blocks to each statement of a container.

use grammar::{BlockId, Program, Stmt, StmtId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

/// The blocks around a statement, outermost first, each with the index of the statement that leads to it.
pub type StmtPath = Vec<(BlockId, usize)>;

/// The paths of all statements of a container.
#[derive(Default)]
pub struct StmtPaths {
    /// The path of each statement.
    pub paths: FxHashMap<StmtId, StmtPath>,
    /// Statements of the container, in program order.
    pub order: Vec<StmtId>,
    /// The index of each statement in `order`.
    positions: FxHashMap<StmtId, usize>,
    /// Blocks that are loop bodies.
    loops: FxHashSet<BlockId>,
    /// Statements that mention a name.
    pub uses: FxHashMap<TensorId, Vec<StmtId>>,
}

impl StmtPaths {
    /// Collects the statements of a block and of those nested in it.
    pub fn of(program: &Program, body: BlockId) -> Self {
        let mut places = Self::default();
        places.block(program, body, &mut Vec::new());
        places
    }

    fn block(&mut self, program: &Program, block: BlockId, path: &mut StmtPath) {
        for (at, stmt) in program.block(block).iter().enumerate() {
            path.push((block, at));
            self.paths.insert(*stmt, path.clone());
            self.positions.insert(*stmt, self.order.len());
            self.order.push(*stmt);
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    for (tensor, _) in it.tensor_uses(program) {
                        let uses = self.uses.entry(tensor).or_default();
                        if uses.last() != Some(stmt) {
                            uses.push(*stmt);
                        }
                    }
                }
                Stmt::Let(..) => (),
                Stmt::For(it) => {
                    self.loops.insert(it.body);
                    self.block(program, it.body, path);
                }
                Stmt::If(it) => {
                    self.block(program, it.then_block, path);
                    it.else_block.iter().for_each(|other| self.block(program, *other, path));
                }
            }
            path.pop();
        }
    }

    /// Returns the index of a statement in `order`.
    pub fn position(&self, stmt: StmtId) -> Option<usize> {
        self.positions.get(&stmt).copied()
    }

    /// Returns the depth, in the paths, of the innermost block that contains all these statements.
    pub fn common_depth(&self, stmts: &[StmtId]) -> usize {
        let Some(first) = stmts.first().and_then(|it| self.paths.get(it)) else { return 0 };
        let mut depth = first.len();
        for path in stmts.iter().filter_map(|it| self.paths.get(it)) {
            depth = first.iter().zip(path).take(depth).take_while(|(a, b)| a.0 == b.0).count();
        }
        depth.saturating_sub(1)
    }

    /// Returns the depth of the innermost loop body that contains the block at `depth`, or is that block.
    pub fn enclosing_loop_depth(&self, stmt: StmtId, depth: usize) -> Option<usize> {
        let path = self.paths.get(&stmt)?;
        (0..=depth).rev().find(|at| path.get(*at).is_some_and(|(block, _)| self.loops.contains(block)))
    }

    /// Returns the block around a statement at this depth, 0 being the outermost one.
    pub fn block_at(&self, stmt: StmtId, depth: usize) -> Option<BlockId> {
        self.paths.get(&stmt)?.get(depth).map(|(block, _)| *block)
    }

    /// Returns the smallest and the largest index, in the block at `depth`, of the statements that lead to
    /// `stmts`.
    pub fn index_range(&self, stmts: &[StmtId], depth: usize) -> Option<(usize, usize)> {
        let indices = || stmts.iter().filter_map(|it| Some(self.paths.get(it)?.get(depth)?.1));
        indices().min().zip(indices().max())
    }
}
