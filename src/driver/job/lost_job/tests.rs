//! Reports on constructed progress, and the ends of jobs that are lost.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use hir_launch::{
    environment::LaunchInfo,
    job_rank::JobRank,
    progress::{PhaseLimit, PlanProgress, RankProgress},
};
use hir_plan::{InstKind, Plan, plans_of_text};

use super::*;

/// A loop of all-reduces on four ranks, with a stream on each.
const PROGRAM: &str = include_str!("../../../../tests/cases/launch/loop.hir");

/// Without storage for its result, the program begins with its loop.
fn plans() -> World {
    let lines = PROGRAM.lines().map(|it| if it.contains("ALLOCATE") { "" } else { it });
    plans_of_text(&lines.collect::<Vec<_>>().join("\n"), 4).unwrap_or_default()
}

/// Returns the index of the `which`-th instruction, from 0, for which `wanted` holds.
fn at(plan: &Plan, which: usize, wanted: impl Fn(&InstKind) -> bool) -> u32 {
    let mut found = (0..plan.code.len()).filter(|it| wanted(&plan.code[*it].kind));
    found.nth(which).unwrap_or_default() as u32
}

/// Returns the record of a rank that has issued everything before `issued`, with its streams at `stream` and
/// its communicators at `queue`.
fn record(plan: &Plan, issued: u32, stream: u32, queue: u32) -> Option<RankProgress> {
    let (streams, queues) = (vec![stream; plan.streams.len()], vec![queue; plan.communicators.len()]);
    let run = Some(PlanProgress { issued, streams, queues, ..PlanProgress::default() });
    Some(RankProgress { plan: run, ..RankProgress::default() })
}

fn collective(it: &InstKind) -> bool {
    matches!(it, InstKind::Collective(_))
}

/// Returns the report as one text.
fn text_of(fault: &LaunchError, ranks: &[Option<RankProgress>], world: &World) -> String {
    let JobReport { cause, notes } = job_report(fault, ranks, world);
    [&[cause], &notes[..]].concat().join("\n")
}

#[test]
fn records_come_back() {
    let run = PlanProgress { round: 2, completed_rounds: 1, issued: 7, streams: vec![1, 2], queues: vec![3] };
    for run in [None, Some(run), Some(PlanProgress::default())] {
        let it = RankProgress {
            phase: "reading".to_owned(),
            limit: if run.is_some() { PhaseLimit::Timeout } else { PhaseLimit::None },
            plan: run,
        };
        assert_eq!(RankProgress::decode(&it.encode()), Some(it));
    }
    assert_eq!(RankProgress::decode(b"abc"), None);
}

#[test]
fn reports_the_rank_that_never_issued_it() {
    let plans = plans();
    let second = at(&plans[0], 1, collective);
    let wait = at(&plans[0], 1, |it| matches!(it, InstKind::Wait { .. }));
    let mut records: Vec<_> = plans.iter().map(|it| record(it, it.code.len() as u32, wait, second)).collect();
    // The host of rank 2 hangs one instruction earlier.
    records[2] = record(&plans[2], second - 1, second - 1, second - 1);
    let text = text_of(&LaunchError::Stalled { seconds: 60 }, &records, &plans);
    assert_eq!(
        text,
        "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=1): it is at line 7, i8=1; ranks 0 1 3 wait in it\n\
         no rank made progress for 60 s\n\
         ranks 0 1 3: at the end; main waits at line 11, i8=1 for Communication 3 (Allreduce, line 10, i8=1); Communication 3 (Allreduce, line 10, i8=1) \
         waits for rank 2\n\
         rank 2: at line 7, i8=1"
    );
}

#[test]
fn reports_the_rank_that_has_not_reached_a_communication() {
    let plans = plans();
    let second = at(&plans[0], 1, collective);
    let wait = at(&plans[0], 1, |it| matches!(it, InstKind::Wait { .. }));
    let all = plans[0].code.len() as u32;
    let mut records: Vec<_> = plans.iter().map(|it| record(it, all, wait, second)).collect();
    // Rank 1 has issued everything, and its stream runs an addition that does not end.
    let sum = at(&plans[1], 0, |it| matches!(it, InstKind::Map { .. }));
    records[1] = record(&plans[1], all, sum, second);
    let text = text_of(&LaunchError::Stalled { seconds: 60 }, &records, &plans);
    assert_eq!(
        text,
        "rank 1 has not reached Communication 3 (Allreduce, line 10, i8=1): at the end; main runs line 7, i8=0; ranks 0 2 3 wait in it\n\
         no rank made progress for 60 s\n\
         ranks 0 2 3: at the end; main waits at line 11, i8=1 for Communication 3 (Allreduce, line 10, i8=1); Communication 3 (Allreduce, line 10, i8=1) \
         waits for rank 1\n\
         rank 1: at the end; main runs line 7, i8=0"
    );
}

/// NCCL connects the ranks in their first call: the hosts block in it, and no stream has reached it.
#[test]
fn hosts_that_connect_wait_for_the_one_that_does_not_come() {
    let plans = plans();
    let first = at(&plans[0], 0, collective);
    let mut records: Vec<_> = plans.iter().map(|it| record(it, first, first, first)).collect();
    let phase = "done, rank 0 judges the outputs".to_owned();
    records[3] = Some(RankProgress { phase, ..RankProgress::default() });
    let text = text_of(&LaunchError::Stalled { seconds: 60 }, &records, &plans);
    assert_eq!(
        text,
        "rank 3 has not issued Communication 3 (Allreduce, line 10, i8=0): it is done, rank 0 judges the outputs; ranks 0 1 2 wait in it\n\
         no rank made progress for 60 s\n\
         ranks 0 1 2: at Communication 3 (Allreduce, line 10, i8=0), waiting for rank 3\n\
         rank 3: done, rank 0 judges the outputs"
    );
}

/// A host that is in a later run has already issued the communication, since hosts run ahead of the device.
#[test]
fn a_host_that_is_ahead_is_waited_for_by_nobody() {
    let plans = plans();
    let first = at(&plans[0], 0, collective);
    let record = |round, issued| {
        let run = Some(PlanProgress { round, completed_rounds: 3, issued, ..PlanProgress::default() });
        Some(RankProgress { plan: run, ..RankProgress::default() })
    };
    let first_line = |records: [Option<RankProgress>; 4]| {
        let text = text_of(&LaunchError::Stalled { seconds: 60 }, &records, &plans);
        text.lines().next().unwrap_or_default().to_owned()
    };
    let ahead = [record(3, first), record(5, 0), record(5, 0), record(5, 0)];
    assert_eq!(first_line(ahead), "no rank made progress for 60 s");
    let behind = [record(3, first), record(5, 0), record(2, first + 1), record(5, 0)];
    assert!(
        first_line(behind)
            .starts_with("rank 2 has not reached Communication 3 (Allreduce, line 10, i8=0): at line")
    );
}

#[test]
fn silent_ranks_come_first() {
    let plans = plans();
    let first = at(&plans[0], 0, collective);
    let wait = at(&plans[0], 0, |it| matches!(it, InstKind::Wait { .. }));
    let mut records: Vec<_> = plans.iter().map(|it| record(it, wait + 1, wait, first)).collect();
    records[3] = None;
    let text = text_of(&LaunchError::Gone { rank: 3 }, &records, &plans);
    assert_eq!(
        text,
        "rank 3 is silent: its connection closed, its process was killed or has ended\n\
         ranks 0 1 2: at line 7, i8=1; main waits at line 11, i8=0 for Communication 3 (Allreduce, line 10, i8=0); Communication 3 (Allreduce, line 10, i8=0) \
         waits for rank 3\n\
         rank 3: nothing is known of it"
    );
}

#[test]
fn streams_that_do_not_tell_are_not_made_up() {
    let plans = plans();
    let all = plans[0].code.len() as u32;
    let run = |issued, complete| {
        Some(PlanProgress { round: 7, completed_rounds: complete, issued, ..PlanProgress::default() })
    };
    let record =
        |issued, complete| Some(RankProgress { plan: run(issued, complete), ..RankProgress::default() });
    let records = [record(all, 3), record(2, 3), record(all, 3), record(all, 3)];
    assert_eq!(
        text_of(&LaunchError::Stalled { seconds: 60 }, &records, &plans),
        "no rank made progress for 60 s\n\
         ranks 0 2 3: at the end of run 7; the GPU has completed 3 runs\n\
         rank 1: at line 11, i8=0 of run 7; the GPU has completed 3 runs"
    );
}

#[test]
fn an_error_comes_first() {
    let phase = |it: &str| Some(RankProgress { phase: it.to_owned(), ..RankProgress::default() });
    let records = [phase("reading"), None, phase("reading")];
    let fault =
        LaunchError::Aborted { rank: 1, exit: Exit::Device.into(), reason: "line 3: no memory".to_owned() };
    assert_eq!(
        text_of(&fault, &records, &World::default()),
        "rank 1: line 3: no memory\nranks 0 2: reading\nrank 1: nothing is known of it"
    );
}

/// Runs four ranks whose hosts stop at the instructions `at`, and whose streams stop where they must
/// wait. Returns how each rank ends.
fn stalled(at: [u32; 4]) -> Vec<(usize, Exit, Option<JobReport>)> {
    let plans = Arc::new(plans());
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
                let end = Box::new(move |exit, report, _| {
                    let _ = sender.send((rank, Exit::from(exit), report));
                    let _ = done.send(());
                });
                let member =
                    JobRank::join(&launch, Duration::from_secs(1), variable, report_without_plans(), end);
                if let Ok(member) = &member {
                    let run = PlanProgress {
                        issued,
                        streams: vec![issued.min(2)],
                        queues: vec![0],
                        ..PlanProgress::default()
                    };
                    member.report_plan_progress(report_with_plans(plans), move || Some(run.clone()));
                }
                let _ = over.recv_timeout(Duration::from_secs(10));
            });
        }
    });
    drop(sender);
    let mut ends: Vec<_> = ends.into_iter().collect();
    ends.sort_by_key(|it: &(usize, Exit, Option<JobReport>)| it.0);
    ends
}

/// Returns how the only process of a job ends, or `None` if it does not end within three seconds.
fn alone(act: impl FnOnce(&JobRank)) -> Option<(Exit, Option<JobReport>)> {
    let (sender, ends) = mpsc::channel();
    let end = Box::new(move |exit, report, _| {
        let _ = sender.send((Exit::from(exit), report));
    });
    let member = JobRank::single_process(Duration::from_secs(1), report_without_plans(), end).ok()?;
    act(&member);
    ends.recv_timeout(Duration::from_secs(3)).ok()
}

#[test]
fn what_has_a_limit_does_not_last() {
    let report = alone(|it| it.set_phase_with_limit("waiting", PhaseLimit::Timeout)).and_then(|it| it.1);
    let lines = ["no rank made progress for 1 s", "rank 0: waiting"].map(str::to_owned);
    assert_eq!(report, Some(JobReport::from_lines(lines)));
    // Phases that have no limit, or a longer one.
    assert_eq!(alone(|it| it.set_phase("judging")), None);
    assert_eq!(alone(|it| it.set_phase_with_limit("starting", PhaseLimit::Startup)), None);
    // A plan whose executor does not know the progress of its streams.
    let run = PlanProgress { round: 7, completed_rounds: 3, ..PlanProgress::default() };
    let report = alone(|it| it.report_plan_progress(report_without_plans(), move || Some(run.clone())));
    assert_eq!(report.map(|it| it.0), Some(Exit::Hang));
}

#[test]
fn ranks_that_stand_still_end_with_one_report() {
    let ends = stalled([3, 3, 1, 3]);
    let exits: Vec<_> = ends.iter().map(|it| (it.0, it.1)).collect();
    assert_eq!(exits, [0, 1, 2, 3].map(|rank| (rank, Exit::Hang)));
    let cause = "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=0): it is at Communication 3 (Allreduce, line 10, i8=0); ranks 0 1 3 wait in it";
    let report: Vec<Option<&str>> = ends.iter().map(|it| it.2.as_ref().map(|it| it.cause.as_str())).collect();
    assert_eq!(report, [Some(cause), None, None, None], "{ends:?}");
}

#[test]
fn a_request_for_a_report_comes_before_the_waits_of_others() {
    let plans = plans();
    let record = |issued: u32| {
        let run =
            PlanProgress { issued, streams: vec![issued.min(2)], queues: vec![0], ..PlanProgress::default() };
        Some(RankProgress { plan: Some(run), ..RankProgress::default() })
    };
    let records = [3, 3, 1, 3].map(record);
    let fault =
        LaunchError::Aborted { rank: 1, exit: Exit::Hang.into(), reason: "received SIGTERM".to_owned() };
    let report = job_report(&fault, &records, &plans);
    let first = [report.cause.as_str(), report.notes[0].as_str()];
    let cause = "rank 2 has not issued Communication 3 (Allreduce, line 10, i8=0): it is at Communication 3 (Allreduce, line 10, i8=0); ranks 0 1 3 wait in it";
    assert_eq!(first, ["rank 1: received SIGTERM", cause]);
}
