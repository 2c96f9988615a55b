//! The threads that large tensors are computed on.
//!
//! `rayon` starts them at its first use, and panics where the system refuses one. They are started here instead, with a
//! stack whose size no environment variable changes, and a refusal ends the tool with exit code 6.

use std::{
    io::{self, Write},
    sync::Once,
    thread,
};

use crate::{exit::Exit, tool_name::tool_name};

/// Bytes of the stack of each.
const STACK: usize = 2 << 20;

/// Starts the threads of `rayon`'s global pool, where they have not been started. To be called before `rayon` is used.
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
        // It fails where there is a pool already, which is as good.
        let _ = pool.build_global();
    });
}

fn exit_thread_refused(fault: &io::Error) -> ! {
    let _ = writeln!(
        io::stderr(),
        "{}: cannot start a thread for computations: {fault}\n\
         help: start fewer by `RAYON_NUM_THREADS=1`, or allow more threads (`ulimit -u`) or more memory (`ulimit -v`)",
        tool_name()
    );
    Exit::Environment.exit_process()
}
