//! The output streams of a session.
//!
//! The first error in writing to a stream is recorded, so that a tool that could not deliver what it reports does not
//! end with success. A closed pipe is no error: its reader has seen enough.

use std::{
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// An output stream. Its clones write to the same place.
#[derive(Clone)]
pub struct OutputStream(Arc<Stream>);

struct Stream {
    target: Target,
    /// The first error in writing.
    error: OnceLock<String>,
}

enum Target {
    Stdout,
    Stderr,
    Writer(Mutex<Box<dyn Write + Send>>),
}

impl OutputStream {
    /// Standard output of the process.
    pub fn stdout() -> Self {
        Self::of(Target::Stdout)
    }

    /// Standard error of the process.
    pub fn stderr() -> Self {
        Self::of(Target::Stderr)
    }

    /// A stream that `writer` gets.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self::of(Target::Writer(Mutex::new(Box::new(writer))))
    }

    fn of(target: Target) -> Self {
        Self(Arc::new(Stream { target, error: OnceLock::new() }))
    }

    /// Returns whether the stream is a terminal.
    pub fn is_terminal(&self) -> bool {
        match &self.0.target {
            Target::Stdout => io::stdout().is_terminal(),
            Target::Stderr => io::stderr().is_terminal(),
            Target::Writer(_) => false,
        }
    }

    /// Returns whether both streams are the same file of the process.
    pub fn is_same_file(&self, other: &Self) -> bool {
        let place = |stream: &Self| {
            let found = match &stream.0.target {
                Target::Stdout => rustix::fs::fstat(io::stdout()),
                Target::Stderr => rustix::fs::fstat(io::stderr()),
                Target::Writer(_) => return None,
            };
            found.ok().map(|it| (it.st_dev, it.st_ino))
        };
        place(self).is_some_and(|it| place(other) == Some(it))
    }

    /// Returns the first error in writing to the stream.
    pub fn error(&self) -> Option<&str> {
        self.0.error.get().map(String::as_str)
    }

    fn write_with<T>(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        let written = match &self.0.target {
            Target::Stdout => write(&mut io::stdout().lock()),
            Target::Stderr => write(&mut io::stderr().lock()),
            Target::Writer(it) => write(&mut *it.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        if let Err(fault) = &written
            && fault.kind() != io::ErrorKind::BrokenPipe
        {
            self.0.error.get_or_init(|| fault.to_string());
        }
        written
    }
}

impl Write for &OutputStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_with(|it| it.write(bytes))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(|it| it.write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_with(|it| it.flush())
    }
}

impl Write for OutputStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        (&*self).write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}
