//! One process of a job: its channel to the other ranks, its watchdog, and the agreement on one exit code.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    LaunchError, Result,
    channel::{Channel, Timeouts},
    environment::LaunchInfo,
    handshake::{self, JobManifest},
    parent_death,
    progress::{PhaseLimit, PlanProgress, RankProgress},
    rendezvous::{self, SecretSource},
    report::ReportBuilder,
    report_claim::{self, ReportClaim},
    stop::Stop,
    watchdog::{EndProcess, Watchdog},
    watcher,
};
use hir_process::exit::Exit;

/// Time to notice the loss of another rank before reporting an error that the loss may have caused.
const CAUSE_WAIT: Duration = Duration::from_millis(300);

/// How a rank ended a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    /// The rank.
    #[serde(skip)]
    pub rank: usize,
    /// The exit code.
    pub exit: Exit,
    /// One line for the reports of other ranks.
    pub summary: String,
}

/// This process as a rank of its job.
pub struct JobRank {
    /// The connection to the other ranks.
    pub channel: Arc<Channel>,
    /// The watchdog, which ends the process if the job is lost.
    pub watchdog: Watchdog,
    progress: Arc<Mutex<RankProgress>>,
    phases: Mutex<Vec<(String, Instant)>>,
}

impl JobRank {
    /// Joins the job that the environment describes. A rank that keeps others waiting for longer than
    /// `timeout` ends the job; `end` then ends the process, with a report that `report` builds.
    ///
    /// # Errors
    /// Returns an error if the ranks do not find each other, and a claim if this rank prints the verdict in place of rank 0.
    pub fn join(
        launch: &LaunchInfo,
        timeout: Duration,
        variable: impl Fn(&str) -> Option<String>,
        report: ReportBuilder,
        end: EndProcess,
    ) -> Result<Self, (LaunchError, Option<ReportClaim>)> {
        let unclaimed = |fault: LaunchError| (fault, None);
        let system = |fault: std::io::Error| unclaimed(LaunchError::Environment(fault.to_string()));
        let stop = Stop::watch(Some(launch)).map_err(system)?;
        // MPICH names no job. On one host, the process of its launcher does.
        let is_one_host = launch.local_size.is_some_and(|it| it >= launch.world);
        let own = || stop.launcher().filter(|_| is_one_host).map(|it| format!("process {it}"));
        let launch = &LaunchInfo { job: launch.job.clone().or_else(own), ..launch.clone() };
        let report_requested = parent_death::watch(&variable).map_err(system)?;
        let address = rendezvous::address(launch, &variable).map_err(unclaimed)?;
        let trust = SecretSource::from_environment(&address, &variable).map_err(unclaimed)?;
        // The progress records show a rank that is stuck. A rank that simulates or compares results may keep
        // the others waiting for longer.
        let usual = Timeouts::default();
        let timeouts = Timeouts {
            rendezvous: timeout,
            silence: usual.silence.min(timeout),
            step: usual.step.max(timeout),
        };
        let channel = Channel::open(launch, &address, &trust, timeouts, &|| stop.fault());
        let claimed = |fault: LaunchError| {
            let job = || report_claim::claim(rendezvous::hash(&address.job).into());
            let is_mine = matches!(fault, LaunchError::Gone { rank: 0 }) && !watcher::reports(&fault);
            let claim = is_mine.then(job).flatten();
            (fault, claim)
        };
        Self::with_channel(channel.map_err(claimed)?, stop, timeout, report_requested, report, end)
            .map_err(unclaimed)
    }

    /// Returns the only process of a job, with a watchdog as other ranks have.
    ///
    /// # Errors
    /// Returns the operating system's error if signal handlers or threads cannot be set up.
    pub fn single_process(timeout: Duration, report: ReportBuilder, end: EndProcess) -> Result<Self> {
        let stop = Stop::watch(None).map_err(|fault| LaunchError::Environment(fault.to_string()))?;
        Self::with_channel(Channel::single_process(), stop, timeout, Arc::default(), report, end)
    }

    fn with_channel(
        channel: Channel,
        stop: Stop,
        timeout: Duration,
        report_requested: Arc<AtomicBool>,
        report: ReportBuilder,
        end: EndProcess,
    ) -> Result<Self> {
        let channel = Arc::new(channel);
        let progress = Arc::new(Mutex::new(RankProgress::default()));
        let shared = Arc::clone(&progress);
        channel.set_progress_source(move || shared.lock().unwrap_or_else(PoisonError::into_inner).encode());
        let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
        let watchdog = Watchdog::start(Arc::clone(&channel), timeout, (report_requested, stop), report, end)
            .map_err(system)?;
        Ok(Self { channel, watchdog, progress, phases: Mutex::default() })
    }

    /// Sets the phase that reports show for this rank, as in `reading the program`. The phase has no time
    /// limit.
    pub fn set_phase(&self, what: &str) {
        self.set_phase_with_limit(what, PhaseLimit::None);
    }

    /// Sets the phase that reports show for this rank, and its time limit. A job without progress for longer
    /// than the limit is lost.
    pub fn set_phase_with_limit(&self, what: &str, limit: PhaseLimit) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        (progress.phase, progress.limit) = (what.to_owned(), limit);
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).push((what.to_owned(), Instant::now()));
    }

    /// Returns the phases of this rank so far, in order, with their durations.
    pub fn phase_durations(&self) -> Vec<(String, Duration)> {
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ends = phases.iter().skip(1).map(|it| it.1).chain([Instant::now()]);
        phases.iter().zip(ends).map(|((what, begin), end)| (what.clone(), end - *begin)).collect()
    }

    /// Starts the next program of the job. `report` builds the reports from here on, which no longer mention the phases of
    /// the previous program.
    pub fn begin_program(&self, report: ReportBuilder) {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.watchdog.set_report_builder(report);
        let progress = Arc::clone(&self.progress);
        self.channel
            .set_progress_source(move || progress.lock().unwrap_or_else(PoisonError::into_inner).encode());
        self.set_phase("reading the program");
    }

    /// Makes heartbeats carry the result of `run`: the progress of this rank in its plan, while it runs the
    /// plan. `run` must not block. `report`, which knows the plans, builds the reports from here on.
    pub fn report_plan_progress(
        &self,
        report: ReportBuilder,
        run: impl Fn() -> Option<PlanProgress> + Send + 'static,
    ) {
        self.watchdog.set_report_builder(report);
        let progress = Arc::clone(&self.progress);
        self.channel.set_progress_source(move || {
            let at = progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
            RankProgress { plan: run(), ..at }.encode()
        });
    }

    /// Aborts the job because this rank fails and others would wait for it in vain. Has no effect if the job
    /// is lost already. The report puts the rank before the `reason`.
    pub fn give_up(&self, exit: Exit, reason: &str) {
        if self.channel.world == 1 {
            return;
        }
        // A communication also fails because a peer has died. The loss of the peer is then the cause, and the
        // channel reports it within moments.
        let until = Instant::now() + CAUSE_WAIT;
        while exit == Exit::Device && self.channel.fault().is_none() && Instant::now() < until {
            thread::sleep(CAUSE_WAIT / 10);
        }
        self.channel.abort(exit, reason);
    }

    /// Compares the manifests of all ranks. Returns the same difference on all ranks, if there is one.
    ///
    /// # Errors
    /// Returns the job's fault.
    pub fn compare_manifests(&self, manifest: &JobManifest) -> Result<Option<String>> {
        self.set_phase("comparing the programs with the other ranks");
        handshake::compare_manifests(&self.channel, manifest)
    }

    /// Agrees on the exit code of a program with all ranks: that of the lowest rank that failed, else
    /// success. Also returns the ranks that failed with another exit code than rank 0. The result is `Break` if no other
    /// program can follow, which is always so after the `last`; from then on, no rank treats the loss of another rank as a
    /// fault.
    ///
    /// # Errors
    /// Returns the job's fault.
    pub fn agree_on_exit_code(
        &self,
        exit: Exit,
        summary: &str,
        last: bool,
    ) -> Result<(ControlFlow<Exit, Exit>, Vec<RankEnd>)> {
        // After a failure, reports show the phase in which this rank failed.
        if exit == Exit::Success {
            self.set_phase("finished, waiting for the other ranks");
        }
        let mine = RankEnd { rank: self.channel.rank, exit, summary: summary.to_owned() };
        let ends = self.channel.all_gather_values(&mine)?;
        let first = ends.iter().map(|it| it.exit).find(|it| *it != Exit::Success).unwrap_or(Exit::Success);
        let end = if last { ControlFlow::Break(first) } else { first.flow() };
        // From here on the launcher may kill processes that end later than the others.
        if end.is_break() {
            self.channel.leave()?;
            self.watchdog.disarm();
        }
        let zero = ends.first().map(|it| it.exit);
        let others = ends.into_iter().enumerate().map(|(rank, it)| RankEnd { rank, ..it });
        let others = others.filter(|it| Some(it.exit) != zero && it.exit != Exit::Success);
        Ok((end, others.collect()))
    }
}
