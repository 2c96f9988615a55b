//! What a session works on, for the reproducer of an internal error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The command and the programs of a session.
#[derive(Default)]
pub struct CrashRecord(Mutex<State>);

/// The contents of the reproducer that would be written if the tool failed now.
#[derive(Default)]
enum State {
    /// No program has been read yet.
    #[default]
    NoProgram,
    Program(RecordedRun),
    /// No reproducer is written: there is one already, or another process writes it.
    Disabled,
}

/// The command and the programs of a run.
#[derive(Default)]
pub(crate) struct RecordedRun {
    /// The command that runs it again, one flag per line for hir-opt; `None` for the command line of the process.
    pub(crate) command: Option<Vec<String>>,
    pub(crate) texts: Vec<Arc<String>>,
}

impl CrashRecord {
    /// Records the command that runs the tool again, and discards recorded programs.
    pub fn record_command(&self, lines: Vec<String>) {
        *self.lock() = State::Program(RecordedRun { command: Some(lines), texts: Vec::new() });
    }

    /// Records a program that the tool works on.
    pub fn record_program(&self, text: &Arc<String>) {
        if let State::Program(work) = &mut *self.lock() {
            work.texts.push(Arc::clone(text));
        }
        #[cfg(debug_assertions)]
        panic_for_tests();
    }

    /// Disables the reproducer: there is one already, or the run can no longer fail.
    pub fn disable(&self) {
        *self.lock() = State::Disabled;
    }

    /// Returns what the reproducer contains, and disables it; `None` if it is disabled.
    pub(crate) fn take(&self) -> Option<RecordedRun> {
        match std::mem::replace(&mut *self.lock(), State::Disabled) {
            State::NoProgram => Some(RecordedRun::default()),
            State::Program(work) => Some(work),
            State::Disabled => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Panics if `HIR_TEST_PANIC` is set, to test crashes. Debug builds only.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "a panic is what it is for")]
fn panic_for_tests() {
    if std::env::var_os("HIR_TEST_PANIC").is_some() {
        panic!("HIR_TEST_PANIC is set");
    }
}
