//! Runs a tool on a thread with a large stack.
//!
//! Nesting is limited: 200 levels of brackets, operators, loops or branches in a text, and 1,000 definitions
//! that depend on each other. `STACK` is many times what these limits require. The stack size of the main
//! thread is set by `ulimit -s` and may be too small.

use std::{
    io::{self, Write},
    process::ExitCode,
    thread,
};

use crate::exit::Exit;

/// Size of the stack in bytes; pages that are never accessed use no memory.
const STACK: usize = 32 << 20;

/// Runs a tool on a thread with a large stack. A panic ends with the exit code of an internal error.
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
