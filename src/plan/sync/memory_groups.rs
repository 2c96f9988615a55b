//! Groups of ranks that share no memory, so that races are found in each group alone.
//!
//! Two ranks are in one group if one of them accesses memory of the other, or sets a signal that the other one waits for: by
//! copies and reductions over peer memory. Communications of NCCL and UCC do not join groups, since each member accesses its own
//! memory only. So the ranks of a data × tensor program whose tensor-parallel rings run over peer memory are in one group for
//! each ring, and those of a program with NCCL only are in a group each.
//!
//! # What the order of a group alone proves
//!
//! The *own order* of a group is the happens-before order of its instructions without the orders that lead through
//! instructions of other groups: an event that happens on a rank of another group counts for nothing.
//!
//! 1. Each order of a group's own order is one of the whole world, since the own order is made of some of the events of the
//!    whole one, each with fewer causes. So two accesses that the own order orders are ordered.
//! 2. All accesses to the memory of a group are of its own ranks, by definition. So a race on this memory is a pair of
//!    accesses of the group that the whole order, and by (1) the own order, does not order.
//!
//! So a world has no race if each of its groups has none in its own order. The converse does not hold: an order between two
//! instructions of a rank may lead through another group, as from a send to the receive of the answer. `GroupOrders::All` decides
//! about such a group: it executes all ranks, and keeps clocks of the actors of this group only. So each verdict on a group is a proof.
//!
//! Nothing is assumed about ranks being equal, so one rank that differs is found like any other.

use std::ops::Range;

use crate::{InstKind, Plan};

/// The ranks of a world in groups that share no memory.
pub struct MemoryGroups {
    /// The ranks of each group, ascending. Groups are in the order of their first ranks.
    groups: Vec<Vec<usize>>,
    /// By rank: the actor of its stream 0. The actors of a group have consecutive numbers.
    first_actors: Vec<u32>,
    /// By group: its actors.
    actors: Vec<Range<u32>>,
}

impl MemoryGroups {
    /// Returns one group of all ranks.
    pub fn whole(plans: &[Plan]) -> Self {
        Self::new(plans, vec![0; plans.len()])
    }

    /// Returns the smallest groups that share no memory.
    pub fn of(plans: &[Plan]) -> Self {
        let mut parent: Vec<u32> = (0..plans.len() as u32).collect();
        for plan in plans {
            let mut join = |other: usize| {
                if other != plan.rank && other < plans.len() {
                    let (one, other) = (root(&mut parent, plan.rank as u32), root(&mut parent, other as u32));
                    // The lowest rank of a group is its root.
                    parent[one.max(other) as usize] = one.min(other);
                }
            };
            let mapped = plan.mapped_views.iter().flat_map(|it| &it.shards);
            mapped.for_each(|it| join(it.rank));
            for inst in &plan.code {
                match &inst.kind {
                    InstKind::Signal { signal } | InstKind::WaitSignal { signal } => {
                        [signal.from, signal.to].into_iter().for_each(&mut join);
                    }
                    // One member computes the result of all.
                    InstKind::Reshard(it) => it.team.iter().for_each(|rank| join(*rank)),
                    kind => kind.visit_accesses(plan.rank, &mut |it| join(it.rank)),
                }
            }
        }
        let roots = (0..plans.len() as u32).map(|rank| root(&mut parent, rank)).collect();
        Self::new(plans, roots)
    }

    /// `roots` has the lowest rank of the group of each rank.
    fn new(plans: &[Plan], roots: Vec<u32>) -> Self {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut group_of: Vec<u32> = Vec::with_capacity(plans.len());
        for (rank, root) in roots.into_iter().enumerate() {
            let group = if root as usize == rank { groups.len() as u32 } else { group_of[root as usize] };
            if group as usize == groups.len() {
                groups.push(Vec::new());
            }
            groups[group as usize].push(rank);
            group_of.push(group);
        }
        let mut first_actors = vec![0; plans.len()];
        let mut actors = Vec::with_capacity(groups.len());
        let mut next = 0;
        for ranks in &groups {
            let first = next;
            for rank in ranks {
                first_actors[*rank] = next;
                next += actor_count(&plans[*rank]);
            }
            actors.push(first..next);
        }
        Self { groups, first_actors, actors }
    }

    /// Returns whether all ranks are in one group.
    pub fn is_whole(&self) -> bool {
        self.groups.len() < 2
    }

    /// Returns the ranks of each group, ascending.
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// Returns, by rank, the actor of its stream 0. The actors of its other streams follow, and then those of its
    /// communicator queues.
    pub fn first_actors(&self) -> &[u32] {
        &self.first_actors
    }

    /// Returns the actors of a group.
    pub(super) fn actors(&self, group: usize) -> Range<u32> {
        self.actors[group].clone()
    }

    /// Returns the numbers of all actors, in the order of ranks.
    pub(super) fn numbers(&self, plans: &[Plan]) -> Vec<u32> {
        let of_rank = |(plan, first): (&Plan, &u32)| *first..*first + actor_count(plan);
        plans.iter().zip(&self.first_actors).flat_map(of_rank).collect()
    }
}

/// The number of streams and communicators of all ranks from which on a world is large.
const LARGE: usize = 1_024;

/// Returns whether a world has so many streams and communicators that races are found in groups of ranks, and one rank of
/// each class is estimated (`Symmetry`).
pub fn is_large_world(plans: &[Plan]) -> bool {
    total_actors(plans) >= LARGE
}

/// Returns the number of actors of all ranks.
pub(super) fn total_actors(plans: &[Plan]) -> usize {
    plans.iter().map(|it| actor_count(it) as usize).sum()
}

/// Returns the number of actors of a rank: its streams and the queues of its communicators.
pub(super) fn actor_count(plan: &Plan) -> u32 {
    (plan.streams.len() + plan.communicators.len()) as u32
}

/// Returns the representative of the set that contains an element, in a forest of parents.
pub(super) fn root(parent: &mut [u32], mut it: u32) -> u32 {
    while parent[it as usize] != it {
        parent[it as usize] = parent[parent[it as usize] as usize];
        it = parent[it as usize];
    }
    it
}
