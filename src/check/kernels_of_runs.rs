//! Finds kernels of several communicators that ranks may start in contradictory orders in runs that follow each other, of one program or of
//! several ones, in any order and number. No single run has such kernels.
//!
//! Runs in which each program follows each one are compared first. If they are not enough, as many runs as there are ranks are:
//! `hir_plan`'s `order_of_runs` says why.
//!
//! With `NCCL_LAUNCH_ORDER_IMPLICIT=1` the kernels of all runs start in issue order, also those of CUDA graphs, so that there is nothing to find.
//! docs/checker.md names the source. In a graph that is replayed on one stream, all kernels end before the next run begins.

use std::collections::BTreeSet;

use super::{
    access_checks::Grouping,
    joined_runs::{JoinedRuns, RunNumbers, signal_count},
};
use hir_plan::{
    InstKind, Plan, SyncEffect, World,
    sync::{CommOrderCycle, CommOrderEdge, InstRef, OrderOfRuns, TooManyComms, order_of_runs},
};

/// The maximum number of instructions of all runs that are compared.
const MAX_INSTRUCTIONS: usize = 2_000_000;

/// Returns a cycle in the order in which ranks may start kernels of different runs of a program.
///
/// # Errors
/// There are too many streams, communicators, ranks or communications that nothing orders to compare.
pub(super) fn cycle_between_runs(
    plans: &[Plan],
    grouping: Grouping,
) -> Result<Option<CommOrderCycle>, TooManyComms> {
    cycle_of_programs(&[plans], grouping).map(|found| found.map(|it| it.cycle))
}

/// A cycle of kernels of several runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CycleOfPrograms {
    /// The cycle. Its instructions are those of single runs.
    pub cycle: CommOrderCycle,
    /// By run: its program.
    pub programs: Vec<usize>,
}

/// Returns a cycle in the order in which ranks may start kernels of different runs of several programs.
///
/// # Errors
/// As for `cycle_between_runs`.
pub(super) fn cycle_of_programs(
    programs: &[&[Plan]],
    grouping: Grouping,
) -> Result<Option<CycleOfPrograms>, TooManyComms> {
    let runs = Runs::of(programs, &all_pairs(programs.len()));
    match runs.order(grouping)? {
        OrderOfRuns::Clean => return Ok(None),
        OrderOfRuns::Contradictory(cycle) => return Ok(Some(runs.in_single_runs(&cycle))),
        OrderOfRuns::Undecided => (),
    }
    let ranks = programs.iter().map(|it| it.len()).max().unwrap_or_default();
    let instructions = |it: &&[Plan]| it.iter().map(|it| it.code.len()).sum::<usize>();
    let longest = programs.iter().map(instructions).max().unwrap_or_default();
    let count = programs.len().checked_pow(ranks as u32).filter(|it| {
        let all = it.checked_mul(ranks).and_then(|it| it.checked_mul(longest));
        all.is_some_and(|it| it <= MAX_INSTRUCTIONS)
    });
    // The number of a sequence has its programs as digits.
    let program = |number: usize, run: usize| number / programs.len().pow(run as u32) % programs.len();
    for number in 0..count.ok_or(TooManyComms)? {
        let sequence: Vec<usize> = (0..ranks).map(|run| program(number, run)).collect();
        let runs = Runs::of(programs, &sequence);
        if let OrderOfRuns::Contradictory(cycle) = runs.order(grouping)? {
            return Ok(Some(runs.in_single_runs(&cycle)));
        }
    }
    Ok(None)
}

/// Returns a sequence of programs in which each one follows each one.
fn all_pairs(programs: usize) -> Vec<usize> {
    // The Lyndon words of one or two programs in order: a sequence of de Bruijn.
    let of = |one: usize| std::iter::once(one).chain((one + 1..programs).flat_map(move |other| [one, other]));
    (0..programs).flat_map(of).chain([0]).collect()
}

/// What orders the kernels of runs that follow each other, as one plan of each rank.
struct Runs {
    world: World,
    /// By rank and instruction: its run, and its index in the plan of that run.
    from: Vec<Vec<(u32, usize)>>,
    /// By run: its program.
    programs: Vec<usize>,
}

impl Runs {
    fn of(programs: &[&[Plan]], sequence: &[usize]) -> Self {
        let signals = programs.iter().map(|it| signal_count(it)).max().unwrap_or_default();
        let ranks = 0..programs.first().map_or(0, |it| it.len());
        let of_rank = |rank: usize| {
            let plans: Vec<&Plan> = sequence.iter().map(|it| &programs[*it][rank]).collect();
            plan_of(&plans, signals)
        };
        let (plans, from) = ranks.map(of_rank).unzip();
        Self { world: World::new(plans), from, programs: sequence.to_vec() }
    }

    fn order(&self, grouping: Grouping) -> Result<OrderOfRuns, TooManyComms> {
        let run_of = |it: InstRef| self.from[it.rank][it.inst].0;
        order_of_runs(&self.world, &grouping.groups(&self.world), &run_of)
    }

    /// Returns a cycle with the instructions of single runs. Those that it does not need are left out.
    fn in_single_runs(&self, cycle: &CommOrderCycle) -> CycleOfPrograms {
        let from = |it: InstRef| self.from[it.rank][it.inst];
        let runs: BTreeSet<u32> =
            cycle.edges.iter().flat_map(|it| [from(it.first).0, from(it.second).0]).collect();
        let run = |run: u32| runs.range(..run).count() as u32;
        let single = |it: &CommOrderEdge| {
            let [(one, first), (other, second)] = [from(it.first), from(it.second)];
            let at = |inst: usize| InstRef { inst, ..it.first };
            CommOrderEdge { first: at(first), second: at(second), runs: [run(one), run(other)], ..*it }
        };
        let edges = cycle.edges.iter().map(single).collect();
        CycleOfPrograms {
            cycle: CommOrderCycle { edges, ..*cycle },
            programs: runs.iter().map(|it| self.programs[*it as usize]).collect(),
        }
    }
}

/// Returns the plan of a rank that executes the plans of runs one after the other, without what computes, and the run and the index of each
/// instruction. `signals` is the number of signals of a run.
fn plan_of(runs: &[&Plan], signals: u32) -> (Plan, Vec<(u32, usize)>) {
    let mut joined =
        JoinedRuns::new(Plan { streams: Vec::new(), communicators: Vec::new(), ..runs[0].clone() });
    let numbers: Vec<RunNumbers> = runs.iter().map(|it| joined.number(it)).collect();
    let mut from = Vec::new();
    for ((run, plan), numbers) in (0..).zip(runs).zip(&numbers) {
        let places = joined.add_run(plan, numbers, signals, |_, it| orders_kernels(it).then(|| it.clone()));
        if let Some(end) = plan.code.last().filter(|it| matches!(it.kind, InstKind::ReadOutputs)) {
            joined.end_run(numbers.streams[end.stream as usize], end.origin);
        }
        from.resize(joined.plan.code.len(), (run, plan.code.len().saturating_sub(1)));
        for (number, place) in places.into_iter().enumerate() {
            place.into_iter().for_each(|it| from[it] = (run, number));
        }
    }
    (joined.plan, from)
}

/// Returns whether an instruction is a kernel of a communicator, or orders others.
fn orders_kernels(kind: &InstKind) -> bool {
    match kind.effect() {
        hir_plan::host_effects!() | SyncEffect::Compute | SyncEffect::ReadOutputs => false,
        hir_plan::stream_sync_effects!() | SyncEffect::Reshard(_) | SyncEffect::Post(_) => true,
    }
}
