//! Whether hosts or kernels of a program may block each other. A kernel ends once those of the other sides of all its transfers have begun, and a
//! GPU runs one kernel at a time.

use std::collections::BTreeSet;

use hir::plan::sync::{LaunchOrder, P2pQueues};

use super::{Program, RANKS, STREAMS, Statement, is_one_queue};

/// Returns why a host waits for ever: with a communicator for each pair, the first transfer of a pair creates its communicator, which both
/// hosts wait for. The first group creates that of all ranks, which all hosts wait for.
pub(super) fn stuck_hosts(program: &Program, p2p: P2pQueues) -> Option<String> {
    if p2p == P2pQueues::Communicator {
        return None;
    }
    // By rank: the peers in the order in which communicators are created; `RANKS` stands for the communicator of all.
    let created: Vec<Vec<usize>> = (0..RANKS)
        .map(|rank| {
            let mut peers = Vec::new();
            for it in &program.kernels[rank] {
                let peer = if it.is_group { RANKS } else { it.sides[0].peer };
                if !peers.contains(&peer) {
                    peers.push(peer);
                }
            }
            peers
        })
        .collect();
    let mut done = [0; RANKS];
    loop {
        let waits_for = |rank: usize| created[rank].get(done[rank]).copied();
        let has_met = |rank: usize| match waits_for(rank) {
            Some(RANKS) => (0..RANKS).all(|it| waits_for(it) == Some(RANKS)),
            Some(peer) => waits_for(peer) == Some(rank),
            None => false,
        };
        let ready: Vec<usize> = (0..RANKS).filter(|it| has_met(*it)).collect();
        if ready.is_empty() {
            break;
        }
        ready.into_iter().for_each(|it| done[it] += 1);
    }
    let is_done = (0..RANKS).all(|rank| done[rank] == created[rank].len());
    (!is_done).then(|| format!("hosts create communicators with these peers: {created:?}"))
}

/// A work of a stream: how much of the other streams it needs, and the kernel that it posts or waits for.
#[derive(Clone, Copy)]
struct StreamWork {
    needs: [usize; STREAMS],
    posts: Option<usize>,
    awaits: Option<usize>,
}

fn stream_works(statements: &[Statement]) -> [Vec<StreamWork>; STREAMS] {
    let mut queues: [Vec<StreamWork>; STREAMS] = Default::default();
    for it in statements {
        let mut work = StreamWork { needs: [0; STREAMS], posts: None, awaits: None };
        let stream = match *it {
            Statement::Post { kernel, stream } => {
                work.posts = Some(kernel);
                stream
            }
            Statement::Wait { kernel, stream } => {
                work.awaits = Some(kernel);
                stream
            }
            Statement::Synchronize { awaited, stream } => {
                work.needs[awaited] = queues[awaited].len();
                stream
            }
            Statement::Compute { stream, .. } => stream,
        };
        queues[stream].push(work);
    }
    queues
}

/// The state of a rank: the works that each stream has executed, the kernels that have begun, and those that have ended, as bits.
type RankState = ([usize; STREAMS], u32, u32);

/// Returns a state in which some rank does not finish and none proceeds, if there is one.
pub(super) fn stuck(
    program: &Program,
    p2p: P2pQueues,
    order: LaunchOrder,
    partners: &Partners,
) -> Option<String> {
    let works: [_; RANKS] = std::array::from_fn(|rank| stream_works(&program.statements[rank]));
    let all = &program.kernels;
    let mut start: [RankState; RANKS] = Default::default();
    settle(&works, partners, &mut start);
    let (mut open, mut known) = (vec![start], BTreeSet::from([start]));
    while let Some(state) = open.pop() {
        let mut is_last = true;
        for rank in 0..RANKS {
            let (done, begun, ended) = state[rank];
            for number in 0..all[rank].len() {
                let is_posted = (0..STREAMS)
                    .any(|it| works[rank][it][..done[it]].iter().any(|it| it.posts == Some(number)));
                let follows = (0..number)
                    .all(|it| !is_one_queue(p2p, &all[rank][it], &all[rank][number]) || ended >> it & 1 == 1);
                let is_first = (0..number).all(|it| begun >> it & 1 == 1);
                let may_start = is_posted && follows && (order == LaunchOrder::Explicit || is_first);
                if may_start && begun == ended && begun >> number & 1 == 0 {
                    is_last = false;
                    let mut next = state;
                    next[rank].1 |= 1 << number;
                    settle(&works, partners, &mut next);
                    if known.insert(next) {
                        open.push(next);
                    }
                }
            }
        }
        let is_finished = (0..RANKS).all(|rank| {
            (0..STREAMS).all(|it| state[rank].0[it] == works[rank][it].len())
                && state[rank].2.count_ones() as usize == all[rank].len()
        });
        if is_last && !is_finished {
            return Some(format!("executed works, begun and ended kernels by rank: {state:?}"));
        }
    }
    None
}

/// The ranks and kernels that have to begin before a kernel ends, by rank and kernel. `None` never begins.
pub(super) type Partners = [Vec<Vec<Option<(usize, usize)>>>; RANKS];

/// Returns the kernels of the other sides of all transfers.
pub(super) fn partners(program: &Program, p2p: P2pQueues) -> Partners {
    let of_kernel = |rank: usize, number: usize| {
        let peers = program.kernels[rank][number].sides.iter().map(|it| it.peer);
        peers.zip(program.partners(p2p, rank, number)).map(|(peer, of)| of.map(|it| (peer, it))).collect()
    };
    std::array::from_fn(|rank| (0..program.kernels[rank].len()).map(|it| of_kernel(rank, it)).collect())
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

/// Executes the works of all streams, and ends kernels, as far as possible. This prevents nothing, so that only the starts of kernels
/// have alternatives.
fn settle(works: &[[Vec<StreamWork>; STREAMS]; RANKS], partners: &Partners, state: &mut [RankState; RANKS]) {
    let mut proceeds = true;
    while std::mem::take(&mut proceeds) {
        for rank in 0..RANKS {
            for stream in 0..STREAMS {
                let (done, _, ended) = state[rank];
                let Some(work) = works[rank][stream].get(done[stream]) else { continue };
                let is_awaited = work.awaits.is_none_or(|it| ended >> it & 1 == 1);
                if is_awaited && (0..STREAMS).all(|it| done[it] >= work.needs[it]) {
                    state[rank].0[stream] += 1;
                    proceeds = true;
                }
            }
            for (number, others) in partners[rank].iter().enumerate() {
                let is_running = (state[rank].1 & !state[rank].2) >> number & 1 == 1;
                let has_begun =
                    |it: &Option<(usize, usize)>| it.is_some_and(|(peer, of)| state[peer].1 >> of & 1 == 1);
                if is_running && others.iter().all(has_begun) {
                    state[rank].2 |= 1 << number;
                    proceeds = true;
                }
            }
        }
    }
}
