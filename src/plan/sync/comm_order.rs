//! Checks that all ranks use their NCCL communicators, and collectives over peer memory that run as kernels, in
//! the same order.
//!
//! The kernels wait for each other while they occupy a GPU, and a GPU may not run kernels of two
//! communicators at the same time. Operations on different communicators must therefore be submitted in the
//! same order on all ranks (NCCL User Guide, "Using multiple NCCL communicators concurrently"). If the orders
//! of two or more ranks contradict each other, each rank may wait in one kernel for another kernel that
//! cannot start.

use std::{collections::BTreeSet, ops::Range};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CommKey, CommMatching, CommNo, InstRef, World,
    happens_before::{self, Occurrence},
};
use crate::{Backend, InstKind, PeerCollective, Plan, SignalId};

/// The order of two communications on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommOrderEdge {
    /// The earlier communication.
    pub first: InstRef,
    /// The later communication, on the same rank.
    pub second: InstRef,
}

/// A cycle of contradicting orders: each rank's second communication is the next rank's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommOrderCycle(pub Vec<CommOrderEdge>);

/// The maximum number of pairs of posts that are compared.
const MAX_PAIRS: usize = 1 << 28;

/// The program has too many communications to compare their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyComms;

/// Returns a cycle in the order in which ranks use their communicators, if there is one. The plans must be
/// free of other deadlocks.
///
/// # Errors
/// There are too many communications to compare.
pub fn comm_order_cycle(world: &World) -> Result<Option<CommOrderCycle>, TooManyComms> {
    let posts = kernels(world);
    let uses_several = |them: &Vec<InstRef>| {
        let queue = |it: &InstRef| match communicator(world, *it) {
            Some(it) => (true, it),
            None => (false, world[it.rank].code[it.inst].stream),
        };
        them.iter().map(queue).collect::<BTreeSet<_>>().len() > 1
    };
    if !posts.iter().any(uses_several) {
        return Ok(None);
    }
    if posts.iter().map(|it| it.len().saturating_mul(it.len()) / 2).sum::<usize>() > MAX_PAIRS {
        return Err(TooManyComms);
    }
    Ok(find_cycle(world, posts))
}

/// Returns a cycle in the order in which ranks use communications.
fn find_cycle(world: &World, posts: Vec<Vec<InstRef>>) -> Option<CommOrderCycle> {
    let matched = world.matching();
    let group = joint_p2p_groups(matched, &posts);
    let peer_collectives = joint_peer_collectives(world);
    let mut begun: FxHashMap<InstRef, Option<Occurrence>> =
        posts.iter().flatten().map(|it| (*it, None)).collect();
    let walked = happens_before::walk(world, &mut |it| {
        if let Some(slot) = begun.get_mut(&InstRef { rank: it.rank, inst: it.inst }) {
            *slot = Some(it);
        }
    });
    walked.ok()?;
    let node = |at: InstRef| match peer_collectives.get(&at) {
        Some(it) => matched.comms.len() as CommNo + it,
        None => group[matched.comms_of(at)[0] as usize],
    };
    // By node: its direct predecessors on each rank, with the pair of instructions.
    let mut before: FxHashMap<CommNo, Vec<(CommNo, CommOrderEdge)>> = FxHashMap::default();
    let mut count: FxHashMap<CommNo, usize> = FxHashMap::default();
    let mut after: FxHashMap<CommNo, Vec<CommNo>> = FxHashMap::default();
    for them in posts {
        for pair in in_order_of_start(them, &mut begun).windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let (from, to) = (node(first), node(second));
            count.entry(from).or_default();
            if from != to {
                before.entry(to).or_default().push((from, CommOrderEdge { first, second }));
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
            return Some(CommOrderCycle(cycle));
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

/// Returns, by rank, the instructions that post to NCCL and the first instructions of collectives over peer
/// memory, in issue order.
fn kernels(world: &World) -> Vec<Vec<InstRef>> {
    let of = |plan: &Plan| {
        let begins: FxHashSet<usize> = plan.peer_collectives.iter().map(|it| it.range.start).collect();
        let all = (0..plan.code.len()).map(|inst| InstRef { rank: plan.rank, inst });
        let is_kernel = |it: &InstRef| {
            if begins.contains(&it.inst) {
                return true;
            }
            let number = communicator(world, *it);
            let backend = number.map(|it| plan.communicators[it as usize].backend);
            backend == Some(Backend::Nccl) && !world.matching().comms_of(*it).is_empty()
        };
        all.filter(is_kernel).collect()
    };
    world.iter().map(of).collect()
}

fn communicator(plans: &[Plan], at: InstRef) -> Option<u32> {
    plans[at.rank].code[at.inst].kind.communication().map(|it| it.communicator())
}

/// Sorts the posts of a rank by the order in which they may begin: the issue order, except that a post that
/// ends before an earlier one begins comes first.
fn in_order_of_start(
    posts: Vec<InstRef>,
    begun: &mut FxHashMap<InstRef, Option<Occurrence>>,
) -> Vec<InstRef> {
    let mut sorted: Vec<(InstRef, Occurrence)> = Vec::with_capacity(posts.len());
    for at in posts {
        let Some(it) = begun.get_mut(&at).and_then(Option::take) else { continue };
        let place = sorted.iter().position(|other| it.happens_before(&other.1)).unwrap_or(sorted.len());
        sorted.insert(place, (at, it));
    }
    sorted.into_iter().map(|it| it.0).collect()
}

/// Returns the representative of the set that contains an element, in a forest of parents.
fn root(parent: &mut [CommNo], mut it: CommNo) -> CommNo {
    while parent[it as usize] != it {
        parent[it as usize] = parent[parent[it as usize] as usize];
        it = parent[it as usize];
    }
    it
}

/// Returns, by the first instruction of each member's part of a collective over peer memory, a number that all
/// members of the collective share: one waits for the signals of another.
fn joint_peer_collectives(world: &World) -> FxHashMap<InstRef, CommNo> {
    let all: Vec<(InstRef, &PeerCollective)> = world
        .iter()
        .flat_map(|plan| {
            plan.peer_collectives.iter().map(|it| (InstRef { rank: plan.rank, inst: it.range.start }, it))
        })
        .collect();
    let mut parent: Vec<CommNo> = (0..all.len() as CommNo).collect();
    let signals = |range: &Range<usize>, rank: usize, waits: bool| {
        world[rank].code[range.clone()].iter().filter_map(move |it| match it.kind {
            InstKind::Signal { signal } if !waits => Some(signal),
            InstKind::WaitSignal { signal } if waits => Some(signal),
            _ => None,
        })
    };
    let mut set_by: FxHashMap<SignalId, CommNo> = FxHashMap::default();
    for (number, (at, it)) in all.iter().enumerate() {
        set_by.extend(signals(&it.range, at.rank, false).map(|signal| (signal, number as CommNo)));
    }
    for (number, (at, it)) in all.iter().enumerate() {
        for by in signals(&it.range, at.rank, true).filter_map(|signal| set_by.get(&signal)) {
            let (one, other) = (root(&mut parent, number as CommNo), root(&mut parent, *by));
            parent[other as usize] = one;
        }
    }
    all.iter().enumerate().map(|(number, (at, _))| (*at, root(&mut parent, number as CommNo))).collect()
}

/// Returns, by communication, a representative of all communications that run together with it. Messages run
/// together if one P2P group contains their sends or receives.
fn joint_p2p_groups(matched: &CommMatching, posts: &[Vec<InstRef>]) -> Vec<CommNo> {
    let mut parent: Vec<CommNo> = (0..matched.comms.len() as CommNo).collect();
    for at in posts.iter().flatten() {
        for pair in matched.comms_of(*at).windows(2) {
            let is_message = |it: CommNo| matches!(matched.comm(it).key, CommKey::Message(..));
            if is_message(pair[0]) && is_message(pair[1]) {
                let (one, other) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
                parent[other as usize] = one;
            }
        }
    }
    (0..parent.len() as CommNo).map(|it| root(&mut parent, it)).collect()
}
