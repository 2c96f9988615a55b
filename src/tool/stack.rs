//! The thread that a tool works on.
//!
//! Nesting has limits of its own: 200 brackets, operators, loops or branches inside each other in a text, 1,000 definitions
//! that are evaluated through each other. What these need of the stack fits `STACK` many times over. The stack of the first
//! thread is what `ulimit -s` says, which may be too small.

use std::{
    io::{self, Write},
    process::ExitCode,
    thread,
};

use crate::exit::Exit;

/// Bytes of the stack; pages that are never touched take no memory.
const STACK: usize = 32 << 20;

/// Runs a tool on a thread with a large stack. A panic is our bug.
pub fn with_large_stack(work: impl FnOnce() -> ExitCode + Send) -> ExitCode {
    thread::scope(|scope| {
        match thread::Builder::new().name("hir-main".to_owned()).stack_size(STACK).spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or(Exit::InternalError.into()),
            Err(fault) => {
                let _ = writeln!(
                    io::stderr(),
                    "{}: cannot start a thread with a stack of {} MiB: {fault}\n\
                     help: allow more threads (`ulimit -u`) or more memory (`ulimit -v`)",
                    crate::tool_name::tool_name(),
                    STACK >> 20
                );
                Exit::Environment.into()
            }
        }
    })
}
