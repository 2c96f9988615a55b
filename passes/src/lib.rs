//! Passes over Host IR, the registry of passes and pipelines, and the driver that runs and checks them.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! A pass (`pass`) is a static description and a function that rewrites a program. `transform` contains the
//! passes, `analysis` the analyses that they use, and `rewrite` shared editing code. `list` lists all passes
//! and the named pipelines, a `Catalog` has those that a tool knows, `pipeline` parses `a,b{option=value},@name`, and `driver` runs the pipeline and
//! verifies the program after every pass. `bisect` finds the pass that miscompiles a program. Every pass
//! obeys these rules:
//!
//! * the program is equivalent afterwards, on every rank and under every schedule that its synchronization
//!   allows;
//! * a pass has no state other than its arguments, so it is deterministic;
//! * analyses are functions that return a value and change nothing.
//!
//! ```
//! let (mut programs, _) = grammar::read(
//!     "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T2_g_float[iS2{4}]) :
//!        T1_g_float[iS1{4}] = relu(T0)
//!        T2 = relu(T0)
//!      }",
//! );
//! let calls = passes::parse("remove-dead-code").map_err(|fault| fault.message)?;
//! let mut changed = Vec::new();
//! passes::run(&mut programs[0], &calls, passes::Settings::default(), &mut |event| {
//!     if let passes::PassEvent::After { change, call, .. } = event {
//!         changed.extend((change.get() == passes::Change::Changed).then_some(call.pass.name));
//!     }
//! })
//! .map_err(|fault| format!("{fault:?}"))?;
//! assert_eq!(changed, ["remove-dead-code"]);
//! assert!(!grammar::print(&programs[0]).contains("T1_g"));
//! # Ok::<(), String>(())
//! ```
//!
//! Invariant: this package does not depend on plans or devices and does not print. It returns all reports to
//! the caller.

pub mod pass;

pub mod list;
pub mod pipeline;

pub mod bisect;
mod catalog;
pub mod driver;
pub mod error;
pub mod oracle;

pub mod analysis;
pub mod rewrite;
mod second_thread;
mod transform;

pub use bisect::{Culprit, bisect};
pub use catalog::{Catalog, parse};
pub use driver::{PassChange, PassEvent, Settings, Verify, run};
pub use error::{PassError, PipelineError};
pub use list::{FORMER_NAMES, PASSES, PIPELINES};
pub use oracle::{Reference, SemanticOracle};
pub use pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Pipeline, Remarks};
pub use pipeline::PassCall;
pub use transform::overlap::{Splittable, splittable};

/// Returns a program as `@lower` lowers it, without checks after each pass; `None` if a pass cannot rewrite it.
pub fn lowered(program: &grammar::ir::Program) -> Option<grammar::ir::Program> {
    let mut program = program.clone();
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    run(&mut program, &parse("@lower").ok()?, settings, &mut |_| {}).ok()?;
    Some(program)
}
