//! Work in a second thread, for programs so large that it takes less time than it costs.

use std::{
    panic::resume_unwind,
    thread::{self, Builder},
};

use grammar::Program;

/// The number of statements from which on a second thread takes less time than it costs.
const FEWEST_STMTS: usize = 1000;

/// The stack size of the second thread in bytes, which is that of the tools: pages that are never accessed use no memory.
const STACK: usize = 32 << 20;

/// Returns whether the machine can do work on a program of this size in a second thread.
pub(crate) fn is_worthwhile(program: &Program) -> bool {
    program.stmts.len() >= FEWEST_STMTS && thread::available_parallelism().is_ok_and(|it| it.get() > 1)
}

/// Returns a second thread that is not started yet.
pub(crate) fn builder(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK)
}

/// Returns the results of two functions that read a program, `first` in a second thread if that is worthwhile and the system does not
/// refuse it.
pub(crate) fn both<A: Send, B>(
    program: &Program,
    first: impl Fn() -> A + Sync,
    second: impl FnOnce() -> B,
) -> (A, B) {
    if !is_worthwhile(program) {
        return (first(), second());
    }
    thread::scope(|scope| {
        let started = builder("hir-pass").spawn_scoped(scope, &first);
        let found = second();
        let other = match started {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => first(),
        };
        (other, found)
    })
}
