//! Starts a tool: its panic hook, its handling of SIGXFSZ, and a thread with a large stack on which it runs.
//!
//! Nesting is limited: 200 levels of brackets, operators, loops or branches in a text, and 1,000 definitions
//! that depend on each other. `STACK` is many times what these limits require. The stack size of the main
//! thread is set by `ulimit -s` and may be too small.

use std::{
    io::{self, Write},
    sync::Arc,
    thread,
};

use crate::session::{CommandLine, Session};
#[cfg(feature = "launch")]
use crate::session::{Report, Verdict};
#[cfg(feature = "launch")]
use hir_launch::{environment, watcher};
use hir_process::{exit::Exit, expected_panic, interrupt, out_of_memory};

/// Size of the stack in bytes; pages that are never accessed use no memory.
const STACK: usize = 32 << 20;

/// Runs a tool with the session of its process. A panic is reported as an internal error. Must be called in `main`, before
/// threads are created: it changes what signals and panics do in the whole process.
pub fn start_tool(
    tool: &'static str,
    command_line: CommandLine,
    work: impl FnOnce(&Arc<Session>) -> Exit + Send,
) -> Exit {
    let session = Session::of_process(tool, command_line);
    install_panic_hook(&session);
    interrupt::handle_sigxfsz();
    #[cfg(feature = "launch")]
    let early = Arc::clone(&session);
    interrupt::end_until_watched(move |signal| {
        let text = format!("received {}", interrupt::signal_name(signal));
        match tool {
            #[cfg(feature = "launch")]
            "hir-run" if !environment::is_first() => (),
            #[cfg(feature = "launch")]
            "hir-run" => {
                let exit = Exit::from_signal(signal);
                early.print_end(exit, [Report::Verdict(Verdict::of(exit, text))]);
                watcher::dismiss();
            }
            _ => drop(writeln!(io::stderr(), "{tool}: [STOPPED] {text}")),
        }
    });
    out_of_memory::end_aborts();
    with_large_stack(tool, || work(&session))
}

/// Runs a tool on a thread with a large stack. A panic ends with the exit code of an internal error.
fn with_large_stack(tool: &str, work: impl FnOnce() -> Exit + Send) -> Exit {
    thread::scope(|scope| {
        match thread::Builder::new().name("hir-main".to_owned()).stack_size(STACK).spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or(Exit::InternalError),
            Err(fault) => {
                let _ = writeln!(
                    io::stderr(),
                    "{tool}: cannot start a thread with a stack of {} MiB: {fault}\n\
                     help: allow more threads (`ulimit -u`) or more memory (`ulimit -v`)",
                    STACK >> 20
                );
                Exit::Environment
            }
        }
    })
}

/// Installs a panic hook that reports an internal error and asks for a bug report; the process then ends with
/// 101. Panics that are expected are not reported.
fn install_panic_hook(session: &Session) {
    let (tool, line) = (session.tool, session.argument_texts().join(" "));
    std::panic::set_hook(Box::new(move |panic| {
        if expected_panic::is_expected() {
            return;
        }
        let _ = writeln!(
            io::stderr(),
            "{tool}: internal error, a bug in {tool} {version} and not in your program: {panic}\n\
             {tool}: please report it with the program and this command line: {tool} {line}",
            version = env!("CARGO_PKG_VERSION"),
        );
    }));
}
