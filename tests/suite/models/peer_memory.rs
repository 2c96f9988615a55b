//! Programs of three ranks that transfer over peer memory, with puts, gets and collectives of the CUDA backend between buffers in global and
//! symmetric memory, and with collectives of NCCL. Hosts exchange handles, wait for streams, and create the communicator of NCCL.
//!
//! One side of a transfer is ready; the other side waits for that, copies, and tells the first side. With `get` the receiver copies, with
//! `put` the sender. A Wait of the side that copies does nothing. Statements of one number and buffer use one word of memory: a transfer that
//! is posted again, or awaited by the side that copies, before the one before it has ended may take its value for the other one's.

mod collective;
mod graph;

use hir::{
    check::{Checks, ExecutionFaultKind, Finding, OrderingModel, StorageModel},
    plan::sync::P2pQueues,
};

use self::{collective::Collective, graph::Graph};
use super::{
    Verdict, plans_of, same_verdict,
    three_ranks::{self, stream_name},
};
use crate::rng::Rng;

const RANKS: usize = 3;
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
    statements: [Vec<Statement>; RANKS],
}

/// Compares the verdicts on a random program: on deadlocks, races under each model, semaphores, the free of symmetric memory, and two runs.
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
    let input = (text.as_str(), &world);
    let race = Checks { memory: false, storage: StorageModel::NeverReused, ..Checks::ALL_FAULTS };
    let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_));
    let mut verdicts = Vec::new();
    let mut ends = true;
    for p2p in [P2pQueues::Pair, P2pQueues::Communicator] {
        // The order of kernels is not compared.
        let checks = Checks { comm: false, p2p: Some(p2p), ..race };
        let stuck = Graph::of(&program, 1, Some(p2p)).stuck();
        // Races are compared with one communicator, the last of the two.
        ends = stuck.is_none();
        verdicts.push(same_verdict(input, (checks, &format!("deadlock {}", p2p.name())), is_stuck, stuck)?);
    }
    // What a program that does not end accesses is not compared.
    if !ends {
        return Ok(verdicts);
    }
    let graph = Graph::of(&program, 1, None);
    let is_race = |it: &Finding| matches!(it, Finding::Race { race, .. } if !race.between_runs);
    let of_nccl = graph.works.race(OrderingModel::Nccl);
    let of_hir = graph.works.race(OrderingModel::Hir);
    let freed = of_nccl.clone().or_else(|| graph.freed_too_early());
    let has_race = of_nccl.is_some();
    verdicts.push(same_verdict(input, (race, "race"), is_race, of_nccl)?);
    let hir = Checks { model: OrderingModel::Hir, ..race };
    verdicts.push(same_verdict(input, (hir, "race hir"), is_race, of_hir)?);
    let frees = Checks { storage: StorageModel::CudaAsync, ..race };
    verdicts.push(same_verdict(input, (frees, "cuda-async"), is_race, freed)?);
    let is_again = |it: &Finding| {
        let again = |it| matches!(it, ExecutionFaultKind::PostedAgain { between_runs: false });
        matches!(it, Finding::Execution { fault, .. } if again(fault.kind))
    };
    let again = graph.posted_again(&program, 1);
    let is_posted_again = again.is_some();
    verdicts.push(same_verdict(input, (race, "semaphores"), is_again, again)?);
    // Runs are compared if one has no fault, and no host waits in what is replayed.
    let waits = |it: &Statement| matches!(it, Statement::HostWait { .. });
    if has_race || is_posted_again || program.statements.iter().flatten().any(waits) {
        return Ok(verdicts);
    }
    let graph = Graph::of(&program, 2, None);
    let checks = Checks { repeat: true, ..race };
    let of_runs = |it: &Finding| matches!(it, Finding::Race { race, .. } if race.between_runs);
    verdicts.push(same_verdict(input, (checks, "two runs"), of_runs, graph.works.race_between_runs())?);
    let is_again = |it: &Finding| {
        let again = |it| matches!(it, ExecutionFaultKind::PostedAgain { between_runs: true });
        matches!(it, Finding::Execution { fault, .. } if again(fault.kind))
    };
    let again = graph.posted_again(&program, 2);
    verdicts.push(same_verdict(input, (checks, "semaphores of two runs"), is_again, again)?);
    Ok(verdicts)
}

/// Returns random statements of each rank that post both sides of some transfers, and wait for most of them.
fn program(rng: &mut Rng) -> Program {
    let mut transfers: Vec<Transfer> = Vec::new();
    let mut numbers = [0; RANKS];
    let (locals, kinds, least) = (rng.below(2), rng.below(4), 2 + rng.below(3));
    let rounds = [1, 1, 1, 2, 3][rng.below(5)];
    let has_all = |it: &[Transfer]| (0..RANKS).all(|rank| it.iter().any(|it| it.ranks.contains(&rank)));
    // Few programs with transfers have no fault but one in a collective.
    let transfers_too = rng.below(5) > 0;
    // A rank without handles does not take part in an exchange, so others wait for it forever.
    while transfers_too && (transfers.len() < least || !has_all(&transfers) && rng.below(8) > 0) {
        let from = rng.below(RANKS);
        let ranks = [from, (from + 1 + rng.below(RANKS - 1)) % RANKS];
        let last = transfers.iter().rposition(|it| it.ranks == ranks).filter(|_| rng.below(2) == 0);
        let puts = if kinds < 2 { kinds == 0 } else { rng.below(2) == 0 };
        transfers.push(match last {
            Some(at) => Transfer { ranks, repeats: Some(at), ..transfers[at] },
            None => {
                let numbers = ranks.map(|rank| {
                    numbers[rank] += 1;
                    numbers[rank] - 1
                });
                let of = OPERANDS.len() - locals;
                let tensors = [OPERANDS[rng.below(of)], OPERANDS[1 + rng.below(of - 1)]];
                Transfer { ranks, tensors, numbers, puts, repeats: None, round: rng.below(rounds) }
            }
        });
    }
    let count = if transfers_too { rng.below(6).saturating_sub(3) } else { 1 + rng.below(3) };
    let collectives: Vec<Collective> =
        (0..count).map(|_| Collective::random(rng, &OPERANDS[..OPERANDS.len() - locals])).collect();
    let (is_shared_first, streams, forgets) = (rng.below(3) > 0, 1 + rng.below(STREAMS), rng.below(3) == 0);
    let statements = std::array::from_fn(|rank| {
        statements(rng, &transfers, rank, (is_shared_first, forgets), (streams, &collectives))
    });
    Program { transfers, collectives, statements }
}

/// Returns the statements of a rank, on one stream or two. Handles are exchanged at the beginning, or before the first transfer of the round.
fn statements(
    rng: &mut Rng,
    transfers: &[Transfer],
    rank: usize,
    (is_shared_first, forgets): (bool, bool),
    (streams, collectives): (usize, &[Collective]),
) -> Vec<Statement> {
    let mut left: Vec<usize> =
        (0..transfers.len()).filter(|it| transfers[*it].ranks.contains(&rank)).collect();
    let mut rounds: Vec<usize> = left.iter().map(|it| transfers[*it].round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let mut all = Vec::new();
    if is_shared_first {
        all.extend(rounds.drain(..).map(|round| Statement::Share { round }));
    }
    // Programs without transfers have few faults besides that of one statement.
    let is_joined = |rng: &mut Rng| transfers.is_empty() || rng.below(4) > 0;
    if is_joined(rng) {
        all.push(Statement::Synchronize { awaited: 0, stream: 1 });
    }
    let (mut pending, waits, syncs, hosts) = (Vec::new(), rng.below(4), rng.below(3), rng.below(4));
    // Transfers in the order of the program deadlock less often.
    let is_in_order = rng.below(3) > 0;
    let mut open = Vec::new();
    let [mut of_cuda, mut of_nccl] = [false, true].map(|is_nccl| {
        (0..collectives.len()).filter(move |it| collectives[*it].is_nccl == is_nccl).peekable()
    });
    while !left.is_empty()
        || of_cuda.peek().is_some()
        || of_nccl.peek().is_some()
        || (!pending.is_empty() && rng.below(8) > 0)
    {
        let stream = rng.below(streams);
        match rng.below(9) {
            0..=1 if !left.is_empty() => {
                // The order between two ranks is the same on both.
                let ranks = transfers[left[if is_in_order { 0 } else { rng.below(left.len()) }]].ranks;
                let first = left.iter().position(|it| transfers[*it].ranks == ranks);
                let transfer = left.remove(first.unwrap_or_default());
                let round = transfers[transfer].round;
                if rounds.contains(&round) {
                    rounds.retain(|it| *it != round);
                    all.push(Statement::Share { round });
                }
                all.push(Statement::Post { transfer, stream });
                // A Wait is for the last post of its number.
                pending.retain(|it: &(usize, usize)| transfers[transfer].repeats != Some(it.0));
                // Without a Wait for symmetric memory, often only two runs have a fault.
                let own = usize::from(transfers[transfer].ranks[1] == rank);
                if forgets && transfers[transfer].tensors[own] == SYMMETRIC {
                    continue;
                }
                if waits == 0 || waits == 1 && rng.below(2) == 0 {
                    all.push(Statement::Wait { transfer, stream });
                } else {
                    pending.push((transfer, stream));
                }
            }
            2..=3 if !pending.is_empty() => {
                let (transfer, on) = pending.swap_remove(rng.below(pending.len()));
                all.push(Statement::Wait { transfer, stream: if rng.below(3) == 0 { stream } else { on } });
            }
            4 if rng.below(2) == 0 => {
                let (out, from) = match rng.below(4) {
                    0 => (WIDE, WIDE),
                    _ => (OPERANDS[1 + rng.below(OPERANDS.len() - 1)], OPERANDS[rng.below(OPERANDS.len())]),
                };
                all.push(Statement::Compute { out, from, stream });
            }
            5 if streams > 1 && rng.below(2) < syncs => {
                all.push(Statement::Synchronize { awaited: 1 - stream, stream });
            }
            7 if left.is_empty() || rng.below(3) == 0 => {
                let next = if rng.below(2) == 0 { of_cuda.next() } else { of_nccl.next() };
                let Some(collective) = next else { continue };
                all.push(Statement::PostCollective { collective, stream });
                if forgets && collectives[collective].uses(SYMMETRIC) {
                    continue;
                }
                if waits < 2 {
                    all.push(Statement::WaitCollective { collective, stream });
                } else {
                    open.push((collective, stream));
                }
            }
            8 if !open.is_empty() => {
                let (collective, on) = open.swap_remove(rng.below(open.len()));
                all.push(Statement::WaitCollective {
                    collective,
                    stream: if rng.below(3) == 0 { stream } else { on },
                });
            }
            6 if hosts == 0 && rng.below(3) == 0 => all.push(Statement::HostWait { stream }),
            _ => (),
        }
    }
    if is_joined(rng) {
        all.push(Statement::Synchronize { awaited: 1, stream: 0 });
    }
    all
}

/// Returns the text of a program.
fn text(program: &Program) -> String {
    let part = ("global", 4);
    let tensors = [part, part, part, ("global", 4 * RANKS), ("symmetric", 4)];
    three_ranks::text(&tensors, WIDE, (0..RANKS).map(|rank| program.statements_text(rank)))
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

    /// Returns the first transfer that has the statements of one.
    fn word(&self, transfer: usize) -> usize {
        self.transfers[transfer].repeats.map_or(transfer, |it| self.word(it))
    }
}
