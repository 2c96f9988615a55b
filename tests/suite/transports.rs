//! Checks that the result of a collective does not depend on the transport. Every case and sample with NCCL
//! collectives must give the same bits if the CUDA backend copies over peer memory, and with each other
//! algorithm, under several schedules.

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::{
    fs,
    path::{Path, PathBuf},
};

use grammar::{
    algorithm_table::{self, ALGORITHMS},
    attr,
    diagnostic::has_errors,
    ir::{Program, Stmt},
    ops::Op,
    span::LineIndex,
    words::{Algorithm, Backend},
};
use hir_driver::run::{
    inputs::InputSpec,
    results,
    verdict::{Criteria, ExpectationSource, expectations, judge_outputs, simulate},
};
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};

/// Maximum number of bytes of a program that is tested.
const BYTES: usize = 1 << 26;
/// Number of schedules per program.
const SEEDS: u64 = 8;
/// Number of schedules of the program with NCCL that are tried to detect a race.
const RACE_SEEDS: u64 = 40;

/// Programs whose statements are ordered only by the queue of an NCCL communicator, or by a Wait on another stream than that of the
/// post. The CUDA backend has no queues, and its Wait orders nothing that its own rank does on another stream.
const ORDERED_BY_NCCL: [&str; 6] = [
    "cuda-async-communication.hir",
    "hierarchical-collectives-order.hir",
    "hoist-communication-order-by-queue.hir",
    "hoist-communication-storage.hir",
    "sink-waits-storage.hir",
    "wait-orders-other-stream.hir",
];

/// The transport to use instead of NCCL.
#[derive(Clone, Copy, Debug)]
struct TransportChoice {
    /// The `algo=` that those collectives get which have it; `None`: all collectives, without `algo=`.
    algorithm: Option<Algorithm>,
    /// Whether the collectives get `backend=CUDA`.
    is_cuda: bool,
}

impl TransportChoice {
    /// Returns the least number of programs that a trial has to compare.
    fn least_programs(self) -> usize {
        // Few cases have an Allgather or AllToAll before they are lowered.
        if self.algorithm == Some(Algorithm::OneShotCopy) { 12 } else { 20 }
    }
}

/// Returns the trials of this file: each algorithm with NCCL's queues, and some without.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let cuda = [None, Some(Algorithm::OneShot), Some(Algorithm::TwoShot), Some(Algorithm::OneShotLl128)];
    let cuda = cuda.map(|algorithm| TransportChoice { algorithm, is_cuda: true });
    let own = ALGORITHMS.map(|it| it.algorithm).into_iter().filter(|it| *it != Algorithm::Nccl);
    let queued = own.map(|it| TransportChoice { algorithm: Some(it), is_cuda: false });
    let trial = |way: TransportChoice| {
        let cases = cases.to_vec();
        let backend = if way.is_cuda { "CUDA" } else { "NCCL" };
        let name = way.algorithm.map_or("default", Algorithm::text);
        Trial::test(format!("transports {name} of {backend} leaves what NCCL leaves"), move || {
            compare(&cases, way)
        })
    };
    cuda.into_iter().chain(queued).map(trial).collect()
}

/// Programs whose hosts wait for each other as soon as their collective exchanges handles, too.
const LAZY: [&str; 2] = ["lazy-communicators.hir", "lazy-send-recv.hir"];

fn compare(cases: &[PathBuf], way: TransportChoice) -> Result<(), Failed> {
    let (mut compared, mut faults) = (0, String::new());
    for path in cases {
        let name = shown(path);
        if ORDERED_BY_NCCL.contains(&name.as_str()) && way.is_cuda || LAZY.contains(&name.as_str()) {
            continue;
        }
        let text = fs::read_to_string(path)?;
        let lines = LineIndex::new(&text);
        for program in grammar::read(&text).0 {
            match agrees(&program, &lines, way) {
                Some(Ok(())) => compared += 1,
                Some(Err(fault)) => faults += &format!("{}: {fault}\n", shown(path)),
                None => (),
            }
        }
    }
    if faults.is_empty() && compared >= way.least_programs() {
        Ok(())
    } else {
        Err(Failed::from(format!("{faults}{compared} programs compared")))
    }
}

/// Compares the program with its NCCL version. `None` if it does not run or has no such collective.
fn agrees(program: &Program, lines: &LineIndex, way: TransportChoice) -> Option<Result<(), String>> {
    if has_errors(&grammar::verify(program)) {
        return None;
    }
    let changed = with_transport(program, way)?;
    let world = hir_plan::smallest_world(program);
    let plans = hir_plan::build(program, lines, world).ok()?;
    // A deadlock or a race of the program with NCCL is not a fault of a transport. If ranks use communicators
    // in different orders, copies over peer memory make the ranks wait for each other.
    let crosses = hir_plan::sync::comm_order_cycle(&plans, hir_plan::sync::LaunchOrder::Implicit) != Ok(None);
    if hir_sim::footprint(&plans).bytes > BYTES || crosses || plans.deadlock().is_some() {
        return None;
    }
    let mut filling = InputSpec::new(InputKind::Exact, 0, &plans);
    let run =
        |plans: &hir_plan::World, inputs, schedule| simulate(plans, inputs, &schedule, DEFAULT_MEMORY_LIMIT);
    let first = run(&plans, filling.fill(&plans).ok()?, Schedule::Program).ok()?;
    let wanted = results::outputs(&plans, &first).ok()?;
    let basis = || ExpectationSource::Reference { exact: true };
    let wanted = expectations(wanted, "the program with NCCL", basis());
    let criteria = Criteria { exact: Some(true), ..Criteria::default() };
    // A program with a race may differ from itself.
    for seed in 0..RACE_SEEDS {
        let again = run(&plans, filling.fill(&plans).ok()?, Schedule::Seed(seed)).ok()?;
        if !judge_outputs(&plans, &again, &wanted, &criteria).ok()?.is_right() {
            return None;
        }
    }
    let lowered = match hir_plan::build(&changed, lines, world) {
        Ok(it) => it,
        Err(faults) => return Some(Err(faults.iter().map(|it| it.message.clone()).collect())),
    };
    for schedule in [Schedule::Program].into_iter().chain((0..SEEDS).map(Schedule::Seed)) {
        let outcome = match run(&lowered, filling.fill(&lowered).ok()?, schedule) {
            Ok(it) => it,
            Err(fault) => return Some(Err(fault.to_string())),
        };
        let verdict = judge_outputs(&lowered, &outcome, &wanted, &criteria).ok()?;
        if !verdict.is_right() {
            return Some(Err(verdict.line.to_string()));
        }
    }
    Some(Ok(()))
}

/// Returns the program with its collectives on another transport, or `None` if it has no such collectives.
fn with_transport(program: &Program, way: TransportChoice) -> Option<Program> {
    let mut program = program.clone();
    let mut count = 0;
    for id in program.stmts.ids() {
        let Stmt::Op(it) = &mut program.stmts[id] else { continue };
        let is_collective = matches!(it.op, Op::Communication | Op::CollectivePermute);
        let is_nccl = it.get(attr::BACKEND).is_none_or(|it| it == Backend::Nccl);
        // A program that names algorithms tests the queue that they share.
        if it.get(attr::ALGO).is_some() {
            return None;
        }
        if !is_collective || !is_nccl {
            continue;
        }
        if let Some(algorithm) = way.algorithm {
            if !it.get(attr::TYPE).is_some_and(|kind| algorithm_table::supports(algorithm, kind)) {
                continue;
            }
            it.set(attr::ALGO, algorithm);
        }
        if way.is_cuda {
            it.set(attr::BACKEND, Backend::Cuda);
        }
        count += 1;
    }
    (count > 0).then_some(program)
}

fn shown(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
