//! Moves Waits for sends down, also out of branches.

use grammar::{BlockId, If, OpClass, P2pType, Program, Stmt, StmtId, attr};
use hir_ir::blocks::nested_blocks;
use rustc_hash::FxHashSet;

use super::{
    Analyses,
    waits::{lowest_position, sink_in_block},
};
use crate::analysis::{bindings::symbols_through, wait_order::awaited_work};

/// Moves the Waits for sends down. Returns whether the program changed.
pub(super) fn defer(
    program: &mut Program,
    analyses: &Analyses,
    body: BlockId,
    wanted: &dyn Fn(u32) -> bool,
) -> bool {
    let mut sends = send_only_works(program, body);
    sends.retain(|it| wanted(*it));
    let mut changed = false;
    for block in nested_blocks(program, body) {
        let mut at = 0;
        while at < program.blocks[block].len() {
            changed |= defer_branch(program, analyses, &sends, block, at);
            at += 1;
        }
        changed |= sink_in_block(program, analyses, block, &|number| sends.contains(&number));
    }
    changed
}

/// Returns the numbers under which only sends are posted.
fn send_only_works(program: &Program, body: BlockId) -> FxHashSet<u32> {
    let (mut sends, mut others) = (FxHashSet::default(), FxHashSet::default());
    for (_, it) in program.ops_in(body) {
        if matches!(it.op.def().class, OpClass::Communicate | OpClass::Coalescing) {
            let send = it.get(attr::P2P_TYPE) == Some(P2pType::Send);
            let set = if send { &mut sends } else { &mut others };
            set.extend(it.number);
        }
    }
    &sends - &others
}

/// Moves the Waits for sends out of the branch at index `at`.
fn defer_branch(
    program: &mut Program,
    analyses: &Analyses,
    sends: &FxHashSet<u32>,
    block: BlockId,
    at: usize,
) -> bool {
    let stmt = program.blocks[block][at];
    let Stmt::If(it) = program.stmts[stmt].clone() else { return false };
    let mut symbols = FxHashSet::default();
    symbols_through(program, it.cond, &mut symbols);
    let mut to = usize::MAX;
    let sides = [Some(it.then_block), it.else_block].map(|side| {
        let waits = side.map_or(Vec::new(), |side| trailing_send_waits(program, analyses, sends, side));
        waits
            .into_iter()
            .filter(|wait| {
                let Some(number) = awaited_work(program, *wait) else { return false };
                let lowest = lowest_position(program, analyses, block, at, number, &|effects| {
                    // After this statement, the predicate may select the other side.
                    !effects.assigns.is_disjoint(&symbols)
                });
                if lowest > at {
                    to = to.min(lowest);
                }
                lowest > at
            })
            .collect::<Vec<StmtId>>()
    });
    let [then, other] = sides;
    if then.is_empty() && other.is_empty() {
        return false;
    }
    let moved = |stmt: &StmtId| then.contains(stmt) || other.contains(stmt);
    for side in program.inner_blocks(stmt) {
        program.blocks[side].retain(|stmt| !moved(stmt));
    }
    let span = program.stmt_span(stmt);
    let other = (!other.is_empty()).then(|| program.blocks.push(other.clone()));
    let then = program.blocks.push(then.clone());
    let second = program.add_stmt(Stmt::If(If { then_block: then, else_block: other, ..it }), span);
    program.blocks[block].insert(to + 1, second);
    true
}

/// Returns the Waits for sends that can move to the end of a side of a branch, unless the side contains only
/// Waits.
fn trailing_send_waits(
    program: &Program,
    analyses: &Analyses,
    sends: &FxHashSet<u32>,
    side: BlockId,
) -> Vec<StmtId> {
    let stmts = program.block(side);
    if stmts.iter().all(|stmt| awaited_work(program, *stmt).is_some()) {
        return Vec::new();
    }
    let last = |at: usize, number: u32| {
        let to = lowest_position(program, analyses, side, at, number, &|_| false);
        stmts[to + 1..].iter().all(|stmt| awaited_work(program, *stmt).is_some_and(|it| it != number))
    };
    let found = stmts.iter().enumerate().filter(|(at, stmt)| {
        awaited_work(program, **stmt).is_some_and(|number| sends.contains(&number) && last(*at, number))
    });
    found.map(|(_, stmt)| *stmt).collect()
}
