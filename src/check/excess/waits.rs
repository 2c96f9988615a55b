//! Finds waits that the program does not need.
//!
//! For each wait, the plans are walked once more without it. If all work still follows the same earlier work,
//! other statements imply the wait: that is looked at first, since it needs no search for races. If some work does
//! not, but the checker finds no race, no pair of accesses depends on the wait. A wait that orders the end of the program, or work after the caller's work at entry,
//! is always needed: the caller may depend on it in the next run. So is one without which a transfer uses its semaphore too early.

use std::ops::ControlFlow;

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
    stream_ordered_frees::StreamOrderedFrees,
};
use rustc_hash::FxHashSet;

use hir_plan::{
    InstKind, Plan, World,
    sync::{
        InstRef,
        happens_before::{self, Occurrence},
    },
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
    let search = if candidates.is_empty() { None } else { Search::new(world, rules) };
    candidates.truncate(search.as_ref().map_or(0, |it| MAX_COMPARISONS / it.order.comparison_count().max(1)));
    if let Some(search) = &search {
        found.extend(candidates.iter().filter_map(|it| search.check_wait(it)));
    }
    let left = all - candidates.len();
    (found, (left > 0).then_some(ExcessNotSearched::Waits { left, all }))
}

/// The program with all waits.
struct Search<'p> {
    world: &'p World,
    rules: AccessRules,
    transfers: Transfers<'p>,
    order: WorkOrder,
    /// Whether the order of work and allocations alone decides which accesses race: not if frees are work of streams.
    order_decides: bool,
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

    /// Visits an instruction, and returns whether a transfer uses its semaphore too early there that does not with all waits.
    fn is_posted_again(&self, watch: &mut Option<SemaphoreWatch<'p>>, at: &Occurrence) -> bool {
        watch.as_mut().is_some_and(|watch| {
            watch.visit(at);
            // A visit finds at most one.
            watch.found.last().is_some_and(|it| !self.known.contains(it))
        })
    }
}

impl<'p> Search<'p> {
    /// Returns `None` if the program is too large, or no order of all instructions is found.
    fn new(world: &'p World, rules: AccessRules) -> Option<Self> {
        let (order, transfers) = (WorkOrder::of(world)?, Transfers::of(world, rules)?);
        let order_decides = StreamOrderedFrees::new(world, rules).is_none();
        Some(Self { world, rules, transfers, order, order_decides })
    }

    /// Returns the finding if the program does not need the wait `it`.
    fn check_wait(&self, it: &WaitCandidate) -> Option<Excess> {
        let kind = match self.kind_by_order(it) {
            ControlFlow::Break(known) => known?,
            ControlFlow::Continue(()) => self.kind_by_races(it)?,
        };
        let origin = self.world[it.first.rank].code[it.first.inst].origin;
        Some(Excess {
            stmt: (it.first.rank, origin),
            kind,
            ranks: it.insts.iter().map(|it| it.rank).collect(),
            count: instance_count(self.world, it),
        })
    }

    /// Breaks with what a wait is, as `kind_by_races` would, if the first work whose order changes without it tells that. If all work and
    /// allocations keep their order, no access races.
    fn kind_by_order(&self, it: &WaitCandidate) -> ControlFlow<Option<ExcessKind>> {
        if !self.order_decides {
            return ControlFlow::Continue(());
        }
        let mut watch = self.transfers.watch.clone();
        let mut is_needed = false;
        let is_implied = self.ends_without(it, &mut |at| {
            if self.transfers.is_posted_again(&mut watch, &at) {
                is_needed = true;
            } else if self.order.is_unchanged(&at) {
                return ControlFlow::Continue(());
            } else {
                is_needed = self.is_of_caller(&at, &self.order.difference(&at));
            }
            ControlFlow::Break(())
        });
        match (is_implied, is_needed) {
            (true, _) => ControlFlow::Break(Some(ExcessKind::ImpliedWait)),
            (false, true) => ControlFlow::Break(None),
            (false, false) => ControlFlow::Continue(()),
        }
    }

    /// Returns whether the caller depends on an order that work loses.
    fn is_of_caller(&self, at: &Occurrence, lost: &OrderDifference) -> bool {
        let kind = &self.world[at.rank].code[at.inst].kind;
        match lost {
            OrderDifference::Unchanged => false,
            OrderDifference::LostCallerOrder => is_work(kind),
            OrderDifference::LostOrder(_) => matches!(kind, InstKind::ReadOutputs),
        }
    }

    /// Walks over all instructions without a wait. Returns whether the walk ends without a break.
    fn ends_without(&self, it: &WaitCandidate, visit: &mut dyn FnMut(Occurrence) -> ControlFlow<()>) -> bool {
        let walked = happens_before::walk_ignoring(self.world, &|at| it.insts.contains(&at), visit);
        walked == Ok(ControlFlow::Continue(()))
    }

    /// Returns what a wait is if the program does not need it, by the races without it. The walk breaks where it turns out to be needed.
    fn kind_by_races(&self, it: &WaitCandidate) -> Option<ExcessKind> {
        let mut watch = self.transfers.watch.clone();
        let mut races = RaceDetector::new(self.world, self.rules);
        let mut pair = None;
        let is_unneeded = self.ends_without(it, &mut |at| {
            races.visit(&at);
            let is_race = !races.found.is_empty() || races.not_compared > 0;
            if is_race || self.transfers.is_posted_again(&mut watch, &at) {
                return ControlFlow::Break(());
            }
            if !is_work(&self.world[at.rank].code[at.inst].kind) {
                return ControlFlow::Continue(());
            }
            let lost = self.order.difference(&at);
            if self.is_of_caller(&at, &lost) {
                return ControlFlow::Break(());
            }
            if let OrderDifference::LostOrder(earlier) = lost {
                pair.get_or_insert([earlier, InstRef { rank: at.rank, inst: at.inst }]);
            }
            ControlFlow::Continue(())
        });
        races.finish();
        let is_unneeded = is_unneeded && races.found.is_empty();
        is_unneeded.then(|| pair.map_or(ExcessKind::ImpliedWait, |pair| ExcessKind::UnneededWait { pair }))
    }
}

/// Returns the number of executions of a statement on all ranks.
fn instance_count(plans: &[Plan], it: &WaitCandidate) -> usize {
    let mut all: Vec<(usize, u32)> =
        it.insts.iter().map(|at| (at.rank, plans[at.rank].code[at.inst].origin)).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}
