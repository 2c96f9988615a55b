//! One process of a job: connected with the others, guarded, and in the end of one mind with them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    LaunchError,
    channel::{Channel, Patience},
    environment::Launch,
    handshake::{self, Statement},
    lease,
    progress::{Progress, Run},
    rendezvous, report,
    watchdog::{End, Watchdog},
    wire,
};
use crate::{exit::Exit, plan::Plan};

/// This process in its job.
pub struct Member {
    /// The connection with the others.
    pub channel: Arc<Channel>,
    /// The guard.
    pub watchdog: Watchdog,
    progress: Arc<Mutex<Progress>>,
}

impl Member {
    /// Joins the job that the environment describes. A rank that others wait for longer than `timeout` ends the job;
    /// `end` then ends the process.
    ///
    /// # Errors
    /// Ranks that do not find each other.
    pub fn join(
        launch: &Launch,
        timeout: Duration,
        variable: impl Fn(&str) -> Option<String>,
        end: End,
    ) -> Result<Self, LaunchError> {
        let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
        lease::keep(&variable).map_err(system)?;
        let address = rendezvous::address(launch, &variable)?;
        let patience = Patience { rendezvous: timeout, step: timeout, ..Patience::default() };
        let patience = Patience { silence: patience.silence.min(timeout), ..patience };
        let channel = Arc::new(Channel::open(launch, &address, patience)?);
        let progress = Arc::new(Mutex::new(Progress::default()));
        let shared = Arc::clone(&progress);
        channel.on_pulse(move || shared.lock().unwrap_or_else(PoisonError::into_inner).encode());
        let notes =
            Box::new(|fault: &LaunchError, records: &[Option<Vec<u8>>]| report::report(fault, records, &[]));
        let watchdog = Watchdog::start(Arc::clone(&channel), timeout, notes, end).map_err(system)?;
        Ok(Self { channel, watchdog, progress })
    }

    /// Says what this rank does now, for reports: `reading the program`.
    pub fn phase(&self, what: &str) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).phase = what.to_owned();
    }

    /// From here on this rank runs its plan: `run` says how far it is, and must not wait. Reports name lines of the plans.
    pub fn watch(&self, plans: Arc<Vec<Plan>>, run: impl Fn() -> Run + Send + 'static) {
        self.watchdog.set_notes(Box::new(move |fault, records| report::report(fault, records, &plans)));
        let progress = Arc::clone(&self.progress);
        self.channel.on_pulse(move || {
            let phase = progress.lock().unwrap_or_else(PoisonError::into_inner).phase.clone();
            Progress { phase, run: Some(run()) }.encode()
        });
    }

    /// Compares what all ranks hold; on all ranks the same difference, if there is one.
    ///
    /// # Errors
    /// The job's fault.
    pub fn agree(&self, statement: &Statement) -> Result<Option<String>, LaunchError> {
        self.phase("comparing its programs with the other ranks'");
        handshake::agree(&self.channel, statement)
    }

    /// The exit code of the whole job, the first rank's that is no success, and what ranks say that ended otherwise
    /// than rank 0.
    ///
    /// # Errors
    /// The job's fault.
    pub fn conclude(&self, exit: Exit, message: &str) -> Result<(Exit, Vec<String>), LaunchError> {
        self.phase("finished, waiting for the other ranks");
        let mine = wire::join([&[exit as u8][..], message.as_bytes()]);
        let all = self.channel.all_gather(&mine)?;
        // From here on the launcher may end whoever is not as quick as the others.
        self.watchdog.stand_down();
        let split = |bytes: &Vec<u8>| {
            let parts = wire::split(bytes).unwrap_or_default();
            let text = parts.get(1).map(|it| String::from_utf8_lossy(it).into_owned());
            let code = parts.first().and_then(|it| it.first().copied());
            (Exit::from_code(code.unwrap_or(Exit::Bug as u8)), text.unwrap_or_default())
        };
        let ends: Vec<(Exit, String)> = all.iter().map(split).collect();
        let first = ends.iter().map(|it| it.0).find(|it| *it != Exit::Success).unwrap_or(Exit::Success);
        let others = ends.iter().enumerate().filter(|(_, it)| it.0 != ends[0].0);
        let told = others.map(|(rank, (exit, message))| {
            format!("rank {rank} ends with exit code {}: {message}", *exit as u8)
        });
        Ok((first, told.collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::plan;

    const PROGRAM: &str = include_str!("../../tests/cases/launch/loop.hir");

    /// Four ranks whose hosts stand still at these instructions, their streams where they have to wait; what they end with.
    fn stalled(at: [u32; 4]) -> Vec<(usize, Exit, Option<String>)> {
        let source = crate::source::Source::new("loop.hir".to_owned(), PROGRAM.to_owned());
        let (programs, _) = source.programs();
        let plans = plan::build_each(&[(&programs[0], &source.lines); 4]).unwrap_or_default();
        let plans = Arc::new(plans);
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
        let port = port.map(|it| it.port().to_string()).unwrap_or_default();
        let (sender, ends) = mpsc::channel();
        thread::scope(|scope| {
            for (rank, issued) in at.into_iter().enumerate() {
                let (plans, port, sender) = (Arc::clone(&plans), port.clone(), sender.clone());
                scope.spawn(move || {
                    let launch = Launch {
                        family: "test",
                        rank,
                        size: 4,
                        local_rank: rank,
                        local_size: None,
                        job: None,
                    };
                    let variable = |name: &str| (name == "HIR_MASTER_PORT").then(|| port.clone());
                    let (done, over) = mpsc::channel();
                    let end = Box::new(move |exit, report| {
                        let _ = sender.send((rank, exit, report));
                        let _ = done.send(());
                    });
                    let member = Member::join(&launch, Duration::from_secs(1), variable, end);
                    if let Ok(member) = &member {
                        member.watch(plans, move || Run {
                            issued,
                            streams: vec![issued.min(2)],
                            ..Run::default()
                        });
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

    #[test]
    fn ranks_that_stand_still_end_with_one_report() {
        let ends = stalled([3, 3, 1, 3]);
        let exits: Vec<_> = ends.iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(exits, [0, 1, 2, 3].map(|rank| (rank, Exit::Hang)));
        let cause = "rank 2 never issued line 10, i8=0 (Allreduce): it is at line 10, i8=0 (Allreduce); ranks 0 1 3 wait in it";
        let told: Vec<Option<&str>> =
            ends.iter().map(|it| it.2.as_deref().map(|it| it.lines().next().unwrap_or(it))).collect();
        assert_eq!(told, [Some(cause), None, None, None], "{ends:?}");
    }
}
