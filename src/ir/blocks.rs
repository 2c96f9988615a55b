//! Traverses the blocks and statements nested in a statement.

use grammar::{BlockId, For, Program, Stmt, StmtId};
use rustc_hash::FxHashSet;

/// Returns a block and all blocks nested in it, innermost first.
pub fn nested_blocks(program: &Program, block: BlockId) -> Vec<BlockId> {
    let mut found = vec![block];
    found.extend(program.stmts_in(block).flat_map(|it| program.inner_blocks(it)));
    found.reverse();
    found
}

/// Returns whether a loop certainly executes at least one iteration.
pub fn has_iterations(program: &Program, it: &For) -> bool {
    program.constant(it.start).zip(program.constant(it.stop)).is_some_and(|(start, stop)| start < stop)
}

/// Returns the statements in branches that not all ranks take. A pass that changes a communication among them would have to
/// change the matching ones of other branches in the same way.
pub fn stmts_in_divergent_branches(program: &Program) -> FxHashSet<StmtId> {
    let names_rank = |it| matches!(program.symbols[it].as_str(), "rank" | "deviceIdx.x");
    let diverges =
        |it: &StmtId| matches!(&program.stmts[*it], Stmt::If(it) if program.depends_on(it.cond, &names_rank));
    let blocks = program.stmts.ids().filter(diverges).flat_map(|it| program.inner_blocks(it));
    blocks.flat_map(|it| program.stmts_in(it)).collect()
}
