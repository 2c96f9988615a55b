//! The blocks and statements inside a statement.

use grammar::ir::{BlockId, Program, Stmt, StmtId};

/// The blocks directly inside a statement.
pub(crate) fn inner_blocks(program: &Program, stmt: StmtId) -> [Option<BlockId>; 2] {
    match &program.stmts[stmt] {
        Stmt::Op(_) | Stmt::Let(..) => [None, None],
        Stmt::For(it) => [Some(it.body), None],
        Stmt::If(it) => [Some(it.then_block), it.else_block],
    }
}

/// A block and all blocks inside, innermost first.
pub(crate) fn nested_blocks(program: &Program, block: BlockId) -> Vec<BlockId> {
    let mut found = vec![block];
    program.walk(block, &mut |stmt| found.extend(inner_blocks(program, stmt).into_iter().flatten()));
    found.reverse();
    found
}

/// Visits a statement and all that are inside it, in program order.
pub(crate) fn walk(program: &Program, stmt: StmtId, visit: &mut dyn FnMut(StmtId)) {
    visit(stmt);
    inner_blocks(program, stmt).into_iter().flatten().for_each(|block| program.walk(block, visit));
}

/// Whether `is` holds for a statement or one inside it.
pub(crate) fn any_stmt(program: &Program, stmt: StmtId, is: &dyn Fn(StmtId) -> bool) -> bool {
    let mut found = false;
    walk(program, stmt, &mut |stmt| found |= is(stmt));
    found
}
