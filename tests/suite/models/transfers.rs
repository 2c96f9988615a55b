//! Programs of three ranks that send and receive, in groups and outside of groups. What is in no group runs on the communicator of all ranks or on
//! one for each pair of ranks, and groups run on that of all ranks.
//!
//! A kernel executes a group, or one side of a transfer. It begins when it is first in its queue, and the stream has done what it had when the kernel
//! was posted. For deadlocks, a kernel ends once those of the other sides of all its transfers have begun, and a GPU runs one kernel at a time. For
//! races, a kernel that receives ends after the kernels that send to it have begun. The sides of a group access memory at the same time, but
//! receive from one rank in their order.
//!
//! To NCCL, a group is one operation of its communicator, whose kernels the guide wants to start in one order on all ranks. If only this rule finds a
//! fault, the verdicts are not compared.

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

/// A side of a transfer.
#[derive(Clone, Copy, Debug)]
struct Side {
    peer: usize,
    sends: bool,
    tensor: usize,
}

/// What a rank posts at once: a group, or a side that is in none.
#[derive(Clone, Debug)]
struct Kernel {
    sides: Vec<Side>,
    is_group: bool,
}

/// A statement, on the stream with a number. Kernels are numbers of the rank, in the order in which it posts them.
#[derive(Clone, Copy, Debug)]
enum Statement {
    Post { kernel: usize, stream: usize },
    Wait { kernel: usize, stream: usize },
    Compute { out: usize, from: usize, stream: usize },
    Synchronize { awaited: usize, stream: usize },
}

/// What each rank posts and executes.
#[derive(Default)]
struct Program {
    kernels: [Vec<Kernel>; RANKS],
    statements: [Vec<Statement>; RANKS],
}

/// Compares the verdicts on a random program with each kind of queues.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let program = program(rng);
    let text = text(&program);
    let world = plans_of(&text, RANKS)?;
    let mut verdicts = Vec::new();
    for p2p in P2pQueues::ALL {
        // Which hosts the creation of the communicator of all ranks blocks is not compared.
        if p2p == P2pQueues::Pair
            && stuck_hosts(&program, p2p, true).is_some()
            && stuck_hosts(&program, p2p, false).is_none()
        {
            verdicts.extend([None; 3]);
            continue;
        }
        let checks = Checks { race: false, memory: false, p2p: Some(p2p), ..Checks::ALL_FAULTS };
        let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_) | Finding::CommunicatorOrder(_));
        for nccl in LaunchOrder::ALL {
            let partners = partners(&program, p2p);
            let expected = stuck_hosts(&program, p2p, true).or_else(|| stuck(&program, p2p, nccl, &partners));
            if expected.is_none() && stuck(&program, p2p, nccl, &as_one_operation(&partners)).is_some() {
                verdicts.push(None);
                continue;
            }
            let name = format!("{} {}", p2p.name(), nccl.name());
            verdicts.push(same_verdict(
                (&text, &world),
                (Checks { nccl, ..checks }, &name),
                is_stuck,
                expected,
            )?);
        }
        // What a program that does not end accesses is not compared.
        let ends = stuck_hosts(&program, p2p, true)
            .or_else(|| stuck(&program, p2p, LaunchOrder::Explicit, &partners(&program, p2p)))
            .is_none();
        verdicts.push(if ends {
            let checks = Checks { race: true, comm: false, storage: StorageModel::NeverReused, ..checks };
            let is_race = |it: &Finding| matches!(it, Finding::Race { .. });
            let expected = program.race_in_a_group();
            let expected = expected.or_else(|| works_of(&program, p2p).race(OrderingModel::Nccl));
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
    let (waits, syncs, groups) = (rng.below(4), rng.below(3), rng.below(3));
    let mut program = Program::default();
    for rank in 0..RANKS {
        let kernels = &mut program.kernels[rank];
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
                    let is_group = rng.below(4) < groups;
                    let count = if is_group { 1 + rng.below(left.len().min(3)) } else { 1 };
                    let mut side = || {
                        let (peer, sends) = left.remove(if shuffles { rng.below(left.len()) } else { 0 });
                        let tensor = if sends { rng.below(TENSORS) } else { 1 + rng.below(TENSORS - 1) };
                        Side { peer, sends, tensor }
                    };
                    kernels.push(Kernel { sides: (0..count).map(|_| side()).collect(), is_group });
                    all.push(Statement::Post { kernel: posted, stream });
                    pending.push((posted, stream));
                    posted += 1;
                    // A Wait for what was just posted.
                    if waits == 0 {
                        pending.pop();
                        all.push(Statement::Wait { kernel: posted - 1, stream });
                    }
                }
                2..=3 if !pending.is_empty() => {
                    let (kernel, on) = pending.swap_remove(rng.below(pending.len()));
                    all.push(Statement::Wait { kernel, stream: if rng.below(3) == 0 { stream } else { on } });
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
        program.statements[rank] = all;
    }
    program
}

/// Returns the text of a program.
fn text(program: &Program) -> String {
    let side = |number: usize, it: &Side| {
        let (kind, Side { peer, tensor, .. }) = (if it.sends { "send" } else { "recv" }, it);
        format!("P2PCommunication {number} (type={kind}, buffer=T{tensor}, peer={peer}, backend=NCCL)")
    };
    let statements = (0..RANKS).map(|rank| {
        let post = |number: usize| match &program.kernels[rank][number] {
            Kernel { is_group: false, sides } => side(number, &sides[0]),
            Kernel { is_group: true, sides } => {
                let sides = sides.iter().enumerate().map(|(at, it)| side(100 + 10 * number + at, it));
                let lines = ["StartCoalescing".to_owned()].into_iter().chain(sides);
                lines.chain([format!("EndCoalescing {number}")]).collect::<Vec<_>>().join("\n    ")
            }
        };
        let statement = |it: &Statement| match *it {
            Statement::Post { kernel, stream } => (stream, post(kernel)),
            Statement::Wait { kernel, stream } => (stream, format!("Wait(Communication {kernel})")),
            Statement::Compute { out, from, stream } => (stream, format!("T{out} = neg(T{from})")),
            Statement::Synchronize { awaited, stream } => {
                (stream, format!("Synchronize(Stream {})", stream_name(awaited)))
            }
        };
        program.statements[rank].iter().map(statement).collect()
    });
    three_ranks::text(&["global"; TENSORS - 1], statements)
}

impl Program {
    /// Returns the kernel, on the peer, of the other side of each transfer of a kernel: messages from one rank to another arrive in order, with a
    /// communicator for each pair those of groups and the others by themselves. `None` if the other side is not there.
    fn partners(&self, p2p: P2pQueues, rank: usize, number: usize) -> Vec<Option<usize>> {
        let kernel = &self.kernels[rank][number];
        let is_there = |it: &Kernel| p2p == P2pQueues::Communicator || it.is_group == kernel.is_group;
        let earlier: Vec<&Kernel> = self.kernels[rank][..number].iter().filter(|it| is_there(it)).collect();
        let partner = |(at, side): (usize, &Side)| {
            let is_alike = |it: &&Side| it.peer == side.peer && it.sends == side.sends;
            let before = earlier.iter().flat_map(|it| &it.sides).chain(&kernel.sides[..at]);
            let before = before.filter(is_alike).count();
            let all = self.kernels[side.peer].iter().enumerate().filter(|it| is_there(it.1));
            let all = all.flat_map(|(number, it)| it.sides.iter().map(move |side| (number, side)));
            let alike = all.filter(|(_, it)| it.peer == rank && it.sends != side.sends);
            alike.map(|it| it.0).nth(before)
        };
        kernel.sides.iter().enumerate().map(partner).collect()
    }

    /// Returns two sides of a group that access the same memory.
    fn race_in_a_group(&self) -> Option<String> {
        let conflict = |one: &Side, other: &Side| {
            let is_in_order = !one.sends && !other.sends && one.peer == other.peer;
            one.tensor == other.tensor && !(one.sends && other.sends) && !is_in_order
        };
        let has_conflict = |it: &&Kernel| {
            let mut pairs = it.sides.iter().enumerate();
            pairs.any(|(at, one)| it.sides[..at].iter().any(|other| conflict(one, other)))
        };
        let found = self.kernels.iter().flatten().find(has_conflict);
        found.map(|it| format!("within {it:?}"))
    }
}

/// Returns whether two kernels of a rank are in one queue.
fn is_one_queue(p2p: P2pQueues, one: &Kernel, other: &Kernel) -> bool {
    match p2p {
        P2pQueues::Communicator => true,
        P2pQueues::Pair if one.is_group || other.is_group => one.is_group && other.is_group,
        P2pQueues::Pair => one.sides[0].peer == other.sides[0].peer,
    }
}

/// Returns why a host waits for ever: with a communicator for each pair, the first transfer of a pair creates its communicator, which both
/// hosts wait for. With `for_all`, the first group creates that of all ranks, which all hosts wait for.
fn stuck_hosts(program: &Program, p2p: P2pQueues, for_all: bool) -> Option<String> {
    if p2p == P2pQueues::Communicator {
        return None;
    }
    // By rank: the peers in the order in which communicators are created; `RANKS` stands for the communicator of all.
    let created: Vec<Vec<usize>> = (0..RANKS)
        .map(|rank| {
            let mut peers = Vec::new();
            for it in &program.kernels[rank] {
                let peer = if it.is_group { RANKS } else { it.sides[0].peer };
                if !peers.contains(&peer) && (for_all || !it.is_group) {
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
fn stuck(program: &Program, p2p: P2pQueues, order: LaunchOrder, partners: &Partners) -> Option<String> {
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
type Partners = [Vec<Vec<Option<(usize, usize)>>>; RANKS];

/// Returns the kernels of the other sides of all transfers.
fn partners(program: &Program, p2p: P2pQueues) -> Partners {
    let of_kernel = |rank: usize, number: usize| {
        let peers = program.kernels[rank][number].sides.iter().map(|it| it.peer);
        peers.zip(program.partners(p2p, rank, number)).map(|(peer, of)| of.map(|it| (peer, it))).collect()
    };
    std::array::from_fn(|rank| (0..program.kernels[rank].len()).map(|it| of_kernel(rank, it)).collect())
}

/// Returns all kernels that transfers connect: NCCL may execute the transfers of a group in turn, so that each waits for the kernels for which another
/// one waits.
fn as_one_operation(partners: &Partners) -> Partners {
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

/// Returns the works of a program: those of all streams, and the beginning and the end of each kernel.
fn works_of(program: &Program, p2p: P2pQueues) -> Works {
    let mut it = Works::new(TENSORS);
    // The beginning and the end of each kernel, by rank and number.
    let mut both = |of: &Vec<Kernel>| of.iter().map(|_| [it.add(Vec::new()), it.add(Vec::new())]).collect();
    let kernels: [Vec<[usize; 2]>; RANKS] = program.kernels.each_ref().map(&mut both);
    for (rank, all) in program.kernels.iter().enumerate() {
        for (number, kernel) in all.iter().enumerate() {
            let [begin, end] = kernels[rank][number];
            it.needs[end].push(begin);
            for (side, of) in kernel.sides.iter().zip(program.partners(p2p, rank, number)) {
                if let Some(of) = of.filter(|_| !side.sends) {
                    it.needs[end].push(kernels[side.peer][of][0]);
                }
            }
            let earlier = (0..number).filter(|it| is_one_queue(p2p, &all[*it], kernel));
            it.needs[begin].extend(earlier.map(|it| kernels[rank][it][1]));
        }
    }
    for (rank, (kernels, statements)) in kernels.iter().zip(&program.statements).enumerate() {
        let entry = it.add(Vec::new());
        // The last work of each stream.
        let mut last = [Some(entry), None];
        for tensor in 1..TENSORS {
            let zeros = it.add(last[0].into_iter().collect());
            it.access([zeros, zeros], (rank, tensor), true);
            last[0] = Some(zeros);
        }
        for statement in statements {
            match *statement {
                Statement::Post { kernel, stream } => {
                    let [begin, end] = kernels[kernel];
                    it.needs[begin].extend(last[stream]);
                    for side in &program.kernels[rank][kernel].sides {
                        it.access([begin, end], (rank, side.tensor), !side.sends);
                    }
                }
                Statement::Wait { kernel, stream } => {
                    let needs = last[stream].into_iter().chain([kernels[kernel][1]]).collect();
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
