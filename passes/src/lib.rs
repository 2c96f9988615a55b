//! Passes over Host IR, the list of them, and the driver that runs and checks them.
//!
//! A pass is plain data and a function from program to program (`pass`); `list` holds all of them and the named
//! pipelines, `pipeline` reads `a,b{option=value},@name`, and `driver` runs the result, verifying after every pass. The
//! rules that every pass keeps:
//!
//! * the program means the same afterwards, on every rank and under every schedule that its synchronisation allows;
//! * a pass has no state but its arguments, so running it twice on equal programs gives equal programs;
//! * analyses are functions that return a value and change nothing.
//!
//! Invariant: this crate knows no plan and no device, and prints nothing: reports go to the caller.

pub mod pass;

pub mod list;
pub mod pipeline;

pub mod driver;

mod canonicalize;
mod inline_definitions;
mod remove_dead_code;
mod renumber;

mod bindings;
mod blocks;
#[allow(dead_code, reason = "the passes that use it come with it")]
mod create;
mod fold;
mod scalars;
#[allow(dead_code, reason = "the passes that use it come with it")]
mod substitute;

#[cfg(test)]
mod tests;

pub use driver::{Event, Failure, Fault, SemanticOracle, Settings, Verify, run};
pub use list::{PASSES, PIPELINES};
pub use pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Pipeline};
pub use pipeline::{PassCall, parse};
