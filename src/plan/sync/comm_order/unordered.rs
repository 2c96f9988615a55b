//! Cycles of kernels of NCCL that start in any order, unless one has to end before the other begins. Those of collectives
//! over peer memory count in issue order only: hir-run alone executes them, with so few blocks that all of them, and those of NCCL, fit on a
//! GPU at once (`count_waiting_blocks`).
//!
//! Rank r may wait in X while Y cannot start, if Y does not have to begin before X. A deadlock is a cycle of such pairs:
//! of X and Y on r, and then, on other ranks, of Y and Z1, of Z1 and Z2, ..., of Zn and X. The orders that nothing
//! forbids exist only on ranks where two kernels are unordered, so the search begins at these. The ranks wait at the same time, so none of the
//! kernels in which they wait begins after another one has ended.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::{
    CommOrderCycle, CommOrderEdge, TooManyComms,
    kernels::{Kernel, RankKernels},
};
use crate::sync::{
    CommNo, InstRef, World,
    happens_before::{HappensBeforeGraph, Node},
};

/// The maximum number of kernels that all searches visit together.
const MAX_VISITS: usize = 1 << 26;
/// The maximum number of cycles that are examined because some of their kernels are ordered after all.
const MAX_EXAMINED: usize = 64;

/// A kernel: its rank and its index there.
type KernelRef = (usize, usize);

/// A visited communication, and the rank on which it cannot start.
type Visited = (CommNo, usize);

/// Returns a cycle in the orders in which ranks may start kernels.
///
/// # Errors
/// Too many kernels are unordered.
pub fn cycle(world: &World, ranks: &[RankKernels]) -> Result<Option<CommOrderCycle>, TooManyComms> {
    let mut search = Search { ranks, parts: FxHashMap::default(), visits: 0 };
    for (rank, of_rank) in ranks.iter().enumerate() {
        for (number, it) in of_rank.kernels.iter().enumerate() {
            search.parts.entry(it.node).or_default().push((rank, number));
        }
    }
    let mut begins: Option<BeginOrder> = None;
    let mut examined = 0;
    for (rank, of_rank) in ranks.iter().enumerate() {
        for second in &of_rank.kernels {
            if !of_rank.is_nccl[second.chain] {
                continue;
            }
            let unordered: Vec<&Kernel> = of_rank.unordered_with(second).collect();
            if unordered.is_empty() {
                continue;
            }
            let reached = search.reached_from(second, rank)?;
            for first in unordered {
                let Some(mut edges) = reached.path_to(ranks, first.node) else { continue };
                edges.insert(0, CommOrderEdge::of_one_run([first.at, second.at], true));
                examined += 1;
                if examined > MAX_EXAMINED {
                    return Err(TooManyComms);
                }
                if begins.is_none() {
                    begins = Some(BeginOrder::of(world).ok_or(TooManyComms)?);
                }
                if begins.as_ref().is_some_and(|it| it.allows(&edges)) {
                    return Ok(Some(edges.into()));
                }
            }
        }
    }
    Ok(None)
}

impl RankKernels {
    /// Returns the kernels that neither end before `it` begins nor begin after it has ended. Those of NCCL and those over peer memory are apart.
    pub(super) fn unordered_with<'k>(&'k self, it: &'k Kernel) -> impl Iterator<Item = &'k Kernel> {
        let others = self.chains.iter().enumerate();
        let is_alike = |chain: usize| self.is_nccl[chain] == self.is_nccl[it.chain];
        let others = others.filter(move |(chain, _)| *chain != it.chain && is_alike(*chain));
        others.flat_map(move |(_, chain)| {
            let from = chain.partition_point(|other| self.kernels[*other].is_before(it));
            let to = chain.partition_point(|other| !it.is_before(&self.kernels[*other]));
            let between = chain.get(from..to).unwrap_or_default();
            between.iter().map(|other| &self.kernels[*other]).filter(|other| other.node != it.node)
        })
    }
}

struct Search<'k> {
    ranks: &'k [RankKernels],
    /// By communication: its kernels.
    parts: FxHashMap<CommNo, Vec<KernelRef>>,
    visits: usize,
}

/// What a search has reached: for each communication, at most two ranks on which it cannot start, each with the kernel
/// that it was reached from and its own, both of this rank.
#[derive(Default)]
struct Reached(FxHashMap<Visited, (Visited, [usize; 2])>);

impl Search<'_> {
    /// Returns the communications that cannot start on ranks other than `start`, if these wait in `kernel` or in
    /// one of those communications.
    fn reached_from(&mut self, kernel: &Kernel, start: usize) -> Result<Reached, TooManyComms> {
        let mut reached = Reached::default();
        let mut labels: FxHashMap<CommNo, Vec<usize>> = FxHashMap::default();
        // By rank and chain: the first position that was reached.
        let mut limits: FxHashMap<(usize, usize), usize> = FxHashMap::default();
        let mut pending = VecDeque::from([(kernel.node, start)]);
        while let Some((node, label)) = pending.pop_front() {
            for (rank, number) in self.parts.get(&node).into_iter().flatten() {
                if *rank == label || *rank == start {
                    continue;
                }
                let of_rank = &self.ranks[*rank];
                let waiting = &of_rank.kernels[*number];
                for (chain, members) in of_rank.chains.iter().enumerate() {
                    self.visits += 1;
                    if !of_rank.is_nccl[chain] {
                        continue;
                    }
                    let first = members.partition_point(|it| of_rank.kernels[*it].is_before(waiting));
                    let first = if chain == waiting.chain { waiting.position + 1 } else { first };
                    let limit = limits.entry((*rank, chain)).or_insert(members.len());
                    for it in members.get(first..*limit).unwrap_or_default() {
                        self.visits += 1;
                        let next = of_rank.kernels[*it].node;
                        let known = labels.entry(next).or_default();
                        // From two ranks, every further rank is reached.
                        if next == node || known.len() > 1 || known.contains(rank) {
                            continue;
                        }
                        known.push(*rank);
                        reached.0.insert((next, *rank), ((node, label), [*number, *it]));
                        pending.push_back((next, *rank));
                    }
                    *limit = first.min(*limit);
                }
            }
            if self.visits > MAX_VISITS {
                return Err(TooManyComms);
            }
        }
        Ok(reached)
    }
}

impl Reached {
    /// Returns the pairs of kernels that lead to a communication.
    fn path_to(&self, ranks: &[RankKernels], node: CommNo) -> Option<Vec<CommOrderEdge>> {
        let mut edges = Vec::new();
        let label = (0..ranks.len()).find(|rank| self.0.contains_key(&(node, *rank)))?;
        let mut at = (node, label);
        while let Some((from, [first, second])) = self.0.get(&at) {
            let of_rank = &ranks[at.1];
            let (first, second) = (&of_rank.kernels[*first], &of_rank.kernels[*second]);
            let is_unordered = !first.is_before(second);
            edges.push(CommOrderEdge::of_one_run([first.at, second.at], is_unordered));
            at = *from;
        }
        edges.reverse();
        Some(edges)
    }
}

/// The order in which kernels begin. A kernel may have to begin before another one without ending before it: a peer
/// that has its data sends a message, which the other one waits for.
struct BeginOrder {
    graph: HappensBeforeGraph,
    /// By instruction: the nodes of its beginning and of its end.
    places: FxHashMap<InstRef, [u32; 2]>,
}

impl BeginOrder {
    fn of(world: &World) -> Option<Self> {
        let graph = HappensBeforeGraph::of(world).ok()?;
        let mut places: FxHashMap<InstRef, [u32; 2]> = FxHashMap::default();
        let executes = |it: &&Node| !it.is_post;
        for (number, it) in graph.nodes.iter().enumerate().filter(|it| executes(&it.1)) {
            places.entry(it.inst_ref).or_insert([number as u32; 2])[1] = number as u32;
        }
        Some(Self { graph, places })
    }

    /// Returns whether the first kernel of each pair may begin before the second one, on all ranks together, and whether all of these may run
    /// at one time.
    fn allows(&self, edges: &[CommOrderEdge]) -> bool {
        let begins_before = |first, second| self.is_before((first, 0), second);
        let is_possible = |it: &CommOrderEdge| !begins_before(it.second, it.first);
        // Of two pairs of one rank, one order may exclude the other.
        let are_joint = |one: &CommOrderEdge, other: &CommOrderEdge| {
            let is_of_one_rank = one.first.rank == other.first.rank;
            let ends_before = |one: InstRef, other: InstRef| one != other && self.is_before((one, 1), other);
            let exclude = is_of_one_rank
                && begins_before(one.second, other.first)
                && begins_before(other.second, one.first);
            let is_behind = ends_before(one.first, other.first) || ends_before(other.first, one.first);
            !exclude && !is_behind
        };
        edges.iter().all(is_possible)
            && edges.iter().enumerate().all(|(at, one)| edges[..at].iter().all(|it| are_joint(one, it)))
    }

    /// Returns whether the beginning or the end of an instruction is before the beginning of another one.
    fn is_before(&self, (first, place): (InstRef, usize), second: InstRef) -> bool {
        let (Some(first), Some([second, _])) = (self.places.get(&first), self.places.get(&second)) else {
            return false;
        };
        let first = &first[place];
        let mut seen = vec![false; self.graph.nodes.len()];
        let mut pending = vec![*second];
        while let Some(node) = pending.pop() {
            if node == *first {
                return true;
            }
            for it in &self.graph.predecessors[node as usize] {
                if !std::mem::replace(&mut seen[*it as usize], true) {
                    pending.push(*it);
                }
            }
        }
        false
    }
}
