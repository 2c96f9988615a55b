//! Finds waits that the program does not need.
//!
//! For each wait, the plans are walked once more without it. If all work still follows the same earlier work,
//! other statements imply the wait. If some work does not, but the checker finds no race, no pair of accesses
//! depends on the wait. A wait that orders the end of the program, or work after the caller's work at entry,
//! is always needed: the caller may depend on it in the next run. So is one without which a transfer uses its semaphore too early.

use super::{
    Excess, ExcessKind, ExcessNotSearched,
    candidates::{WaitCandidate, wait_candidates},
    work_order::{OrderDifference, WorkOrder, is_work},
};
use crate::{
    execution_fault::PostedAgain,
    ordering_model::{AccessRules, OrderingModel},
    race::RaceDetector,
    semaphores::SemaphoreWatch,
};
use rustc_hash::FxHashSet;

use hir_plan::{
    InstKind, Plan, World,
    sync::{InstRef, happens_before},
};

/// The maximum number of instructions that are walked, summed over all candidates.
const MAX_INSTRUCTIONS: usize = 2_000_000;
/// The maximum number of clock entries that are compared, summed over all candidates.
const MAX_COMPARISONS: usize = 1 << 28;

/// Returns the waits that the program does not need, and the search that was cut short, if any. The plans
/// have no race.
pub fn unneeded_waits(world: &World, rules: AccessRules) -> (Vec<Excess>, Option<ExcessNotSearched>) {
    let mut candidates = wait_candidates(world);
    let all = candidates.len();
    let instructions: usize = world.iter().map(|it| it.code.len()).sum();
    candidates.truncate(MAX_INSTRUCTIONS / instructions.max(1));
    let mut found = Vec::new();
    let order = if candidates.is_empty() { None } else { WorkOrder::of(world) };
    candidates.truncate(order.as_ref().map_or(0, |it| MAX_COMPARISONS / it.comparison_count().max(1)));
    if let Some(order) = &order
        && let Some(transfers) = Transfers::of(world, rules)
    {
        found.extend(candidates.iter().filter_map(|it| check_wait(world, rules, (order, &transfers), it)));
    }
    let left = all - candidates.len();
    (found, (left > 0).then_some(ExcessNotSearched::Waits { left, all }))
}

/// The transfers that use a semaphore too early with all waits.
struct Transfers<'p> {
    known: FxHashSet<PostedAgain>,
    /// The state before the first instruction; `None` if hir-run executes the program, which counts transfers.
    watch: Option<SemaphoreWatch<'p>>,
}

impl<'p> Transfers<'p> {
    /// Returns `None` if no order of all instructions is found.
    fn of(world: &'p World, rules: AccessRules) -> Option<Self> {
        let watch = (rules.model == OrderingModel::Nccl).then(|| SemaphoreWatch::new(world));
        let mut known = FxHashSet::default();
        if let Some(mut all) = watch.clone().filter(|it| !it.is_idle()) {
            happens_before::walk(world, &mut |at| all.visit(&at)).ok()?;
            known.extend(all.found);
        }
        Some(Self { known, watch })
    }
}

/// Returns the finding if the program does not need the wait `it`.
fn check_wait(
    world: &World,
    rules: AccessRules,
    (order, transfers): (&WorkOrder, &Transfers<'_>),
    it: &WaitCandidate,
) -> Option<Excess> {
    let mut watch = transfers.watch.clone();
    let mut races = RaceDetector::new(world, rules);
    let mut pair = None;
    let mut is_needed = false;
    let walked = happens_before::walk_ignoring(world, &|at| it.insts.contains(&at), &mut |at| {
        if is_needed {
            return;
        }
        races.visit(&at);
        is_needed = !races.found.is_empty() || races.not_compared > 0;
        if let Some(watch) = &mut watch {
            watch.visit(&at);
            // A visit finds at most one.
            is_needed |= watch.found.last().is_some_and(|it| !transfers.known.contains(it));
        }
        let kind = &world[at.rank].code[at.inst].kind;
        if is_needed || !is_work(kind) {
            return;
        }
        match order.difference(&at) {
            OrderDifference::Unchanged => (),
            OrderDifference::LostCallerOrder => is_needed = true,
            OrderDifference::LostOrder(_) if matches!(kind, InstKind::ReadOutputs) => is_needed = true,
            OrderDifference::LostOrder(earlier) => {
                pair.get_or_insert([earlier, InstRef { rank: at.rank, inst: at.inst }]);
            }
        }
    });
    if walked.is_err() || is_needed {
        return None;
    }
    let kind = pair.map_or(ExcessKind::ImpliedWait, |pair| ExcessKind::UnneededWait { pair });
    let origin = world[it.first.rank].code[it.first.inst].origin;
    Some(Excess {
        stmt: (it.first.rank, origin),
        kind,
        ranks: it.insts.iter().map(|it| it.rank).collect(),
        count: instance_count(world, it),
    })
}

/// Returns the number of executions of a statement on all ranks.
fn instance_count(plans: &[Plan], it: &WaitCandidate) -> usize {
    let mut all: Vec<(usize, u32)> =
        it.insts.iter().map(|at| (at.rank, plans[at.rank].code[at.inst].origin)).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}
