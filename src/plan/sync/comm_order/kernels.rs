//! The communications of all ranks that run as kernels which wait for other ranks.

use std::{cmp::Reverse, collections::BinaryHeap, ops::Range};

use rustc_hash::{FxHashMap, FxHashSet};

use super::TooManyComms;
use crate::{
    Backend, InstKind, PeerCollective, Plan, SignalId,
    sync::{
        CommKey, CommMatching, CommNo, InstRef, MemoryGroups, World,
        happens_before::{GroupOrders, walk_group},
        memory_groups::root,
    },
};

/// A communication of a rank.
pub struct Kernel {
    /// The instruction that posts it, or the first one of a collective over peer memory.
    pub at: InstRef,
    /// The communication. All parts that run together have the same number.
    pub node: CommNo,
    /// Its chain, and its position there.
    pub chain: usize,
    pub position: usize,
    /// Its number on the actor that executes the chain.
    number: u32,
    /// By chain: the number of instructions that have ended when it begins.
    ended: Vec<u32>,
}

impl Kernel {
    /// Returns whether this has ended before `other`, of the same rank, begins.
    pub fn is_before(&self, other: &Self) -> bool {
        if self.chain == other.chain {
            self.position < other.position
        } else {
            other.ended[self.chain] >= self.number
        }
    }
}

/// The communications of a rank.
#[derive(Default)]
pub struct RankKernels {
    /// In issue order.
    pub kernels: Vec<Kernel>,
    /// Those of one communicator, or of one stream if they run over peer memory. They run one after another.
    pub chains: Vec<Vec<usize>>,
    /// By chain: whether it is a communicator of NCCL.
    pub is_nccl: Vec<bool>,
}

impl RankKernels {
    /// Puts the kernels into their chains. Those that the walk has not visited are dropped: they begin with an instruction
    /// of the host.
    fn build_chains(&mut self) {
        self.kernels.retain(|it| it.number > 0);
        for (index, it) in self.kernels.iter_mut().enumerate() {
            let chain = &mut self.chains[it.chain];
            it.position = chain.len();
            chain.push(index);
        }
    }

    /// Returns the communications in issue order, except that one that ends before an earlier one begins comes first.
    pub fn in_order_of_start(&self) -> Vec<usize> {
        let chains = self.chains.len();
        let mut sorted = Vec::with_capacity(self.kernels.len());
        let mut next = vec![0; chains];
        let head = |next: &[usize], chain: usize| self.chains[chain].get(next[chain]).copied();
        // By chain: the first chain whose head may have to come before its head. The heads of a chain only get later.
        let mut compared = vec![0; chains];
        // By chain: those whose heads come after its head.
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); chains];
        let mut ready = BinaryHeap::new();
        let mut changed: Vec<usize> = (0..chains).collect();
        loop {
            for chain in std::mem::take(&mut changed) {
                let Some(own) = head(&next, chain) else { continue };
                let is_before = |it: usize| self.kernels[it].is_before(&self.kernels[own]);
                let mut others = (compared[chain]..chains).filter(|it| *it != chain);
                match others.find(|it| head(&next, *it).is_some_and(is_before)) {
                    Some(other) => {
                        compared[chain] = other;
                        waiting[other].push(chain);
                    }
                    None => ready.push(Reverse(own)),
                }
            }
            let Some(Reverse(first)) = ready.pop() else { return sorted };
            let chain = self.kernels[first].chain;
            sorted.push(first);
            (next[chain], compared[chain]) = (next[chain] + 1, 0);
            changed.push(chain);
            changed.append(&mut waiting[chain]);
        }
    }
}

/// Returns the communications by rank, in the own order of each group; or `None` if no rank uses more than one chain.
///
/// # Errors
/// A group has too many streams and communicators to order them.
pub fn kernels_of(world: &World, groups: &MemoryGroups) -> Result<Option<Vec<RankKernels>>, TooManyComms> {
    let matched = world.matching();
    let first_actors = groups.first_actors();
    let posts = kernels(world);
    let mut ranks: Vec<RankKernels> = Vec::new();
    // By rank: the actor of each chain.
    let mut actors: Vec<Vec<u32>> = Vec::new();
    for (plan, posts) in world.iter().zip(&posts) {
        let first = first_actors[plan.rank];
        let mut chain_of: FxHashMap<u32, usize> = FxHashMap::default();
        let mut rank = RankKernels::default();
        for at in posts {
            let communicator = communicator(world, *at);
            let actor = first
                + match communicator {
                    Some(it) => plan.streams.len() as u32 + it,
                    None => plan.code[at.inst].stream,
                };
            let chain = *chain_of.entry(actor).or_insert(rank.chains.len());
            if chain == rank.chains.len() {
                rank.chains.push(Vec::new());
                rank.is_nccl.push(communicator.is_some());
            }
            let kernel = Kernel { at: *at, node: 0, chain, position: 0, number: 0, ended: Vec::new() };
            rank.kernels.push(kernel);
        }
        let mut of_rank = vec![0; rank.chains.len()];
        chain_of.into_iter().for_each(|(actor, chain)| of_rank[chain] = actor);
        actors.push(of_rank);
        ranks.push(rank);
    }
    if ranks.iter().all(|it| it.chains.len() < 2) {
        return Ok(None);
    }
    let group = joint_p2p_groups(matched, &posts);
    let peer_collectives = joint_peer_collectives(world);
    for it in ranks.iter_mut().flat_map(|it| &mut it.kernels) {
        it.node = match peer_collectives.get(&it.at) {
            Some(number) => matched.comms.len() as CommNo + number,
            None => group[matched.comms_of(it.at)[0] as usize],
        };
    }
    let mut known: FxHashMap<InstRef, usize> = FxHashMap::default();
    for rank in &ranks {
        known.extend(rank.kernels.iter().enumerate().map(|(number, it)| (it.at, number)));
    }
    for group in 0..groups.groups().len() {
        let walked = walk_group(world, (groups, group), GroupOrders::Own, &mut |it| {
            if let Some(kernel) = known.get(&InstRef { rank: it.rank, inst: it.inst }) {
                let kernel = &mut ranks[it.rank].kernels[*kernel];
                kernel.number = it.number;
                kernel.ended = actors[it.rank].iter().map(|actor| it.clock.ended(*actor)).collect();
            }
        });
        walked.map_err(|_| TooManyComms)?;
    }
    ranks.iter_mut().for_each(RankKernels::build_chains);
    Ok(Some(ranks))
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

/// Returns, by the first instruction of each member's part of a collective over peer memory, a number that all
/// members of the collective share: one waits for the signals of another.
pub fn joint_peer_collectives(world: &World) -> FxHashMap<InstRef, CommNo> {
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
