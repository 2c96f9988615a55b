//! Ends a lost job: notices that it is lost, has the ranks compare notes, and makes every process end.
//!
//! A fault of the channel (a rank that is gone, silent, late or gave up), SIGUSR1, SIGINT, SIGTERM and SIGHUP end the job. Rank 0 makes
//! one report of what all ranks were doing, tells the others the exit code, and ends; they end with the same code. Where
//! rank 0 is lost itself, or says nothing for `PATIENCE`, they tell what they know and end with the fault's.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use signal_hook::{consts::SIGUSR1, flag};

use super::{
    LaunchError,
    channel::Channel,
    progress::{PhaseLimit, RankProgress},
};
use crate::{
    exit::{Exit, FailureExit},
    interrupt,
};

/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Several heartbeats of a rank: one that sends none for so long may be stopped.
const STALE_AFTER: Duration = Duration::from_secs(1);
/// For fresh records of ranks that live. A launcher that ends the job gives its processes about a second.
const FRESH_RECORDS_WAIT: Duration = Duration::from_millis(500);
/// For drivers and libraries to start, whatever the time-out is.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// For rank 0's verdict.
const EXIT_CODE_WAIT: Duration = Duration::from_secs(4);
/// After a signal, for the reason why the launcher ends the job.
const SIGNAL_CAUSE_WAIT: Duration = Duration::from_millis(200);

/// What ends the process: the exit code, and the report where this rank is the one to print it.
pub type EndProcess = Box<dyn FnOnce(FailureExit, Option<String>) + Send>;

/// Makes one text of what happened and of every rank's record, by rank; `None`: nothing is known of the rank.
pub type ReportBuilder = Box<dyn Fn(&LaunchError, &[Option<Vec<u8>>]) -> String + Send>;

/// The guard of a job; dropped, it stands down.
pub struct Watchdog {
    done: Arc<AtomicBool>,
    report_builder: Arc<Mutex<ReportBuilder>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Guards the job of a channel. Ranks that run their plans, or do what has a limit, and get no further for `timeout` end it;
    /// so does whoever sets `asked`. `end` is called at most once, on another thread, and has to end the process.
    ///
    /// # Errors
    /// What the operating system says about signals and threads.
    pub fn start(
        channel: Arc<Channel>,
        timeout: Duration,
        asked: Arc<AtomicBool>,
        notes: ReportBuilder,
        end: EndProcess,
    ) -> std::io::Result<Self> {
        let flags = Signals { report: asked, terminate: Arc::default() };
        flag::register(SIGUSR1, Arc::clone(&flags.report))?;
        interrupt::store_first_signal(&flags.terminate)?;
        let (done, notes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(notes)));
        let (over, shared) = (Arc::clone(&done), Arc::clone(&notes));
        let guard = thread::Builder::new().name("hir-watchdog".to_owned());
        let thread = Some(guard.spawn(move || {
            let stalled = StallDetector { timeout, since: Instant::now(), records: Vec::new() };
            watch(&channel, &flags, &over, stalled, &shared, end);
        })?);
        Ok(Self { done, report_builder: notes, thread })
    }

    /// Sets how records are told, once there is more to tell.
    pub fn set_report_builder(&self, notes: ReportBuilder) {
        *self.report_builder.lock().unwrap_or_else(PoisonError::into_inner) = notes;
    }

    /// The job is done: nothing is a fault any more.
    pub fn disarm(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of a job that is lost.
    pub fn wait_for_end(&self) {
        thread::sleep(FRESH_RECORDS_WAIT + EXIT_CODE_WAIT + SIGNAL_CAUSE_WAIT);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.disarm();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Signals {
    report: Arc<AtomicBool>,
    /// The signal that stops this process; 0: none.
    terminate: Arc<AtomicUsize>,
}

/// Whether ranks that run their plans, or do what has a limit, get any further.
struct StallDetector {
    timeout: Duration,
    since: Instant,
    records: Vec<Option<Vec<u8>>>,
}

impl StallDetector {
    fn check(&mut self, channel: &Channel) -> Option<LaunchError> {
        if channel.rank > 0 {
            return None;
        }
        let records = channel.progress_records();
        // A rank that says nothing any more, or has not begun to, is the cause, and is named for that when it has been silent
        // for long enough.
        let quiet = records.iter().any(|it| it.as_ref().is_none_or(|(age, _)| *age > STALE_AFTER));
        let records: Vec<_> = records.into_iter().map(|it| it.map(|(_, bytes)| bytes)).collect();
        let limit = |it: &Option<Vec<u8>>| {
            let it = it.as_deref().and_then(RankProgress::decode)?;
            match it.limit {
                _ if it.plan.is_some() => Some(self.timeout),
                PhaseLimit::None => None,
                PhaseLimit::Timeout => Some(self.timeout),
                PhaseLimit::Startup => Some(self.timeout.max(STARTUP_TIMEOUT)),
            }
        };
        // A rank that starts lets all others wait.
        let limit = records.iter().filter_map(limit).max();
        if records != self.records || limit.is_none() {
            (self.since, self.records) = (Instant::now(), records);
        }
        let seconds = self.since.elapsed().as_secs();
        (!quiet && limit.is_some_and(|it| self.since.elapsed() > it))
            .then_some(LaunchError::Stalled { seconds })
    }
}

fn watch(
    channel: &Channel,
    signals: &Signals,
    done: &AtomicBool,
    mut stalled: StallDetector,
    notes: &Mutex<ReportBuilder>,
    end: EndProcess,
) {
    let fault = loop {
        if done.load(Ordering::Relaxed) {
            return;
        }
        if let Some(fault) = channel.fault() {
            break fault;
        }
        if signals.report.load(Ordering::Relaxed) {
            channel.abort(Exit::Hang, "asked for a report (SIGUSR1)");
        } else if signals.terminate.load(Ordering::Relaxed) != 0 {
            // Launchers end all processes when one has failed: then that one is the cause.
            let until = Instant::now() + SIGNAL_CAUSE_WAIT;
            while channel.fault().is_none() && !done.load(Ordering::Relaxed) && Instant::now() < until {
                thread::sleep(POLL_INTERVAL);
            }
            if done.load(Ordering::Relaxed) {
                return;
            }
            let signal = signals.terminate.load(Ordering::Relaxed) as i32;
            channel.abort(
                Exit::from_signal(signal),
                &format!("told to end ({})", interrupt::signal_name(signal)),
            );
        } else {
            if let Some(fault) = stalled.check(channel) {
                channel.fail(fault);
            }
            thread::sleep(POLL_INTERVAL);
        }
    };
    let telling = |exit: FailureExit| {
        let records: Vec<_> =
            channel.progress_records().into_iter().map(|it| it.map(|(_, bytes)| bytes)).collect();
        let notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        (exit, Some(notes(&fault, &records)))
    };
    let (exit, report) = if channel.rank == 0 {
        wait_for_fresh_records(channel);
        let (exit, report) = telling(fault.exit());
        channel.broadcast_exit_code(exit);
        (exit, report)
    } else {
        match channel.wait_for_exit_code(EXIT_CODE_WAIT) {
            Some(exit) => (exit, None),
            // Rank 0 is lost: whoever is left tells what it knows.
            None => telling(fault.exit()),
        }
    };
    end(exit, report);
}

/// Waits for records that are younger than the fault, of ranks that still send any.
fn wait_for_fresh_records(channel: &Channel) {
    let start = Instant::now();
    let fresh = |it: &Option<(Duration, Vec<u8>)>| it.as_ref().is_none_or(|(age, _)| *age < start.elapsed());
    while start.elapsed() < FRESH_RECORDS_WAIT
        && !channel.progress_records().iter().enumerate().all(|(at, it)| at == channel.rank || fresh(it))
    {
        thread::sleep(POLL_INTERVAL);
    }
}
