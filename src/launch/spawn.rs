//! Starts the ranks of a job on this host if no launcher does.
//!
//! The child processes get torchrun's variables and a random secret, and end with this process, however it
//! ends (`parent_death`). The standard output of rank 0 is forwarded unchanged; a prefix on every other line
//! names its rank. If standard error goes to the same place as standard output, a child has one pipe for
//! both, so its lines stay in the order in which it wrote them. When a child fails, rank 0 gets time to print
//! its report, and the others get a shorter time to end after it. The remaining children are then all stopped
//! and killed, so that none has time to report the loss of another. Every child is waited for.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::{consts::SIGUSR1, flag};

use super::{environment, parent_death, secret, secret::Secret};
use hir_process::{exit::Exit, interrupt};

/// Time for rank 0 to print its report and end, after the first failure.
const REPORT_GRACE: Duration = Duration::from_secs(3);
/// Time for the others to end by themselves after rank 0.
const EXIT_GRACE: Duration = Duration::from_secs(1);
/// Time for the others to end after rank 0 has ended with success. All ranks have agreed on the success
/// before.
const SUCCESS_GRACE: Duration = Duration::from_secs(10);
/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time for children to stop before they are killed. A child in a system call of a driver may take longer.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// A job to start.
pub struct Job {
    /// The executable.
    pub program: PathBuf,
    /// The arguments of the executable.
    pub arguments: Vec<OsString>,
    /// Number of processes.
    pub ranks: usize,
}

/// Runs a job. `out` and `err` receive the output of the ranks, line by line; without `err`, `out` receives
/// all of it. Returns the exit code of the first child that failed; a child that was killed counts as a hang.
/// A signal that stops this process also stops the children, whether they receive it too (from a terminal) or
/// not; `out` then ends with a line that names the signal. SIGUSR1 requests the report of rank 0.
///
/// # Errors
/// Returns the operating system's error about processes. Children that were started are ended.
pub fn run(
    job: &Job,
    out: impl Write + Send + 'static,
    err: Option<Box<dyn Write + Send>>,
) -> io::Result<Exit> {
    let received = Arc::new(AtomicUsize::new(0));
    interrupt::store_first_signal(&received)?;
    let report_requested = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, Arc::clone(&report_requested))?;
    let mut children = Children { processes: Vec::new(), first_killed: None };
    let (out, err) = (SharedWriter::new(out), err.map(SharedWriter::new));
    let secret = Secret::random().map_err(io::Error::other)?.to_text();
    let mut forwarders = Vec::new();
    // The port is free now and unlikely to be taken before rank 0 listens. If it is taken, `rendezvous` tries
    // the ports after it.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    for rank in 0..job.ranks {
        let mut command = command(job, rank, port, &secret);
        let mut lanes: Vec<(Box<dyn Read + Send>, &SharedWriter)> = Vec::new();
        if err.is_none() {
            let (from, to) = io::pipe()?;
            command.stdout(to.try_clone()?).stderr(to);
            lanes.push((Box::new(from), &out));
        }
        let mut child = command.spawn()?;
        // `command` has the write end of the common pipe, which must close when the child ends.
        drop(command);
        lanes.extend(child.stdout.take().map(|it| (Box::new(it) as _, &out)));
        lanes.extend(child.stderr.take().zip(err.as_ref()).map(|(it, err)| (Box::new(it) as _, err)));
        for (lane, (from, to)) in lanes.into_iter().enumerate() {
            let to = to.clone();
            let prefix = if (rank, lane) == (0, 0) { String::new() } else { format!("[{rank}] ") };
            forwarders.push(thread::spawn(move || forward(from, &prefix, &to)));
        }
        children.processes.push((child, None));
    }
    let end = children.watch(&received, &report_requested)?;
    children.end();
    for forwarder in forwarders {
        let _ = forwarder.join();
    }
    match end {
        Ok(exit) => {
            // No other rank notices the death of a child that is killed before the ranks have met.
            if let Some((rank, signal)) = children.first_killed.filter(|_| !children.have_reported()) {
                out.line(
                    "",
                    format!("[FAILED] rank {rank} was killed by {}\n", interrupt::signal_name(signal))
                        .as_bytes(),
                );
            }
            Ok(exit)
        }
        Err(signal) => {
            out.line("", format!("[STOPPED] received {}\n", interrupt::signal_name(signal)).as_bytes());
            Ok(Exit::from_signal(signal))
        }
    }
}

fn command(job: &Job, rank: usize, port: u16, secret: &str) -> Command {
    let mut command = Command::new(&job.program);
    // Children of a launcher's process are not its ranks.
    environment::variable_names()
        .chain(["HIR_MASTER_ADDR", "HIR_MASTER_PORT", secret::FILE_VARIABLE])
        .for_each(|name| {
            command.env_remove(name);
        });
    let (at, world) = (rank.to_string(), job.ranks.to_string());
    command
        .args(&job.arguments)
        .envs([("RANK", &at), ("LOCAL_RANK", &at), ("WORLD_SIZE", &world), ("LOCAL_WORLD_SIZE", &world)])
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("HIR_JOB", format!("{} {port}", std::process::id()))
        // Other users cannot read the environment of a process.
        .env(secret::VARIABLE, secret)
        .env(parent_death::VARIABLE, "stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Child processes that do not outlive this value.
struct Children {
    processes: Vec<(Child, Option<ExitStatus>)>,
    /// The rank and the signal of the first failed child, if a signal ended it.
    first_killed: Option<(usize, i32)>,
}

impl Children {
    /// Waits until all children have ended, or one has failed and the time for the others is over. Returns
    /// the signal as the inner error if this process receives one.
    fn watch(
        &mut self,
        received: &AtomicUsize,
        report_requested: &AtomicBool,
    ) -> io::Result<Result<Exit, i32>> {
        let mut failed: Option<(Instant, Option<Exit>)> = None;
        let mut reported: Option<Instant> = None;
        loop {
            let mut running = false;
            let open = self.processes.iter_mut().enumerate().filter(|(_, (_, status))| status.is_none());
            for (rank, (child, status)) in open {
                *status = child.try_wait()?;
                let Some(status) = status else {
                    running = true;
                    continue;
                };
                if !status.success() {
                    let code = status.code().map(|it| Exit::from_code(u8::try_from(it).unwrap_or(u8::MAX)));
                    if failed.is_none() {
                        self.first_killed = status.signal().map(|it| (rank, it));
                    }
                    let first = failed.get_or_insert((Instant::now(), None));
                    first.1 = first.1.or(code);
                }
            }
            match received.load(Ordering::Relaxed) {
                0 => (),
                signal => return Ok(Err(signal as i32)),
            }
            if report_requested.swap(false, Ordering::Relaxed)
                && let Some(pipe) = self.processes.first_mut().and_then(|(child, _)| child.stdin.as_mut())
            {
                // A rank 0 that has ended has printed its report.
                let _ = pipe.write_all(b"?");
            }
            if self.processes.first().is_some_and(|(_, status)| status.is_some()) {
                reported.get_or_insert_with(Instant::now);
            }
            let over = match (failed, reported) {
                (Some((since, _)), Some(at)) => since.max(at).elapsed() > EXIT_GRACE,
                (Some((since, _)), None) => since.elapsed() > REPORT_GRACE,
                (None, Some(at)) => at.elapsed() > SUCCESS_GRACE,
                (None, None) => false,
            };
            if !running || over {
                return Ok(Ok(failed.map_or(Exit::Success, |(_, code)| code.unwrap_or(Exit::Hang))));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns whether a child has reported that the job failed: rank 0 reports before it ends with an exit code or, if
    /// rank 0 was killed, another rank does.
    fn have_reported(&self) -> bool {
        let is_killed = |status: &Option<ExitStatus>| status.is_some_and(|it| it.signal().is_some());
        let reporters = match self.processes.split_first() {
            Some(((_, first), others)) if is_killed(first) => others,
            Some(_) | None => self.processes.get(..1).unwrap_or_default(),
        };
        reporters.iter().any(|(_, status)| status.is_some_and(|it| it.code().is_some_and(|code| code != 0)))
    }

    fn end(&mut self) {
        let mut running: Vec<_> = self.processes.iter_mut().filter(|(_, status)| status.is_none()).collect();
        // If they were killed one by one, the children still alive would report the loss of the others.
        let ids: Vec<Pid> = running.iter().map(|(child, _)| Pid::from_child(child)).collect();
        for id in &ids {
            // A child that has ended counts as stopped.
            let _ = kill_process(*id, Signal::STOP);
        }
        let deadline = Instant::now() + STOP_GRACE;
        while !ids.iter().all(|id| is_stopped(*id)) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL / 10);
        }
        for (child, _) in &mut running {
            let _ = child.kill();
        }
        for (child, status) in running {
            *status = child.wait().ok();
        }
    }
}

/// Returns true if a child is stopped or has ended.
fn is_stopped(id: Pid) -> bool {
    let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(id), look), Ok(None))
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}

/// A writer to which several threads write lines.
#[derive(Clone)]
struct SharedWriter(Arc<Mutex<dyn Write + Send>>);

impl SharedWriter {
    fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(to)))
    }

    fn line(&self, prefix: &str, line: &[u8]) {
        let mut to = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If the reader has gone away, the lines are dropped, and the output of the child is still read to
        // its end.
        let _ = to.write_all(prefix.as_bytes()).and_then(|()| to.write_all(line)).and_then(|()| to.flush());
    }
}

fn forward(from: impl Read, prefix: &str, to: &SharedWriter) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        to.line(prefix, &line);
        line.clear();
    }
}
