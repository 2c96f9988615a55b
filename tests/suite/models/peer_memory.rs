//! Programs of three ranks that transfer over peer memory, with puts and gets of the CUDA backend between buffers in global and symmetric
//! memory. Hosts exchange handles and wait for streams.
//!
//! One side of a transfer is ready; the other side waits for that, copies, and tells the first side. With `get` the receiver copies, with
//! `put` the sender. A Wait of the side that copies does nothing. Statements of one number and buffer use one word of memory: a transfer that
//! is posted again, or awaited by the side that copies, before the one before it has ended may take its value for the other one's.

use std::fmt::Write as _;

use hir::check::{Checks, ExecutionFaultKind, Finding, OrderingModel, StorageModel};

use super::{Verdict, plans_of, same_verdict, works::Works};
use crate::rng::Rng;

const RANKS: usize = 3;
/// Stream 0 is the one that is current at entry and at exit.
const STREAMS: usize = 2;
/// The tensors of each rank. `T0` is an input, those before `SYMMETRIC` are outputs.
const TENSORS: usize = 5;
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

/// A statement, on the stream with a number. Transfers are indices into `Program::transfers`.
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
    let graph = Graph::of(&program, 1);
    let stuck = graph.stuck();
    let is_stuck = |it: &Finding| matches!(it, Finding::Deadlock(_));
    let mut verdicts = vec![same_verdict(input, (race, "deadlock"), is_stuck, stuck.clone())?];
    // What a program that does not end accesses is not compared.
    if stuck.is_some() {
        return Ok(verdicts);
    }
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
    let graph = Graph::of(&program, 2);
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
    let (locals, kinds, least) = (rng.below(3), rng.below(4), 2 + rng.below(3));
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
    let (is_shared_first, streams) = (rng.below(3) > 0, 1 + rng.below(STREAMS));
    let statements =
        std::array::from_fn(|rank| statements(rng, &transfers, rank, (is_shared_first, streams)));
    Program { transfers, statements }
}

/// Returns the statements of a rank, on one stream or two. Handles are exchanged at the beginning, or before the first transfer of the round.
fn statements(
    rng: &mut Rng,
    transfers: &[Transfer],
    rank: usize,
    (is_shared_first, streams): (bool, usize),
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
    while !left.is_empty() || (!pending.is_empty() && rng.below(8) > 0) {
        let stream = rng.below(streams);
        match rng.below(7) {
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
    let mut text = String::new();
    for tensor in 0..TENSORS {
        let _ = writeln!(text, "%tensor T{tensor}_g_float[iS{tensor}{{4}}] (DeviceMesh{{0 1 2}})");
    }
    text += "%HostIrContainer { (T0) -> (T1, T2, T3) :\n  Stream s0 = GetCurrentStream()\n";
    for tensor in 1..TENSORS {
        let memory = if tensor == SYMMETRIC { "symmetric" } else { "global" };
        let _ = writeln!(text, "  T{tensor} = ALLOCATE(mem_type={memory}, zero_init=true)");
    }
    let name = |stream: usize| if stream == 0 { "s0".to_owned() } else { stream.to_string() };
    for (rank, statements) in program.statements.iter().enumerate().filter(|it| !it.1.is_empty()) {
        let _ = writeln!(text, "  IF Manual ( rank == {rank} ):");
        let mut current = 0;
        let number = |transfer: usize| {
            let it = &program.transfers[transfer];
            it.numbers[usize::from(it.ranks[1] == rank)]
        };
        let side = |transfer: usize| {
            let it = &program.transfers[transfer];
            let own = usize::from(it.ranks[1] == rank);
            let (kind, protocol) = (["send", "recv"][own], if it.puts { "put" } else { "get" });
            let (number, tensor, peer) = (it.numbers[own], it.tensors[own], it.ranks[1 - own]);
            format!(
                "P2PCommunication {number} (type={kind}, buffer=T{tensor}, peer={peer}, backend=CUDA, protocol={protocol})"
            )
        };
        for it in statements {
            let (stream, statement) = match *it {
                Statement::Share { round } => {
                    let all: Vec<String> = program.handles(rank, round).into_iter().map(side).collect();
                    (current, format!("ShareMemHandles({})", all.join(", ")))
                }
                Statement::Post { transfer, stream } => (stream, side(transfer)),
                Statement::Wait { transfer, stream } => {
                    (stream, format!("Wait(P2PCommunication {})", number(transfer)))
                }
                Statement::Compute { out, from, stream } => (stream, format!("T{out} = neg(T{from})")),
                Statement::Synchronize { awaited, stream } => {
                    (stream, format!("Synchronize(Stream {})", name(awaited)))
                }
                Statement::HostWait { stream } => (stream, "Synchronize(host)".to_owned()),
            };
            if stream != current {
                let _ = writeln!(text, "    SetCurrentStream(Stream {})", name(stream));
                current = stream;
            }
            let _ = writeln!(text, "    {statement}");
        }
        if current != 0 {
            text += "    SetCurrentStream(Stream s0)\n";
        }
    }
    text + "} // %HostIrContainer\n"
}

impl Program {
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

/// The works of a transfer.
#[derive(Clone, Copy)]
struct TransferWorks {
    /// The side that does not copy is ready.
    ready: usize,
    /// The stream of the side that copies begins to wait.
    reached: usize,
    /// The copy, after which the other side may continue.
    copied: usize,
}

/// The works of one run or two: of streams, and of hosts, which issue them.
struct Graph {
    works: Works,
    /// By run: those of transfers.
    transfers: Vec<Vec<TransferWorks>>,
    /// By rank: the free of its symmetric memory, which blocks the host until all streams of the rank have finished.
    frees: Vec<usize>,
}

impl Graph {
    fn of(program: &Program, runs: usize) -> Self {
        let mut works = Works::new(SYMMETRIC);
        let (mut of_runs, mut frees) = (Vec::new(), Vec::new());
        // The last work of each stream, and of the host.
        let mut last: [[Option<usize>; STREAMS + 1]; RANKS] = Default::default();
        for run in 0..runs {
            let of_transfer = |_: &Transfer| {
                let [ready, reached] = [works.add(Vec::new()), works.add(Vec::new())];
                TransferWorks { ready, reached, copied: works.add(vec![ready, reached]) }
            };
            let transfers: Vec<TransferWorks> = program.transfers.iter().map(of_transfer).collect();
            let mut handles = Handles::new(&mut works, program);
            for rank in 0..RANKS {
                add_rank(&mut works, program, rank, &mut last[rank], (&transfers, &mut handles, run));
                frees.push(works.add(last[rank].iter().flatten().copied().collect()));
            }
            of_runs.push(transfers);
            works.next_run();
        }
        Self { works, transfers: of_runs, frees }
    }

    /// Returns the works that are never executed, if there are any.
    fn stuck(&self) -> Option<String> {
        let done = self.works.without(None);
        done.contains(&false).then(|| format!("works that are executed: {done:?}"))
    }

    /// Returns a use of symmetric memory that may be later than its free.
    fn freed_too_early(&self) -> Option<String> {
        let mut uses = self.works.accesses.iter().filter(|it| it.tensor == SYMMETRIC);
        let early = uses.find(|it| self.works.without(Some(it.end))[self.frees[it.rank]]);
        early.map(|it| format!("freed before {it:?}"))
    }

    /// Returns a transfer that may be posted or awaited before the transfer of the same word before it has ended, in the last one of some
    /// runs.
    fn posted_again(&self, program: &Program, runs: usize) -> Option<String> {
        let run = runs - 1;
        (0..program.transfers.len()).find_map(|at| {
            let is_last = |it: &usize| program.word(*it) == program.word(at);
            let before = match program.transfers[at].repeats {
                Some(it) => self.transfers[run][it],
                None if run == 0 => return None,
                None => self.transfers[run - 1][(0..program.transfers.len()).rfind(is_last)?],
            };
            let it = self.transfers[run][at];
            let without = self.works.without(Some(before.copied));
            (without[it.ready] || self.needs_only(&without, it.reached)).then(|| format!("transfer {at}"))
        })
    }

    fn needs_only(&self, without: &[bool], work: usize) -> bool {
        self.works.needs[work].iter().all(|it| without[*it])
    }
}

/// The works in which hosts exchange handles.
struct Handles {
    /// By transfer and side: the host has given its handle.
    given: Vec<[usize; 2]>,
    /// The hosts of all ranks have to be there after each exchange.
    barriers: Vec<[usize; RANKS]>,
    /// By rank: the number of barriers that it has passed.
    passed: [usize; RANKS],
}

impl Handles {
    fn new(works: &mut Works, program: &Program) -> Self {
        let given =
            program.transfers.iter().map(|_| [works.add(Vec::new()), works.add(Vec::new())]).collect();
        let counts = program
            .statements
            .each_ref()
            .map(|it| it.iter().filter(|it| matches!(it, Statement::Share { .. })).count());
        // A rank that never arrives waits for itself.
        let barriers = (0..counts.iter().copied().max().unwrap_or_default()).map(|number| {
            std::array::from_fn(|rank| {
                let it = works.add(Vec::new());
                works.needs[it].extend((counts[rank] <= number).then_some(it));
                it
            })
        });
        Self { given, barriers: barriers.collect(), passed: [0; RANKS] }
    }
}

/// Adds the works of a rank in a run.
fn add_rank(
    works: &mut Works,
    program: &Program,
    rank: usize,
    last: &mut [Option<usize>; STREAMS + 1],
    (transfers, handles, run): (&[TransferWorks], &mut Handles, usize),
) {
    const HOST: usize = STREAMS;
    // The caller begins once the run before has ended.
    let entry = works.add(last[0].into_iter().collect());
    last[0] = Some(entry);
    for tensor in 1..TENSORS {
        let zeros = works.add(last[0].into_iter().collect());
        works.access([zeros, zeros], (rank, tensor), true);
        last[0] = Some(zeros);
    }
    for statement in &program.statements[rank] {
        // What a work of a stream needs in any case.
        let needs = |stream: usize| -> Vec<usize> { last[stream].into_iter().chain(last[HOST]).collect() };
        let own = |transfer: usize| usize::from(program.transfers[transfer].ranks[1] == rank);
        let copies = |transfer: usize| program.transfers[transfer].puts == (own(transfer) == 0);
        match *statement {
            // Hosts exchange handles in the first run.
            Statement::Share { .. } if run > 0 => (),
            Statement::Share { round } => {
                let own: Vec<[usize; 2]> =
                    program.handles(rank, round).iter().map(|it| [*it, own(*it)]).collect();
                for [transfer, side] in &own {
                    works.needs[handles.given[*transfer][*side]].extend(last[HOST]);
                }
                let taken = own.iter().map(|[transfer, side]| handles.given[*transfer][1 - *side]);
                let exchanged = works.add(taken.chain(last[HOST]).collect());
                let barrier = handles.barriers[handles.passed[rank]];
                handles.passed[rank] += 1;
                works.needs[barrier[rank]].push(exchanged);
                last[HOST] = Some(works.add(barrier.to_vec()));
            }
            Statement::Post { transfer, stream } => {
                let TransferWorks { ready, reached, copied } = transfers[transfer];
                let [first, end] = if copies(transfer) { [reached, copied] } else { [ready, ready] };
                works.needs[first].extend(needs(stream));
                last[stream] = Some(end);
                if copies(transfer) {
                    let Transfer { ranks, tensors, .. } = &program.transfers[transfer];
                    works.access([copied, copied], (ranks[0], tensors[0]), false);
                    works.access([copied, copied], (ranks[1], tensors[1]), true);
                }
            }
            Statement::Wait { transfer, .. } if copies(transfer) => (),
            Statement::Wait { transfer, stream } => {
                let needs = needs(stream).into_iter().chain([transfers[transfer].copied]).collect();
                last[stream] = Some(works.add(needs));
            }
            Statement::Compute { out, from, stream } => {
                let at = works.add(needs(stream));
                works.access([at, at], (rank, from), false);
                works.access([at, at], (rank, out), true);
                last[stream] = Some(at);
            }
            Statement::Synchronize { awaited, stream } => {
                let needs = needs(stream).into_iter().chain(last[awaited]).collect();
                last[stream] = Some(works.add(needs));
            }
            Statement::HostWait { stream } => last[HOST] = Some(works.add(needs(stream))),
        }
    }
    let exit = works.add(last[0].into_iter().chain(last[HOST]).collect());
    last[0] = Some(exit);
    works.callers.push([entry, exit]);
}
