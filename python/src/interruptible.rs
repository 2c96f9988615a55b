//! Runs work without the interpreter's lock, so that other threads of Python go on and Ctrl-C ends the wait.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use pyo3::{exceptions::PyRuntimeError, prelude::*};

/// How often signals are looked for.
const INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work` in a thread of its own and returns its result.
///
/// # Errors
/// The exception of a signal handler, such as `KeyboardInterrupt`: nothing waits for the work any more, which ends in its
/// thread. A panic of the work, which is a bug of hir.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("hir".to_owned())
        // A receiver that a signal has ended is no error.
        .spawn(move || drop(sender.send(catch_unwind(AssertUnwindSafe(work)))))?;
    // `detach` asks for `Sync`, which a receiver alone is not.
    let receiver = Mutex::new(receiver);
    let receive = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(INTERVAL);
    loop {
        match py.detach(receive) {
            Ok(Ok(it)) => return Ok(it),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a bug of hir: its computation panicked"));
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
    }
}
