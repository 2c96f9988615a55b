//! sink-waits: waits for communications as late as possible.
//!
//! Before:
//! ```text
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! Wait(Communication 4)
//! T5 = linear(T6, T7)
//! T8 = Set( T3 )
//! ```
//! After:
//! ```text
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! T5 = linear(T6, T7)
//! Wait(Communication 4)
//! T8 = Set( T3 )
//! ```
//!
//! A Wait moves down in its block to before the first statement that writes what the communication uses,
//! reads what it writes, deallocates either or shares its handle, posts or waits for the same number, or
//! operates on streams, so that the same stream waits. Waits that move to the same position keep their order.
//!
//! A Wait also orders later statements after work that precedes the communication on its communicator or stream. So
//! it stays before a statement that conflicts with another communication for which nothing waits in between, and, if
//! several streams communicate, before a statement that conflicts with the work of another stream.

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, Program, Stmt, StmtId, TensorId},
    ops::{Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        blocks::nested_blocks,
        memory_effects::{MemoryEffects, StmtEffects},
        wait_order::{WaitOrder, awaited_work},
    },
    pass::{Arguments, Change, Pass, Remarks, module_docs},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "sink-waits",
    description: "wait for communications as late as possible",
    docs: module_docs(include_str!("sink_waits.rs")),
    options: &[],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let storage = MemoryEffects::of(program);
    let order = WaitOrder::of(program, &storage);
    let mut changed = false;
    for block in nested_blocks(program, body) {
        changed |= sink_block_waits(program, &storage, &order, block, &|_| true);
    }
    Ok(Change::from_flag(changed))
}

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
pub(crate) fn sink_block_waits(
    program: &mut Program,
    storage: &MemoryEffects,
    order: &WaitOrder,
    block: BlockId,
    wanted: &dyn Fn(u32) -> bool,
) -> bool {
    let stmts = program.block(block);
    if !stmts.iter().any(|stmt| awaited_work(program, *stmt).is_some_and(wanted)) {
        return false;
    }
    let limits = order.limits(program, storage, block);
    let (mut others, mut waits): (Vec<StmtId>, Vec<BlockWait>) = (Vec::new(), Vec::new());
    // For each key, the positions of the statements with this key, in ascending order.
    let mut stops: FxHashMap<EffectKey, Vec<usize>> = FxHashMap::default();
    let mut positions: FxHashMap<StmtId, usize> = FxHashMap::default();
    for (at, stmt) in stmts.iter().enumerate() {
        match awaited_work(program, *stmt) {
            Some(number) => {
                let limit = limits.get(&at).map(|it| stmts[*it]);
                waits.push(BlockWait { position: others.len(), stmt: *stmt, number, limit });
            }
            None => {
                for key in keys(storage, &storage.effects(program, *stmt)) {
                    stops.entry(key).or_default().push(others.len());
                }
                positions.insert(*stmt, others.len());
                others.push(*stmt);
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
            let keys = blocking_keys(storage, wait.number);
            let lowest = keys.iter().filter_map(first).chain(limit).min().unwrap_or(others.len());
            wait.position = outside_groups[lowest].max(position);
        }
        let position = wait.position;
        for key in keys(storage, &storage.effects(program, wait.stmt)) {
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
    match &program.stmts[stmt] {
        Stmt::Op(it) if it.op.def().class == OpClass::Coalescing => Some(it.op),
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    }
}

/// An effect of a statement that may stop a Wait from moving past it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum EffectKey {
    Streams,
    Number(u32),
    Reads(TensorId),
    Writes(TensorId),
    Drops(TensorId),
    Shares(TensorId),
}

/// Returns the keys of a statement. `blocks_sinking` is the same test for a single Wait.
fn keys(storage: &MemoryEffects, effects: &StmtEffects) -> FxHashSet<EffectKey> {
    let mut keys = FxHashSet::default();
    keys.extend(effects.uses_streams.then_some(EffectKey::Streams));
    keys.extend(effects.posts.iter().chain(&effects.waits).map(|it| EffectKey::Number(*it)));
    keys.extend(effects.accesses.reads.iter().map(|it| EffectKey::Reads(*it)));
    keys.extend(effects.accesses.writes.iter().map(|it| EffectKey::Writes(*it)));
    keys.extend(effects.deallocates.iter().map(|it| EffectKey::Drops(storage.alias_class(*it))));
    if effects.may_block_host {
        keys.extend(effects.names.iter().map(|it| EffectKey::Shares(storage.alias_class(*it))));
    }
    keys
}

/// Returns the keys of the statements that stop a Wait for `number`.
fn blocking_keys(storage: &MemoryEffects, number: u32) -> Vec<EffectKey> {
    let work = storage.work_accesses(number);
    let used = work.reads.union(&work.writes);
    let mut keys = vec![EffectKey::Streams, EffectKey::Number(number)];
    keys.extend(used.flat_map(|it| [EffectKey::Writes(*it), EffectKey::Drops(*it), EffectKey::Shares(*it)]));
    keys.extend(work.writes.iter().map(|it| EffectKey::Reads(*it)));
    keys
}

/// Returns the index of the last statement after `at` that a Wait for `number` can move past, or `at` if
/// there is none.
pub(crate) fn lowest_position(
    program: &Program,
    (storage, order): (&MemoryEffects, &WaitOrder),
    block: BlockId,
    at: usize,
    number: u32,
    also_stops: &dyn Fn(&StmtEffects) -> bool,
) -> usize {
    let limit = order.limit_at(program, storage, block, at, number);
    let mut to = at;
    let mut is_in_group = false;
    for (next, stmt) in program.block(block).iter().enumerate().skip(at + 1) {
        let effects = storage.effects(program, *stmt);
        if limit == Some(next) || blocks_sinking(storage, &effects, number) || also_stops(&effects) {
            break;
        }
        is_in_group = group_bound(program, *stmt).map_or(is_in_group, |it| it == Op::StartCoalescing);
        // Adjacent Waits keep their order, and a coalesced group contains only transfers.
        if awaited_work(program, *stmt).is_none() && !is_in_group {
            to = next;
        }
    }
    to
}

/// Returns whether a Wait for `number` has to stay before a statement.
fn blocks_sinking(storage: &MemoryEffects, effects: &StmtEffects, number: u32) -> bool {
    let work = storage.work_accesses(number);
    let used = |tensor: &_| work.uses(storage.alias_class(*tensor));
    effects.uses_streams
        || effects.posts.contains(&number)
        || effects.waits.contains(&number)
        || effects.deallocates.iter().any(used)
        || effects.may_block_host && effects.names.iter().any(used)
        || effects.accesses.conflicts_with(&work)
}
