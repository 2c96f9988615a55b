//! Signals that stop a tool (SIGINT, SIGTERM, SIGHUP) or ask how far it is (SIGUSR1).
//!
//! The first signal lets the tool say how far it came and write what it has; the second one ends the process at once. A
//! signal that the process was started to ignore, as by `nohup`, stays ignored.

use std::{
    fs, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ},
    flag,
    iterator::Signals,
    low_level,
};

use crate::{atomic_file, exit::Exit};

/// For output that is being written when the tool is stopped.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// The signals that stop a tool.
const STOPPING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The name of a signal, `SIGINT`.
pub fn signal_name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}

/// Stores the number of the first signal that stops this process; the second one ends it at once.
///
/// # Errors
/// What the operating system says.
pub fn store_first_signal(stopped: &Arc<AtomicUsize>) -> io::Result<()> {
    for signal in register_stopping_signals()? {
        flag::register_usize(signal, Arc::clone(stopped), signal as usize)?;
    }
    Ok(())
}

/// Lets a write beyond `ulimit -f` fail as any other, with an error that is reported. The signal of that limit would end the
/// process in its place, and leave temporary files.
pub fn handle_sigxfsz() {
    // Where it cannot be handled, the process ends as before.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Calls `end` on another thread with the first signal that stops this process, and ends the process where it returns true;
/// calls `report` for every SIGUSR1.
///
/// # Errors
/// What the operating system says.
pub fn watch(
    report: impl Fn() + Send + 'static,
    mut end: impl FnMut(i32) -> bool + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new(register_stopping_signals()?.into_iter().chain([SIGUSR1]))?;
    thread::Builder::new().name("hir-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                report();
                continue;
            }
            let is_over = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&is_over);
            // Standard output may be a pipe that nobody reads.
            let late = move || {
                thread::sleep(OUTPUT_TIMEOUT);
                if !over.load(Relaxed) {
                    Exit::from_signal(signal).exit_process()
                }
            };
            // Without a thread only a second signal ends a tool whose output nobody reads.
            let _ = thread::Builder::new().name("hir-late".to_owned()).spawn(late);
            if end(signal) {
                // A file that is half written has to become whole, or to go.
                let _writers = atomic_file::block_writers();
                Exit::from_signal(signal).exit_process()
            }
            is_over.store(true, Relaxed);
        }
    })?;
    Ok(())
}

/// The signals that stop this process, each set to end it at once when it comes a second time.
fn register_stopping_signals() -> io::Result<Vec<i32>> {
    let ignored = ignored_signals();
    let signals = STOPPING.into_iter().filter(|it| ignored >> (it - 1) & 1 == 0);
    let again = Arc::new(AtomicBool::new(false));
    let signals: Vec<i32> = signals.collect();
    for signal in &signals {
        // In this order: the flag is set behind the first look at it.
        flag::register_conditional_shutdown(*signal, Exit::from_signal(*signal) as i32, Arc::clone(&again))?;
    }
    for signal in &signals {
        flag::register(*signal, Arc::clone(&again))?;
    }
    Ok(signals)
}

/// The signals that this process ignores, a bit each; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0)
}

/// What a tool is doing, in words that follow "stopped": `while reading a.hir`.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug, Default)]
struct ActivityState {
    description: String,
    is_over: bool,
}

impl Activity {
    /// From here on the tool does this.
    pub fn set(&self, what: impl Into<String>) {
        self.lock().description = what.into();
    }

    /// What the tool does.
    pub fn description(&self) -> String {
        self.lock().description.clone()
    }

    /// Prints a result, the `last` one perhaps. Who stops the tool meanwhile waits, and after the last one is too late.
    pub fn print_result(&self, last: bool, print: impl FnOnce()) {
        let mut state = self.lock();
        state.is_over |= last;
        print();
    }

    /// Calls `tell` with what the tool does, unless that is over, and says whether it did. From then on no result is printed.
    pub fn stop(&self, tell: impl FnOnce(&str)) -> bool {
        let state = self.lock();
        if state.is_over {
            return false;
        }
        tell(&state.description);
        // The process ends: the lock is kept.
        std::mem::forget(state);
        true
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_cannot_be_stopped() {
        let mut told = Vec::new();
        let activity = Activity::default();
        activity.set("while reading");
        activity.print_result(true, || ());
        assert!(!activity.stop(|what| told.push(what.to_owned())));
        let activity = Activity::default();
        activity.print_result(false, || ());
        activity.set("while reading more");
        assert!(activity.stop(|what| told.push(what.to_owned())));
        assert_eq!(told, ["while reading more"]);
    }
}
