//! One process of a job: connected with the others, guarded, and in the end of one mind with them.

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
use crate::{exit::Exit, plan::Plan};

/// For the loss of another rank to be noticed before an error that may come from it is told.
const CAUSE_WAIT: Duration = Duration::from_millis(300);

/// This process in its job.
pub struct JobRank {
    /// The connection with the others.
    pub channel: Arc<Channel>,
    /// The guard.
    pub watchdog: Watchdog,
    progress: Arc<Mutex<RankProgress>>,
    phases: Mutex<Vec<(String, Instant)>>,
}

impl JobRank {
    /// Joins the job that the environment describes. A rank that others wait for longer than `timeout` ends the job;
    /// `end` then ends the process.
    ///
    /// # Errors
    /// Ranks that do not find each other.
    pub fn join(
        launch: &LaunchInfo,
        timeout: Duration,
        variable: impl Fn(&str) -> Option<String>,
        end: EndProcess,
    ) -> Result<Self, LaunchError> {
        let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
        let asked = parent_death::watch(&variable).map_err(system)?;
        let address = rendezvous::address(launch, &variable)?;
        let trust = SecretSource::from_environment(&address, &variable)?;
        // A rank that stands still is found by its records; one that simulates or judges has reasons to let others wait.
        let usual = Timeouts::default();
        let timeouts = Timeouts {
            rendezvous: timeout,
            silence: usual.silence.min(timeout),
            step: usual.step.max(timeout),
        };
        Self::with_channel(Channel::open(launch, &address, &trust, timeouts)?, timeout, asked, end)
    }

    /// The only process of its job, guarded as others are.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn single_process(timeout: Duration, end: EndProcess) -> Result<Self, LaunchError> {
        Self::with_channel(Channel::single_process(), timeout, Arc::default(), end)
    }

    fn with_channel(
        channel: Channel,
        timeout: Duration,
        asked: Arc<AtomicBool>,
        end: EndProcess,
    ) -> Result<Self, LaunchError> {
        let channel = Arc::new(channel);
        let progress = Arc::new(Mutex::new(RankProgress::default()));
        let shared = Arc::clone(&progress);
        channel.set_progress_source(move || shared.lock().unwrap_or_else(PoisonError::into_inner).encode());
        let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
        let watchdog = Watchdog::start(Arc::clone(&channel), timeout, asked, report_without_plans(), end)
            .map_err(system)?;
        Ok(Self { channel, watchdog, progress, phases: Mutex::default() })
    }

    /// Says what this rank does now, for reports: `reading the program`. It may last.
    pub fn set_phase(&self, what: &str) {
        self.set_phase_with_limit(what, PhaseLimit::None);
    }

    /// Says what this rank does now, and how long it may last: a job that stands still in it for longer is lost.
    pub fn set_phase_with_limit(&self, what: &str, limit: PhaseLimit) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        (progress.phase, progress.limit) = (what.to_owned(), limit);
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).push((what.to_owned(), Instant::now()));
    }

    /// What this rank has done so far, in order, and for how long.
    pub fn phase_durations(&self) -> Vec<(String, Duration)> {
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ends = phases.iter().skip(1).map(|it| it.1).chain([Instant::now()]);
        phases.iter().zip(ends).map(|((what, begin), end)| (what.clone(), end - *begin)).collect()
    }

    /// A program of the job begins: what the last one was doing is no longer told.
    pub fn begin_program(&self) {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.watchdog.set_report_builder(report_without_plans());
        let progress = Arc::clone(&self.progress);
        self.channel
            .set_progress_source(move || progress.lock().unwrap_or_else(PoisonError::into_inner).encode());
        self.set_phase("reading the program");
    }

    /// From here on `run` says how far this rank is in its plan while it runs it; it must not wait. Reports name lines of
    /// the plans.
    pub fn report_plan_progress(
        &self,
        plans: Arc<Vec<Plan>>,
        run: impl Fn() -> Option<PlanProgress> + Send + 'static,
    ) {
        self.watchdog
            .set_report_builder(Box::new(move |fault, records| report::job_report(fault, records, &plans)));
        let progress = Arc::clone(&self.progress);
        self.channel.set_progress_source(move || {
            let at = progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
            RankProgress { plan: run(), ..at }.encode()
        });
    }

    /// This rank fails, and others would wait for it in vain: the job is lost, unless it is lost already.
    pub fn give_up(&self, exit: Exit, reason: &str) {
        if self.channel.world == 1 {
            return;
        }
        // Communication fails where a peer has died, which is then the cause, and known in a moment.
        let until = Instant::now() + CAUSE_WAIT;
        while exit == Exit::Device && self.channel.fault().is_none() && Instant::now() < until {
            thread::sleep(CAUSE_WAIT / 10);
        }
        // A fault names its rank itself.
        let rank = format!("rank {}: ", self.channel.rank);
        self.channel.abort(exit, reason.strip_prefix(&rank).unwrap_or(reason));
    }

    /// Compares what all ranks hold; on all ranks the same difference, if there is one.
    ///
    /// # Errors
    /// The job's fault.
    pub fn compare_manifests(&self, manifest: &JobManifest) -> Result<Option<String>, LaunchError> {
        self.set_phase("comparing its programs with the other ranks'");
        handshake::compare_manifests(&self.channel, manifest)
    }

    /// The exit code of all ranks for a program, the first rank's that is no success, and what ranks say that failed otherwise
    /// than rank 0. It breaks where no other program can follow, as none does after the `last`; then no rank minds any more that
    /// others are gone.
    ///
    /// # Errors
    /// The job's fault.
    pub fn agree_on_exit_code(
        &self,
        exit: Exit,
        message: &str,
        last: bool,
    ) -> Result<(ControlFlow<Exit, Exit>, Vec<String>), LaunchError> {
        // Where it failed is what reports have to say.
        if exit == Exit::Success {
            self.set_phase("finished, waiting for the other ranks");
        }
        let ends: Vec<(Exit, String)> = self.channel.all_gather_values(&(exit, message.to_owned()))?;
        let first = ends.iter().map(|it| it.0).find(|it| *it != Exit::Success).unwrap_or(Exit::Success);
        let end = if last { ControlFlow::Break(first) } else { first.flow() };
        // From here on the launcher may end whoever is not as quick as the others.
        if end.is_break() {
            self.watchdog.disarm();
        }
        let others = ends.iter().enumerate().filter(|(_, it)| it.0 != ends[0].0 && it.0 != Exit::Success);
        let told = others.map(|(rank, (exit, message))| {
            format!("rank {rank} ends with exit code {}: {message}", *exit as u8)
        });
        Ok((end, told.collect()))
    }
}

/// Notes of ranks that have no plans yet.
fn report_without_plans() -> ReportBuilder {
    Box::new(|fault, records| report::job_report(fault, records, &[]))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::plan::tests::plans_of;

    const PROGRAM: &str = include_str!("../../tests/cases/launch/loop.hir");

    /// Four ranks whose hosts stand still at these instructions, their streams where they have to wait; what they end with.
    fn stalled(at: [u32; 4]) -> Vec<(usize, Exit, Option<String>)> {
        let plans = Arc::new(plans_of(PROGRAM, 4));
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
                        local_rank: rank,
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

    /// What the only process of a job ends with, if it does not end before.
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
        let told = alone(|it| it.set_phase_with_limit("waiting", PhaseLimit::Timeout)).and_then(|it| it.1);
        assert_eq!(told.as_deref(), Some("no rank got any further for 1 s\nrank 0: waiting"));
        // This may.
        assert_eq!(alone(|it| it.set_phase("judging")), None);
        assert_eq!(alone(|it| it.set_phase_with_limit("starting", PhaseLimit::Startup)), None);
        // A plan whose executor does not know how far its streams are.
        let run = PlanProgress { round: 7, completed_rounds: 3, ..PlanProgress::default() };
        let told = alone(|it| it.report_plan_progress(Arc::default(), move || Some(run.clone())));
        assert_eq!(told.map(|it| it.0), Some(Exit::Hang));
    }

    #[test]
    fn ranks_that_stand_still_end_with_one_report() {
        let ends = stalled([3, 3, 1, 3]);
        let exits: Vec<_> = ends.iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(exits, [0, 1, 2, 3].map(|rank| (rank, Exit::Hang)));
        let cause = "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=0): it is at Communication 3 (Allreduce, line 10, i8=0); ranks 0 1 3 wait in it";
        let told: Vec<Option<&str>> =
            ends.iter().map(|it| it.2.as_deref().map(|it| it.lines().next().unwrap_or(it))).collect();
        assert_eq!(told, [Some(cause), None, None, None], "{ends:?}");
    }

    #[test]
    fn who_is_asked_says_so_before_what_others_wait_for() {
        let plans = plans_of(PROGRAM, 4);
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
        let fault = LaunchError::Aborted {
            rank: 1,
            exit: Exit::Hang.into(),
            reason: "told to end (SIGTERM)".to_owned(),
        };
        let told = report::job_report(&fault, &records, &plans);
        let first: Vec<&str> = told.lines().take(2).collect();
        let cause = "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=0): it is at Communication 3 (Allreduce, line 10, i8=0); ranks 0 1 3 wait in it";
        assert_eq!(first, ["rank 1: told to end (SIGTERM)", cause]);
    }
}
