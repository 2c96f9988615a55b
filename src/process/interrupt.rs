//! Handles signals that stop a tool (SIGINT, SIGTERM, SIGHUP) or request a report of its progress (SIGUSR1).
//!
//! After the first signal, the tool reports its progress and writes its pending results; the second signal
//! ends the process immediately, unless it follows within `SAME`: Slurm sends two at the limit of time. A signal that was ignored
//! when the process started, for example by `nohup`, stays ignored.

use std::{
    fs, io,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
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

/// How long output that is being written may take after the signal.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// Within this time, a further signal asks for the same.
const SAME: Duration = Duration::from_millis(500);

/// The signals that stop a tool.
const STOPPING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The last stopping signal, or 0, and whether a further one ends the process. The first access registers the handlers.
static RECEIVED: LazyLock<(Arc<AtomicUsize>, Arc<AtomicBool>)> = LazyLock::new(|| {
    let (received, ends_now) = <(Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
    for signal in not_ignored() {
        // If a handler cannot be set up, the signal ends the process without a line.
        let code = Exit::from_signal(signal) as i32;
        let _ = flag::register_conditional_shutdown(signal, code, Arc::clone(&ends_now));
        let _ = flag::register_usize(signal, Arc::clone(&received), signal as usize);
    }
    (received, ends_now)
});
/// Interval between two looks at it.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Whether `watch` or `store_first_signal` handles signals.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// Keeps the first stopping signal for `end_until_watched`. A program calls it before `main`: the loader takes most of the time
/// until then.
pub extern "C" fn keep_first_signal() {
    LazyLock::force(&RECEIVED);
}

/// Calls `tell` at the first stopping signal and ends the process, until `watch` or `store_first_signal` handle signals. From then on,
/// lets the signals after `SAME` end the process.
pub fn end_until_watched(tell: impl Fn(i32) + Send + 'static) {
    // A tool whose process may start no thread does not start. A pipe, as `Signals` has, would need files that it may not have.
    let _ = thread::Builder::new().name("hir-start".to_owned()).spawn(move || {
        let (received, ends_now) = &*RECEIVED;
        let signal = loop {
            match received.load(Relaxed) as i32 {
                0 if IS_WATCHED.load(Relaxed) => thread::sleep(10 * LOOK_INTERVAL),
                0 => thread::sleep(LOOK_INTERVAL),
                signal => break signal,
            }
        };
        if !IS_WATCHED.load(Relaxed) {
            tell(signal);
            let _writers = atomic_file::block_writers();
            Exit::from_signal(signal).exit_process()
        }
        thread::sleep(SAME);
        ends_now.store(true, Relaxed);
    });
}

/// Returns the name of a signal, such as `SIGINT`.
pub fn signal_name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}

/// Stores the number of the first stopping signal in `stopped`.
///
/// # Errors
/// Returns the error of the operating system.
pub fn store_first_signal(stopped: &Arc<AtomicUsize>) -> io::Result<()> {
    for signal in not_ignored() {
        flag::register_usize(signal, Arc::clone(stopped), signal as usize)?;
    }
    take_over();
    Ok(())
}

/// Makes a write beyond `ulimit -f` fail with an error that can be reported. Without the handler, SIGXFSZ
/// would end the process and leave temporary files.
pub fn handle_sigxfsz() {
    // If the handler cannot be installed, the signal ends the process.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Starts a thread that handles signals. For the first stopping signal it calls `end`, and ends the process
/// if `end` returns true. For each SIGUSR1 it calls `report`.
///
/// # Errors
/// Returns the error of the operating system.
pub fn watch(
    report: impl Fn() + Send + 'static,
    mut end: impl FnMut(i32) -> bool + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new(not_ignored().chain([SIGUSR1]))?;
    take_over();
    thread::Builder::new().name("hir-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                report();
                continue;
            }
            let is_over = Arc::new(AtomicBool::new(false));
            let over = Arc::clone(&is_over);
            // Standard output may be a pipe that is not read.
            let late = move || {
                thread::sleep(OUTPUT_TIMEOUT);
                if !over.load(Relaxed) {
                    Exit::from_signal(signal).exit_process()
                }
            };
            // If the thread cannot be started, only a second signal ends a tool whose output is not read.
            let _ = thread::Builder::new().name("hir-late".to_owned()).spawn(late);
            if end(signal) {
                // Wait until a file that is being written is complete or removed.
                let _writers = atomic_file::block_writers();
                Exit::from_signal(signal).exit_process()
            }
            is_over.store(true, Relaxed);
        }
    })?;
    Ok(())
}

/// Ends what `end_until_watched` does, unless a signal came before: then it ends the process.
fn take_over() {
    if RECEIVED.0.load(Relaxed) == 0 {
        IS_WATCHED.store(true, Relaxed);
    }
}

/// Returns the stopping signals that this process does not ignore.
fn not_ignored() -> impl Iterator<Item = i32> {
    let ignored = ignored_signals();
    STOPPING.into_iter().filter(move |it| ignored >> (it - 1) & 1 == 0)
}

/// Returns the signals that this process ignores, one bit each, or 0 if the system does not report them.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0)
}

/// The current activity of a tool, in words that follow "stopped", such as `while reading a.hir`.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug, Default)]
struct ActivityState {
    description: String,
    is_over: bool,
}

impl Activity {
    /// Sets the current activity.
    pub fn set(&self, what: impl Into<String>) {
        self.lock().description = what.into();
    }

    /// Returns the current activity.
    pub fn description(&self) -> String {
        self.lock().description.clone()
    }

    /// Prints a result; `last` marks the last one. A signal that arrives while it is printed waits, and after
    /// the last result signals no longer stop the tool.
    pub fn print_result(&self, last: bool, print: impl FnOnce()) {
        let mut state = self.lock();
        state.is_over |= last;
        print();
    }

    /// Calls `tell` with the current activity and returns true, unless the last result was printed.
    /// Afterwards no result is printed.
    pub fn stop(&self, tell: impl FnOnce(&str)) -> bool {
        let state = self.lock();
        if state.is_over {
            return false;
        }
        tell(&state.description);
        // The process ends, so the lock is never released.
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
        let mut stopped = Vec::new();
        let activity = Activity::default();
        activity.set("while reading");
        activity.print_result(true, || ());
        assert!(!activity.stop(|what| stopped.push(what.to_owned())));
        let activity = Activity::default();
        activity.print_result(false, || ());
        activity.set("while reading more");
        assert!(activity.stop(|what| stopped.push(what.to_owned())));
        assert_eq!(stopped, ["while reading more"]);
    }
}
