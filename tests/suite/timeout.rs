//! Runs child processes with a time limit. A process that takes longer than any test should is killed with
//! all its children, and its test fails.

use std::{
    io::{self, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The time limit: several times the time of the slowest process, unoptimised and on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// Kills a process that has not ended when the limit is reached, so that reading its output ends. Keep the
/// value for as long as the output is read, and do not wait for the process meanwhile.
pub struct Deadline(#[allow(dead_code, reason = "dropping it is the message")] mpsc::Sender<()>);

impl Deadline {
    /// Starts the time limit of a process.
    pub fn of(child: &Child) -> Self {
        let (sender, receiver) = mpsc::channel();
        let id = Pid::from_child(child);
        thread::spawn(move || {
            if receiver.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(id, Signal::KILL);
            }
        });
        Self(sender)
    }
}

/// Runs commands for at most `LIMIT`.
pub trait RunWithTimeout {
    /// Runs the command like `Command::output`.
    ///
    /// # Errors
    /// Returns the operating system's error, or an error if the process does not end in time.
    fn output_with_timeout(&mut self) -> io::Result<Output>;

    /// Does the same with `out` as standard output, so the standard output in the result is empty.
    ///
    /// # Errors
    /// Fails like `output_with_timeout`.
    fn output_into_with_timeout(&mut self, out: Stdio) -> io::Result<Output>;
}

impl RunWithTimeout for Command {
    fn output_with_timeout(&mut self) -> io::Result<Output> {
        self.output_into_with_timeout(Stdio::piped())
    }

    fn output_into_with_timeout(&mut self, out: Stdio) -> io::Result<Output> {
        self.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).process_group(0);
        let mut child = self.spawn()?;
        let read = |from: Option<Box<dyn Read + Send>>| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                from.map_or(Ok(0), |mut it| it.read_to_end(&mut bytes)).map(|_| bytes)
            })
        };
        let stdout = read(child.stdout.take().map(|it| Box::new(it) as _));
        let stderr = read(child.stderr.take().map(|it| Box::new(it) as _));
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                    child.wait()?;
                    let message = format!("{self:?} was killed after {LIMIT:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        let joined =
            |it: thread::JoinHandle<io::Result<Vec<u8>>>| it.join().map_err(|_| io::Error::other("lost"))?;
        Ok(Output { status, stdout: joined(stdout)?, stderr: joined(stderr)? })
    }
}
