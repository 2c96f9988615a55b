//! Runs the command that tests a program, so that another thread can kill it.

use std::{
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

/// The interval at which a running command is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Runs one command at a time, each as the leader of its own process group.
#[derive(Debug, Default)]
pub struct CommandRunner {
    file: PathBuf,
    child: Mutex<Option<Child>>,
    fault: OnceLock<String>,
}

impl CommandRunner {
    /// Creates a runner of a command that finds the program in `file`.
    pub fn new(file: PathBuf) -> Self {
        Self { file, ..Self::default() }
    }

    /// Returns the file in which the command finds the program.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Runs a command to completion.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        // The lock is held while the command starts, so that no command starts after `kill`.
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

    /// Records that the command cannot be run. This says nothing about the program, and no further programs
    /// are tested.
    pub(super) fn record_fault(&self, fault: String) {
        self.fault.get_or_init(|| fault);
    }

    /// Returns why the command could not be run.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Kills the running command and its process group. No other command starts afterwards.
    pub fn kill(&self) {
        let mut running = self.lock();
        let group = running.as_ref().and_then(|it| i32::try_from(it.id()).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(child) = running.as_mut() {
            let _ = child.wait();
        }
        // The process is about to exit, so the lock is never released.
        std::mem::forget(running);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
