//! Programs of one rank with three streams and a communicator, whose tensors come from an allocator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use grammar::Named;
use hir_check::{Checks, Finding, OrderingModel, StorageModel};

use super::{Verdict, plans_of, same_verdict};
use crate::rng::Rng;

/// Number of streams. Stream 0 is the one that is current at entry and at exit.
const STREAMS: usize = 3;
/// The queue of the communicator. The streams are the queues before it.
const NCCL: usize = STREAMS;
const QUEUES: usize = STREAMS + 1;
/// The tensors: whether each is large. `T0` and `T7` are inputs, `T1` is the output.
const LARGE: [bool; 8] = [false, false, false, false, true, true, false, true];
const OUTPUT: usize = 1;
const LOCALS: std::ops::Range<usize> = 2..7;

/// A statement, on the stream with a number.
#[derive(Clone, Copy, Debug)]
enum Statement {
    /// `zeroed`: and the stream writes it.
    Allocate {
        tensor: usize,
        stream: usize,
        zeroed: bool,
    },
    Compute {
        out: usize,
        from: usize,
        stream: usize,
    },
    Free {
        tensor: usize,
    },
    /// The stream waits for another one.
    Synchronize {
        awaited: usize,
        stream: usize,
    },
    /// The host waits for the stream.
    HostWait {
        stream: usize,
    },
    /// An all-reduce with a number, of this rank alone.
    Post {
        number: usize,
        out: usize,
        from: usize,
        stream: usize,
    },
    /// The stream waits for an all-reduce.
    Wait {
        number: usize,
        stream: usize,
    },
}

/// Compares the verdicts on a random program under each model.
pub fn compare(rng: &mut Rng) -> Result<Vec<Verdict>, String> {
    let statements = statements(rng);
    let text = text(&statements);
    let world = plans_of(&text, 1)?;
    let statements = with_frees(statements);
    let orders = Orders::of(&statements, 1);
    // PyTorch frees the operands of a communication where the program waits for it.
    let late = with_late_frees(&statements);
    let late_orders = Orders::of(&late, 1);
    let is_race = |it: &Finding| matches!(it, Finding::Race { race, .. } if !race.between_runs);
    let mut verdicts = Vec::new();
    let race = Checks { race: true, comm: false, memory: false, ..Checks::ALL_FAULTS };
    let models = StorageModel::ALL.iter().map(|&it| (OrderingModel::Nccl, it));
    for (model, storage) in models.chain([(OrderingModel::Hir, StorageModel::PyTorch)]) {
        let (statements, orders) = if storage == StorageModel::PyTorchCudaAsync {
            (&late, &late_orders)
        } else {
            (&statements, &orders)
        };
        let checks = Checks { model, storage, ..race };
        let name = format!("{model} {}", storage.name());
        let expected = orders.race(statements, model, storage);
        let found = same_verdict((&text, &world), (checks, &name), is_race, expected)?;
        verdicts.push(found);
        // Runs are compared if one has no race.
        verdicts.push(if found == Some(false) {
            let expected = Orders::of(statements, 2).race_between_runs(statements, model, storage);
            let of_runs = |it: &Finding| matches!(it, Finding::Race { race, .. } if race.between_runs);
            let checks = Checks { repeat: true, ..checks };
            let of_two =
                same_verdict((&text, &world), (checks, &format!("{name} repeat")), of_runs, expected)?;
            // With cudaMallocAsync, what is ordered in one run is ordered between runs: no program has a fault.
            of_two.filter(|it| *it || !is_async(storage))
        } else {
            None
        });
    }
    let checks = Checks { capture: true, race: false, ..race };
    let is_execution = |it: &Finding| matches!(it, Finding::Execution { .. });
    let expected = orders.capture_fault(&statements);
    verdicts.push(same_verdict((&text, &world), (checks, "capture"), is_execution, expected)?);
    Ok(verdicts)
}

/// Returns the statements of a random program, in issue order.
fn statements(rng: &mut Rng) -> Vec<Statement> {
    let mut all = vec![Statement::Allocate { tensor: OUTPUT, stream: 0, zeroed: false }];
    let (mut live, mut written) = (vec![OUTPUT], vec![0, 7]);
    let mut left: Vec<usize> = LOCALS.collect();
    // A stream that waits for nothing may be a run ahead of those that read what it writes.
    let is_ahead = rng.below(6) == 0;
    if is_ahead {
        left.retain(|it| *it != 2);
        live.push(2);
        written.extend([2, OUTPUT]);
        all.extend([
            Statement::Allocate { tensor: 2, stream: 1, zeroed: true },
            Statement::Synchronize { awaited: 1, stream: 0 },
            Statement::Compute { out: OUTPUT, from: 2, stream: 0 },
        ]);
    }
    // What it writes then may get the storage of a later tensor of its pool, which stream 0 of the run before still reads.
    if is_ahead && rng.below(2) == 0 {
        left.retain(|it| *it != 3);
        live.push(3);
        written.push(3);
        all.extend([
            Statement::Synchronize { awaited: 0, stream: 1 },
            Statement::Allocate { tensor: 3, stream: 1, zeroed: true },
            Statement::Synchronize { awaited: 1, stream: 0 },
            Statement::Compute { out: OUTPUT, from: 3, stream: 0 },
        ]);
    }
    for stream in 1..STREAMS {
        if rng.below(3) > 0 && !(is_ahead && stream == 1) {
            all.push(Statement::Synchronize { awaited: 0, stream });
        }
    }
    let (mut posted, mut pending) = (0, Vec::new());
    for _ in 0..4 + rng.below(9) {
        let stream = rng.below(STREAMS);
        let awaited = (stream + 1 + rng.below(STREAMS - 1)) % STREAMS;
        match rng.below(20) {
            0..=3 if !left.is_empty() => {
                let tensor = left.swap_remove(rng.below(left.len()));
                let (stream, zeroed) = (if rng.below(3) == 0 { stream } else { 0 }, rng.below(3) == 0);
                all.push(Statement::Allocate { tensor, stream, zeroed });
                live.push(tensor);
                written.extend(zeroed.then_some(tensor));
            }
            0..=8 => {
                let out = live[rng.below(live.len())];
                let alike: Vec<usize> =
                    written.iter().copied().filter(|it| LARGE[*it] == LARGE[out]).collect();
                all.push(Statement::Compute { out, from: alike[rng.below(alike.len())], stream });
                if !written.contains(&out) {
                    written.push(out);
                }
            }
            9..=11 => {
                let locals: Vec<usize> = written.iter().copied().filter(|it| LOCALS.contains(it)).collect();
                if !locals.is_empty() {
                    let tensor = locals[rng.below(locals.len())];
                    all.push(Statement::Free { tensor });
                    live.retain(|it| *it != tensor);
                    written.retain(|it| *it != tensor);
                }
            }
            12 if rng.below(2) == 0 => all.push(Statement::HostWait { stream }),
            13..=14 => {
                let out = live[rng.below(live.len())];
                let alike: Vec<usize> =
                    written.iter().copied().filter(|it| LARGE[*it] == LARGE[out]).collect();
                let from = alike[rng.below(alike.len())];
                all.push(Statement::Post { number: posted, out, from, stream });
                pending.push(posted);
                posted += 1;
                if !written.contains(&out) {
                    written.push(out);
                }
            }
            15..=16 if !pending.is_empty() => {
                let number = pending.swap_remove(rng.below(pending.len()));
                all.push(Statement::Wait { number, stream });
            }
            _ => all.push(Statement::Synchronize { awaited, stream }),
        }
    }
    for number in pending {
        all.push(Statement::Wait { number, stream: if rng.below(2) == 0 { 0 } else { rng.below(STREAMS) } });
    }
    if !written.contains(&OUTPUT) {
        all.push(Statement::Compute { out: OUTPUT, from: 0, stream: 0 });
    }
    for awaited in 1..STREAMS {
        if rng.below(5) > 0 {
            all.push(Statement::Synchronize { awaited, stream: 0 });
        }
    }
    all
}

/// Adds the frees of the tensors that the end of the program frees.
fn with_frees(mut statements: Vec<Statement>) -> Vec<Statement> {
    let is_left = |it: &usize| allocation(&statements, *it).is_some() && free(&statements, *it).is_none();
    let left: Vec<usize> = LOCALS.filter(is_left).collect();
    statements.extend(left.into_iter().map(|tensor| Statement::Free { tensor }));
    statements
}

/// Moves each free behind the Waits for the communications that hold the tensor.
fn with_late_frees(statements: &[Statement]) -> Vec<Statement> {
    let mut all: Vec<(usize, Statement)> = Vec::new();
    for (at, it) in statements.iter().enumerate() {
        let after = if let Statement::Free { tensor } = *it { released(statements, tensor) } else { None };
        all.push((after.unwrap_or(at), *it));
    }
    // A free that moves follows the Wait.
    all.sort_by_key(|(at, it)| (*at, matches!(it, Statement::Free { .. })));
    all.into_iter().map(|it| it.1).collect()
}

/// Returns whether streams execute allocations and frees.
fn is_async(storage: StorageModel) -> bool {
    matches!(storage, StorageModel::CudaAsync | StorageModel::PyTorchCudaAsync)
}

/// Returns the text of a program.
fn text(statements: &[Statement]) -> String {
    let mut text = String::new();
    for (tensor, large) in LARGE.iter().enumerate() {
        let extent = if *large { 524_288 } else { 4 };
        let _ = writeln!(text, "%tensor T{tensor}_g_float[iS{tensor}{{{extent}}}] (DeviceMesh{{0}})");
    }
    text += "%HostIrContainer { (T0, T7) -> (T1) :\n  Stream s0 = GetCurrentStream()\n";
    let name = |stream: usize| if stream == 0 { "s0".to_owned() } else { stream.to_string() };
    let mut current = 0;
    for it in statements {
        let stream = match *it {
            Statement::Allocate { stream, .. }
            | Statement::Compute { stream, .. }
            | Statement::Synchronize { stream, .. }
            | Statement::Post { stream, .. }
            | Statement::Wait { stream, .. }
            | Statement::HostWait { stream } => stream,
            Statement::Free { .. } => current,
        };
        if stream != current {
            let _ = writeln!(text, "  SetCurrentStream(Stream {})", name(stream));
            current = stream;
        }
        let _ = match *it {
            Statement::Allocate { tensor, zeroed, .. } => {
                writeln!(text, "  T{tensor} = ALLOCATE(mem_type=global, zero_init={zeroed})")
            }
            Statement::Compute { out, from, .. } => writeln!(text, "  T{out} = neg(T{from})"),
            Statement::Free { tensor } => writeln!(text, "  Deallocate {{ T{tensor} }}"),
            Statement::Synchronize { awaited, .. } => {
                writeln!(text, "  Synchronize(Stream {})", name(awaited))
            }
            Statement::HostWait { .. } => writeln!(text, "  Synchronize(host)"),
            Statement::Post { number, out, from, .. } => writeln!(
                text,
                "  Communication {number} (type=Allreduce, team=(0), red_op=SUM, input=T{from}, output=T{out}, backend=NCCL)"
            ),
            Statement::Wait { number, .. } => writeln!(text, "  Wait(Communication {number})"),
        };
    }
    if current != 0 {
        text += "  SetCurrentStream(Stream s0)\n";
    }
    text + "} // %HostIrContainer\n"
}

/// All orders in which the work of one or two runs may execute. An allocation and a free are work of the stream of the allocation, which
/// only `cuda-async` looks at. Work is numbered: that of the caller before the program, the statements
/// of the first run, those of the second one, and what the caller does after the program.
struct Orders {
    /// The number of statements of a run.
    statements: usize,
    /// By work: the work that may come after it.
    after: Vec<u128>,
}

impl Orders {
    /// Executes the statements in every order.
    fn of(statements: &[Statement], runs: usize) -> Self {
        let count = statements.len();
        let last = 1 + runs * count;
        // By queue: its work. Each work has the number of works that each queue has to have executed before.
        let mut queues: Vec<Vec<(usize, [usize; QUEUES])>> = vec![Vec::new(); QUEUES];
        let mut host = [0; QUEUES];
        // By number of an all-reduce: the works of the communicator up to it.
        let mut posted = BTreeMap::new();
        queues[0].push((0, [0; QUEUES]));
        let repeated = (0..runs).flat_map(|_| statements).enumerate();
        for (at, statement) in repeated {
            let mut needs = host;
            match *statement {
                Statement::Compute { stream, .. } | Statement::Allocate { stream, .. } => {
                    queues[stream].push((at + 1, needs));
                }
                // `cudaFreeAsync` on the stream of the ALLOCATE.
                Statement::Free { tensor } => {
                    let stream = allocation(statements, tensor).map_or(0, |it| it.1);
                    queues[stream].push((at + 1, needs));
                }
                Statement::Synchronize { awaited, stream } => {
                    needs[awaited] = needs[awaited].max(queues[awaited].len());
                    queues[stream].push((at + 1, needs));
                }
                Statement::HostWait { stream } => host[stream] = queues[stream].len(),
                Statement::Post { number, stream, .. } => {
                    needs[stream] = queues[stream].len();
                    queues[NCCL].push((at + 1, needs));
                    posted.insert(number, queues[NCCL].len());
                }
                Statement::Wait { number, stream } => {
                    needs[NCCL] = needs[NCCL].max(posted[&number]);
                    queues[stream].push((at + 1, needs));
                }
            }
        }
        queues[0].push((last, host));
        let mut after = vec![0; last + 1];
        let all = queues.iter().flatten().fold(0, |all, it| all | 1_u128 << it.0);
        let (mut open, mut known) = (vec![[0; QUEUES]], BTreeSet::from([[0; QUEUES]]));
        while let Some(done) = open.pop() {
            let executed =
                || (0..QUEUES).flat_map(|queue| queues[queue][..done[queue]].iter().map(|it| it.0));
            let left = all & !executed().fold(0, |all, it| all | 1_u128 << it);
            executed().for_each(|it| after[it] |= left);
            for queue in 0..QUEUES {
                let Some((_, needs)) = queues[queue].get(done[queue]) else { continue };
                if (0..QUEUES).all(|it| done[it] >= needs[it]) {
                    let mut next = done;
                    next[queue] += 1;
                    if known.insert(next) {
                        open.push(next);
                    }
                }
            }
        }
        Self { statements: count, after }
    }

    /// Returns whether `late` may come before `early`.
    fn may_be_early(&self, late: usize, early: usize) -> bool {
        self.after[late] >> early & 1 == 1
    }

    fn are_unordered(&self, a: usize, b: usize) -> bool {
        self.may_be_early(a, b) && self.may_be_early(b, a)
    }

    /// Returns two works of one run that race, if there are any.
    fn race(&self, statements: &[Statement], model: OrderingModel, storage: StorageModel) -> Option<String> {
        let is_hir = model == OrderingModel::Hir;
        let reuses = !is_hir && storage != StorageModel::NeverReused;
        let uses = uses(statements);
        let end = 1 + self.statements;
        for (at, tensor, writes) in &uses {
            let (at, tensor) = (*at + 1, *tensor);
            let found = |what: &str| Some(format!("statement {} and {what}, T{tensor}", at - 1));
            if matches!(tensor, 0 | 7) && !is_hir && self.may_be_early(at, 0) {
                return found("the caller before");
            }
            // With hir's executor the caller only reads outputs.
            let is_owned =
                if is_hir { tensor == OUTPUT && *writes } else { matches!(tensor, 0 | 7 | OUTPUT) };
            if is_owned && self.may_be_early(end, at) {
                return found("the caller after");
            }
            for (other, same, also) in &uses {
                if *same == tensor && (*writes || *also) && self.are_unordered(at, other + 1) {
                    return found(&format!("statement {other}"));
                }
            }
            if !reuses {
                continue;
            }
            let Some((allocated, stream)) = allocation(statements, tensor) else { continue };
            if is_async(storage) {
                let freed = free(statements, tensor).map(|it| it + 1);
                if self.may_be_early(at, allocated + 1) {
                    return found("its cudaMallocAsync");
                }
                if freed.is_some_and(|freed| self.may_be_early(freed, at)) {
                    return found("its cudaFreeAsync");
                }
            }
            // The caller gets storage of the stream that is current at exit.
            if stream == 0 && tensor != OUTPUT && self.may_be_early(end, at) {
                return found("the caller, which gets its storage");
            }
            let mut issued = (0..allocated).filter(|it| stream_of(statements[*it]) == Some(stream));
            let is_early = |it: usize| self.may_be_early(at, it);
            let is_own = stream_of(statements[at - 1]) == Some(stream);
            if !is_own && (issued.any(|it| is_early(it + 1)) || stream == 0 && is_early(0)) {
                return found("the work before its ALLOCATE");
            }
            for (other, earlier, _) in &uses {
                if may_share(statements, storage, *earlier, tensor) && self.may_be_early(at, other + 1) {
                    return found(&format!("statement {other}, T{earlier} in the same storage"));
                }
            }
        }
        None
    }

    /// Returns a work of the first run and one of the second one that race, if there are any.
    fn race_between_runs(
        &self,
        statements: &[Statement],
        model: OrderingModel,
        storage: StorageModel,
    ) -> Option<String> {
        // cudaMallocAsync gives out no storage before its cudaFreeAsync, on any stream: a run in which all uses are between the two
        // shares none with the next one. A run that is issued gets all storage of a stream that the run before has freed, that of the output too, which
        // the caller frees; one that is replayed uses the storage that it has got in the first run.
        let reuses = model != OrderingModel::Hir && storage == StorageModel::PyTorch;
        let pool = |tensor: usize| Some((allocation(statements, tensor)?.1, LARGE[tensor]));
        let uses = uses(statements);
        for (first, earlier, writes) in &uses {
            for (second, later, also) in &uses {
                let is_issued = pool(*earlier).is_some() && pool(*earlier) == pool(*later);
                let shares = reuses
                    && (is_issued
                        || may_share(statements, storage, *earlier, *later)
                        || may_share(statements, storage, *later, *earlier));
                let conflicts = earlier == later && (*writes || *also) || shares;
                if conflicts && self.may_be_early(second + 1 + self.statements, first + 1) {
                    return Some(format!(
                        "statement {first}, T{earlier}, and statement {second} of the next run, T{later}"
                    ));
                }
            }
        }
        None
    }

    /// Returns why a capture of the program fails or leaves out work.
    fn capture_fault(&self, statements: &[Statement]) -> Option<String> {
        let mut takes_part = [true, false, false];
        for (at, it) in statements.iter().enumerate() {
            match *it {
                Statement::Compute { stream, .. } | Statement::Allocate { stream, zeroed: true, .. }
                    if !takes_part[stream] =>
                {
                    return Some(format!("statement {at} is not captured"));
                }
                Statement::Compute { .. } | Statement::Allocate { zeroed: true, .. }
                    if self.may_be_early(1 + self.statements, at + 1) =>
                {
                    return Some(format!("statement {at} is not joined"));
                }
                Statement::Post { stream, .. } => {
                    if !takes_part[stream] || self.may_be_early(1 + self.statements, at + 1) {
                        return Some(format!("statement {at} is not captured, or not joined"));
                    }
                }
                // What it waits for is captured.
                Statement::Wait { stream, .. } => takes_part[stream] = true,
                Statement::Synchronize { awaited, stream } => {
                    if takes_part[stream] && !takes_part[awaited] {
                        return Some(format!("statement {at} waits for work that is not captured"));
                    }
                    takes_part[stream] |= takes_part[awaited];
                }
                Statement::HostWait { .. } => return Some(format!("statement {at} waits on the host")),
                Statement::Compute { .. } | Statement::Allocate { .. } | Statement::Free { .. } => (),
            }
        }
        None
    }
}

/// Returns the stream on which a statement may use storage, or give back what a communication has used.
fn stream_of(statement: Statement) -> Option<usize> {
    match statement {
        Statement::Compute { stream, .. } | Statement::Allocate { stream, zeroed: true, .. } => Some(stream),
        Statement::Allocate { zeroed: false, .. }
        | Statement::Wait { .. }
        | Statement::Synchronize { .. }
        | Statement::Free { .. }
        | Statement::HostWait { .. }
        | Statement::Post { .. } => None,
    }
}

/// Returns each use of a tensor: the statement, the tensor, and whether it writes.
fn uses(statements: &[Statement]) -> Vec<(usize, usize, bool)> {
    let of = |(at, it): (usize, &Statement)| match *it {
        Statement::Compute { out, from, .. } | Statement::Post { out, from, .. } => {
            vec![(at, from, false), (at, out, true)]
        }
        Statement::Allocate { tensor, zeroed: true, .. } => vec![(at, tensor, true)],
        Statement::Allocate { zeroed: false, .. }
        | Statement::Free { .. }
        | Statement::Synchronize { .. }
        | Statement::Wait { .. }
        | Statement::HostWait { .. } => Vec::new(),
    };
    statements.iter().enumerate().flat_map(of).collect()
}

/// Returns the statement that allocates a tensor, and its stream.
fn allocation(statements: &[Statement], tensor: usize) -> Option<(usize, usize)> {
    statements.iter().enumerate().find_map(|(at, it)| match *it {
        Statement::Allocate { tensor: it, stream, .. } if it == tensor => Some((at, stream)),
        _ => None,
    })
}

/// Returns the statement that frees a tensor.
fn free(statements: &[Statement], tensor: usize) -> Option<usize> {
    statements.iter().position(|it| matches!(it, Statement::Free { tensor: it } if *it == tensor))
}

/// Returns the statement behind which PyTorch's allocator has the storage of a tensor back: an all-reduce holds its operands up to its Wait.
fn released(statements: &[Statement], tensor: usize) -> Option<usize> {
    let freed = free(statements, tensor)?;
    let holds = statements[..freed].iter().filter_map(|it| match *it {
        Statement::Post { number, out, from, .. } if [out, from].contains(&tensor) => Some(number),
        _ => None,
    });
    let awaited = |number: usize| {
        statements.iter().position(|it| matches!(it, Statement::Wait { number: it, .. } if *it == number))
    };
    Some(holds.filter_map(awaited).fold(freed, usize::max))
}

/// Returns whether the allocator may give the storage of `earlier` to `later`.
fn may_share(statements: &[Statement], storage: StorageModel, earlier: usize, later: usize) -> bool {
    let both = [earlier, later].map(|it| allocation(statements, it));
    let is_async = is_async(storage);
    let freed = if is_async { free(statements, earlier) } else { released(statements, earlier) };
    let (Some(freed), [Some(before), Some(after)]) = (freed, both) else { return false };
    let is_one_pool = is_async || LARGE[earlier] == LARGE[later];
    freed < after.0 && before.1 == after.1 && is_one_pool
}
