//! Checks that all ranks start the kernels of their NCCL communicators, and of collectives over peer memory, in the
//! same order.
//!
//! The kernels wait for each other while they occupy a GPU, and a GPU may not run kernels of two
//! communicators at the same time. Operations on different communicators must therefore start in the
//! same order on all ranks (NCCL User Guide, "Using multiple NCCL communicators concurrently"). If the orders
//! of two or more ranks contradict each other, each rank may wait in one kernel for another kernel that
//! cannot start.
//!
//! Which kernel of a rank starts first? One that has to end before the other begins. Of two that nothing orders, the
//! one that is issued first, if NCCL keeps the order of the host (`NCCL_LAUNCH_ORDER_IMPLICIT=1`, NCCL 2.26; NCCL User
//! Guide, Environment variables); else either of them (`unordered`).

use std::fmt;

use rustc_hash::FxHashMap;

use super::{CommNo, InstRef, MemoryGroups, P2pQueues, World};

mod issue_order;
mod kernels;
mod pads;
mod runs;
mod unordered;

pub use pads::shared_pads;
pub use runs::{OrderOfRuns, order_of_runs};

use issue_order::is_possible;
pub(super) use kernels::joint_peer_collectives;
use kernels::{RankKernels, kernels_of};

grammar::named_enum! {
    /// The order in which a rank starts kernels of different communicators that nothing orders.
    /// The names are those of command lines.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum LaunchOrder {
        /// Any order: `NCCL_LAUNCH_ORDER_IMPLICIT=0`, the default of NCCL.
        #[default]
        Explicit = "launch-order-explicit",
        /// The issue order: `NCCL_LAUNCH_ORDER_IMPLICIT=1`.
        Implicit = "launch-order-implicit",
    }
}

/// The order of two communications on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommOrderEdge {
    /// The communication that starts first.
    pub first: InstRef,
    /// The other one, on the same rank.
    pub second: InstRef,
    /// Whether the second one may also start first: nothing orders the two.
    pub is_unordered: bool,
    /// The runs of the two, from 0.
    pub runs: [u32; 2],
}

impl CommOrderEdge {
    fn of_one_run([first, second]: [InstRef; 2], is_unordered: bool) -> Self {
        Self { first, second, is_unordered, runs: [0; 2] }
    }

    /// Returns true if the rank may start first the kernel that it issues later.
    pub fn is_swapped(&self) -> bool {
        let [first, second] = self.runs;
        self.is_unordered && (second, self.second.inst) < (first, self.first.inst)
    }
}

/// A cycle of contradicting orders: each rank's second communication is the next rank's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommOrderCycle {
    /// The pairs.
    pub edges: Vec<CommOrderEdge>,
    /// The communicators of sends and receives with which it was found.
    pub p2p: P2pQueues,
    /// Whether the kernels share signal pads, so that any order of the two on a rank is a fault (`shared_pads`).
    pub shares_pads: bool,
}

impl CommOrderCycle {
    /// Returns the number of runs of the kernels.
    pub fn run_count(&self) -> u32 {
        self.edges.iter().flat_map(|it| it.runs).max().map_or(0, |it| it + 1)
    }
}

impl From<Vec<CommOrderEdge>> for CommOrderCycle {
    fn from(edges: Vec<CommOrderEdge>) -> Self {
        Self { edges, p2p: P2pQueues::Communicator, shares_pads: false }
    }
}

/// The program has too many communications that nothing orders, or too many streams and communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyComms;

impl fmt::Display for TooManyComms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many streams and communicators, or too many communications that nothing orders")
    }
}

impl std::error::Error for TooManyComms {}

/// Returns a cycle in the order in which ranks may start kernels of their communicators, if there is one. The plans
/// must be free of other deadlocks.
///
/// # Errors
/// There are too many unordered communications, or too many streams and communicators, to compare.
pub fn comm_order_cycle(world: &World, order: LaunchOrder) -> Result<Option<CommOrderCycle>, TooManyComms> {
    cycle_in_own_orders(world, &MemoryGroups::whole(world), order)
}

/// Returns whether the own orders of groups of ranks, each by itself, prove that there is no cycle (`comm_order_cycle`). A cycle
/// that they allow need not exist, since they are a part of the whole order.
///
/// With fewer orders, more kernels are unordered, so that a cycle of the whole order is one of the own orders, too, as long as
/// these do not change the order in which a rank starts kernels that it issues one after the other: the later one could have
/// to end before the earlier one begins. `is_possible` excludes this.
pub fn own_orders_exclude_cycles(world: &World, groups: &MemoryGroups, order: LaunchOrder) -> bool {
    matches!(cycle_in_own_orders(world, groups, order), Ok(None)) && is_possible(world)
}

fn cycle_in_own_orders(
    world: &World,
    groups: &MemoryGroups,
    order: LaunchOrder,
) -> Result<Option<CommOrderCycle>, TooManyComms> {
    let Some(kernels) = kernels_of(world, groups)? else { return Ok(None) };
    if let Some(found) = cycle_in_issue_order(&kernels) {
        return Ok(Some(found));
    }
    match order {
        LaunchOrder::Explicit => unordered::cycle(world, &kernels),
        LaunchOrder::Implicit => Ok(None),
    }
}

/// Returns a cycle in the order in which ranks issue communications.
fn cycle_in_issue_order(ranks: &[RankKernels]) -> Option<CommOrderCycle> {
    // By node: its direct predecessors on each rank, with the pair of instructions.
    let mut before: FxHashMap<CommNo, Vec<(CommNo, CommOrderEdge)>> = FxHashMap::default();
    let mut count: FxHashMap<CommNo, usize> = FxHashMap::default();
    let mut after: FxHashMap<CommNo, Vec<CommNo>> = FxHashMap::default();
    for rank in ranks {
        for pair in rank.in_order_of_start().windows(2) {
            let (first, second) = (&rank.kernels[pair[0]], &rank.kernels[pair[1]]);
            let (from, to) = (first.node, second.node);
            count.entry(from).or_default();
            if from != to {
                let edge = CommOrderEdge::of_one_run([first.at, second.at], false);
                before.entry(to).or_default().push((from, edge));
                after.entry(from).or_default().push(to);
                *count.entry(to).or_default() += 1;
            }
        }
    }
    // Nodes without remaining predecessors are not on a cycle. They are removed until none is left.
    let mut free: Vec<CommNo> = count.iter().filter(|it| *it.1 == 0).map(|it| *it.0).collect();
    while let Some(it) = free.pop() {
        count.remove(&it);
        for next in after.get(&it).into_iter().flatten() {
            if let Some(left) = count.get_mut(next) {
                *left -= 1;
                if *left == 0 {
                    free.push(*next);
                }
            }
        }
    }
    // Every remaining node has a remaining predecessor, so following predecessors leads to a cycle.
    let mut at = *count.keys().min()?;
    let mut path: Vec<(CommNo, CommOrderEdge)> = Vec::new();
    loop {
        let (from, it) = *before.get(&at)?.iter().find(|it| count.contains_key(&it.0))?;
        path.push((at, it));
        at = from;
        if let Some(start) = path.iter().position(|it| it.0 == at) {
            let mut cycle: Vec<CommOrderEdge> = path.drain(start..).map(|it| it.1).rev().collect();
            merge_edges_of_rank(&mut cycle);
            return Some(cycle.into());
        }
    }
}

/// Merges consecutive edges of the same rank into one.
fn merge_edges_of_rank(cycle: &mut Vec<CommOrderEdge>) {
    // The cycle may start in the middle of a rank's edges.
    if let Some(at) = (1..cycle.len()).find(|at| cycle[at - 1].first.rank != cycle[*at].first.rank) {
        cycle.rotate_left(at);
    }
    cycle.dedup_by(|next, it| {
        let is_one = it.first.rank == next.first.rank && it.second == next.first;
        if is_one {
            it.second = next.second;
        }
        is_one
    });
}
