//! Passes over Host IR, the list of them, and the driver that runs and checks them.
//!
//! A pass is plain data and a function from program to program (`pass`). The passes stand in `transform`, the facts about
//! programs that they use in `analysis`, the editing that they share in `rewrite`. `list` holds all passes and the named
//! pipelines, `pipeline` reads `a,b{option=value},@name`, and `driver` runs the result, verifying after every pass;
//! `bisect` finds the pass that is to blame. The rules that every pass keeps:
//!
//! * the program means the same afterwards, on every rank and under every schedule that its synchronisation allows;
//! * a pass has no state but its arguments, so running it twice on equal programs gives equal programs;
//! * analyses are functions that return a value and change nothing.
//!
//! Invariant: this crate knows no plan and no device, and prints nothing: reports go to the caller.

pub mod pass;

pub mod list;
pub mod pipeline;

pub mod bisect;
pub mod driver;
pub mod error;
pub mod oracle;

mod analysis;
mod rewrite;
mod transform;

#[cfg(test)]
mod tests;

pub use bisect::{Culprit, bisect};
pub use driver::{PassEvent, Settings, Verify, run};
pub use error::{PassError, PipelineError};
pub use list::{PASSES, PIPELINES};
pub use oracle::{Reference, SemanticOracle};
pub use pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Pipeline, Remarks};
pub use pipeline::{PassCall, parse};
