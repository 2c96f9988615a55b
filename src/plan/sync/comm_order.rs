//! Whether all ranks use their NCCL communicators in one order.
//!
//! NCCL's kernels wait for each other while they occupy a GPU, and a GPU may not run those of two communicators at the same time. So
//! operations on different communicators have to be submitted in the same order on all ranks (NCCL User Guide, "Using multiple NCCL
//! communicators concurrently"). Where the orders of two or more ranks contradict each other, each may wait in one kernel for another that
//! does not get its turn.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::{
    CommKey, CommMatching, CommNo, InstRef,
    happens_before::{self, Occurrence},
};
use crate::plan::{Backend, Plan};

/// A rank uses one communication before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommOrderEdge {
    /// The one that comes first.
    pub first: InstRef,
    /// The one that comes later, on the same rank.
    pub second: InstRef,
}

/// Orders of ranks that contradict each other: each rank's second communication is the next rank's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommOrderCycle(pub Vec<CommOrderEdge>);

/// Most pairs of posts that are compared.
const MAX_PAIRS: usize = 1 << 28;

/// So many communications that their order was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyComms;

/// The orders of ranks that contradict each other, if there are some. The plans do not deadlock by themselves.
///
/// # Errors
/// More communications than can be compared.
pub fn comm_order_cycle(
    plans: &[Plan],
    matched: &CommMatching,
) -> Result<Option<CommOrderCycle>, TooManyComms> {
    let posts = nccl_posts(plans, matched);
    let uses_several = |them: &Vec<InstRef>| {
        let queues: BTreeSet<u32> = them.iter().filter_map(|it| communicator(plans, *it)).collect();
        queues.len() > 1
    };
    if !posts.iter().any(uses_several) {
        return Ok(None);
    }
    if posts.iter().map(|it| it.len().saturating_mul(it.len()) / 2).sum::<usize>() > MAX_PAIRS {
        return Err(TooManyComms);
    }
    Ok(find_cycle(plans, matched, posts))
}

/// A cycle in the order in which ranks use communications.
fn find_cycle(plans: &[Plan], matched: &CommMatching, posts: Vec<Vec<InstRef>>) -> Option<CommOrderCycle> {
    let group = joint_transfers(matched, &posts);
    let mut begun: FxHashMap<InstRef, Option<Occurrence>> =
        posts.iter().flatten().map(|it| (*it, None)).collect();
    let walked = happens_before::walk(plans, matched, &mut |it| {
        if let Some(slot) = begun.get_mut(&InstRef { rank: it.rank, inst: it.inst }) {
            *slot = Some(it);
        }
    });
    walked.ok()?;
    let node = |at: InstRef| group[matched.comms_of(at)[0] as usize];
    // By node: the nodes that a rank uses directly before it, and where.
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
    // What nothing left has to come before is not on a cycle.
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
    // From what is left, one goes back until one comes again.
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

/// Steps of one rank that follow each other become one.
fn merge_edges_of_rank(cycle: &mut Vec<CommOrderEdge>) {
    // A cycle may begin in the middle of a rank.
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

/// By rank: its posts to NCCL, in the order of issue.
fn nccl_posts(plans: &[Plan], matched: &CommMatching) -> Vec<Vec<InstRef>> {
    let of = |plan: &Plan| {
        let all = (0..plan.code.len()).map(|inst| InstRef { rank: plan.rank, inst });
        let is_nccl = |it: &InstRef| {
            let number = communicator(plans, *it);
            let backend = number.map(|it| plan.communicators[it as usize].backend);
            backend == Some(Backend::Nccl) && !matched.comms_of(*it).is_empty()
        };
        all.filter(is_nccl).collect()
    };
    plans.iter().map(of).collect()
}

fn communicator(plans: &[Plan], at: InstRef) -> Option<u32> {
    plans[at.rank].code[at.inst].kind.communication().map(|it| it.communicator())
}

/// Posts of a rank in the order in which they may begin: that of issue, but for those that end before an earlier one begins.
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

/// By communication: one that stands for all that run together, since one transfer holds sides of them.
fn joint_transfers(matched: &CommMatching, posts: &[Vec<InstRef>]) -> Vec<CommNo> {
    let mut parent: Vec<CommNo> = (0..matched.comms.len() as CommNo).collect();
    fn root(parent: &mut [CommNo], mut it: CommNo) -> CommNo {
        while parent[it as usize] != it {
            parent[it as usize] = parent[parent[it as usize] as usize];
            it = parent[it as usize];
        }
        it
    }
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
