//! Starts the threads that compute large tensors.
//!
//! `rayon` starts its threads on first use and panics if the system cannot create one. A tool starts them with this module
//! instead, before it computes, with a stack size that does not depend on environment variables. The threads belong to the
//! process: all its sessions share them.

use std::{sync::OnceLock, thread};

/// Stack size of each thread in bytes.
const STACK: usize = 2 << 20;

/// The system has refused a thread for computations. `rayon` must not be used then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot start a thread for computations: {0}\n\
     help: start fewer threads with `RAYON_NUM_THREADS=1`, or allow more threads (`ulimit -u`) or more memory (`ulimit -v`)"
)]
pub struct ThreadRefused(String);

/// Starts the threads of rayon's global pool, unless they have been started.
///
/// # Errors
/// The system has refused a thread, in this call or in an earlier one.
pub fn start_workers() -> Result<(), ThreadRefused> {
    static STARTED: OnceLock<Result<(), ThreadRefused>> = OnceLock::new();
    let start = || {
        let mut refused = None;
        let pool = rayon::ThreadPoolBuilder::new().spawn_handler(|worker| {
            let name = format!("hir-worker-{}", worker.index());
            let started = thread::Builder::new().name(name).stack_size(STACK).spawn(|| worker.run());
            started.map(drop).inspect_err(|fault| refused = Some(ThreadRefused(fault.to_string())))
        });
        // Building also fails if there is a pool already, which is fine.
        let _ = pool.build_global();
        refused.map_or(Ok(()), Err)
    };
    STARTED.get_or_init(start).clone()
}
