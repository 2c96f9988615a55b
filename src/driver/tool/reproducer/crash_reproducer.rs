//! Writes a reproducer when a tool has an internal error: a panic or a failed check, both of which end with
//! exit code 101.
//!
//! A tool records its command and its programs in its session (`Session::crash_record`) and runs inside
//! `run_guarded`. The file is new and readable only by its owner, because it contains the user's program and
//! the folder for temporary files is shared.

use std::{
    any::Any,
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use crate::tool::Reporter;
use hir_process::exit::Exit;

/// Runs a tool. If it panics or exits with 101, writes a reproducer to `path` or, without a path, to the
/// folder for temporary files, and prints its location.
pub fn run_guarded(screen: &Reporter, path: Option<&Path>, work: impl FnOnce() -> Exit) -> Exit {
    let (exit, failure) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(exit) => (exit, "internal error".to_owned()),
        Err(panic) => (Exit::InternalError, format!("panic: {}", panic_message(&*panic))),
    };
    if exit != Exit::InternalError {
        return exit;
    }
    let session = screen.session();
    let Some(work) = session.crash_record.take() else { return exit };
    let lines = work.command.unwrap_or_else(|| session.argument_texts());
    let programs: Vec<&str> = work.texts.iter().map(|it| it.as_str()).collect();
    let text = super::text(session.tool, &failure, &lines, &programs.join("// -----\n"));
    let written = match path {
        Some(path) => hir_process::atomic_file::write(path, text.as_bytes()).map(|()| path.to_owned()),
        None => write_temporary(session.tool, &text),
    };
    match written {
        Ok(path) => screen.message(format!("reproducer written to {}", path.display())),
        Err(fault) => screen.message(format!("cannot write a reproducer: {fault}")),
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

    use std::sync::Arc;

    use super::*;
    use crate::{session::Session, tool::Color};

    #[test]
    fn a_bug_leaves_a_reproducer_that_only_its_owner_reads() -> io::Result<()> {
        let session = Session::of_process("hir-opt", Default::default());
        let screen = Reporter::new(&session, Format::Short, Color::Never).silent();
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("bug.hir");
        let failing = || -> Exit {
            session.crash_record.record_command(vec!["--passes=canonicalize".to_owned()]);
            session.crash_record.record_program(&Arc::new("%HostIrContainer\n".to_owned()));
            std::panic::resume_unwind(Box::new("out of bounds"))
        };
        assert_eq!(run_guarded(&screen, Some(&path), failing), Exit::InternalError);
        let expected =
            "// hir-opt reproducer: panic: out of bounds\n// --passes=canonicalize\n%HostIrContainer\n";
        assert_eq!(fs::read_to_string(&path)?, expected);
        fs::remove_file(&path)?;
        // The first reproducer has disabled further ones.
        assert_eq!(run_guarded(&screen, Some(&path), || Exit::InternalError), Exit::InternalError);
        assert!(!path.exists());

        let private = write_temporary("hir-opt", expected)?;
        assert_eq!(fs::metadata(&private)?.mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&private)?, expected);
        fs::remove_file(private)
    }
}
