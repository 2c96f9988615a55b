//! The reproducer of a bug of ours: every exit with 101 writes one, whether a panic or a failed check caused it.
//!
//! A tool says what it works on (`begin`, `add`) and runs inside `guarded`. The file is new and readable by its owner only:
//! programs are the users', and the folder for temporary files is everybody's.

use std::{
    any::Any,
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    exit::Exit,
    tool::{self, Screen},
};

/// What a tool works on.
struct Work {
    /// Lines that say how to run it again.
    lines: Vec<String>,
    texts: Vec<String>,
}

/// What a reproducer would contain.
enum Current {
    /// No program is read yet: only the command line.
    Start,
    Program(Work),
    /// Nothing: there is a reproducer already, or another process writes it.
    Nothing,
}

static CURRENT: Mutex<Current> = Mutex::new(Current::Start);

fn current() -> MutexGuard<'static, Current> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tool begins to work on a program; `lines` say how to run it again.
pub fn begin(lines: Vec<String>) {
    *current() = Current::Program(Work { lines, texts: Vec::new() });
}

/// A text that the tool works on.
pub fn add(text: &str) {
    if let Current::Program(work) = &mut *current() {
        work.texts.push(text.to_owned());
    }
    #[cfg(debug_assertions)]
    panic_for_tests();
}

/// Panics where `HIR_TEST_PANIC` is set: tests show what tools do then. Not in release builds.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "a panic is what it is for")]
fn panic_for_tests() {
    if std::env::var_os("HIR_TEST_PANIC").is_some() {
        panic!("HIR_TEST_PANIC is set");
    }
}

/// The work has a reproducer already, or cannot fail any more.
pub fn end() {
    *current() = Current::Nothing;
}

/// Runs a tool. Where it panics or exits with 101, the program that it worked on goes into a file, at `path` or in the folder
/// for temporary files, and the tool prints where that is.
pub fn guarded(screen: Screen, path: Option<&Path>, work: impl FnOnce() -> Exit) -> Exit {
    let (exit, failure) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(exit) => (exit, "internal error".to_owned()),
        Err(panic) => (Exit::Bug, format!("panic: {}", message(&*panic))),
    };
    if exit != Exit::Bug {
        return exit;
    }
    let work = match std::mem::replace(&mut *current(), Current::Nothing) {
        Current::Program(work) => work,
        Current::Start => Work { lines: tool::arguments(), texts: Vec::new() },
        Current::Nothing => return exit,
    };
    let text = super::text(screen.tool(), &failure, &work.lines, &work.texts.join("// -----\n"));
    let written = match path {
        Some(path) => crate::atomic_file::write(path, text.as_bytes()).map(|()| path.to_owned()),
        None => private(screen.tool(), &text),
    };
    match written {
        Ok(path) => screen.say(&format!("reproducer written to {}", path.display())),
        Err(fault) => screen.say(&format!("cannot write a reproducer: {fault}")),
    }
    exit
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Writes a new file in the folder for temporary files.
fn private(tool: &str, text: &str) -> io::Result<PathBuf> {
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
        let screen = Screen::new("hir-opt", Format::Short, Color::Never).silenced();
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("bug.hir");
        let failing = || -> Exit {
            begin(vec!["--passes=canonicalize".to_owned()]);
            add("%HostIrContainer\n");
            std::panic::resume_unwind(Box::new("out of bounds"))
        };
        assert_eq!(guarded(screen, Some(&path), failing), Exit::Bug);
        let expected =
            "// hir-opt reproducer: panic: out of bounds\n// --passes=canonicalize\n%HostIrContainer\n";
        assert_eq!(fs::read_to_string(&path)?, expected);
        fs::remove_file(&path)?;
        // There is no work any more.
        assert_eq!(guarded(screen, Some(&path), || Exit::Bug), Exit::Bug);
        assert!(!path.exists());

        let private = private("hir-opt", expected)?;
        assert_eq!(fs::metadata(&private)?.mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&private)?, expected);
        fs::remove_file(private)
    }
}
