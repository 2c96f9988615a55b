//! Collectives of one team over peer memory that may run at the same time. They share the signal pads of the team: the kernels have one word
//! for each pair of ranks, so a kernel may take the signal that a peer sets for the other one. Source: PyTorch,
//! `torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu`, `one_shot_all_reduce`, channel 0 of the group.

use super::{
    CommOrderCycle, CommOrderEdge, TooManyComms,
    kernels::{Kernel, kernels_of},
};
use crate::sync::{MemoryGroups, World};

/// Returns two collectives of one team that nothing orders on a rank, and their order on a peer, if there are any. `groups` are the groups of
/// ranks whose own orders count.
///
/// # Errors
/// There are too many streams and communicators to compare.
pub fn shared_pads(world: &World, groups: &MemoryGroups) -> Result<Option<CommOrderCycle>, TooManyComms> {
    if world.iter().all(|plan| plan.peer_collectives.iter().all(|it| it.pads.is_none())) {
        return Ok(None);
    }
    let Some(ranks) = kernels_of(world, groups)? else { return Ok(None) };
    let pads = |it: &Kernel| world[it.at.rank].peer_collective_at(it.at.inst).and_then(|found| found.pads);
    for (number, rank) in ranks.iter().enumerate() {
        for first in rank.kernels.iter().filter(|it| pads(it).is_some()) {
            let Some(second) = rank.unordered_with(first).find(|it| pads(it) == pads(first)) else {
                continue;
            };
            let others = ranks.iter().enumerate().filter(|it| it.0 != number).map(|it| it.1);
            let mut peer = others.filter_map(|other| {
                let of = |node| other.kernels.iter().find(|it| it.node == node);
                of(second.node).zip(of(first.node))
            });
            if let Some((one, two)) = peer.next() {
                let edges = vec![
                    CommOrderEdge::of_one_run([first.at, second.at], true),
                    CommOrderEdge::of_one_run([one.at, two.at], !one.is_before(two)),
                ];
                return Ok(Some(CommOrderCycle { shares_pads: true, ..edges.into() }));
            }
        }
    }
    Ok(None)
}
