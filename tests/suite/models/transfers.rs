//! Programs of three ranks that send and receive outside of groups, on the communicator of all ranks or on one for each pair of ranks.
//!
//! A kernel begins when it is first in its queue, and the stream has done what it had when the kernel was posted. For deadlocks, each transfer is a
//! rendezvous: both sides end once both have begun, and a GPU runs one kernel at a time. For races, a receive ends after the send has begun, and
//! a send ends by itself.

use std::collections::BTreeSet;

use hir::{
    check::{Checks, Finding, OrderingModel, StorageModel},
    plan::sync::{LaunchOrder, P2pQueues},
};

use super::{
    Verdict, plans_of, same_verdict,
    three_ranks::{self, stream_name},
    works::Works,
};
use crate::rng::Rng;

const RANKS: usize = 3;
/// Stream 0 is the one that is current at entry and at exit.
const STREAMS: usize = 2;
/// The tensors of each rank. `T0` is an input, all others are outputs.
const TENSORS: usize = 4;

/// A statement, on the stream with a number.
#[derive(Clone, Copy, Debug)]
enum Statement {
    /// One side of a transfer. Numbers are those of the rank.
    Post {
        number: usize,
        peer: usize,
        sends: bool,
        tensor: usize,
        stream: usize,
    },
    Wait {
        number: usize,
        stream: usize,
    },
    Compute {
        out: usize,
        from: usize,
        stream: usize,
    },
    Synchronize {
        awaited: usize,
        stream: usize,
    },
}

type Program = [Vec<Statement>; RANKS];

/// Compares the verdicts on a random program with each kind of queues.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let program = program(rng);
    let text = text(&program);
    let world = plans_of(&text, RANKS)?;
    let mut verdicts = Vec::new();
    for p2p in P2pQueues::ALL {
        let checks = Checks { race: false, memory: false, p2p: Some(p2p), ..Checks::ALL_FAULTS };
        let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_) | Finding::CommunicatorOrder(_));
        for nccl in LaunchOrder::ALL {
            let expected = stuck_hosts(&program, p2p).or_else(|| stuck(&program, p2p, nccl));
            let name = format!("{} {}", p2p.name(), nccl.name());
            verdicts.push(same_verdict(
                (&text, &world),
                (Checks { nccl, ..checks }, &name),
                is_stuck,
                expected,
            )?);
        }
        // What a program that does not end accesses is not compared.
        let ends =
            stuck_hosts(&program, p2p).or_else(|| stuck(&program, p2p, LaunchOrder::Explicit)).is_none();
        verdicts.push(if ends {
            let checks = Checks { race: true, comm: false, storage: StorageModel::NeverReused, ..checks };
            let is_race = |it: &Finding| matches!(it, Finding::Race { .. });
            let expected = works_of(&program, p2p).race(OrderingModel::Nccl);
            same_verdict((&text, &world), (checks, &format!("{} race", p2p.name())), is_race, expected)?
        } else {
            None
        });
    }
    Ok(verdicts)
}

/// Returns random statements of each rank that post both sides of some transfers, and wait for most of them.
fn program(rng: &mut Rng) -> Program {
    let transfers: Vec<(usize, usize)> = (0..1 + rng.below(4))
        .map(|_| {
            let from = rng.below(RANKS);
            (from, (from + 1 + rng.below(RANKS - 1)) % RANKS)
        })
        .collect();
    let shuffles = rng.below(3) == 0;
    let (waits, syncs) = (rng.below(4), rng.below(3));
    std::array::from_fn(|rank| {
        let mut left: Vec<(usize, bool)> = Vec::new();
        for (from, to) in &transfers {
            left.extend((*from == rank).then_some((*to, true)));
            left.extend((*to == rank).then_some((*from, false)));
        }
        let (mut all, mut pending, mut posted) = (Vec::new(), Vec::new(), 0);
        if rng.below(4) > 0 {
            all.push(Statement::Synchronize { awaited: 0, stream: 1 });
        }
        while !left.is_empty() || (!pending.is_empty() && rng.below(8) > 0) {
            let stream = rng.below(STREAMS);
            match rng.below(6) {
                0..=1 if !left.is_empty() => {
                    let (peer, sends) = left.remove(if shuffles { rng.below(left.len()) } else { 0 });
                    let tensor = if sends { rng.below(TENSORS) } else { 1 + rng.below(TENSORS - 1) };
                    all.push(Statement::Post { number: posted, peer, sends, tensor, stream });
                    pending.push((posted, stream));
                    posted += 1;
                    // A Wait for what was just posted.
                    if waits == 0 {
                        pending.pop();
                        all.push(Statement::Wait { number: posted - 1, stream });
                    }
                }
                2..=3 if !pending.is_empty() => {
                    let (number, on) = pending.swap_remove(rng.below(pending.len()));
                    all.push(Statement::Wait { number, stream: if rng.below(3) == 0 { stream } else { on } });
                }
                4 if rng.below(2) == 0 => {
                    let out = 1 + rng.below(TENSORS - 1);
                    all.push(Statement::Compute { out, from: rng.below(TENSORS), stream });
                }
                5 if rng.below(2) < syncs => {
                    all.push(Statement::Synchronize { awaited: 1 - stream, stream });
                }
                _ => (),
            }
        }
        if rng.below(4) > 0 {
            all.push(Statement::Synchronize { awaited: 1, stream: 0 });
        }
        all
    })
}

/// Returns the text of a program.
fn text(program: &Program) -> String {
    let statement = |it: &Statement| match *it {
        Statement::Post { number, peer, sends, tensor, stream } => {
            let kind = if sends { "send" } else { "recv" };
            let post = format!(
                "P2PCommunication {number} (type={kind}, buffer=T{tensor}, peer={peer}, backend=NCCL)"
            );
            (stream, post)
        }
        Statement::Wait { number, stream } => (stream, format!("Wait(Communication {number})")),
        Statement::Compute { out, from, stream } => (stream, format!("T{out} = neg(T{from})")),
        Statement::Synchronize { awaited, stream } => {
            (stream, format!("Synchronize(Stream {})", stream_name(awaited)))
        }
    };
    let statements = program.iter().map(|it| it.iter().map(statement).collect());
    three_ranks::text(&["global"; TENSORS - 1], statements)
}

/// A side of a transfer in a rank's issue order.
#[derive(Clone, Copy)]
struct Side {
    peer: usize,
    sends: bool,
}

/// Returns the sides of a rank in issue order. The number of a side is its position.
fn sides(program: &Program, rank: usize) -> Vec<Side> {
    let side = |it: &Statement| match *it {
        Statement::Post { peer, sends, .. } => Some(Side { peer, sends }),
        Statement::Wait { .. } | Statement::Compute { .. } | Statement::Synchronize { .. } => None,
    };
    program[rank].iter().filter_map(side).collect()
}

/// Returns the number, on the peer, of the other side: messages from one rank to another arrive in order.
fn partner(all: &[Vec<Side>; RANKS], rank: usize, number: usize) -> usize {
    let Side { peer, sends } = all[rank][number];
    let before = all[rank][..number].iter().filter(|it| it.peer == peer && it.sends == sends).count();
    let alike = all[peer].iter().enumerate().filter(|(_, it)| it.peer == rank && it.sends != sends);
    alike.map(|it| it.0).nth(before).unwrap_or_default()
}

/// Returns whether two sides of a rank are in one queue.
fn is_one_queue(p2p: P2pQueues, one: Side, other: Side) -> bool {
    match p2p {
        P2pQueues::Communicator => true,
        P2pQueues::Pair => one.peer == other.peer,
    }
}

/// Returns why a host waits for ever: with a communicator for each pair, the first transfer of a pair creates its communicator, which both
/// hosts wait for.
fn stuck_hosts(program: &Program, p2p: P2pQueues) -> Option<String> {
    if p2p == P2pQueues::Communicator {
        return None;
    }
    // By rank: the peers in the order in which communicators are created.
    let created: Vec<Vec<usize>> = (0..RANKS)
        .map(|rank| {
            let mut peers = Vec::new();
            for it in sides(program, rank) {
                if !peers.contains(&it.peer) {
                    peers.push(it.peer);
                }
            }
            peers
        })
        .collect();
    let mut done = [0; RANKS];
    loop {
        let waits_for = |rank: usize| created[rank].get(done[rank]).copied();
        let ready = (0..RANKS).find_map(|rank| {
            let peer = waits_for(rank)?;
            (waits_for(peer) == Some(rank)).then_some((rank, peer))
        });
        let Some((rank, peer)) = ready else { break };
        done[rank] += 1;
        done[peer] += 1;
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
            Statement::Post { number, stream, .. } => {
                work.posts = Some(number);
                stream
            }
            Statement::Wait { number, stream } => {
                work.awaits = Some(number);
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
fn stuck(program: &Program, p2p: P2pQueues, order: LaunchOrder) -> Option<String> {
    let works: [_; RANKS] = std::array::from_fn(|rank| stream_works(&program[rank]));
    let all: [Vec<Side>; RANKS] = std::array::from_fn(|rank| sides(program, rank));
    let mut start: [RankState; RANKS] = Default::default();
    settle(&works, &all, &mut start);
    let (mut open, mut known) = (vec![start], BTreeSet::from([start]));
    while let Some(state) = open.pop() {
        let mut is_last = true;
        for rank in 0..RANKS {
            let (done, begun, ended) = state[rank];
            for number in 0..all[rank].len() {
                let is_posted = (0..STREAMS)
                    .any(|it| works[rank][it][..done[it]].iter().any(|it| it.posts == Some(number)));
                let follows = (0..number)
                    .all(|it| !is_one_queue(p2p, all[rank][it], all[rank][number]) || ended >> it & 1 == 1);
                let is_first = (0..number).all(|it| begun >> it & 1 == 1);
                let may_start = is_posted && follows && (order == LaunchOrder::Explicit || is_first);
                if may_start && begun == ended && begun >> number & 1 == 0 {
                    is_last = false;
                    let mut next = state;
                    next[rank].1 |= 1 << number;
                    settle(&works, &all, &mut next);
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

/// Executes the works of all streams, and ends kernels, as far as possible. This prevents nothing, so that only the starts of kernels
/// have alternatives.
fn settle(
    works: &[[Vec<StreamWork>; STREAMS]; RANKS],
    all: &[Vec<Side>; RANKS],
    state: &mut [RankState; RANKS],
) {
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
            for number in 0..all[rank].len() {
                let is_running = (state[rank].1 & !state[rank].2) >> number & 1 == 1;
                let peer = all[rank][number].peer;
                if is_running && state[peer].1 >> partner(all, rank, number) & 1 == 1 {
                    state[rank].2 |= 1 << number;
                    proceeds = true;
                }
            }
        }
    }
}

/// Returns the works of a program: those of all streams, and the beginning and the end of each kernel.
fn works_of(program: &Program, p2p: P2pQueues) -> Works {
    let mut it = Works::new(TENSORS);
    let all: [Vec<Side>; RANKS] = std::array::from_fn(|rank| sides(program, rank));
    // The beginning and the end of each kernel, by rank and number.
    let kernels: Vec<Vec<[usize; 2]>> = all
        .iter()
        .map(|sides| sides.iter().map(|_| [it.add(Vec::new()), it.add(Vec::new())]).collect())
        .collect();
    for (rank, sides) in all.iter().enumerate() {
        for (number, side) in sides.iter().enumerate() {
            let [begin, end] = kernels[rank][number];
            it.needs[end].push(begin);
            if !side.sends {
                it.needs[end].push(kernels[side.peer][partner(&all, rank, number)][0]);
            }
            let earlier = (0..number).filter(|it| is_one_queue(p2p, sides[*it], *side));
            it.needs[begin].extend(earlier.map(|it| kernels[rank][it][1]));
        }
    }
    for rank in 0..RANKS {
        let entry = it.add(Vec::new());
        // The last work of each stream.
        let mut last = [Some(entry), None];
        for tensor in 1..TENSORS {
            let zeros = it.add(last[0].into_iter().collect());
            it.access([zeros, zeros], (rank, tensor), true);
            last[0] = Some(zeros);
        }
        for statement in &program[rank] {
            match *statement {
                Statement::Post { number, sends, tensor, stream, .. } => {
                    let [begin, end] = kernels[rank][number];
                    it.needs[begin].extend(last[stream]);
                    it.access([begin, end], (rank, tensor), !sends);
                }
                Statement::Wait { number, stream } => {
                    let needs = last[stream].into_iter().chain([kernels[rank][number][1]]).collect();
                    last[stream] = Some(it.add(needs));
                }
                Statement::Synchronize { awaited, stream } => {
                    let needs = last[stream].into_iter().chain(last[awaited]).collect();
                    last[stream] = Some(it.add(needs));
                }
                Statement::Compute { out, from, stream } => {
                    let at = it.add(last[stream].into_iter().collect());
                    it.access([at, at], (rank, from), false);
                    it.access([at, at], (rank, out), true);
                    last[stream] = Some(at);
                }
            }
        }
        let exit = it.add(last[0].into_iter().collect());
        it.callers.push([entry, exit]);
    }
    it
}
