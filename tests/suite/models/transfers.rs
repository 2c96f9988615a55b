//! Programs of two or three ranks that send and receive, in groups and outside of groups, and with SendRecvs and all-reduces of two ranks.
//!
//! A kernel executes a group, one side of a transfer, or an all-reduce. It begins when it is first in its queue, and the stream has done what it had
//! when the kernel was posted. The sides of a group access memory at the same time, but receive from one rank in their order.
//!
//! To NCCL, a group is one operation of its communicator, whose kernels the guide wants to start in one order on all ranks. If only this rule finds a
//! fault, the verdicts are not compared.

mod graph;
mod hosts;

use grammar::Named;
use hir_check::{Checks, Finding, OrderingModel, StorageModel};
use hir_plan::sync::{LaunchOrder, P2pQueues};

use self::{
    graph::works_of,
    hosts::{as_one_operation, partners, stuck_hosts},
};
use super::{
    Verdict, plans_of, same_verdict,
    sends::{Kernels, RANKS, Transfer},
    starts::{self, Partners, Step},
    text::{self, stream_name},
};
use crate::rng::Rng;

/// Stream 0 is the one that is current at entry and at exit.
const STREAMS: usize = 2;
/// The tensors of each rank. `T0` is an input, all others are outputs.
const TENSORS: usize = 4;

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
    kernels: Kernels,
    statements: [Vec<Statement>; RANKS],
}

/// Compares the verdicts on a random program with each kind of queues.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let program = program(rng);
    let text = text(&program);
    let world = plans_of(&text, program.kernels.ranks)?;
    let mut verdicts = Vec::new();
    for &p2p in P2pQueues::ALL {
        let checks = Checks { race: false, memory: false, p2p: Some(p2p), ..Checks::ALL_FAULTS };
        let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_) | Finding::CommunicatorOrder(_));
        let (hosts, partners) = (stuck_hosts(&program, p2p), partners(&program.kernels, p2p));
        for &nccl in LaunchOrder::ALL {
            for runs in [1, RANKS].into_iter().filter(|it| *it == 1 || nccl == LaunchOrder::Explicit) {
                let expected = hosts.clone().or_else(|| stuck((&program, runs), p2p, nccl, &partners));
                let joint = || stuck((&program, runs), p2p, nccl, &as_one_operation(&partners));
                if expected.is_none() && joint().is_some() {
                    verdicts.push(None);
                    continue;
                }
                let checks = Checks { nccl, repeat: runs > 1, ..checks };
                let name = format!("{} {} repeat={}", p2p.name(), nccl.name(), checks.repeat);
                verdicts.push(same_verdict((&text, &world), (checks, &name), is_stuck, expected)?);
            }
        }
        // What a program that does not end accesses is not compared.
        let ends = hosts.or_else(|| stuck((&program, 1), p2p, LaunchOrder::Explicit, &partners)).is_none();
        verdicts.push(if ends {
            let checks = Checks { race: true, comm: false, storage: StorageModel::NeverReused, ..checks };
            let is_race = |it: &Finding| matches!(it, Finding::Race { .. });
            let expected = program.kernels.race_in_a_group();
            let expected = expected.or_else(|| works_of(&program, p2p).race(OrderingModel::Nccl));
            same_verdict((&text, &world), (checks, &format!("{} race", p2p.name())), is_race, expected)?
        } else {
            None
        });
    }
    Ok(verdicts)
}

/// Returns a state in which kernels block each other, if there is one, in runs that follow each other.
fn stuck(
    (program, runs): (&Program, usize),
    p2p: P2pQueues,
    order: LaunchOrder,
    partners: &Partners,
) -> Option<String> {
    let count = |rank: usize| program.kernels.of[rank].len();
    let of_run = |run: usize, rank: usize| {
        let before = run * count(rank);
        let step = move |it: &Statement| match *it {
            Statement::Post { kernel, stream } => (stream, Step::Post(before + kernel)),
            Statement::Wait { kernel, stream } => (stream, Step::Wait(before + kernel)),
            Statement::Synchronize { awaited, stream } => (stream, Step::Synchronize(awaited)),
            Statement::Compute { stream, .. } => (stream, Step::Compute),
        };
        program.statements[rank].iter().map(step)
    };
    let steps = std::array::from_fn(|rank| (0..runs).flat_map(|run| of_run(run, rank)).collect());
    let in_run =
        |run: usize, it: &Option<(usize, usize)>| it.map(|(peer, of)| (peer, run * count(peer) + of));
    let partners = partners.each_ref().map(|of_rank| {
        let of_run = |run: usize| of_rank.iter().map(move |it| it.iter().map(|it| in_run(run, it)).collect());
        (0..runs).flat_map(of_run).collect()
    });
    let queue = |rank, number| program.kernels.queue(p2p, rank, number % count(rank));
    let is_one_queue = |rank, one, other| queue(rank, one) == queue(rank, other);
    starts::stuck::<STREAMS>(&steps, &partners, order, is_one_queue)
}

/// Returns random statements of each rank that post both sides of some transfers, and wait for most of them.
fn program(rng: &mut Rng) -> Program {
    let ranks = if rng.below(4) == 0 { 2 } else { RANKS };
    let transfers: Vec<Transfer> = (0..1 + rng.below(4)).map(|_| Transfer::random(rng, ranks)).collect();
    let shuffles = rng.below(3) == 0;
    let (waits, syncs, groups) = (rng.below(4), rng.below(3), rng.below(3));
    let mut program = Program { kernels: Kernels { ranks, ..Kernels::default() }, ..Program::default() };
    let operand = |rng: &mut Rng, reads| if reads { rng.below(TENSORS) } else { 1 + rng.below(TENSORS - 1) };
    for rank in 0..ranks {
        let mut left: Vec<usize> = (0..transfers.len()).filter(|it| transfers[*it].has(rank)).collect();
        let (mut all, mut pending, mut posted) = (Vec::new(), Vec::new(), 0);
        if rng.below(4) > 0 {
            all.push(Statement::Synchronize { awaited: 0, stream: 1 });
        }
        while !left.is_empty() || (!pending.is_empty() && rng.below(8) > 0) {
            let stream = rng.below(STREAMS);
            match rng.below(6) {
                0..=1 if !left.is_empty() => {
                    let all_left = (&transfers[..], &mut left);
                    program.kernels.post(rng, all_left, (rank, shuffles, groups), &operand);
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
    let statements = (0..program.kernels.ranks).map(|rank| {
        let post = |number: usize| program.kernels.of[rank][number].text(number, |it| format!("T{it}"));
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
    let statements: Vec<Vec<(usize, String)>> = statements.collect();
    text::text(&[("global", 4); TENSORS - 1], TENSORS - 1, &statements)
}
