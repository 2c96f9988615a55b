//! Cycles of kernels of runs that follow each other, of one program or of several ones. On each rank, the entry stream of a run follows the
//! exit stream of the run before, and the exit stream of a run follows its entry stream or is the same one.
//!
//! # Which runs contradict each other
//!
//! Let no single run have a cycle. In issue order runs have none either: each kernel belongs to one run, and all ranks issue the runs in
//! one order. So only kernels of NCCL that start in any order (`unordered`) are examined. On a rank, X may keep Y from starting unless Y ends before
//! X begins. A run that is left out takes orders away and adds none.
//!
//! * If, on each rank, each kernel ends before those of other communicators begin in the next run, whatever its program is, X never keeps Y of an
//!   earlier run from starting. So each cycle is in one run, and no number of runs has one.
//! * A cycle has each rank at most once, since a rank waits in one kernel. So it has kernels of at most as many runs as there are ranks, and the
//!   others can be left out. No number of runs has a cycle if as many runs as there are ranks have none.
//! * Three ranks may need three runs: rank 0 executes B, then A; rank 1 C, then B; rank 2 C, then A, and C waits for nothing. C of the
//!   second run may keep A of the first run from starting on rank 2, but it ends: rank 1 executes only C and B of the first run before. C of the third run
//!   does not: on rank 1 it follows B of the second run, which follows A of the first run on rank 0.
//! * X keeps Y from starting in a cycle only if other ranks have kernels that lead from X to Y.

use super::{
    CommOrderCycle, TooManyComms,
    issue_order::is_possible,
    kernels::{Kernel, RankKernels, kernels_of},
    unordered,
};
use crate::sync::{CommNo, InstRef, MemoryGroups, World, memory_groups::root};

/// The maximum number of kernels that all searches for connections visit together.
const MAX_VISITS: usize = 1 << 24;

/// What is known about kernels of runs that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderOfRuns {
    /// No number of runs has a cycle.
    Clean,
    /// These runs have a cycle.
    Contradictory(CommOrderCycle),
    /// These runs have no cycle. As many runs as there are ranks may have one.
    Undecided,
}

/// Returns what is known about the kernels of the runs in `world`, none of which has a cycle of its own, if each rank may start kernels in any
/// order that nothing forbids. Each program has to follow each one in `world`. `run_of` returns the run of an instruction that posts to a communicator.
///
/// # Errors
/// There are too many unordered communications, or too many streams and communicators, to compare.
pub fn order_of_runs(
    world: &World,
    groups: &MemoryGroups,
    run_of: &dyn Fn(InstRef) -> u32,
) -> Result<OrderOfRuns, TooManyComms> {
    let own = order_in_own_orders(world, groups, run_of)?;
    if groups.is_whole() || own == OrderOfRuns::Clean && is_possible(world) {
        return Ok(own);
    }
    order_in_own_orders(world, &MemoryGroups::whole(world), run_of)
}

fn order_in_own_orders(
    world: &World,
    groups: &MemoryGroups,
    run_of: &dyn Fn(InstRef) -> u32,
) -> Result<OrderOfRuns, TooManyComms> {
    let Some(ranks) = kernels_of(world, groups)? else { return Ok(OrderOfRuns::Clean) };
    let crosses = |it: &RankKernels| it.crossing_pairs(run_of).next().is_some();
    let crossing: Vec<usize> = (0..ranks.len()).filter(|it| crosses(&ranks[*it])).collect();
    if crossing.is_empty() {
        return Ok(OrderOfRuns::Clean);
    }
    if let Some(cycle) = unordered::cycle(world, &ranks)? {
        return Ok(OrderOfRuns::Contradictory(cycle));
    }
    let count: usize = ranks.iter().map(|it| it.kernels.len()).sum();
    let is_too_large = crossing.len().saturating_mul(count) > MAX_VISITS;
    let is_on_a_cycle = |rank: usize| {
        let mut parent = connected_without(&ranks, rank);
        let mut set_of = |it: &Kernel| root(&mut parent, it.node);
        ranks[rank].crossing_pairs(run_of).any(|[one, other]| set_of(one) == set_of(other))
    };
    let is_decided = ranks.len() < 3 || !is_too_large && !crossing.into_iter().any(is_on_a_cycle);
    Ok(if is_decided { OrderOfRuns::Clean } else { OrderOfRuns::Undecided })
}

impl RankKernels {
    /// Returns the pairs of kernels of two communicators of which the first is of an earlier run, and need not end before the second begins.
    fn crossing_pairs<'k>(
        &'k self,
        run_of: &'k dyn Fn(InstRef) -> u32,
    ) -> impl Iterator<Item = [&'k Kernel; 2]> {
        let of_nccl = self.kernels.iter().filter(|it| self.is_nccl[it.chain]);
        of_nccl.flat_map(move |later| {
            let earlier = self.unordered_with(later).filter(move |it| run_of(it.at) < run_of(later.at));
            earlier.map(move |it| [it, later])
        })
    }
}

/// Returns communications that kernels of ranks other than `without` connect, as a forest of parents.
fn connected_without(ranks: &[RankKernels], without: usize) -> Vec<CommNo> {
    let nodes = |it: &RankKernels| it.kernels.iter().map(|it| it.node).collect::<Vec<_>>();
    let count = ranks.iter().flat_map(nodes).max().map_or(0, |it| it + 1);
    let mut parent: Vec<CommNo> = (0..count).collect();
    for (_, rank) in ranks.iter().enumerate().filter(|it| it.0 != without) {
        for pair in nodes(rank).windows(2) {
            let (one, other) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
            parent[other as usize] = one;
        }
    }
    parent
}
