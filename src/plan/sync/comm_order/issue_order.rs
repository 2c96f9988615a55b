//! Whether all ranks can execute their instructions one after another in issue order.
//!
//! Let all parts of a communication execute together, and a wait for a signal after the instruction that sets it. If the
//! communications can be sorted so that each rank meets its own in this order, no instruction has to end before one begins
//! that its rank issues earlier: each happens-before order either stays on a rank and leads to a later instruction, or leads from a
//! part of a communication to another one. The first kind does not go back in the sorted list, and the second kind stays
//! where it is, so a path of both cannot come back to an earlier instruction.

use crate::sync::{CommKey, CommNo, CommRole, InstRef, World, memory_groups::root};

/// Returns whether it is possible. Time is proportional to the number of parts of communications.
pub(super) fn is_possible(world: &World) -> bool {
    let matched = world.matching();
    let count = matched.comms.len();
    // The communications that execute together: those of one group of sends and receives.
    let mut parent: Vec<CommNo> = (0..count as CommNo).collect();
    let is_signal = |it: CommNo| matches!(matched.comm(it).key, CommKey::Signal(_));
    // Hosts order nothing.
    let is_of_hosts = |it: CommNo| matches!(matched.comm(it).key, CommKey::Handle(..) | CommKey::Barrier(_));
    let instructions =
        || world.iter().flat_map(|plan| (0..plan.code.len()).map(|inst| InstRef { rank: plan.rank, inst }));
    let all = || {
        let with_comms = instructions().map(|at| (at, matched.comms_of(at)));
        with_comms.filter(|(_, comms)| comms.first().is_some_and(|it| !is_of_hosts(*it)))
    };
    for (_, comms) in all() {
        for pair in comms.windows(2) {
            let (one, other) = (root(&mut parent, pair[0]), root(&mut parent, pair[1]));
            parent[other as usize] = one;
        }
    }
    // A node for each communication; for a signal, one for setting it, and one for waiting for it.
    let mut edges: Vec<[u32; 2]> = Vec::new();
    edges.extend((0..count as CommNo).filter(|it| is_signal(*it)).map(|it| [it, it + count as u32]));
    let mut last: Option<(usize, u32)> = None;
    for (at, comms) in all() {
        let Some(comm) = comms.first().copied() else { continue };
        let waits = is_signal(comm) && matched.comm(comm).part(at.rank, CommRole::Signals) != Some(at);
        let node = root(&mut parent, comm) + if waits { count as u32 } else { 0 };
        match last.replace((at.rank, node)) {
            // Two instructions of a rank that execute together have no order.
            Some((rank, before)) if rank == at.rank && before == node => return false,
            Some((rank, before)) if rank == at.rank => edges.push([before, node]),
            Some(_) | None => (),
        }
    }
    is_acyclic(2 * count, edges)
}

fn is_acyclic(nodes: usize, mut edges: Vec<[u32; 2]>) -> bool {
    edges.sort_unstable();
    edges.dedup();
    let mut missing = vec![0_u32; nodes];
    edges.iter().for_each(|it| missing[it[1] as usize] += 1);
    let mut free: Vec<u32> = (0..nodes as u32).filter(|it| missing[*it as usize] == 0).collect();
    let mut sorted = 0;
    while let Some(node) = free.pop() {
        sorted += 1;
        let first = edges.partition_point(|it| it[0] < node);
        for [_, next] in edges[first..].iter().take_while(|it| it[0] == node) {
            missing[*next as usize] -= 1;
            if missing[*next as usize] == 0 {
                free.push(*next);
            }
        }
    }
    sorted == nodes
}
