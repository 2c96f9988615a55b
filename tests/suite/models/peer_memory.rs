//! Programs of three ranks that transfer over peer memory, with puts, gets and collectives of the CUDA backend between buffers in global and
//! symmetric memory. Hosts exchange handles and wait for streams.
//!
//! One side of a transfer is ready; the other side waits for that, copies, and tells the first side. With `get` the receiver copies, with
//! `put` the sender. A Wait of the side that copies does nothing. Statements of one number and buffer use one word of memory: a transfer that
//! is posted again, or awaited by the side that copies, before the one before it has ended may take its value for the other one's.

mod graph;

use hir::check::{Checks, ExecutionFaultKind, Finding, OrderingModel, StorageModel};

use self::graph::Graph;
use super::{
    Verdict, plans_of, same_verdict,
    three_ranks::{self, stream_name},
};
use crate::rng::Rng;

const RANKS: usize = 3;
/// Stream 0 is the one that is current at entry and at exit.
const STREAMS: usize = 2;
/// The tensors of each rank. `T0` is an input, those before `SYMMETRIC` are outputs.
const TENSORS: usize = 5;
/// The number of the first collective.
const FIRST_COLLECTIVE: usize = 100;
/// The tensor in symmetric memory, which is local.
const SYMMETRIC: usize = 4;

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

/// A collective of all ranks, which all post in one order.
#[derive(Clone, Copy)]
struct Collective {
    /// The rank that accesses the memory of all; `None` for an all-reduce, in which each rank reads the inputs of all.
    root: Option<usize>,
    /// Whether the root reduces, and does not broadcast.
    reduces: bool,
    input: usize,
    output: usize,
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
    let stuck = Graph::of(&program, 1, true).stuck();
    let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_));
    let mut verdicts = vec![same_verdict(input, (race, "deadlock"), is_stuck, stuck.clone())?];
    // What a program that does not end accesses is not compared.
    if stuck.is_some() {
        return Ok(verdicts);
    }
    let graph = Graph::of(&program, 1, false);
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
    let graph = Graph::of(&program, 2, false);
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
    // A rank without handles does not take part in an exchange, so others wait for it forever.
    while transfers.len() < least || !has_all(&transfers) && rng.below(8) > 0 {
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
                let of = if locals == 0 { TENSORS } else { SYMMETRIC };
                let tensors = [rng.below(of), 1 + rng.below(of - 1)];
                Transfer { ranks, tensors, numbers, puts, repeats: None, round: rng.below(rounds) }
            }
        });
    }
    let collectives: Vec<Collective> = (0..rng.below(6).saturating_sub(3))
        .map(|_| {
            let of = if locals == 0 { TENSORS } else { SYMMETRIC };
            let output = 1 + rng.below(of - 1);
            Collective {
                root: (rng.below(3) > 0).then(|| rng.below(RANKS)),
                reduces: rng.below(2) == 0,
                input: (output + 1 + rng.below(of - 1)) % of,
                output,
            }
        })
        .collect();
    let (is_shared_first, streams, forgets) = (rng.below(3) > 0, 1 + rng.below(STREAMS), rng.below(3) == 0);
    let statements = std::array::from_fn(|rank| {
        statements(rng, &transfers, rank, (is_shared_first, forgets), (streams, collectives.len()))
    });
    Program { transfers, collectives, statements }
}

/// Returns the statements of a rank, on one stream or two. Handles are exchanged at the beginning, or before the first transfer of the round.
fn statements(
    rng: &mut Rng,
    transfers: &[Transfer],
    rank: usize,
    (is_shared_first, forgets): (bool, bool),
    (streams, collectives): (usize, usize),
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
    if rng.below(4) > 0 {
        all.push(Statement::Synchronize { awaited: 0, stream: 1 });
    }
    let (mut pending, waits, syncs, hosts) = (Vec::new(), rng.below(4), rng.below(3), rng.below(4));
    // Transfers in the order of the program deadlock less often.
    let is_in_order = rng.below(3) > 0;
    let (mut posted, mut open) = (0, Vec::new());
    while !left.is_empty() || posted < collectives || (!pending.is_empty() && rng.below(8) > 0) {
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
                let out = 1 + rng.below(TENSORS - 1);
                all.push(Statement::Compute { out, from: rng.below(TENSORS), stream });
            }
            5 if streams > 1 && rng.below(2) < syncs => {
                all.push(Statement::Synchronize { awaited: 1 - stream, stream });
            }
            7 if posted < collectives && (left.is_empty() || rng.below(3) == 0) => {
                all.push(Statement::PostCollective { collective: posted, stream });
                if waits < 2 {
                    all.push(Statement::WaitCollective { collective: posted, stream });
                } else {
                    open.push((posted, stream));
                }
                posted += 1;
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
    if rng.below(4) > 0 {
        all.push(Statement::Synchronize { awaited: 1, stream: 0 });
    }
    all
}

/// Returns the text of a program.
fn text(program: &Program) -> String {
    let mut memory = ["global"; TENSORS - 1];
    memory[SYMMETRIC - 1] = "symmetric";
    three_ranks::text(&memory, (0..RANKS).map(|rank| program.statements_text(rank)))
}

impl Collective {
    /// Returns the statement that posts it.
    fn text(self, number: usize) -> String {
        let kind = match self.root {
            None => "Allreduce, team=(0 1 2), red_op=SUM, algo=one-shot".to_owned(),
            Some(root) if self.reduces => format!("Reduce, team=(0 1 2), root={root}, red_op=SUM"),
            Some(root) => format!("Broadcast, team=(0 1 2), root={root}"),
        };
        let (number, Self { input, output, .. }) = (FIRST_COLLECTIVE + number, self);
        format!("Communication {number} (type={kind}, input=T{input}, output=T{output}, backend=CUDA)")
    }

    /// Returns whether a rank accesses the memory of the others.
    fn has_access(self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }
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
            let (number, tensor, peer) = (it.numbers[own], it.tensors[own], it.ranks[1 - own]);
            format!(
                "P2PCommunication {number} (type={kind}, buffer=T{tensor}, peer={peer}, backend=CUDA, protocol={protocol})"
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
                    (stream, self.collectives[collective].text(collective))
                }
                Statement::WaitCollective { collective, stream } => {
                    (stream, format!("Wait(Communication {})", FIRST_COLLECTIVE + collective))
                }
                Statement::Compute { out, from, stream } => (stream, format!("T{out} = neg(T{from})")),
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
