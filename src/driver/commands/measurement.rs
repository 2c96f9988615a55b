//! The programs of a measurement: the folder in which they and their results are, and the job of hir-run that runs them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;
use hir_executor::backend;
use hir_process::{atomic_file, exit::Exit};
use tempfile::TempDir;

use crate::tool::Reporter;

/// The options of commands that measure.
#[derive(Args)]
pub(super) struct FolderFlags {
    /// Keep the programs and the results of each in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Measure nothing: read the results that an earlier run has left in this folder (`--keep`), with the same other options.
    #[arg(long, value_name = "FOLDER", conflicts_with = "keep")]
    pub results: Option<PathBuf>,
}

/// The folder of a measurement. One that the user did not name is removed in the end.
pub(super) struct Folder {
    pub path: PathBuf,
    _temporary: Option<TempDir>,
}

impl FolderFlags {
    /// Returns the folder.
    ///
    /// # Errors
    /// There is no place for a temporary one, or no GPU to measure. Returns the exit code; the error has been reported.
    pub fn folder(&self, screen: &Reporter) -> Result<Folder, Exit> {
        if self.results.is_none() {
            backend()
                .and_then(|it| it.device_names())
                .map_err(|fault| screen.fail(Exit::Environment, fault.to_string()))?;
        }
        if let Some(given) = self.keep.as_ref().or(self.results.as_ref()) {
            return Ok(Folder { path: given.clone(), _temporary: None });
        }
        let temporary = tempfile::tempdir().map_err(|fault| {
            screen.fail(Exit::Environment, format!("there is no temporary folder: {fault}"))
        })?;
        Ok(Folder { path: temporary.path().to_owned(), _temporary: Some(temporary) })
    }
}

/// Runs the command lines of `batch.txt` in a folder in one job with variables of the environment, which are removed if they have no
/// value, and writes what it prints to `log.txt`. Its exit code says nothing: a program that fails has no time.
///
/// # Errors
/// hir-run cannot run. Returns the exit code; the error has been reported.
pub(super) fn measure(
    screen: &Reporter,
    folder: &Path,
    ranks: u32,
    environment: &[(&str, Option<&str>)],
) -> Result<(), Exit> {
    run(screen, folder, ranks, environment)
        .map_err(|fault| screen.fail(Exit::Environment, format!("cannot run hir-run: {fault}")))
}

fn run(
    screen: &Reporter,
    folder: &Path,
    ranks: u32,
    environment: &[(&str, Option<&str>)],
) -> std::io::Result<()> {
    let start = &screen.session().command_line.start;
    let own = std::env::current_exe()?;
    let program = start.first().map_or(own.as_os_str(), |it| it.as_os_str());
    // The last word of `start` is this tool.
    let words = start.get(1..start.len().saturating_sub(1)).unwrap_or_default();
    let mut command = Command::new(program);
    for (name, value) in environment {
        match value {
            Some(it) => command.env(name, it),
            None => command.env_remove(name),
        };
    }
    let ended = command
        .args(words)
        .args(["run", "--device=cuda", "--quiet", "--ranks"])
        .arg(ranks.to_string())
        .arg("--batch")
        .arg(folder.join("batch.txt"))
        .stdin(Stdio::null())
        .output()?;
    atomic_file::write(&log_of(folder), &[ended.stdout, ended.stderr].concat())
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("log.txt")
}

/// Reports that a job has measured nothing, with the last line that it printed, and returns the exit code.
pub(super) fn report_nothing_measured(screen: &Reporter, folder: &Path) -> Exit {
    let log = std::fs::read_to_string(log_of(folder)).unwrap_or_default();
    let reason = log.lines().rfind(|it| !it.trim().is_empty()).unwrap_or("no output");
    screen.fail(Exit::Environment, format!("nothing was measured: {reason}"))
}
