//! A process that another one started ends when that one does, however it ends: it holds the reading end of a pipe
//! whose writing end only its parent has, and the operating system closes that with the parent. What comes by the pipe asks for
//! a report, as SIGUSR1 does.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use crate::exit::Exit;

/// Set to `stdin` for children that end when their standard input closes.
pub const VARIABLE: &str = "HIR_PARENT_DEATH";

/// Ends this process when its standard input closes, where the parent asks for that. The flag that it returns is set when the
/// parent asks for a report.
///
/// # Errors
/// No thread.
pub fn watch(variable: impl Fn(&str) -> Option<String>) -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    if variable(VARIABLE).as_deref() == Some("stdin") {
        let asked = Arc::clone(&asked);
        let wait = move || {
            let mut bytes = [0; 64];
            while io::stdin().lock().read(&mut bytes).is_ok_and(|count| count > 0) {
                asked.store(true, Relaxed);
            }
            Exit::Hang.exit_process()
        };
        thread::Builder::new().name("hir-parent".to_owned()).spawn(wait)?;
    }
    Ok(asked)
}
