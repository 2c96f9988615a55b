//! The tools of the command line, for the commands that the package installs.

use std::ffi::OsString;

use hir::driver::{commands, session::CommandLine};
use pyo3::{exceptions::PyValueError, prelude::*};

/// Runs a tool with the streams and the signals of this process, and returns its exit code. `start` are the words that start
/// it again, for further ranks.
#[pyfunction]
pub(crate) fn run_tool(
    py: Python<'_>,
    tool: &str,
    start: Vec<OsString>,
    arguments: Vec<OsString>,
) -> PyResult<u8> {
    let run = match tool {
        "hang" => commands::hang::main_with,
        "opt" => commands::opt::main_with,
        "reduce" => commands::reduce::main_with,
        "run" => commands::run::main_with,
        _ => return Err(PyValueError::new_err(format!("hir has no tool `{tool}`"))),
    };
    Ok(py.detach(|| run(CommandLine { start, arguments })).into())
}
