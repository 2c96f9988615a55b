//! Traverses the blocks and statements nested in a statement.

use grammar::ir::{BlockId, For, Program, Stmt, StmtId};
use rustc_hash::FxHashSet;

/// Returns the blocks directly inside a statement.
pub fn inner_blocks(program: &Program, stmt: StmtId) -> [Option<BlockId>; 2] {
    match &program.stmts[stmt] {
        Stmt::Op(_) | Stmt::Let(..) => [None, None],
        Stmt::For(it) => [Some(it.body), None],
        Stmt::If(it) => [Some(it.then_block), it.else_block],
    }
}

/// Returns a block and all blocks nested in it, innermost first.
pub fn nested_blocks(program: &Program, block: BlockId) -> Vec<BlockId> {
    let mut found = vec![block];
    program.walk(block, &mut |stmt| found.extend(inner_blocks(program, stmt).into_iter().flatten()));
    found.reverse();
    found
}

/// Returns whether a loop certainly executes at least one iteration.
pub fn has_iterations(program: &Program, it: &For) -> bool {
    program.constant(it.start).zip(program.constant(it.stop)).is_some_and(|(start, stop)| start < stop)
}

/// Returns true if `is` holds for the statement or for one nested in it.
pub fn any_stmt(program: &Program, stmt: StmtId, is: &dyn Fn(StmtId) -> bool) -> bool {
    let mut found = false;
    program.walk_stmt(stmt, &mut |stmt| found |= is(stmt));
    found
}

/// Returns the statements in branches that not all ranks take. A pass that changes a communication among them would have to
/// change the matching ones of other branches in the same way.
pub fn stmts_in_divergent_branches(program: &Program) -> FxHashSet<StmtId> {
    let mut found = FxHashSet::default();
    for (_, stmt) in program.stmts.iter() {
        let Stmt::If(it) = stmt else { continue };
        let names_rank = |it| matches!(program.symbols[it].as_str(), "rank" | "deviceIdx.x");
        if program.depends_on(it.cond, &names_rank) {
            for block in [Some(it.then_block), it.else_block].into_iter().flatten() {
                program.walk(block, &mut |stmt| {
                    found.insert(stmt);
                });
            }
        }
    }
    found
}
