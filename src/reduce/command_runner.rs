//! The command that tests a program, for whoever has to end it before its time.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

/// Between two looks at a command that runs.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The process of a command, the leader of a process group of its own, while it runs.
#[derive(Debug, Default)]
pub struct CommandRunner {
    child: Mutex<Option<Child>>,
    fault: OnceLock<String>,
}

impl CommandRunner {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        // Under the lock, so that no command starts behind `end`.
        let mut running = self.lock();
        *running = Some(command.process_group(0).spawn()?);
        drop(running);
        loop {
            let mut running = self.lock();
            let Some(child) = running.as_mut() else {
                return Err(io::Error::other("the command has no process"));
            };
            if let Some(status) = child.try_wait()? {
                *running = None;
                return Ok(status);
            }
            drop(running);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The command cannot be run, which says nothing about a program: nothing else is tested.
    pub(super) fn record_fault(&self, fault: String) {
        self.fault.get_or_init(|| fault);
    }

    /// Why the command could not be run.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Ends the command that runs, with the processes that it started. No other one starts afterwards.
    pub fn kill(&self) {
        let mut running = self.lock();
        let group = running.as_ref().and_then(|it| i32::try_from(it.id()).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(child) = running.as_mut() {
            let _ = child.wait();
        }
        // The process is about to end: the lock is kept.
        std::mem::forget(running);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
