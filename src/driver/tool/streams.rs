//! Standard output and standard error of the tools.
//!
//! The first error in writing to one of them is recorded, so that a tool that could not deliver what it reports does not
//! end with success. A closed pipe is no error: its reader has seen enough.

use std::{
    io::{self, Write},
    sync::OnceLock,
};

use grammar::visible_text;

/// The first error in writing to standard output.
static STDOUT_ERROR: OnceLock<String> = OnceLock::new();
/// The first error in writing to standard error.
static STDERR_ERROR: OnceLock<String> = OnceLock::new();

/// Prints a line on standard output, with control characters of names replaced.
pub fn print_line(line: &str) {
    let _ = writeln!(ResultOutput, "{}", visible_text(line));
}

/// Standard output, for results.
#[derive(Clone, Copy, Debug)]
pub struct ResultOutput;

impl Write for ResultOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        recorded(&STDOUT_ERROR, io::stdout().write(bytes))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        recorded(&STDOUT_ERROR, io::stdout().write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        recorded(&STDOUT_ERROR, io::stdout().flush())
    }
}

/// Standard error, for diagnostics and for what options print beside the result.
#[derive(Clone, Copy, Debug)]
pub struct DiagnosticOutput;

impl Write for DiagnosticOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        recorded(&STDERR_ERROR, io::stderr().write(bytes))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        recorded(&STDERR_ERROR, io::stderr().write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        recorded(&STDERR_ERROR, io::stderr().flush())
    }
}

/// Returns standard error, unless it is the same file as standard output.
pub fn stderr_if_separate() -> Option<Box<dyn Write + Send>> {
    let (out, err) = (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr()));
    let place = |it: rustix::fs::Stat| (it.st_dev, it.st_ino);
    let is_one = out.is_ok_and(|out| err.is_ok_and(|err| place(out) == place(err)));
    (!is_one).then(|| Box::new(DiagnosticOutput) as _)
}

/// Returns the first error in writing to standard output, which is flushed.
pub(super) fn stdout_error() -> Option<&'static str> {
    let _ = ResultOutput.flush();
    STDOUT_ERROR.get().map(String::as_str)
}

/// Returns the first error in writing to standard error.
pub(super) fn stderr_error() -> Option<&'static str> {
    STDERR_ERROR.get().map(String::as_str)
}

fn recorded<T>(first: &OnceLock<String>, written: io::Result<T>) -> io::Result<T> {
    if let Err(fault) = &written
        && fault.kind() != io::ErrorKind::BrokenPipe
    {
        first.get_or_init(|| fault.to_string());
    }
    written
}
