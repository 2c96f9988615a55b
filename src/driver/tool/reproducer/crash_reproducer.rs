//! Writes a reproducer when a tool has an internal error: a panic or a failed check, both of which end with
//! exit code 101.
//!
//! A tool records its command and its programs (`record_command`, `record_program`) and runs inside
//! `run_guarded`. The file is new and readable only by its owner, because it contains the user's program and
//! the folder for temporary files is shared.

use std::{
    any::Any,
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::tool::{self, Reporter};
use hir_process::exit::Exit;

/// The command and the programs of a run.
struct ReproducedRun {
    /// The command that runs it again, one flag per line for hir-opt.
    lines: Vec<String>,
    texts: Vec<String>,
}

/// The contents of the reproducer that would be written if the tool failed now.
enum ReproducerState {
    /// Only the command line: no program has been read yet.
    CommandLineOnly,
    Program(ReproducedRun),
    /// No reproducer is written: there is one already, or another process writes it.
    Disabled,
}

static CURRENT: Mutex<ReproducerState> = Mutex::new(ReproducerState::CommandLineOnly);

fn current() -> MutexGuard<'static, ReproducerState> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the command that runs the tool again, and discards recorded programs.
pub fn record_command(lines: Vec<String>) {
    *current() = ReproducerState::Program(ReproducedRun { lines, texts: Vec::new() });
}

/// Records a program that the tool works on.
pub fn record_program(text: &str) {
    if let ReproducerState::Program(work) = &mut *current() {
        work.texts.push(text.to_owned());
    }
    #[cfg(debug_assertions)]
    panic_for_tests();
}

/// Panics if `HIR_TEST_PANIC` is set, to test crashes. Debug builds only.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "a panic is what it is for")]
fn panic_for_tests() {
    if std::env::var_os("HIR_TEST_PANIC").is_some() {
        panic!("HIR_TEST_PANIC is set");
    }
}

/// Disables the reproducer: there is one already, or the run can no longer fail.
pub fn disable() {
    *current() = ReproducerState::Disabled;
}

/// Runs a tool. If it panics or exits with 101, writes a reproducer to `path` or, without a path, to the
/// folder for temporary files, and prints its location.
pub fn run_guarded(screen: Reporter, path: Option<&Path>, work: impl FnOnce() -> Exit) -> Exit {
    let (exit, failure) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(exit) => (exit, "internal error".to_owned()),
        Err(panic) => (Exit::InternalError, format!("panic: {}", panic_message(&*panic))),
    };
    if exit != Exit::InternalError {
        return exit;
    }
    let work = match std::mem::replace(&mut *current(), ReproducerState::Disabled) {
        ReproducerState::Program(work) => work,
        ReproducerState::CommandLineOnly => ReproducedRun { lines: tool::arguments(), texts: Vec::new() },
        ReproducerState::Disabled => return exit,
    };
    let text = super::text(screen.tool(), &failure, &work.lines, &work.texts.join("// -----\n"));
    let written = match path {
        Some(path) => hir_process::atomic_file::write(path, text.as_bytes()).map(|()| path.to_owned()),
        None => write_temporary(screen.tool(), &text),
    };
    match written {
        Ok(path) => screen.message(&format!("reproducer written to {}", path.display())),
        Err(fault) => screen.message(&format!("cannot write a reproducer: {fault}")),
    }
    exit
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Writes a new file in the folder for temporary files, readable only by its owner.
fn write_temporary(tool: &str, text: &str) -> io::Result<PathBuf> {
    let mut file = tempfile::Builder::new()
        .prefix(&format!("{tool}-reproducer-"))
        .suffix(".hir")
        .permissions(Permissions::from_mode(0o600))
        .tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    Ok(file.keep().map_err(|it| it.error)?.1)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use grammar::render::Format;

    use super::*;
    use crate::tool::Color;

    #[test]
    fn a_bug_leaves_a_reproducer_that_only_its_owner_reads() -> io::Result<()> {
        let screen = Reporter::new("hir-opt", Format::Short, Color::Never).silent();
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("bug.hir");
        let failing = || -> Exit {
            record_command(vec!["--passes=canonicalize".to_owned()]);
            record_program("%HostIrContainer\n");
            std::panic::resume_unwind(Box::new("out of bounds"))
        };
        assert_eq!(run_guarded(screen, Some(&path), failing), Exit::InternalError);
        let expected =
            "// hir-opt reproducer: panic: out of bounds\n// --passes=canonicalize\n%HostIrContainer\n";
        assert_eq!(fs::read_to_string(&path)?, expected);
        fs::remove_file(&path)?;
        // The first reproducer has disabled further ones.
        assert_eq!(run_guarded(screen, Some(&path), || Exit::InternalError), Exit::InternalError);
        assert!(!path.exists());

        let private = write_temporary("hir-opt", expected)?;
        assert_eq!(fs::metadata(&private)?.mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&private)?, expected);
        fs::remove_file(private)
    }
}
