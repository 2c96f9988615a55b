//! Programs of three ranks that send and receive, in groups and outside of groups. What is in no group runs on the communicator of all ranks or on
//! one for each pair of ranks, and groups run on that of all ranks.
//!
//! A kernel executes a group, or one side of a transfer. It begins when it is first in its queue, and the stream has done what it had when the kernel
//! was posted. The sides of a group access memory at the same time, but receive from one rank in their order.
//!
//! To NCCL, a group is one operation of its communicator, whose kernels the guide wants to start in one order on all ranks. If only this rule finds a
//! fault, the verdicts are not compared.

mod graph;
mod stuck;

use hir::{
    check::{Checks, Finding, OrderingModel, StorageModel},
    plan::sync::{LaunchOrder, P2pQueues},
};

use self::{
    graph::works_of,
    stuck::{as_one_operation, partners, stuck, stuck_hosts},
};
use super::{
    Verdict, plans_of, same_verdict,
    three_ranks::{self, stream_name},
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
        let checks = Checks { race: false, memory: false, p2p: Some(p2p), ..Checks::ALL_FAULTS };
        let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_) | Finding::CommunicatorOrder(_));
        for nccl in LaunchOrder::ALL {
            let partners = partners(&program, p2p);
            let expected = stuck_hosts(&program, p2p).or_else(|| stuck(&program, p2p, nccl, &partners));
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
        let ends = stuck_hosts(&program, p2p)
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
    three_ranks::text(&[("global", 4); TENSORS - 1], TENSORS - 1, statements)
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
