//! Ends a lost job: detects that it is lost, collects the progress of all ranks, and ends every process.
//!
//! A fault of the channel (a rank that is gone, silent, late or has aborted), SIGUSR1, SIGINT, SIGTERM, SIGHUP and the end of the
//! launcher end the job. Rank 0 prints one report of the progress of all ranks, sends the exit code to the
//! others, and ends; they end with the same code. If rank 0 itself is lost, or sends no exit code within
//! `EXIT_CODE_WAIT`, the first of the others on each host prints a report of what it knows (`report_claim`), and
//! they all end with the exit code of the fault.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use signal_hook::{consts::SIGUSR1, flag};

use super::{
    LaunchError,
    channel::Channel,
    progress::{PhaseLimit, RankProgress},
    report::{JobReport, ReportBuilder},
    report_claim::{self, ReportClaim},
    stop::Stop,
    watcher,
};
use hir_process::exit::{Exit, FailureExit};

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Age at which a rank's last heartbeat is stale: several heartbeat intervals. Its process may be stopped.
const STALE_AFTER: Duration = Duration::from_secs(1);
/// Time to wait for fresh progress records of ranks that are alive. A launcher that ends the job gives its
/// processes about a second.
const FRESH_RECORDS_WAIT: Duration = Duration::from_millis(500);
/// Minimum time limit for the startup of drivers and libraries, whatever the time-out is.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time to wait for the exit code from rank 0.
const EXIT_CODE_WAIT: Duration = Duration::from_secs(4);
/// Time to wait, after a signal, for the fault because of which the launcher ends the job.
const SIGNAL_CAUSE_WAIT: Duration = Duration::from_millis(100);

/// The function that ends the process. It gets the exit code, and the report if this rank prints it. It drops the claim behind the report.
pub type EndProcess = Box<dyn FnOnce(FailureExit, Option<JobReport>, Option<ReportClaim>) + Send>;

/// The watchdog of a job. Dropping it disarms it.
pub struct Watchdog {
    done: Arc<AtomicBool>,
    report_builder: Arc<Mutex<ReportBuilder>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the watchdog of a channel's job. The job ends if ranks that run their plans, or are in a phase
    /// with a limit, make no progress for `timeout`, and when `report` is set, or for the cause of `stop`. `end` is called at most once,
    /// on another thread, and must end the process.
    ///
    /// # Errors
    /// Returns the operating system's error if a signal handler or the thread cannot be set up.
    pub(super) fn start(
        channel: Arc<Channel>,
        timeout: Duration,
        (report, stop): (Arc<AtomicBool>, Stop),
        builder: ReportBuilder,
        end: EndProcess,
    ) -> std::io::Result<Self> {
        let flags = Signals { report, stop };
        flag::register(SIGUSR1, Arc::clone(&flags.report))?;
        let (done, builder) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(builder)));
        let (over, shared) = (Arc::clone(&done), Arc::clone(&builder));
        let guard = thread::Builder::new().name("hir-watchdog".to_owned());
        let thread = Some(guard.spawn(move || {
            let stalled = StallDetector { timeout, since: Instant::now(), records: Vec::new() };
            watch(&channel, &flags, &over, stalled, &shared, end);
        })?);
        Ok(Self { done, report_builder: builder, thread })
    }

    /// Replaces the report builder.
    pub fn set_report_builder(&self, builder: ReportBuilder) {
        *self.report_builder.lock().unwrap_or_else(PoisonError::into_inner) = builder;
    }

    /// Disarms the watchdog because the job is done: from here on nothing is a fault.
    pub fn disarm(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Waits until the watchdog has ended a lost job.
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
    stop: Stop,
}

/// Detects that ranks which run their plans, or are in a phase with a limit, make no progress.
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
        // If a rank sends no heartbeats, or none yet, that rank is the cause, and the channel names it when
        // it has been silent for long enough.
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
        // A rank in its startup phase keeps all others waiting, so the longest limit counts.
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
    builder: &Mutex<ReportBuilder>,
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
            channel.abort(Exit::Hang, "report requested (SIGUSR1)");
        } else if let Some((exit, reason)) = signals.stop.cause() {
            // A launcher ends all processes when one has failed. The fault of that one is then the cause.
            let until = Instant::now() + SIGNAL_CAUSE_WAIT;
            while channel.fault().is_none() && !done.load(Ordering::Relaxed) && Instant::now() < until {
                thread::sleep(POLL_INTERVAL);
            }
            if done.load(Ordering::Relaxed) {
                return;
            }
            channel.abort(exit, &reason);
        } else {
            if let Some(fault) = stalled.check(channel) {
                channel.fail(fault);
            }
            thread::sleep(POLL_INTERVAL);
        }
    };
    let with_report = |exit: FailureExit| {
        let progress = |it: Option<(Duration, Vec<u8>)>| RankProgress::decode(&it?.1);
        let ranks: Vec<_> = channel.progress_records().into_iter().map(progress).collect();
        let build = builder.lock().unwrap_or_else(PoisonError::into_inner);
        (exit, Some(build(&fault, &ranks)))
    };
    let mut claim = None;
    let (exit, report) = if channel.rank == 0 {
        // Open MPI 5 kills its processes a quarter of a second after the signal, which may follow the fault. MPICH kills them as soon as
        // it notices that one is gone.
        let is_ending = || Exit::from(fault.exit()).is_signal() || signals.stop.cause().is_some();
        wait_for_fresh_records(channel, || match fault {
            LaunchError::Gone { .. } => Duration::ZERO,
            _ if is_ending() => SIGNAL_CAUSE_WAIT / 2,
            _ => FRESH_RECORDS_WAIT,
        });
        let (exit, report) = with_report(fault.exit());
        channel.broadcast_exit_code(exit);
        (exit, report)
    } else {
        match channel.wait_for_exit_code(EXIT_CODE_WAIT) {
            Some(exit) => (exit, None),
            // Rank 0 lives, but what it says is lost. It has been told, and reports this fault.
            None if matches!(fault, LaunchError::Environment(_)) => (fault.exit(), None),
            // Rank 0 is lost, so another rank reports what it knows.
            None => {
                claim = if watcher::reports(&fault) { None } else { report_claim::claim(channel.run) };
                if claim.is_some() { with_report(fault.exit()) } else { (fault.exit(), None) }
            }
        }
    };
    end(exit, report, claim);
}

/// Waits for progress records that are younger than the fault, from the ranks that still send heartbeats.
fn wait_for_fresh_records(channel: &Channel, patience: impl Fn() -> Duration) {
    let start = Instant::now();
    let fresh = |it: &Option<(Duration, Vec<u8>)>| it.as_ref().is_none_or(|(age, _)| *age < start.elapsed());
    while start.elapsed() < patience()
        && !channel.progress_records().iter().enumerate().all(|(at, it)| at == channel.rank || fresh(it))
    {
        thread::sleep(POLL_INTERVAL);
    }
}
