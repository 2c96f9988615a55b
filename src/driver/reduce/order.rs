//! Checks that a smaller program preserves the order of the remaining operations.
//!
//! Removing a wait can create a race that the original program does not have. The reduction of a race must
//! not find such a race instead. A statement that orders two operations may therefore only be removed if one
//! of the two is removed too.
//!
//! The order is the guaranteed one within one rank (`plan::sync::happens_before::walk_rank`): of streams, of events between streams,
//! of communicator queues and of waits for communications.

use grammar::StmtId;
use rustc_hash::FxHashMap;

use hir_plan::{
    InstKind, Plan, SyncEffect, World,
    sync::happens_before::{Occurrence, OrderError, walk_rank},
};

/// Programs with more instructions per rank are not compared. Shrinking their numbers comes first.
const MAX_INSTRUCTIONS: usize = 4000;

/// Identifies an instruction across edits: its statement, its iteration, and its index among the instructions
/// of that statement and iteration.
type InstKey = (Option<StmtId>, String, usize);

/// Returns true if every pair of instructions that was ordered on a rank is still ordered, as far as both
/// instructions still exist.
pub(super) fn preserves_order(old: &World, new: &World) -> bool {
    (0..old.len().min(new.len())).all(|rank| {
        if old[rank].code.len() > MAX_INSTRUCTIONS {
            return true;
        }
        // The instructions of both plans have the same numbers in both.
        let (places, kept) = (positions(&old[rank]), positions(&new[rank]));
        let both: Vec<(usize, usize)> =
            places.iter().filter_map(|(key, at)| Some((*at, *kept.get(key)?))).collect();
        let numbers = |at: fn(&(usize, usize)) -> usize| {
            both.iter().zip(0..).map(|(it, number)| (at(it), number)).collect::<FxHashMap<usize, usize>>()
        };
        let old = occurrences((old, rank), &numbers(|it| it.0));
        let new = occurrences((new, rank), &numbers(|it| it.1));
        // Too many streams to compare.
        let (Ok(old), Ok(new)) = (old, new) else { return true };
        preserves_order_of_rank(&old, &new)
    })
}

/// Returns true if each pair that is ordered in `old` is ordered in `new`. Both have the instructions with the same numbers.
fn preserves_order_of_rank(old: &FxHashMap<usize, Occurrence>, new: &FxHashMap<usize, Occurrence>) -> bool {
    // By actor: its instructions, in order.
    let mut actors: FxHashMap<u32, Vec<(u32, usize)>> = FxHashMap::default();
    old.iter().for_each(|(number, it)| actors.entry(it.actor).or_default().push((it.number, *number)));
    actors.values_mut().for_each(|it| it.sort_unstable());
    let is_before = |first: usize, second: &Occurrence| {
        new.get(&first).is_some_and(|first| second.clock.ended(first.actor) >= first.number)
    };
    // Of the instructions of an actor that are before another one, the last one is enough: each follows the one before it.
    old.iter().all(|(number, it)| {
        let Some(second) = new.get(number) else { return false };
        actors.iter().all(|(actor, own)| {
            let last = own.partition_point(|before| before.0 <= it.clock.ended(*actor)).checked_sub(1);
            last.is_none_or(|last| is_before(own[last].1, second))
        })
    })
}

/// Returns the instructions of a plan that access memory or signal other ranks.
fn positions(plan: &Plan) -> FxHashMap<InstKey, usize> {
    let mut counts: FxHashMap<(Option<StmtId>, String), usize> = FxHashMap::default();
    let mut positions = FxHashMap::default();
    for (at, inst) in plan.code.iter().enumerate() {
        let is_work = match inst.kind.effect() {
            hir_plan::host_effects!()
            | SyncEffect::RecordEvent(_)
            | SyncEffect::WaitEvent(_)
            | SyncEffect::Wait(_) => false,
            SyncEffect::Compute => !matches!(inst.kind, InstKind::Alloc { .. }),
            SyncEffect::Post(_)
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::Reshard(_)
            | SyncEffect::ReadOutputs => true,
        };
        if is_work {
            let place = (plan.origins[inst.origin as usize].stmt, plan.iteration(inst));
            let count = counts.entry(place.clone()).or_default();
            positions.insert((place.0, place.1, *count), at);
            *count += 1;
        }
    }
    positions
}

/// Returns the executions of the numbered instructions of a rank, by number, with the instructions of the rank that complete before
/// each starts.
fn occurrences(
    (world, rank): (&World, usize),
    numbers: &FxHashMap<usize, usize>,
) -> Result<FxHashMap<usize, Occurrence>, OrderError> {
    let mut found = FxHashMap::default();
    walk_rank(world, rank, &mut |it| {
        if let Some(number) = numbers.get(&it.inst) {
            found.insert(*number, it);
        }
    })?;
    Ok(found)
}
