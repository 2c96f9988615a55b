//! Whether hosts may block each other where they create communicators, and which kernels wait for which.

use hir_plan::sync::P2pQueues;

use super::{
    super::{
        sends::{Kernels, Queue, RANKS},
        starts::Partners,
    },
    Program,
};

/// Returns why a host waits for ever: with a communicator for each pair, the first communication on a communicator creates it, where the hosts of all
/// its ranks wait for each other.
pub(super) fn stuck_hosts(program: &Program, p2p: P2pQueues) -> Option<String> {
    if p2p == P2pQueues::Communicator {
        return None;
    }
    let (kernels, ranks) = (&program.kernels, program.kernels.ranks);
    // By rank: the communicators in the order in which it creates them.
    let created = (0..ranks).map(|rank| {
        let mut all: Vec<Queue> = Vec::new();
        for number in 0..kernels.of[rank].len() {
            let queue = kernels.queue(p2p, rank, number);
            if !all.contains(&queue) {
                all.push(queue);
            }
        }
        all
    });
    let created: Vec<Vec<Queue>> = created.collect();
    let mut done = [0; RANKS];
    loop {
        let waits_for = |rank: usize| created[rank].get(done[rank]).copied();
        let has_met = |rank: usize| {
            waits_for(rank)
                .is_some_and(|queue| queue.members(ranks).into_iter().all(|it| waits_for(it) == Some(queue)))
        };
        let ready: Vec<usize> = (0..ranks).filter(|it| has_met(*it)).collect();
        if ready.is_empty() {
            break;
        }
        ready.into_iter().for_each(|it| done[it] += 1);
    }
    let is_done = (0..ranks).all(|rank| done[rank] == created[rank].len());
    (!is_done).then(|| format!("hosts create these communicators: {created:?}"))
}

/// Returns the kernels of the other sides of all transfers.
pub(super) fn partners(kernels: &Kernels, p2p: P2pQueues) -> Partners {
    let of_kernel = |rank: usize, number: usize| {
        let peers = kernels.of[rank][number].sides.iter().map(|it| it.peer);
        peers.zip(kernels.partners(p2p, rank, number)).map(|(peer, of)| of.map(|it| (peer, it))).collect()
    };
    std::array::from_fn(|rank| (0..kernels.of[rank].len()).map(|it| of_kernel(rank, it)).collect())
}

/// Returns all kernels that transfers connect: NCCL may execute the transfers of a group in turn, so that each waits for the kernels for which another
/// one waits.
pub(super) fn as_one_operation(partners: &Partners) -> Partners {
    let connected = |rank: usize, number: usize| {
        let mut all = vec![Some((rank, number))];
        let mut at = 0;
        while let Some(it) = all.get(at).copied() {
            for other in it.map_or(&[][..], |(rank, number)| &partners[rank][number]) {
                if !all.contains(other) {
                    all.push(*other);
                }
            }
            at += 1;
        }
        all
    };
    std::array::from_fn(|rank| (0..partners[rank].len()).map(|it| connected(rank, it)).collect())
}
