//! Tests of channels between ranks that are threads.

use std::{
    io::Write,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{
    LaunchError,
    channel::{Channel, Timeouts},
    environment::LaunchInfo,
    message::{MAX_CONTENT, Message, Operation},
    progress::{PhaseLimit, RankProgress},
    rendezvous::{self, SecretSource},
    report::JobReport,
    secret::Secret,
    stop::Stop,
    watchdog::Watchdog,
};
use hir_process::exit::Exit;

const QUICK: Timeouts = Timeouts {
    rendezvous: Duration::from_secs(10),
    silence: Duration::from_secs(5),
    step: Duration::from_secs(5),
};

fn place(name: &str, rank: usize, world: usize) -> LaunchInfo {
    LaunchInfo {
        launcher: "test",
        rank,
        world,
        local_rank: Some(rank),
        local_size: Some(world),
        job: Some(format!("{name} {}", std::process::id())),
    }
}

fn trust() -> SecretSource {
    SecretSource::Secret(Secret::from_bytes([7; 32]))
}

/// Runs every rank of a job on a thread.
fn job<T: Send>(
    name: &str,
    world: usize,
    timeouts: Timeouts,
    rank: impl Fn(Channel) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    let place = |at| place(name, at, world);
    let address = rendezvous::address(&place(0), |_| None)?;
    let (address, rank) = (&address, &rank);
    thread::scope(|scope| {
        let start = |at| {
            scope.spawn(move || Channel::open(&place(at), address, &trust(), timeouts, &|| None).map(rank))
        };
        let ranks: Vec<_> = (0..world).map(start).collect();
        let lost = || LaunchError::Environment("a test thread panicked".to_owned());
        ranks.into_iter().map(|it| it.join().unwrap_or_else(|_| Err(lost()))).collect()
    })
}

#[test]
fn ranks_gather_in_order() {
    let seen = job("gather", 4, QUICK, |it| {
        let mut all = Vec::new();
        for round in 0..20u8 {
            all.extend(it.all_gather(&vec![it.rank as u8; round as usize])?);
            it.barrier()?;
        }
        it.leave()?;
        Ok::<_, LaunchError>(all)
    });
    let wanted: Vec<Vec<u8>> = (0..20).flat_map(|round| (0..4).map(move |rank| vec![rank; round])).collect();
    assert_eq!(seen, Ok(vec![Ok(wanted); 4]));
}

#[test]
fn rank_0_gathers_parts_of_any_size() {
    let seen = job("large", 3, QUICK, |it| {
        // Contributions of several pieces, of less than one, and of exactly one. The other ranks continue
        // with the next call at once.
        let size = |rank: usize, round: u8| [5, 10 << 20, 1 << 20][(rank + usize::from(round)) % 3];
        let mine = |round: u8| vec![it.rank as u8 + round; size(it.rank, round)];
        let sizes = |round: u8| [0, 1, 2].map(|rank| size(rank, round));
        let (first, second) = (it.gather(mine(0), &sizes(0))?, it.gather(mine(1), &sizes(1))?);
        let summed = [first, second]
            .map(|all| all.iter().map(|it| (it.len(), it.first().copied())).collect::<Vec<_>>());
        it.all_gather(&[it.rank as u8]).map(|all| (summed, all))
    });
    let next = vec![vec![0], vec![1], vec![2]];
    let first = vec![(5, Some(0)), (10 << 20, Some(1)), (1 << 20, Some(2))];
    let second = vec![(10 << 20, Some(1)), (1 << 20, Some(2)), (5, Some(3))];
    let nothing = Ok(([vec![], vec![]], next.clone()));
    assert_eq!(seen, Ok(vec![Ok(([first, second], next)), nothing.clone(), nothing]));
}

#[test]
fn an_abort_ends_every_wait() {
    let seen = job("abort", 3, QUICK, |it| match it.rank {
        2 => {
            it.abort(Exit::Device, "no memory");
            it.barrier()
        }
        _ => it.barrier(),
    });
    let fault = LaunchError::Aborted { rank: 2, exit: Exit::Device.into(), reason: "no memory".to_owned() };
    assert_eq!(seen, Ok(vec![Err(fault); 3]));
}

#[test]
fn reports_the_rank_that_does_not_connect() {
    let timeouts = Timeouts { step: Duration::from_millis(400), ..QUICK };
    let seen = job("late", 3, timeouts, |it| match it.rank {
        1 => {
            while it.fault().is_none() {
                thread::sleep(Duration::from_millis(10));
            }
            it.fault()
        }
        _ => it.barrier().err(),
    });
    assert_eq!(seen, Ok(vec![Some(LaunchError::Late { ranks: vec![1], seconds: 0 }); 3]));
}

#[test]
fn reports_the_rank_that_left() {
    let seen = job("left", 3, QUICK, |it| match it.rank {
        1 => None,
        _ => it.barrier().err(),
    });
    let gone = Some(LaunchError::Gone { rank: 1 });
    assert_eq!(seen, Ok(vec![gone.clone(), None, gone]));
}

#[test]
fn records_come_with_heartbeats() {
    let seen = job("records", 2, QUICK, |it| {
        let mine = it.rank as u8 + 7;
        it.set_progress_source(move || vec![mine]);
        let deadline = Instant::now() + Duration::from_secs(5);
        let theirs = |it: &Channel| {
            it.progress_records()[1 - it.rank].clone().is_some_and(|(_, bytes)| !bytes.is_empty())
        };
        while !theirs(&it) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let records: Vec<_> =
            it.progress_records().into_iter().map(|it| it.map(|(_, bytes)| bytes)).collect();
        let _ = it.barrier();
        records
    });
    assert_eq!(seen, Ok(vec![vec![Some(vec![7]), Some(vec![8])]; 2]));
}

#[test]
fn a_silent_rank_does_not_make_all_ranks_stalled() -> Result<(), LaunchError> {
    let address = rendezvous::address(&place("mute", 0, 2), |_| None)?;
    let system = |fault: std::io::Error| LaunchError::Environment(fault.to_string());
    thread::scope(|scope| {
        let mute = scope.spawn(|| rendezvous::connect(&address, &trust(), 1, 2, QUICK.rendezvous, &|| None));
        let timeouts = Timeouts { silence: Duration::from_secs(2), ..QUICK };
        let channel = Arc::new(Channel::open(&place("mute", 0, 2), &address, &trust(), timeouts, &|| None)?);
        channel.set_progress_source(|| {
            RankProgress { limit: PhaseLimit::Timeout, ..RankProgress::default() }.encode()
        });
        let (sender, ended) = mpsc::channel();
        let end =
            Box::new(move |exit, report, _| sender.send((Exit::from(exit), report)).unwrap_or_default());
        let report =
            |fault: &LaunchError, _: &[Option<RankProgress>]| JobReport::from_lines([fault.to_string()]);
        let stop = Stop::watch(None).map_err(system)?;
        let watchdog =
            Watchdog::start(channel, Duration::from_secs(1), (Arc::default(), stop), Box::new(report), end)
                .map_err(system)?;
        let end = ended.recv_timeout(Duration::from_secs(10)).ok();
        let silent = LaunchError::Silent { rank: 1, seconds: 2 };
        assert_eq!(end, Some((Exit::Hang, Some(JobReport::from_lines([silent.to_string()])))));
        drop(watchdog);
        mute.join().map(|it| it.map(|_| ())).unwrap_or(Ok(()))
    })
}

/// Runs a rank that has the secret and sends `send`. Returns the fault that rank 0 reports.
fn faulty(name: &str, send: impl Fn(&mut dyn FnMut(&Message) -> bool) + Sync) -> Option<LaunchError> {
    let address = rendezvous::address(&place(name, 0, 2), |_| None).ok()?;
    thread::scope(|scope| {
        let rank = scope.spawn(|| {
            let mut connections = rendezvous::connect(&address, &trust(), 1, 2, QUICK.rendezvous, &|| None)?;
            send(&mut |message| connections.0.iter_mut().all(|it| it.send(message).is_ok()));
            Ok::<_, LaunchError>(connections)
        });
        let channel = Channel::open(&place(name, 0, 2), &address, &trust(), QUICK, &|| None).ok()?;
        let until = Instant::now() + Duration::from_secs(10);
        while channel.fault().is_none() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        let fault = channel.fault();
        drop(channel);
        drop(rank.join());
        fault
    })
}

#[test]
fn a_flood_of_pieces_ends_the_job_and_not_the_memory() {
    let part =
        Message::Contribution { operation: Operation::Gather, more: true, bytes: vec![0; MAX_CONTENT] };
    let fault = faulty("flood", |send| while send(&part) {});
    let wanted =
        LaunchError::Protocol { rank: 1, fault: "sent more pieces than its credits allow".to_owned() };
    assert_eq!(fault, Some(wanted));
}

/// If a process in between changes or repeats bytes, no rank is reported as faulty, and the failure is not
/// reported as a bug.
#[test]
fn a_connection_that_is_not_intact_is_named() -> Result<(), LaunchError> {
    let address = rendezvous::address(&place("altered", 0, 2), |_| None)?;
    thread::scope(|scope| {
        let rank = scope.spawn(|| {
            let mut connections = rendezvous::connect(&address, &trust(), 1, 2, QUICK.rendezvous, &|| None)?;
            let sent = connections.0.iter_mut().all(|it| it.stream.write_all(&[1; 20]).is_ok());
            Ok::<_, LaunchError>((connections, sent))
        });
        let channel = Channel::open(&place("altered", 0, 2), &address, &trust(), QUICK, &|| None)?;
        let fault = channel.leave().err();
        let text = fault.as_ref().map(LaunchError::to_string).unwrap_or_default();
        assert!(text.starts_with("rank 0: the connection with rank 1 is not intact: "), "{text}");
        assert_eq!(fault.map(|it| Exit::from(it.exit())), Some(Exit::Environment));
        drop(channel);
        drop(rank.join());
        Ok(())
    })
}

#[test]
fn what_only_rank_0_says_is_refused_from_others() {
    let verdict = Message::ExitCode(Exit::Hang.into());
    for message in [Message::Welcome(1), Message::Join, Message::Credit, verdict] {
        let fault = faulty("role", |send| assert!(send(&message)));
        let wanted =
            LaunchError::Protocol { rank: 1, fault: "sent a message that is not allowed now".to_owned() };
        assert_eq!(fault, Some(wanted), "{message:?}");
    }
}

#[test]
fn a_rank_that_gives_too_much_or_something_else_is_named() {
    let seen = job("sizes", 2, QUICK, |it| match it.rank {
        0 => it.gather(Vec::new(), &[0, 100]).err(),
        _ => {
            let _ = it.gather(vec![0; 101], &[]);
            it.barrier().err()
        }
    });
    let fault = LaunchError::Protocol { rank: 1, fault: "sent more bytes than expected".to_owned() };
    assert_eq!(seen, Ok(vec![Some(fault); 2]));
    let seen = job("operations", 2, QUICK, |it| match it.rank {
        0 => it.gather(Vec::new(), &[0, 0]).err(),
        _ => it.barrier().err(),
    });
    let fault =
        LaunchError::Protocol { rank: 1, fault: "takes part in another collective than rank 0".to_owned() };
    assert_eq!(seen, Ok(vec![Some(fault); 2]));
}

#[test]
fn parts_of_several_pieces_are_gathered_by_all() {
    let seen = job("pieces", 3, QUICK, |it| {
        let mine = vec![it.rank as u8; (5 << 20) + it.rank];
        let all = it.all_gather(&mine)?;
        it.all_gather_values(&all.iter().map(|it| (it.len(), it[0])).collect::<Vec<_>>())
    });
    let wanted = vec![vec![(5 << 20, 0), ((5 << 20) + 1, 1), ((5 << 20) + 2, 2)]; 3];
    assert_eq!(seen, Ok(vec![Ok(wanted); 3]));
}
