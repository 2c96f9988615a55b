//! Reads, checks, transforms and runs multi-GPU Host IR programs.
//!
//! This is the library: a function for each step, and the types that it takes and returns. The tools `hir`, `hir-opt` and `hir-run` do
//! more. All other packages, `hir-…`, are parts of these tools: their items change with them.
//!
//! ```
//! let text = "
//! %HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{8}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS2{8}] (DeviceMesh{0 1}) = Set( T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}) )
//! } // %HostIrContainer
//!
//! Domains:
//!   T0: logical(iS3{8}), outer_split(iS3{8}, 2) -> (ideviceIdx.x0{2}, iS1{4})
//! ";
//! let source = hir::source("gather.hir", text);
//! let mut program = hir::read(&source).map_err(|faults| faults[0].message.clone())?.remove(0);
//!
//! let original = program.clone();
//! hir::run_passes(&mut program, "lower-to-communication").map_err(|fault| fault.to_string())?;
//! assert!(hir::print(&program).contains("type=Allgather"));
//!
//! let claim = hir::certify(&original, &program).map_err(|fault| fault.diagnostic.message)?;
//! assert_eq!((claim.ranks, claim.outputs), (2, 1));
//!
//! let world = hir::plan(&program, &source, 2).map_err(|faults| faults[0].message.clone())?;
//! assert!(hir::check(&world).findings.is_empty());
//!
//! let outcome = hir::simulate(&world, 0).map_err(|fault| fault.to_string())?;
//! let whole = outcome.outputs[0][0].as_ref().ok_or("rank 0 holds no part of the output")?;
//! assert_eq!(whole.shape, [8]);
//! assert_eq!(outcome.outputs[1][0].as_ref().map(|it| &it.data), Some(&whole.data));
//!
//! let timeline = hir::timeline(&world, &program, &source).map_err(|fault| fault.to_string())?;
//! assert!(timeline.rows.iter().any(|row| row.rank == 1));
//! # Ok::<(), String>(())
//! ```

pub use grammar::{Code, Diagnostic, Program, Source, Span, print};
pub use hir_certify::{Claim, Fault};
pub use hir_check::{Finding, Report};
pub use hir_driver::run::RunError;
pub use hir_front::source;
pub use hir_hang::{files::LoadError, report::Report as HangReport};
pub use hir_plan::{
    World,
    sync::happens_before::OrderError,
    timeline::{Row, Slice, Timeline},
};
pub use hir_sim::SimOutcome;
pub use hir_tensor::dense::DenseTensor;
pub use passes::{PassError, PipelineError};

use std::path::PathBuf;

use grammar::has_errors;
use hir_certify::Settings;
use hir_check::Checks;
use hir_driver::{
    auto,
    run::{inputs::InputSpec, verdict},
};
use hir_plan::{
    limits::{DEFAULT_MEMORY_LIMIT, Limits},
    timeline::estimator::Planned,
};
use hir_process::threads::start_workers;
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;

/// The runs of a proof, as many as `hir certify` makes by default.
const CERTIFIED_RUNS: u32 = 3;

/// Makes the tools and the estimates of this process use the executor with which hir was built: that of the feature `cuda`, or none.
#[doc(hidden)]
pub fn install_backend() {
    #[cfg(feature = "cuda")]
    hir_executor::install_backend(hir_cuda::CUDA);
}

/// Does what `hir` does with the arguments of this process, whose tools know these passes, too: `hir opt --passes`, `--verify-each`, `--bisect`,
/// dumps, reproducers and the editor. It is the whole `main` of a tool with passes of its own.
#[must_use]
pub fn main_with_passes(passes: impl IntoIterator<Item = &'static passes::Pass>) -> std::process::ExitCode {
    install_backend();
    auto::add_passes(passes.into_iter().collect());
    hir_driver::commands::dispatch::main_with(hir_driver::session::CommandLine::of_process()).into()
}

/// Reads and verifies all containers of a text. Warnings are not returned; [`Source::programs`] returns them.
///
/// ```
/// let source = hir::source("broken.hir", "%HostIrContainer { () -> () :\n  T1_g_float[iS1{4}] = Set( T0_g_float[iS0{4}] )\n} // %HostIrContainer\n");
/// let faults = hir::read(&source).err().unwrap_or_default();
/// assert_eq!(faults[0].message, "nothing allocates or defines `T0`");
/// ```
///
/// # Errors
/// The diagnostics, of which one at least is an error.
pub fn read(source: &Source) -> Result<Vec<Program>, Vec<Diagnostic>> {
    match source.programs() {
        (_, diagnostics) if has_errors(&diagnostics) => Err(diagnostics),
        (programs, _) => Ok(programs),
    }
}

/// Runs passes, given as on the command line: `a,b{option=value},@pipeline`. The program is verified after each.
///
/// # Errors
/// The list is faulty, a pass cannot rewrite the program, or it has a bug. The program is then that before the pass.
pub fn run_passes(program: &mut Program, list: &str) -> Result<(), Box<PipelineError>> {
    // `auto` estimates.
    install_backend();
    let calls = auto::catalog()
        .parse(list)
        .map_err(|fault| Box::new(PipelineError { pass: None, error: PassError::BadOption(fault) }))?;
    passes::run(program, &calls, passes::Settings::default(), &mut |_| ())
}

/// Proves that a lowered program computes what its original computes, on all ranks, up to a small probability of error that the
/// claim states.
///
/// # Errors
/// The programs differ, or use what the proof does not cover.
pub fn certify(original: &Program, lowered: &Program) -> Result<Claim, Fault> {
    hir_certify::certify(original, lowered, &Settings { runs: CERTIFIED_RUNS, ranks: None, seed: None })
}

/// Explains a hang from the dumps of PyTorch's flight recorder in these files and folders.
///
/// ```
/// let report = hir::explain_hang(&["docs/examples/job-hangs".into()])?;
/// assert!(report.is_hang);
/// assert!(report.findings[0].message.contains("rank 2"), "{}", report.findings[0].message);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// No dump can be read.
pub fn explain_hang(paths: &[PathBuf]) -> Result<HangReport, LoadError> {
    Ok(hir_hang::report::report(&hir_hang::files::load(paths)?))
}

/// Plans a program for every rank of a world.
///
/// # Errors
/// What cannot be planned, such as scalars without a value, or more memory than the default limit.
pub fn plan(program: &Program, source: &Source, ranks: usize) -> Result<World, Vec<Diagnostic>> {
    hir_plan::build(program, &source.lines, ranks)
}

/// Looks for races, deadlocks and unwritten outputs in the plans of all ranks.
///
/// ```
/// // Rank 1 skips a broadcast.
/// let text = "
/// %HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> () :
///   T1_g_float[iS1{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
///   IF Manual ( rank == 0 ):
///     Communication 0 (type=Broadcast, team=(0 1), root=0, input=T0_g_float[iS0{4}] (DeviceMesh{0 1}), output=T1_g_float[iS1{4}] (DeviceMesh{0 1}), backend=NCCL)
///     Wait(Communication 0)
/// } // %HostIrContainer
/// ";
/// let source = hir::source("skips.hir", text);
/// let program = hir::read(&source).map_err(|faults| faults[0].message.clone())?.remove(0);
/// let world = hir::plan(&program, &source, 2).map_err(|faults| faults[0].message.clone())?;
/// assert!(hir::check(&world).has_deadlock());
/// # Ok::<(), String>(())
/// ```
pub fn check(world: &World) -> Report {
    hir_check::check(world, Checks::ALL_FAULTS)
}

/// Runs all ranks in this process, in the order of the program, on inputs for which sums are exact.
///
/// # Errors
/// A deadlock, what the simulator does not support, or a thread for the computation that the system refuses.
pub fn simulate(world: &World, seed: u64) -> Result<SimOutcome, RunError> {
    start_workers()?;
    let inputs = InputSpec::new(InputKind::Exact, seed, world).fill(world)?;
    verdict::simulate(world, inputs, &Schedule::Program, DEFAULT_MEMORY_LIMIT)
}

/// Estimates when every rank, stream and communicator works and what it waits for, on the default machine: two H200s of one host.
/// If statements of the program reshard, that is the timeline of the program as `@lower` lowers it.
///
/// # Errors
/// The ranks have too many streams.
pub fn timeline(world: &World, program: &Program, source: &Source) -> Result<Timeline, OrderError> {
    let text = Planned { program, lines: &source.lines, limits: &Limits::default() };
    install_backend();
    auto::machine::default_estimator().timeline(world, Some(text))
}
