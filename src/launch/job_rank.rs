//! One process of a job: its channel to the other ranks, its watchdog, and the agreement on one exit code.

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use super::{
    LaunchError,
    channel::{Channel, Timeouts},
    environment::LaunchInfo,
    handshake::{self, JobManifest},
    parent_death,
    progress::{PhaseLimit, PlanProgress, RankProgress},
    rendezvous::{self, SecretSource},
    report,
    watchdog::{EndProcess, ReportBuilder, Watchdog},
};
use hir_plan::World;
use hir_process::exit::Exit;

/// Time to notice the loss of another rank before reporting an error that the loss may have caused.
const CAUSE_WAIT: Duration = Duration::from_millis(300);

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
    /// `timeout` ends the job; `end` then ends the process.
    ///
    /// # Errors
    /// Returns an error if the ranks do not find each other.
    pub fn join(
        launch: &LaunchInfo,
        timeout: Duration,
        variable: impl Fn(&str) -> Option<String>,
        end: EndProcess,
    ) -> Result<Self, LaunchError> {
        let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
        let report_requested = parent_death::watch(&variable).map_err(system)?;
        let address = rendezvous::address(launch, &variable)?;
        let trust = SecretSource::from_environment(&address, &variable)?;
        // The progress records show a rank that is stuck. A rank that simulates or compares results may keep
        // the others waiting for longer.
        let usual = Timeouts::default();
        let timeouts = Timeouts {
            rendezvous: timeout,
            silence: usual.silence.min(timeout),
            step: usual.step.max(timeout),
        };
        Self::with_channel(Channel::open(launch, &address, &trust, timeouts)?, timeout, report_requested, end)
    }

    /// Returns the only process of a job, with a watchdog as other ranks have.
    ///
    /// # Errors
    /// Returns the operating system's error if signal handlers or threads cannot be set up.
    pub fn single_process(timeout: Duration, end: EndProcess) -> Result<Self, LaunchError> {
        Self::with_channel(Channel::single_process(), timeout, Arc::default(), end)
    }

    fn with_channel(
        channel: Channel,
        timeout: Duration,
        report_requested: Arc<AtomicBool>,
        end: EndProcess,
    ) -> Result<Self, LaunchError> {
        let channel = Arc::new(channel);
        let progress = Arc::new(Mutex::new(RankProgress::default()));
        let shared = Arc::clone(&progress);
        channel.set_progress_source(move || shared.lock().unwrap_or_else(PoisonError::into_inner).encode());
        let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
        let watchdog =
            Watchdog::start(Arc::clone(&channel), timeout, report_requested, report_without_plans(), end)
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

    /// Starts the next program of the job. Reports no longer mention the phases of the previous one.
    pub fn begin_program(&self) {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.watchdog.set_report_builder(report_without_plans());
        let progress = Arc::clone(&self.progress);
        self.channel
            .set_progress_source(move || progress.lock().unwrap_or_else(PoisonError::into_inner).encode());
        self.set_phase("reading the program");
    }

    /// Makes heartbeats carry the result of `run`: the progress of this rank in its plan, while it runs the
    /// plan. `run` must not block. Reports name lines of the plans from here on.
    pub fn report_plan_progress(
        &self,
        world: Arc<World>,
        run: impl Fn() -> Option<PlanProgress> + Send + 'static,
    ) {
        self.watchdog
            .set_report_builder(Box::new(move |fault, records| report::job_report(fault, records, &world)));
        let progress = Arc::clone(&self.progress);
        self.channel.set_progress_source(move || {
            let at = progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
            RankProgress { plan: run(), ..at }.encode()
        });
    }

    /// Aborts the job because this rank fails and others would wait for it in vain. Has no effect if the job
    /// is lost already.
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
        // The error message of the fault names the rank, so the prefix is removed here.
        let rank = format!("rank {}: ", self.channel.rank);
        self.channel.abort(exit, reason.strip_prefix(&rank).unwrap_or(reason));
    }

    /// Compares the manifests of all ranks. Returns the same difference on all ranks, if there is one.
    ///
    /// # Errors
    /// Returns the job's fault.
    pub fn compare_manifests(&self, manifest: &JobManifest) -> Result<Option<String>, LaunchError> {
        self.set_phase("comparing the programs with the other ranks");
        handshake::compare_manifests(&self.channel, manifest)
    }

    /// Agrees on the exit code of a program with all ranks: that of the lowest rank that failed, else
    /// success. Also returns the messages of ranks that failed with another exit code than rank 0. The result
    /// is `Break` if no other program can follow, which is always so after the `last`; from then on, no rank
    /// treats the loss of another rank as a fault.
    ///
    /// # Errors
    /// Returns the job's fault.
    pub fn agree_on_exit_code(
        &self,
        exit: Exit,
        message: &str,
        last: bool,
    ) -> Result<(ControlFlow<Exit, Exit>, Vec<String>), LaunchError> {
        // After a failure, reports show the phase in which this rank failed.
        if exit == Exit::Success {
            self.set_phase("finished, waiting for the other ranks");
        }
        let ends: Vec<(Exit, String)> = self.channel.all_gather_values(&(exit, message.to_owned()))?;
        let first = ends.iter().map(|it| it.0).find(|it| *it != Exit::Success).unwrap_or(Exit::Success);
        let end = if last { ControlFlow::Break(first) } else { first.flow() };
        // From here on the launcher may kill processes that end later than the others.
        if end.is_break() {
            self.watchdog.disarm();
        }
        let others = ends.iter().enumerate().filter(|(_, it)| it.0 != ends[0].0 && it.0 != Exit::Success);
        let failures = others
            .map(|(rank, (exit, message))| format!("rank {rank} exits with code {}: {message}", *exit as u8));
        Ok((end, failures.collect()))
    }
}

/// Returns the report builder for ranks that have no plans yet.
fn report_without_plans() -> ReportBuilder {
    Box::new(|fault, records| report::job_report(fault, records, &World::default()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use hir_plan::plans_of_text;

    const PROGRAM: &str = include_str!("../../tests/cases/launch/loop.hir");

    /// Runs four ranks whose hosts stop at the instructions `at`, and whose streams stop where they must
    /// wait. Returns how each rank ends.
    fn stalled(at: [u32; 4]) -> Vec<(usize, Exit, Option<String>)> {
        let plans = Arc::new(plans_of_text(PROGRAM, 4).unwrap_or_default());
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
        let port = port.map(|it| it.port().to_string()).unwrap_or_default();
        let (sender, ends) = mpsc::channel();
        thread::scope(|scope| {
            for (rank, issued) in at.into_iter().enumerate() {
                let (plans, port, sender) = (Arc::clone(&plans), port.clone(), sender.clone());
                scope.spawn(move || {
                    let launch = LaunchInfo {
                        launcher: "test",
                        rank,
                        world: 4,
                        local_rank: Some(rank),
                        local_size: None,
                        job: None,
                    };
                    let variable = |name: &str| (name == "HIR_MASTER_PORT").then(|| port.clone());
                    let (done, over) = mpsc::channel();
                    let end = Box::new(move |exit, report| {
                        let _ = sender.send((rank, Exit::from(exit), report));
                        let _ = done.send(());
                    });
                    let member = JobRank::join(&launch, Duration::from_secs(1), variable, end);
                    if let Ok(member) = &member {
                        let run = PlanProgress {
                            issued,
                            streams: vec![issued.min(2)],
                            queues: vec![0],
                            ..PlanProgress::default()
                        };
                        member.report_plan_progress(plans, move || Some(run.clone()));
                    }
                    let _ = over.recv_timeout(Duration::from_secs(10));
                });
            }
        });
        drop(sender);
        let mut ends: Vec<_> = ends.into_iter().collect();
        ends.sort_by_key(|it: &(usize, Exit, Option<String>)| it.0);
        ends
    }

    /// Returns how the only process of a job ends, or `None` if it does not end within three seconds.
    fn alone(act: impl FnOnce(&JobRank)) -> Option<(Exit, Option<String>)> {
        let (sender, ends) = mpsc::channel();
        let end = Box::new(move |exit, report| {
            let _ = sender.send((Exit::from(exit), report));
        });
        let member = JobRank::single_process(Duration::from_secs(1), end).ok()?;
        act(&member);
        ends.recv_timeout(Duration::from_secs(3)).ok()
    }

    #[test]
    fn what_has_a_limit_does_not_last() {
        let report = alone(|it| it.set_phase_with_limit("waiting", PhaseLimit::Timeout)).and_then(|it| it.1);
        assert_eq!(report.as_deref(), Some("no rank made progress for 1 s\nrank 0: waiting"));
        // Phases that have no limit, or a longer one.
        assert_eq!(alone(|it| it.set_phase("judging")), None);
        assert_eq!(alone(|it| it.set_phase_with_limit("starting", PhaseLimit::Startup)), None);
        // A plan whose executor does not know the progress of its streams.
        let run = PlanProgress { round: 7, completed_rounds: 3, ..PlanProgress::default() };
        let report = alone(|it| it.report_plan_progress(Arc::default(), move || Some(run.clone())));
        assert_eq!(report.map(|it| it.0), Some(Exit::Hang));
    }

    #[test]
    fn ranks_that_stand_still_end_with_one_report() {
        let ends = stalled([3, 3, 1, 3]);
        let exits: Vec<_> = ends.iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(exits, [0, 1, 2, 3].map(|rank| (rank, Exit::Hang)));
        let cause = "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=0): it is at Communication 3 (Allreduce, line 10, i8=0); ranks 0 1 3 wait in it";
        let report: Vec<Option<&str>> =
            ends.iter().map(|it| it.2.as_deref().map(|it| it.lines().next().unwrap_or(it))).collect();
        assert_eq!(report, [Some(cause), None, None, None], "{ends:?}");
    }

    #[test]
    fn a_request_for_a_report_comes_before_the_waits_of_others() {
        let plans = plans_of_text(PROGRAM, 4).unwrap_or_default();
        let record = |issued: u32| {
            let run = PlanProgress {
                issued,
                streams: vec![issued.min(2)],
                queues: vec![0],
                ..PlanProgress::default()
            };
            Some(RankProgress { plan: Some(run), ..RankProgress::default() }.encode())
        };
        let records = [3, 3, 1, 3].map(record);
        let fault =
            LaunchError::Aborted { rank: 1, exit: Exit::Hang.into(), reason: "received SIGTERM".to_owned() };
        let text = report::job_report(&fault, &records, &plans);
        let first: Vec<&str> = text.lines().take(2).collect();
        let cause = "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=0): it is at Communication 3 (Allreduce, line 10, i8=0); ranks 0 1 3 wait in it";
        assert_eq!(first, ["rank 1: received SIGTERM", cause]);
    }
}
