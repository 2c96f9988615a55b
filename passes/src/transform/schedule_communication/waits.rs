//! Moves Waits down.

use grammar::{BlockId, Op, OpClass, Program, StmtId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Analyses, EffectKey, takes_stream_time};
use crate::analysis::{memory_effects::StmtEffects, wait_order::awaited_work};

/// A Wait of a block.
struct BlockWait {
    /// The number of other statements before it.
    position: usize,
    stmt: StmtId,
    /// The number of the communication.
    number: u32,
    /// The first statement that has to stay behind it for the sake of other work.
    limit: Option<StmtId>,
}

/// Moves the Waits of a block down whose numbers `wanted` accepts. Returns whether the block changed.
///
/// Each statement is analyzed once, and the statements that may stop a Wait are indexed by key. The position
/// of a Wait is the number of non-Wait statements before it. Waits with the same position keep their order.
pub(super) fn sink_in_block(
    program: &mut Program,
    analyses: &Analyses,
    block: BlockId,
    wanted: &dyn Fn(u32) -> bool,
) -> bool {
    let storage = &analyses.storage;
    let stmts = program.block(block);
    if !stmts.iter().any(|stmt| awaited_work(program, *stmt).is_some_and(wanted)) {
        return false;
    }
    let limits = analyses.order.limits(program, storage, block);
    let (mut others, mut waits): (Vec<StmtId>, Vec<BlockWait>) = (Vec::new(), Vec::new());
    // For each key, the positions of the statements with this key, in ascending order.
    let mut stops: FxHashMap<EffectKey, Vec<usize>> = FxHashMap::default();
    let mut positions: FxHashMap<StmtId, usize> = FxHashMap::default();
    // The positions behind the statements that take time, during which a communication may go on.
    let mut behind_busy: Vec<usize> = Vec::new();
    for (at, stmt) in stmts.iter().enumerate() {
        match awaited_work(program, *stmt) {
            Some(number) => {
                let limit = limits.get(&at).map(|it| stmts[*it]);
                waits.push(BlockWait { position: others.len(), stmt: *stmt, number, limit });
            }
            None => {
                let effects = storage.effects(program, *stmt);
                for key in analyses.keys(&effects) {
                    stops.entry(key).or_default().push(others.len());
                }
                positions.insert(*stmt, others.len());
                others.push(*stmt);
                behind_busy.extend(is_busy(program, *stmt, &effects).then_some(others.len()));
            }
        }
    }
    let outside_groups = positions_outside_groups(program, &others);
    // Move the last Wait first, so that an earlier Wait can move past the position it left. `behind` holds
    // the first position of the Waits after it, by key.
    let mut behind: FxHashMap<EffectKey, usize> = FxHashMap::default();
    for wait in waits.iter_mut().rev() {
        let position = wait.position;
        if wanted(wait.number) {
            let first = |key: &EffectKey| {
                let other = stops.get(key).and_then(|it| it.get(it.partition_point(|at| *at < position)));
                other.into_iter().chain(behind.get(key)).min().copied()
            };
            let limit = wait.limit.and_then(|it| positions.get(&it).copied());
            let keys = blocking_keys(analyses, wait.number);
            let lowest = keys.iter().filter_map(first).chain(limit).min().unwrap_or(others.len());
            let busy = behind_busy[..behind_busy.partition_point(|it| *it <= lowest)].last();
            wait.position = busy.map_or(position, |it| outside_groups[*it].max(position));
        }
        let position = wait.position;
        for key in analyses.keys(&storage.effects(program, wait.stmt)) {
            behind.entry(key).and_modify(|first| *first = (*first).min(position)).or_insert(position);
        }
    }
    waits.sort_by_key(|it| it.position);
    let mut waits = waits.into_iter().peekable();
    let mut sunk = Vec::with_capacity(stmts.len());
    for (at, stmt) in others.iter().map(Some).chain([None]).enumerate() {
        while let Some(wait) = waits.next_if(|it| it.position == at) {
            sunk.push(wait.stmt);
        }
        sunk.extend(stmt);
    }
    let changed = sunk != stmts;
    program.blocks[block] = sunk;
    changed
}

/// Returns whether a communication may go on while the statement runs.
fn is_busy(program: &Program, stmt: StmtId, effects: &StmtEffects) -> bool {
    effects.communicates || takes_stream_time(program, stmt)
}

/// Returns, for each position between statements, the position itself, or, inside a coalesced group, that before
/// the group: a group contains only transfers.
fn positions_outside_groups(program: &Program, stmts: &[StmtId]) -> Vec<usize> {
    let mut start = None;
    let mut positions = Vec::with_capacity(stmts.len() + 1);
    for (at, stmt) in stmts.iter().enumerate() {
        positions.push(start.unwrap_or(at));
        match group_bound(program, *stmt) {
            Some(Op::StartCoalescing) => _ = start.get_or_insert(at),
            Some(_) => start = None,
            None => (),
        }
    }
    positions.push(start.unwrap_or(stmts.len()));
    positions
}

/// Returns the operator of a statement that begins or ends a coalesced group.
fn group_bound(program: &Program, stmt: StmtId) -> Option<Op> {
    program.stmts[stmt].op().map(|it| it.op).filter(|it| it.def().class == OpClass::Coalescing)
}

/// Returns the keys of the statements that stop a Wait for `number`.
fn blocking_keys(analyses: &Analyses, number: u32) -> FxHashSet<EffectKey> {
    let work = analyses.storage.work_accesses(number);
    let used = work.reads.union(&work.writes);
    let mut keys: FxHashSet<EffectKey> =
        [EffectKey::Streams, EffectKey::Posts(number), EffectKey::Waits(number)].into_iter().collect();
    keys.extend(used.flat_map(|it| [EffectKey::Writes(*it), EffectKey::Drops(*it), EffectKey::Shares(*it)]));
    keys.extend(work.writes.iter().map(|it| EffectKey::Reads(*it)));
    keys
}

/// Returns the index of the last statement after `at` that takes time and that a Wait for `number` can move past, or `at`
/// if there is none.
pub(super) fn lowest_position(
    program: &Program,
    analyses: &Analyses,
    block: BlockId,
    at: usize,
    number: u32,
    also_stops: &dyn Fn(&StmtEffects) -> bool,
) -> usize {
    let limit = analyses.order.limit_at(program, &analyses.storage, block, at, number);
    let blocking = blocking_keys(analyses, number);
    let mut to = at;
    let mut is_in_group = false;
    for (next, stmt) in program.block(block).iter().enumerate().skip(at + 1) {
        let effects = analyses.storage.effects(program, *stmt);
        let blocks = analyses.keys(&effects).iter().any(|key| blocking.contains(key));
        if limit == Some(next) || blocks || also_stops(&effects) {
            break;
        }
        is_in_group = group_bound(program, *stmt).map_or(is_in_group, |it| it == Op::StartCoalescing);
        // Adjacent Waits keep their order, and a coalesced group contains only transfers.
        if awaited_work(program, *stmt).is_none() && !is_in_group && is_busy(program, *stmt, &effects) {
            to = next;
        }
    }
    to
}
