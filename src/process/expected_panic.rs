//! Panics that are results of a test: the code that causes one catches it, and nobody needs a report.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

thread_local! {
    /// Whether this thread runs code whose panics are expected.
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code whose panics are expected, and catches them.
///
/// # Errors
/// The code panicked, with this payload.
pub fn catch_expected<T>(work: impl FnOnce() -> T) -> thread::Result<T> {
    let outer = IS_EXPECTED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_EXPECTED.set(outer);
    outcome
}

/// Returns whether a panic of this thread is expected, so that a panic hook does not report it.
pub fn is_expected() -> bool {
    IS_EXPECTED.get()
}
