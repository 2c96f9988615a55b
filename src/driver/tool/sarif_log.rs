//! The SARIF log of `--error-format=sarif`: one JSON document with everything that a tool reports, written to
//! standard error when the tool ends.

use std::{
    io::Write,
    sync::{Mutex, MutexGuard, PoisonError},
};

use grammar::{
    diagnostic::Diagnostic,
    sarif::{Invocation, Log},
    source::Source,
};

use super::DiagnosticOutput;
use hir_process::{exit::Exit, tool_name::tool_name};

/// The log; removed when it is written.
static LOG: Mutex<Option<Log>> = Mutex::new(None);

fn log() -> MutexGuard<'static, Option<Log>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the log, if there is none.
pub(super) fn open() {
    log().get_or_insert_default();
}

/// Adds diagnostics about a text.
pub(super) fn add(source: &Source, diagnostics: &[Diagnostic]) {
    if let Some(log) = &mut *log() {
        log.add(diagnostics, &source.name, &source.text);
    }
}

/// Adds a message that does not refer to a position in a text.
pub(super) fn note(message: &str, is_error: bool) {
    if let Some(log) = &mut *log() {
        log.add_notification(message, is_error);
    }
}

/// Writes the log, if there is one. An empty log is written only if this process reports for its job
/// (`reports`).
pub fn close(exit: Exit, reports: bool) {
    let Some(log) = log().take().filter(|it| reports || !it.is_empty()) else { return };
    let ending = Invocation { code: exit as u8, is_success: exit.is_verdict() };
    let text = log.text(tool_name(), env!("CARGO_PKG_VERSION"), Some(ending));
    let _ = DiagnosticOutput.write_all(text.as_bytes());
}
