//! Finds races between two consecutive runs with nothing between them, as when captured graphs are replayed. On each
//! rank, the next run begins on the entry stream once the exit stream has finished its work. Other ranks may be one
//! run behind.
//!
//! Two runs of one program use the same buffers, storage and inputs; signals are counted across runs. Runs of two
//! programs share inputs, outputs and symmetric memory of one name, streams and communicators.
//!
//! A run that is issued, and not replayed, gets its storage from the allocator, which has back what the run before has freed: on each stream, all
//! storage that was allocated on it, also that of outputs, which the caller lets go. So uses of all tensors of a pool by the one have to
//! happen before those by the other one (`SharedStorage::of_issued_runs`).
//!
//! # Any number of runs
//!
//! If no two consecutive runs race, no runs race. Let x of run i and y of run k conflict, with k > i + 1, and let y' be y
//! in run i + 1, which exists if the runs are of one program. x and y' conflict, since both runs use the same
//! memory, so x happens before y'. One actor executes y' and y, in this order: a stream, or the queue of a communicator.
//! So x happens before y. If the runs are of several programs, run j of another program lies between those of the program
//! of x and those of the program of y. The order of two consecutive runs of any two of the programs, in which x happens
//! before y, consists of orders inside the runs, of the order of streams and queues, and of that from the end of a run to the
//! beginning of the next one on each rank. A run between them adds to the first and the second, and the entry stream of the last one
//! follows the exit stream of the first one through it, since the exit stream of a run waits for its entry stream or is the same
//! one (`is_entered_before_exit`).
//!
//! This is about pairs of accesses. Kernels of several communicators may need more runs to wait for each other in a cycle: `kernels_of_runs`.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use super::{
    access_checks::{AccessChecks, Grouping, Trackers},
    conflict::{Party, Race, ReusedStorage},
    execution_fault::{ExecutionFault, PostedAgain},
    joined_runs::signal_count,
    not_compared::NotCompared,
    ordering_model::AccessRules,
    shared_buffers::join_buffers,
    storage::IssuedRuns,
    two_runs::{TwoRuns, renumbered_view},
};
use hir_plan::{
    BufferNo, InstKind, MappedView, Plan, ViewOnRank, World,
    sync::{
        InstRef, MemoryGroups,
        happens_before::{GroupOrders, OrderError},
    },
};

/// What is found between two runs, numbered as in a single run.
pub(super) struct BetweenRuns {
    /// The races, with the access of the first run first. Buffers are those of the first program, and one that gets storage in the second run
    /// is one of the second program.
    pub races: Vec<Race>,
    /// The number of pairs of views that are too large to compare.
    pub not_compared: usize,
    /// The transfers that may be posted again before they have ended.
    pub posted_again: Vec<ExecutionFault>,
}

/// Returns what two runs of a program do to each other. A single run must have no race, neither internal nor with
/// the caller.
///
/// # Errors
/// The world has too many streams, or two consecutive runs deadlock.
pub(super) fn races_between_runs(
    plans: &[Plan],
    rules: AccessRules,
    grouping: Grouping,
) -> Result<BetweenRuns, OrderError> {
    let signals = signal_count(plans);
    let twice = plans.iter().map(|it| TwoRuns::of_one(it, signals)).collect();
    compare_runs(twice, (rules, grouping), Some(plans))
}

/// As `races_between_runs`, for a run of each of two programs. Tensors with a name of `shared` have the same memory.
///
/// # Errors
/// The reason why they were not compared.
pub(super) fn races_between_programs(
    first: &[Plan],
    second: &[Plan],
    shared: &BTreeSet<String>,
    rules: AccessRules,
) -> Result<BetweenRuns, NotCompared> {
    let mut joined = first.to_vec();
    let numbers: Vec<_> = joined
        .iter_mut()
        .zip(second)
        .map(|(mine, it)| join_buffers(mine, it, shared))
        .collect::<Result<_, _>>()?;
    for (mine, it) in joined.iter_mut().zip(second) {
        mine.mapped_views.extend(it.mapped_views.iter().map(|it| renumbered_view(it, mine.rank, &numbers)));
    }
    let signals = signal_count(first);
    let each = joined.into_iter().zip(first).zip(second);
    let both =
        each.map(|((joined, first), second)| TwoRuns::of_two(joined, [first, second], signals, &numbers));
    let mut found = compare_runs(both.collect(), (rules, Grouping::Large), None)
        .map_err(|(OrderError::TooLarge | OrderError::Deadlock)| NotCompared::NoOrder)?;
    for race in &mut found.races {
        let number = |it: BufferNo| (0..).zip(&numbers[race.rank]).find(|known| *known.1 == it);
        if let Some(it) = &mut race.reused {
            it.later = it.later.and_then(number).map(|it| it.0);
        }
    }
    Ok(found)
}

/// `of_one` is the program if both runs are of one.
fn compare_runs(
    runs: Vec<TwoRuns>,
    (rules, grouping): (AccessRules, Grouping),
    of_one: Option<&[Plan]>,
) -> Result<BetweenRuns, OrderError> {
    let (mut both, mut from, mut issued) = (Vec::new(), Vec::new(), Vec::new());
    for it in runs {
        both.push(it.plan);
        from.push(it.from);
        issued.push(it.issued);
    }
    let both = World::new(both);
    if both.deadlocked_state().is_some() {
        return Err(OrderError::Deadlock);
    }
    let mut groups = grouping.groups(&both);
    let mut found = visit_runs(&both, rules, (of_one, &issued), &groups)?;
    // What the own orders of groups do not order, the whole order may.
    if !groups.is_whole() && !found.is_clean() {
        groups = MemoryGroups::whole(&both);
        found = visit_runs(&both, rules, (of_one, &issued), &groups)?;
    }
    let single = |party: Party| {
        let at = |at: InstRef| from[at.rank][at.inst].map(|(inst, second)| (InstRef { inst, ..at }, second));
        match party {
            Party::Inst(it) => at(it).map(|(it, second)| (Party::Inst(it), second)),
            Party::Operation(it, origin) => at(it).map(|(it, second)| (Party::Operation(it, origin), second)),
            Party::Free(..) | Party::CallerBefore | Party::CallerAfter(_) => None,
        }
    };
    let between = |race: Race| {
        let [(a, writes), (b, also)] = race.parties;
        let ((a, first), (b, second)) = single(a).zip(single(b))?;
        let between = Race { between_runs: true, ..race };
        if first == second {
            None
        } else if first {
            let swapped =
                |it: ReusedStorage| Some(ReusedStorage { earlier: it.later?, later: Some(it.earlier), ..it });
            let reused = race.reused.and_then(swapped);
            let buffer = reused.map_or(race.buffer, |it| it.earlier);
            Some(Race { parties: [(b, also), (a, writes)], reused, buffer, ..between })
        } else {
            Some(Race { parties: [(a, writes), (b, also)], ..between })
        }
    };
    let again = |at: &PostedAgain| {
        let [earlier, later] = [at.earlier, at.inst].map(|inst| from[at.rank][inst]);
        let pair = earlier.zip(later).filter(|pair| of_one.is_some() && !pair.0.1 && pair.1.1);
        let again = pair.map(|(earlier, later)| [earlier.0, later.0]);
        ExecutionFault { again, ..ExecutionFault::posted_again(&both, *at, true) }
    };
    let has_new_memory = |it: &Race| of_one.is_some_and(|plans| is_shard_of_run(plans, it.rank, it.buffer));
    let races = found.races.into_iter().filter(|it| it.reused.is_some() || !has_new_memory(it));
    let mut races: Vec<Race> = races.filter_map(between).collect();
    // A tensor that may get its own storage of the run before is reported once.
    let pair = |it: &Race| (it.rank, it.buffer, it.parties.map(|it| it.0));
    let known: FxHashSet<_> = races.iter().filter(|it| it.reused.is_none()).map(pair).collect();
    races.retain(|it| it.reused.is_none_or(|of| of.later != Some(of.earlier) || !known.contains(&pair(it))));
    Ok(BetweenRuns {
        not_compared: found.not_compared,
        posted_again: found.posted_again.iter().map(again).collect(),
        races,
    })
}

/// Returns whether a buffer is a shard that each run allocates and exchanges the handles of, so that the next run has other memory: nvFuser's cache
/// holds the shard. A program in which the host waits is never replayed.
fn is_shard_of_run(plans: &[Plan], rank: usize, buffer: BufferNo) -> bool {
    let is_own = |it: &ViewOnRank| it.rank == rank && it.view.buffer == buffer;
    let is_shard = |it: &MappedView| it.exchange.is_some() && it.shards.iter().any(is_own);
    let mut code = plans[rank].code.iter();
    plans[rank].mapped_views.iter().any(is_shard)
        && code.any(|it| matches!(it.kind, InstKind::HostWait { .. }))
}

/// Visits all instructions of two runs, in the own order of each group.
fn visit_runs<'w>(
    both: &'w World,
    rules: AccessRules,
    storage: (Option<&'w [Plan]>, &[IssuedRuns]),
    groups: &MemoryGroups,
) -> Result<AccessChecks<'w>, OrderError> {
    let mut found = AccessChecks::default();
    let mut trackers = Trackers::of_two_runs(both, rules, groups, storage);
    for group in 0..groups.groups().len() {
        found.add(trackers.walk((groups, group), GroupOrders::Own, None)?);
    }
    Ok(found)
}
