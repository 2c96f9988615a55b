//! Starts the threads that compute large tensors.
//!
//! `rayon` starts its threads on first use and panics if the system cannot create one. They are started here
//! instead, with a stack size that does not depend on environment variables; a failure ends the tool with
//! exit code 6.

use std::{
    io::{self, Write},
    sync::Once,
    thread,
};

use crate::{exit::Exit, tool_name::tool_name};

/// Stack size of each thread in bytes.
const STACK: usize = 2 << 20;

/// Starts the threads of rayon's global pool, unless they have been started. Must be called before rayon is
/// used.
pub fn start_workers() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let pool = rayon::ThreadPoolBuilder::new().spawn_handler(|worker| {
            let name = format!("hir-worker-{}", worker.index());
            match thread::Builder::new().name(name).stack_size(STACK).spawn(|| worker.run()) {
                Ok(_) => Ok(()),
                Err(fault) => exit_thread_refused(&fault),
            }
        });
        // Building fails if there is a pool already, which is fine.
        let _ = pool.build_global();
    });
}

fn exit_thread_refused(fault: &io::Error) -> ! {
    let _ = writeln!(
        io::stderr(),
        "{}: cannot start a thread for computations: {fault}\n\
         help: start fewer threads with `RAYON_NUM_THREADS=1`, or allow more threads (`ulimit -u`) or more memory (`ulimit -v`)",
        tool_name()
    );
    Exit::Environment.exit_process()
}
