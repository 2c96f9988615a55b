//! Reads, checks, transforms and runs multi-GPU Host IR programs.
//!
//! `grammar` parses a text into a program, `passes` rewrite it, `plan` lowers it to one plan for each rank,
//! `check` proves that plans have no races, `sim` runs the plans of all ranks in one process, and `cuda` runs the plan of one
//! rank on a GPU. The tools `hir`, `hir-opt` and `hir-run` combine these with the help of `driver`.
//!
//! Each is a package of its own. This one names them together, and has a function for each step:
//!
//! ```
//! use hir::grammar::source::Source;
//!
//! let text = "
//! %HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{8}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS2{8}] (DeviceMesh{0 1}) = Set( T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}) )
//! } // %HostIrContainer
//!
//! Domains:
//!   T0: logical(iS3{8}), outer_split(iS3{8}, 2) -> (ideviceIdx.x0{2}, iS1{4})
//! ";
//! let source = Source::new("gather.hir".to_owned(), text.to_owned());
//! let mut program = hir::read(&source).map_err(|faults| faults[0].message.clone())?.remove(0);
//!
//! hir::run_passes(&mut program, "lower-to-communication").map_err(|fault| format!("{fault:?}"))?;
//! assert!(hir::grammar::print(&program).contains("type=Allgather"));
//!
//! let world = hir::plan(&program, &source, 2).map_err(|faults| faults[0].message.clone())?;
//! assert!(hir::check(&world).findings.is_empty());
//!
//! let outcome = hir::simulate(&world, 0).map_err(|fault| fault.to_string())?;
//! let whole = outcome.outputs[0][0].as_ref().ok_or("rank 0 holds no part of the output")?;
//! assert_eq!(whole.shape, [8]);
//! assert_eq!(outcome.outputs[1][0].as_ref().map(|it| &it.data), Some(&whole.data));
//!
//! let timeline = hir::timeline(&world, &program, &source).map_err(|fault| format!("{fault:?}"))?;
//! assert!(timeline.rows.iter().any(|row| row.rank == 1));
//! # Ok::<(), String>(())
//! ```

pub use grammar;
pub use hir_check as check;
#[cfg(feature = "cuda")]
pub use hir_cuda as cuda;
pub use hir_driver as driver;
pub use hir_front as front;
pub use hir_hang as hang;
#[cfg(feature = "launch")]
pub use hir_launch as launch;
pub use hir_plan as plan;
pub use hir_plan::timeline;
pub use hir_process as process;
pub use hir_sim as sim;
pub use hir_stablehlo as stablehlo;
pub use hir_tensor as tensor;
pub use passes;

/// Makes the program of a tool, whose module is in `driver::commands`: its `main`, and what a process has once.
#[doc(hidden)]
#[macro_export]
macro_rules! program {
    ($tool:literal, $module:ident) => {
        #[global_allocator]
        static ALLOCATOR: $crate::process::out_of_memory::Allocator<mimalloc::MiMalloc> =
            $crate::process::out_of_memory::Allocator { tool: $tool, memory: mimalloc::MiMalloc };

        fn main() -> std::process::ExitCode {
            let line = $crate::driver::session::CommandLine::of_process();
            $crate::driver::commands::$module::main_with(line).into()
        }
    };
}

use driver::{
    auto,
    run::{RunError, inputs::InputSpec, verdict},
};
use grammar::{
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    source::Source,
};
use hir_check::{Checks, Report};
use hir_plan::{
    World,
    limits::{DEFAULT_MEMORY_LIMIT, Limits},
    sync::happens_before::OrderError,
    timeline::{Timeline, estimator::Planned},
};
use hir_process::threads::start_workers;
use hir_sim::{Schedule, SimOutcome};
use hir_tensor::generate::InputKind;
use passes::{PassError, PipelineError, Settings};

/// Reads and verifies all containers of a text. Warnings are not returned; [`Source::programs`] returns them.
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
    let calls = auto::catalog()
        .parse(list)
        .map_err(|fault| Box::new(PipelineError { pass: None, error: PassError::BadOption(fault) }))?;
    passes::run(program, &calls, Settings::default(), &mut |_| ())
}

/// Plans a program for every rank of a world.
///
/// # Errors
/// As for [`plan::build`].
pub fn plan(program: &Program, source: &Source, ranks: usize) -> Result<World, Vec<Diagnostic>> {
    plan::build(program, &source.lines, ranks)
}

/// Looks for races, deadlocks and unwritten outputs in the plans of all ranks.
pub fn check(world: &World) -> Report {
    check::check(world, Checks::ALL_FAULTS)
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
    auto::machine::default_estimator().timeline(world, Some(text))
}
