//! Checks that the result of a collective does not depend on the transport. Every case and sample with NCCL
//! collectives must give the same bits if the CUDA backend copies over peer memory, and with each other
//! algorithm, under several schedules.

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::{
    fs,
    path::{Path, PathBuf},
};

use grammar::{
    attr,
    diagnostic::has_errors,
    ir::{Program, Stmt},
    ops::Op,
    span::LineIndex,
    words::{Algorithm, Backend, CommunicationType},
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
const ORDERED_BY_NCCL: [&str; 4] = [
    "cuda-async-communication.hir",
    "hierarchical-collectives-order.hir",
    "hoist-communication-order-by-queue.hir",
    "wait-orders-other-stream.hir",
];

/// The collectives in which every rank sends to every other one.
const SYMMETRIC: [CommunicationType; 4] = [
    CommunicationType::Allreduce,
    CommunicationType::Allgather,
    CommunicationType::ReduceScatter,
    CommunicationType::AllToAll,
];

/// The transport to use instead of NCCL.
#[derive(Clone, Copy, Debug)]
enum TransportChoice {
    Cuda,
    OneShot,
    CudaOneShot,
    TwoShot,
    CudaTwoShot,
    OneShotCopy,
    TwoShotCopy,
    OneShotLl,
    OneShotLl128,
    TwoShotLl,
    TwoShotLl128,
}

impl TransportChoice {
    /// Returns whether the collectives get `backend=CUDA`.
    fn is_cuda(self) -> bool {
        match self {
            Self::Cuda | Self::CudaOneShot | Self::CudaTwoShot | Self::OneShotLl128 => true,
            Self::OneShotCopy
            | Self::TwoShotCopy
            | Self::OneShot
            | Self::TwoShot
            | Self::OneShotLl
            | Self::TwoShotLl
            | Self::TwoShotLl128 => false,
        }
    }

    /// Returns the `algo=` that the collectives get, and the kinds of collectives that get it.
    fn algorithm(self) -> Option<(Algorithm, &'static [CommunicationType])> {
        const ALLREDUCE: &[CommunicationType] = &[CommunicationType::Allreduce];
        const COPIED: &[CommunicationType] = &[CommunicationType::Allgather, CommunicationType::AllToAll];
        match self {
            Self::Cuda => None,
            Self::OneShot | Self::CudaOneShot => Some((Algorithm::OneShot, &SYMMETRIC)),
            Self::TwoShot | Self::CudaTwoShot => Some((Algorithm::TwoShot, ALLREDUCE)),
            Self::OneShotCopy => Some((Algorithm::OneShotCopy, COPIED)),
            Self::TwoShotCopy => Some((Algorithm::TwoShotCopy, ALLREDUCE)),
            Self::OneShotLl => Some((Algorithm::OneShotLl, &SYMMETRIC)),
            Self::OneShotLl128 => Some((Algorithm::OneShotLl128, &SYMMETRIC)),
            Self::TwoShotLl => Some((Algorithm::TwoShotLl, ALLREDUCE)),
            Self::TwoShotLl128 => Some((Algorithm::TwoShotLl128, ALLREDUCE)),
        }
    }

    /// Returns the least number of programs that a trial has to compare.
    fn least_programs(self) -> usize {
        match self {
            // Few cases have an Allgather or AllToAll before they are lowered.
            Self::OneShotCopy => 12,
            Self::Cuda
            | Self::OneShot
            | Self::CudaOneShot
            | Self::TwoShot
            | Self::CudaTwoShot
            | Self::TwoShotCopy
            | Self::OneShotLl
            | Self::OneShotLl128
            | Self::TwoShotLl
            | Self::TwoShotLl128 => 20,
        }
    }
}

/// Returns the trials of this file.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let ways = [
        TransportChoice::Cuda,
        TransportChoice::OneShot,
        TransportChoice::CudaOneShot,
        TransportChoice::TwoShot,
        TransportChoice::CudaTwoShot,
        TransportChoice::OneShotCopy,
        TransportChoice::TwoShotCopy,
        TransportChoice::OneShotLl,
        TransportChoice::OneShotLl128,
        TransportChoice::TwoShotLl,
        TransportChoice::TwoShotLl128,
    ];
    let trial = |way: TransportChoice| {
        let cases = cases.to_vec();
        Trial::test(format!("transports {way:?} leaves what NCCL leaves"), move || compare(&cases, way))
    };
    ways.into_iter().map(trial).collect()
}

/// Programs whose hosts wait for each other as soon as their collective exchanges handles, too.
const LAZY: [&str; 2] = ["lazy-communicators.hir", "lazy-send-recv.hir"];

fn compare(cases: &[PathBuf], way: TransportChoice) -> Result<(), Failed> {
    let (mut compared, mut faults) = (0, String::new());
    for path in cases {
        let name = shown(path);
        if ORDERED_BY_NCCL.contains(&name.as_str()) && way.is_cuda() || LAZY.contains(&name.as_str()) {
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
        if !judge_outputs(&plans, &again, &wanted, &criteria).ok()?.is_right {
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
        if !verdict.is_right {
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
        if let Some((algorithm, kinds)) = way.algorithm() {
            if !it.get(attr::TYPE).is_some_and(|kind| kinds.contains(&kind)) {
                continue;
            }
            it.set(attr::ALGO, algorithm);
        }
        if way.is_cuda() {
            it.set(attr::BACKEND, Backend::Cuda);
        }
        count += 1;
    }
    (count > 0).then_some(program)
}

fn shown(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
