//! Programs of three ranks that transfer over peer memory, with puts, gets and collectives of the CUDA backend between buffers in global and
//! symmetric memory, and with collectives, sends and receives of NCCL. Hosts exchange handles, wait for streams, and create the communicators of NCCL.
//!
//! One side of a transfer is ready; the other side waits for that, copies, and tells the first side. With `get` the receiver copies, with
//! `put` the sender. A Wait of the side that copies does nothing. Statements of one number and buffer use one word of memory: a transfer that
//! is posted again, or awaited by the side that copies, before the one before it has ended may take its value for the other one's.

mod collective;
mod graph;
mod random;

use std::collections::BTreeMap;

use hir_check::{Checks, ExecutionFaultKind, Finding, OrderingModel, StorageModel};
use hir_plan::{World, sync::P2pQueues};

use self::{collective::Collective, graph::Graph, random::program};
use super::{
    Verdict, plans_of, same_verdict,
    sends::{Kernels, RANKS},
    text::{self, stream_name},
};
use crate::rng::Rng;

/// Stream 0 is the one that is current at entry and at exit.
const STREAMS: usize = 2;
/// The output of all-gathers, with a part for each rank. The tensors before it have the size of a part; `T0` is an input, the others are outputs.
const WIDE: usize = 4;
/// The tensor in symmetric memory, which is local. The numbers before it are those of the parts of `WIDE`.
const SYMMETRIC: usize = WIDE + RANKS;
/// The tensors that have the size of a part.
const OPERANDS: [usize; WIDE + 1] = [0, 1, 2, 3, SYMMETRIC];
/// The number of the first collective.
const FIRST_COLLECTIVE: usize = 100;
/// The number of the first kernel of each rank that sends or receives with NCCL.
const FIRST_KERNEL: usize = 200;

/// A transfer from a rank to another one.
struct Transfer {
    /// The sender and the receiver.
    ranks: [usize; 2],
    /// The tensors of the two.
    tensors: [usize; 2],
    /// The numbers that the statements of the two have.
    numbers: [usize; 2],
    /// Whether the sender copies.
    puts: bool,
    /// The transfer before it that has the same statements.
    repeats: Option<usize>,
    /// When its handles are exchanged.
    round: usize,
}

/// A statement, on the stream with a number. Transfers and collectives are indices into `Program`.
#[derive(Clone, Copy, Debug)]
enum Statement {
    /// Exchanges the handles of the transfers of a round, and waits for the hosts of all ranks.
    Share {
        round: usize,
    },
    Post {
        transfer: usize,
        stream: usize,
    },
    Wait {
        transfer: usize,
        stream: usize,
    },
    PostCollective {
        collective: usize,
        stream: usize,
    },
    WaitCollective {
        collective: usize,
        stream: usize,
    },
    PostKernel {
        kernel: usize,
        stream: usize,
    },
    WaitKernel {
        kernel: usize,
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
    HostWait {
        stream: usize,
    },
}

struct Program {
    /// Between two ranks, in the order in which both post them.
    transfers: Vec<Transfer>,
    /// Of all ranks, which post those of a backend in this order.
    collectives: Vec<Collective>,
    kernels: Kernels,
    statements: [Vec<Statement>; RANKS],
}

/// The number of verdicts of one kind of queues.
const VERDICTS: usize = 7;

/// Compares the verdicts on a random program with each kind of queues.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let program = program(rng);
    let text = text(&program);
    if program.crosses_handles() {
        return match plans_of(&text, RANKS) {
            Err(it) if it.contains("memory handle") => Ok(Vec::new()),
            Err(it) => Err(it),
            Ok(_) => Err(format!("handles are crossed\n{text}")),
        };
    }
    let world = plans_of(&text, RANKS)?;
    let mut verdicts = Vec::new();
    for p2p in [P2pQueues::Pair, P2pQueues::Communicator] {
        let mut of_queues = verdicts_of(&program, (&text, &world), p2p)?;
        // Few programs have the other faults and sends and receives.
        of_queues.resize(if p2p == P2pQueues::Pair { 2 } else { VERDICTS }, None);
        verdicts.extend(of_queues);
    }
    Ok(verdicts)
}

/// Compares the verdicts on deadlocks, races under each model, semaphores, the free of symmetric memory, and two runs.
fn verdicts_of(program: &Program, input: (&str, &World), p2p: P2pQueues) -> Result<Vec<Verdict>, String> {
    let race =
        Checks { memory: false, storage: StorageModel::NeverReused, p2p: Some(p2p), ..Checks::ALL_FAULTS };
    let compare = |checks: Checks, name: &str, counts: fn(&Finding) -> bool, expected: Option<String>| {
        same_verdict(input, (checks, &format!("{} {name}", p2p.name())), counts, expected)
    };
    // The order of kernels is not compared.
    let checks = Checks { comm: false, ..race };
    let stuck = Graph::of(program, 1, (p2p, true)).stuck();
    let ends = stuck.is_none();
    let mut verdicts = vec![compare(checks, "deadlock", |it| matches!(it, Finding::Deadlock(_)), stuck)?];
    // What a program that does not end accesses is not compared. Only sends and receives depend on the queues.
    let has_kernels = program.kernels.of.iter().any(|it| !it.is_empty());
    if !ends || p2p == P2pQueues::Pair && !has_kernels {
        return Ok(verdicts);
    }
    let graph = Graph::of(program, 1, (p2p, false));
    let is_race = |it: &Finding| matches!(it, Finding::Race { race, .. } if !race.between_runs);
    let in_a_group = program.kernels.race_in_a_group();
    let of_nccl = in_a_group.clone().or_else(|| graph.works.race(OrderingModel::Nccl));
    let freed = of_nccl.clone().or_else(|| graph.freed_too_early());
    let has_race = of_nccl.is_some();
    verdicts.push(compare(race, "race", is_race, of_nccl)?);
    // hir's executors have no communicators of pairs.
    verdicts.push(if p2p == P2pQueues::Communicator {
        let of_hir = in_a_group.or_else(|| graph.works.race(OrderingModel::Hir));
        compare(Checks { model: OrderingModel::Hir, ..race }, "race hir", is_race, of_hir)?
    } else {
        None
    });
    let frees = Checks { storage: StorageModel::CudaAsync, ..race };
    verdicts.push(compare(frees, "cuda-async", is_race, freed)?);
    let is_again = |it: &Finding| {
        let again = |it| matches!(it, ExecutionFaultKind::PostedAgain { between_runs: false });
        matches!(it, Finding::Execution { fault, .. } if again(fault.kind))
    };
    let again = graph.posted_again(program, 1);
    let is_posted_again = again.is_some();
    verdicts.push(compare(race, "semaphores", is_again, again)?);
    // Runs are compared if one has no fault, and no host waits in what is replayed.
    let waits = |it: &Statement| matches!(it, Statement::HostWait { .. });
    if has_race || is_posted_again || program.statements.iter().flatten().any(waits) {
        return Ok(verdicts);
    }
    let graph = Graph::of(program, 2, (p2p, false));
    let checks = Checks { repeat: true, ..race };
    let of_runs = |it: &Finding| matches!(it, Finding::Race { race, .. } if race.between_runs);
    verdicts.push(compare(checks, "two runs", of_runs, graph.works.race_between_runs())?);
    let is_again = |it: &Finding| {
        let again = |it| matches!(it, ExecutionFaultKind::PostedAgain { between_runs: true });
        matches!(it, Finding::Execution { fault, .. } if again(fault.kind))
    };
    let again = graph.posted_again(program, 2);
    verdicts.push(compare(checks, "semaphores of two runs", is_again, again)?);
    Ok(verdicts)
}

/// Returns the text of a program.
fn text(program: &Program) -> String {
    let part = ("global", 4);
    let tensors = [part, part, part, ("global", 4 * RANKS), ("symmetric", 4)];
    let statements: [_; RANKS] = std::array::from_fn(|rank| program.statements_text(rank));
    text::text(&tensors, WIDE, &statements)
}

/// Returns the name of a tensor.
fn name(tensor: usize) -> String {
    format!("T{}", if tensor == SYMMETRIC { WIDE + 1 } else { tensor })
}

/// Returns the numbers of the parts of a tensor.
fn parts(tensor: usize) -> std::ops::Range<usize> {
    if tensor == WIDE { WIDE..SYMMETRIC } else { tensor..tensor + 1 }
}

impl Program {
    /// Returns the statements of a rank, each with the stream on which it runs.
    fn statements_text(&self, rank: usize) -> Vec<(usize, String)> {
        let number = |transfer: usize| {
            let it = &self.transfers[transfer];
            it.numbers[usize::from(it.ranks[1] == rank)]
        };
        let side = |transfer: usize| {
            let it = &self.transfers[transfer];
            let own = usize::from(it.ranks[1] == rank);
            let (kind, protocol) = (["send", "recv"][own], if it.puts { "put" } else { "get" });
            let (number, tensor, peer) = (it.numbers[own], name(it.tensors[own]), it.ranks[1 - own]);
            format!(
                "P2PCommunication {number} (type={kind}, buffer={tensor}, peer={peer}, backend=CUDA, protocol={protocol})"
            )
        };
        let mut current = 0;
        let statement = |it: &Statement| {
            let (stream, statement) = match *it {
                // No stream executes it.
                Statement::Share { round } => {
                    let all: Vec<String> = self.handles(rank, round).into_iter().map(side).collect();
                    (current, format!("ShareMemHandles({})", all.join(", ")))
                }
                Statement::Post { transfer, stream } => (stream, side(transfer)),
                Statement::Wait { transfer, stream } => {
                    (stream, format!("Wait(P2PCommunication {})", number(transfer)))
                }
                Statement::PostCollective { collective, stream } => {
                    (stream, self.collectives[collective].text(FIRST_COLLECTIVE + collective))
                }
                Statement::WaitCollective { collective, stream } => {
                    (stream, format!("Wait(Communication {})", FIRST_COLLECTIVE + collective))
                }
                Statement::PostKernel { kernel, stream } => {
                    (stream, self.kernels.of[rank][kernel].text(FIRST_KERNEL + kernel, name))
                }
                Statement::WaitKernel { kernel, stream } => {
                    (stream, format!("Wait(Communication {})", FIRST_KERNEL + kernel))
                }
                Statement::Compute { out, from, stream } => {
                    (stream, format!("{} = neg({})", name(out), name(from)))
                }
                Statement::Synchronize { awaited, stream } => {
                    (stream, format!("Synchronize(Stream {})", stream_name(awaited)))
                }
                Statement::HostWait { stream } => (stream, "Synchronize(host)".to_owned()),
            };
            current = stream;
            (stream, statement)
        };
        self.statements[rank].iter().map(statement).collect()
    }

    /// Returns the transfers of a rank whose handles are exchanged in a round.
    fn handles(&self, rank: usize, round: usize) -> Vec<usize> {
        let all = self.transfers.iter().enumerate();
        let is_new = |it: &Transfer| it.round == round && it.repeats.is_none() && it.ranks.contains(&rank);
        all.filter(|it| is_new(it.1)).map(|it| it.0).collect()
    }

    /// Returns whether two ranks exchange the handles of their transfers in different orders.
    fn crosses_handles(&self) -> bool {
        let of_rank = |rank: usize, ranks: [usize; 2]| -> Vec<usize> {
            let rounds = self.statements[rank].iter().filter_map(|it| match it {
                Statement::Share { round } => Some(*round),
                _ => None,
            });
            let handles = rounds.flat_map(|round| self.handles(rank, round));
            handles.filter(|it| self.transfers[*it].ranks == ranks).collect()
        };
        self.transfers.iter().any(|it| of_rank(it.ranks[0], it.ranks) != of_rank(it.ranks[1], it.ranks))
    }

    /// Returns the number of the slot of rank 0, on each rank, of a collective that pushes; those of the other ranks follow. Collectives that are posted
    /// on the same streams use two sets of slots in turn.
    fn slots(&self, collective: usize) -> Option<usize> {
        let streams = |collective: usize| {
            let post = |it: &Statement| match *it {
                Statement::PostCollective { collective: of, stream } if of == collective => Some(stream),
                _ => None,
            };
            self.statements.each_ref().map(|it| it.iter().find_map(post))
        };
        let mut uses = BTreeMap::new();
        for it in (0..=collective).filter(|it| self.collectives[*it].pushes) {
            *uses.entry(streams(it)).or_insert(0) += 1;
        }
        let count = *uses.get(&streams(collective)).filter(|_| self.collectives[collective].pushes)?;
        // A stream for each rank.
        let key = streams(collective).iter().flatten().fold(0, |key, it| key * STREAMS + it);
        Some(SYMMETRIC + 1 + (2 * key + count % 2) * RANKS)
    }

    /// Returns the first transfer that has the statements of one.
    fn word(&self, transfer: usize) -> usize {
        self.transfers[transfer].repeats.map_or(transfer, |it| self.word(it))
    }
}
