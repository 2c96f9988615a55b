//! Removes loops and branches without statements.

use grammar::{BlockId, Program, Stmt, StmtId, SymbolId};
use hir_ir::{
    blocks::nested_blocks,
    edit::{StmtEdit, rewrite},
};
use rustc_hash::FxHashSet;

use crate::analysis::numbering::MentionOrder;

/// Removes loops, branches and ELSE blocks that contain no statements. A loop stays if a statement outside it names
/// its index, which would have no definition. Returns true if anything changed.
pub fn remove_empty_blocks(program: &mut Program, block: BlockId) -> bool {
    remove_empty_blocks_in(program, &[block])
}

/// Removes the loops, branches and ELSE blocks inside several blocks as `remove_empty_blocks` does.
pub fn remove_empty_blocks_in(program: &mut Program, blocks: &[BlockId]) -> bool {
    let is_empty = |block: &BlockId| program.blocks[*block].is_empty();
    if !blocks.iter().any(|block| nested_blocks(program, *block).iter().any(is_empty)) {
        return false;
    }
    let vanishes = |it: StmtId| matches!(program.stmts[it], Stmt::For(_)) && may_vanish(program, it);
    let loops_vanish = blocks.iter().flat_map(|it| program.stmts_in(*it)).any(vanishes);
    let used_outside = if loops_vanish { symbols_out_of_scope(program) } else { FxHashSet::default() };
    let mut edit = |program: &mut Program, stmt: StmtId| {
        let is_empty = |block: BlockId| program.blocks[block].is_empty();
        match &program.stmts[stmt] {
            Stmt::For(it) if is_empty(it.body) && !used_outside.contains(&it.index) => StmtEdit::Remove,
            Stmt::If(it) if is_empty(it.then_block) && it.else_block.is_none_or(is_empty) => StmtEdit::Remove,
            Stmt::If(it) if it.else_block.is_some_and(is_empty) => {
                if let Stmt::If(it) = &mut program.stmts[stmt] {
                    it.else_block = None;
                }
                StmtEdit::Changed
            }
            Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
        }
    };
    let mut changed = false;
    for block in blocks {
        changed |= rewrite(program, *block, &mut edit);
    }
    changed
}

/// Returns whether a statement contains nothing but loops and branches.
fn may_vanish(program: &Program, stmt: StmtId) -> bool {
    program.ops_at(stmt).next().is_none()
}

/// Returns the scalars that statements use where no statement before them gives them a value.
fn symbols_out_of_scope(program: &Program) -> FxHashSet<SymbolId> {
    let mut order = MentionOrder::new(program);
    program.body.iter().for_each(|body| order.block(*body));
    order.free
}
