//! Runs a tool of hir within limits of time and output, until it ends or its call is cancelled.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

/// The longest time of a call.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The most bytes that are read of each output. A tool that prints more is ended.
pub(super) const OUTPUT_LIMIT: u64 = 4 << 20;

/// The interval at which a running tool is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// What a tool has printed.
pub(super) struct Printed {
    /// Its exit code; `None` if a signal has ended it.
    pub(super) exit: Option<i32>,
    /// Standard output.
    pub(super) out: String,
    /// Standard error.
    pub(super) err: String,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    /// The tool did not end in time.
    #[error("stopped after {} seconds: use fewer ranks, smaller extents or a smaller program", TIME_LIMIT.as_secs())]
    Time,
    /// The agent has cancelled the call, or has ended the session.
    #[error("cancelled")]
    Cancelled,
    /// The tool cannot be started, or its output cannot be read.
    #[error("cannot run hir: {0}")]
    Io(#[from] io::Error),
}

/// The calls of the agent that have no answer yet; `true` if they are cancelled.
#[derive(Default)]
pub(super) struct Calls(Mutex<State>);

#[derive(Default)]
struct State {
    /// The calls by the text of their id.
    open: BTreeMap<String, bool>,
    /// The call that is made.
    current: Option<String>,
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call.
    pub(super) fn add(&self, id: &Value) {
        self.lock().open.insert(id.to_string(), false);
    }

    /// Cancels a call. One that is unknown or answered stays as it is.
    pub(super) fn cancel(&self, id: &Value) {
        self.lock().open.entry(id.to_string()).and_modify(|it| *it = true);
    }

    /// Cancels all calls.
    pub(super) fn cancel_all(&self) {
        self.lock().open.values_mut().for_each(|it| *it = true);
    }

    /// Makes a call unless it is cancelled, before or meanwhile.
    pub(super) fn within<T>(&self, id: &Value, make: impl FnOnce() -> T) -> Option<T> {
        let id = id.to_string();
        self.lock().current = Some(id.clone());
        let made = (!self.is_cancelled()).then(make);
        let was_cancelled = self.lock().open.remove(&id) == Some(true);
        made.filter(|_| !was_cancelled)
    }

    fn is_cancelled(&self) -> bool {
        let state = self.lock();
        let current = state.current.as_ref().and_then(|it| state.open.get(it));
        current == Some(&true)
    }

    /// Runs a command of the current call with this input.
    ///
    /// # Errors
    /// See [`Stopped`].
    pub(super) fn run(&self, command: &mut Command, input: &[u8]) -> Result<Printed, Stopped> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: a tool may start further processes.
        let mut child = piped.process_group(0).spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        thread::scope(|scope| {
            // A tool that ends before it has read everything has its reason.
            scope.spawn(move || stdin.map(|mut it| it.write_all(input)));
            let out = scope.spawn(move || read(stdout));
            let err = scope.spawn(move || read(stderr));
            let waited = self.wait(&mut child);
            if waited.is_err() {
                kill(&mut child);
            }
            let text = |it: thread::ScopedJoinHandle<'_, io::Result<Vec<u8>>>| match it.join() {
                Ok(read) => read.map(|it| String::from_utf8_lossy(&it).into_owned()),
                Err(_) => Err(io::Error::other("the reader has panicked")),
            };
            let (out, err) = (text(out), text(err));
            Ok(Printed { exit: waited?, out: out?, err: err? })
        })
    }

    fn wait(&self, child: &mut Child) -> Result<Option<i32>, Stopped> {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.code());
            }
            if self.is_cancelled() {
                return Err(Stopped::Cancelled);
            }
            if start.elapsed() > TIME_LIMIT {
                return Err(Stopped::Time);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Reads an output up to its limit. The pipe is closed then, which ends a tool that goes on writing.
fn read(from: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(from) = from {
        from.take(OUTPUT_LIMIT).read_to_end(&mut text)?;
    }
    Ok(text)
}

/// Ends a tool and the processes that it has started.
fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}
