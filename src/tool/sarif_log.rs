//! The SARIF log of `--error-format=sarif`: everything that a tool reports on standard error, as one JSON document that is written when the
//! tool ends.

use std::{
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError},
};

use grammar::{
    diagnostic::Diagnostic,
    sarif::{Invocation, Log},
};

use crate::{exit::Exit, source::Source, tool_name::tool_name};

/// What has been reported; taken out when it is written.
static LOG: Mutex<Option<Log>> = Mutex::new(None);

fn log() -> MutexGuard<'static, Option<Log>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins the log, if none has begun.
pub(super) fn open() {
    log().get_or_insert_default();
}

/// Adds diagnostics about a text.
pub(super) fn add(source: &Source, diagnostics: &[Diagnostic]) {
    if let Some(log) = &mut *log() {
        log.add(diagnostics, &source.name, &source.text);
    }
}

/// Adds a line that no place in a text belongs to.
pub(super) fn note(message: &str, is_error: bool) {
    if let Some(log) = &mut *log() {
        log.add_notification(message, is_error);
    }
}

/// Writes the log, if one has begun; an empty one only where this process reports for its job.
pub fn close(exit: Exit, reports: bool) {
    let Some(log) = log().take().filter(|it| reports || !it.is_empty()) else { return };
    let is_success = match exit {
        Exit::Success | Exit::Rejected | Exit::WrongResult | Exit::Hang | Exit::Check => true,
        Exit::Usage
        | Exit::Device
        | Exit::Environment
        | Exit::InternalError
        | Exit::HungUp
        | Exit::Interrupted
        | Exit::Terminated => false,
    };
    let ending = Invocation { code: exit as u8, is_success };
    let text = log.text(tool_name(), env!("CARGO_PKG_VERSION"), Some(ending));
    // Where standard error is closed, nobody is there to be told.
    let _ = io::stderr().write_all(text.as_bytes());
}
