//! Ends a child process when its parent ends, however the parent ends. The child has the read end of a pipe
//! whose write end only the parent has, and the operating system closes the pipe with the parent. Data on the
//! pipe requests a report, as SIGUSR1 does.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use hir_process::exit::Exit;

/// Set to `stdin` for child processes that must end when their standard input closes.
pub const VARIABLE: &str = "HIR_PARENT_DEATH";
/// Time for the report.
const REPORT_WAIT: Duration = Duration::from_secs(2);

/// Starts a thread that ends this process when its standard input closes, if the parent requests that. The
/// returned flag is set when the parent requests a report.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub fn watch(variable: impl Fn(&str) -> Option<String>) -> io::Result<Arc<AtomicBool>> {
    let report_requested = Arc::new(AtomicBool::new(false));
    if variable(VARIABLE).as_deref() == Some("stdin") {
        let report_requested = Arc::clone(&report_requested);
        let wait = move || {
            let mut bytes = [0; 64];
            while io::stdin().lock().read(&mut bytes).is_ok_and(|count| count > 0) {
                report_requested.store(true, Relaxed);
            }
            // The watchdog notices the end of the launcher too, and reports it.
            thread::sleep(REPORT_WAIT);
            Exit::Hang.exit_process()
        };
        thread::Builder::new().name("hir-parent".to_owned()).spawn(wait)?;
    }
    Ok(report_requested)
}
