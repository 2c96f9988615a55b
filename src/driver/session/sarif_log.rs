//! The SARIF log of `--error-format=sarif`: one JSON document with everything that a tool reports, written to
//! standard error when the tool ends.

use std::sync::{Mutex, MutexGuard, PoisonError};

use grammar::{
    Diagnostic, Source,
    sarif::{Invocation, Log},
};

use hir_process::exit::Exit;

/// The log of a session; `None` if there is none, or if it is written.
#[derive(Default)]
pub(super) struct SarifLog(Mutex<Option<Log>>);

impl SarifLog {
    fn lock(&self) -> MutexGuard<'_, Option<Log>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the log, if there is none.
    pub(super) fn open(&self) {
        self.lock().get_or_insert_default();
    }

    /// Returns a copy of the log, if there is one.
    pub(super) fn copy(&self) -> Option<Log> {
        self.lock().clone()
    }

    /// Removes the log, which is then not written.
    pub(super) fn discard(&self) {
        *self.lock() = None;
    }

    /// Adds diagnostics about a text.
    pub(super) fn add(&self, source: &Source, diagnostics: &[Diagnostic]) {
        if let Some(log) = &mut *self.lock() {
            log.add(diagnostics, &source.name, &source.text);
        }
    }

    /// Adds a message that does not refer to a position in a text.
    pub(super) fn note(&self, message: &str, is_error: bool) {
        if let Some(log) = &mut *self.lock() {
            log.add_notification(message, is_error);
        }
    }

    /// Removes the log and returns its text, if there is one. An empty log is returned only if `reports` is set.
    pub(super) fn close(&self, tool: &str, exit: Exit, reports: bool) -> Option<String> {
        let log = self.lock().take().filter(|it| reports || !it.is_empty())?;
        let ending = Invocation { code: exit as u8, is_success: exit.is_verdict() };
        Some(log.text(tool, env!("CARGO_PKG_VERSION"), Some(ending)))
    }
}
