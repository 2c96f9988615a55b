//! The tools of the command line, for the commands that the package installs.

use std::ffi::OsString;

use hir_driver::{commands::dispatch, session::CommandLine};
use pyo3::prelude::*;

/// Runs `hir` with the streams and the signals of this process, and returns its exit code. `start` are the words that start
/// it again, for further ranks; the first argument is the name of a tool.
#[pyfunction]
pub(crate) fn run_tool(py: Python<'_>, start: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| dispatch::main_with(CommandLine { start, arguments })).into()
}
