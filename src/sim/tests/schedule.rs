//! Tests of schedules: their text, their traces, long programs, and random programs under several schedules.

use super::{RankPlanBuilder, go, no_inputs, ring, schedules, text};
use crate::{Schedule, SimError, schedule::Random};
use grammar::words::CommunicationType;
use hir_plan::*;

#[test]
fn schedules_parse_and_print() {
    for text in ["program", "adversarial", "seed:42"] {
        assert_eq!(text.parse::<Schedule>().map(|it| it.to_string()).as_deref(), Ok(text));
    }
    let error = "seed:x".parse::<Schedule>().err().map(|it| it.to_string());
    assert_eq!(
        error.as_deref(),
        Some(
            "unknown schedule `seed:x`: expected `program`, `adversarial`, `seed:N`, `seed:A..B`, `explore:N` or `@FILE`"
        )
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() -> Result<(), SimError> {
    let plans = ring(5, true);
    let trace = |seed| go(&plans, no_inputs(&plans), &Schedule::Seed(seed)).map(|it| it.trace);
    let mut different = 0;
    for seed in 0..20 {
        assert_eq!(trace(seed)?, trace(seed)?);
        different += usize::from(trace(seed)? != trace(seed + 2)?);
    }
    assert!(different > 10);
    Ok(())
}

#[test]
fn a_long_program_runs_quickly() -> Result<(), SimError> {
    let world = 8;
    let team: Vec<usize> = (0..world).collect();
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, world, 4);
        let (from, to) = (it.buffer(1), it.output(1));
        let communicator = it.communicator(&team);
        let next = (rank + 1) % world;
        for round in 0..10_000 {
            let stream = round % 4;
            it.fill(stream, &from, 1).on(stream, InstKind::RecordEvent { event: round });
            it.on((stream + 1) % 4, InstKind::WaitEvent { event: round });
            let sides = [(Direction::Send, next, &from), (Direction::Recv, (rank + world - 1) % world, &to)];
            let work = it.transfer(communicator, &sides);
            it.wait(work).fill(stream, &to, 2).fill(stream, &to, 3);
            let kind =
                CollectiveKind::new(CommunicationType::Broadcast, round as usize % world, ReduceOp::Sum);
            let work = it.collective(communicator, kind, Some(&from), Some(&to));
            it.wait(work).fill(stream, &to, 4);
        }
        it.finish()
    };
    let plans: Vec<Plan> = (0..world).map(plan).collect();
    for schedule in schedules(2) {
        let start = std::time::Instant::now();
        go(&plans, no_inputs(&plans), &schedule)?;
        let time = start.elapsed();
        assert!(time.as_secs() < 30, "{schedule}: {time:?}");
    }
    Ok(())
}

/// Returns a random program of three ranks, which may deadlock.
fn random_program(random: &mut Random) -> Vec<Plan> {
    let world = 3;
    let len = random.below(13) as u32;
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, world, 3);
        let (from, to) = (it.buffer(1), it.output(1));
        let mut communicators = vec![it.communicator(&[0, 1, 2])];
        if rank != 1 {
            communicators.push(it.communicator(&[2, 0]));
        }
        let mut works = Vec::new();
        let mut indices = [[0; 3]; 2];
        for event in 0..len {
            let stream = random.below(3) as u32;
            let peer = (rank + 1 + random.below(2) as usize) % world;
            let direction = if random.below(2) == 0 { Direction::Send } else { Direction::Recv };
            let communicator = communicators[random.below(communicators.len() as u64) as usize];
            let mut slot = |from: usize, to: usize| {
                let index = &mut indices[usize::from(from == rank)][peer];
                *index += 1;
                SignalId { from, to, kind: SignalKind::Ready, index: *index }
            };
            let kind = match random.below(16) {
                0..3 => InstKind::RecordEvent { event },
                3..5 => InstKind::WaitEvent { event: random.below(u64::from(event) + 1) as u32 },
                5..8 => InstKind::Signal { signal: slot(rank, peer) },
                8 => InstKind::WaitSignal { signal: slot(peer, rank) },
                9 => InstKind::Barrier,
                10 => InstKind::ShareMemHandles {
                    handles: vec![MemHandle { direction, peer, index: 0, number: 1 }],
                },
                11..13 => {
                    works.push(it.transfer(communicator, &[(direction, peer, &from)]));
                    continue;
                }
                13 => {
                    let kind = CollectiveKind::new(CommunicationType::Allgather, 0, ReduceOp::Sum);
                    works.push(it.collective(communicator, kind, None, None));
                    continue;
                }
                14 if !works.is_empty() => {
                    InstKind::Wait { work: works[random.below(works.len() as u64) as usize] }
                }
                _ => InstKind::Fill { to: Box::new(to.clone()), value: Number::Int(1) },
            };
            it.on(stream, kind);
        }
        it.finish()
    };
    (0..world).map(plan).collect()
}

#[test]
fn what_hangs_hangs_alike_under_every_schedule() {
    let mut random = Random(7);
    let (mut hung, mut ran) = (0, 0);
    for _ in 0..2000 {
        let plans = random_program(&mut random);
        let first = text(go(&plans, no_inputs(&plans), &Schedule::Program));
        for schedule in schedules(6) {
            assert_eq!(text(go(&plans, no_inputs(&plans), &schedule)), first, "{schedule}");
        }
        assert!(first == "no fault" || first.starts_with("deadlock: "), "{first}");
        if first == "no fault" { ran += 1 } else { hung += 1 }
    }
    assert!(hung > 100 && ran > 20, "{hung} {ran}");
}
