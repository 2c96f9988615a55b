//! Tests of the streams of one rank: events, and reads that no event orders after the write.

use super::{RankPlanBuilder, floats, go, no_inputs, schedules, text, values};
use crate::{InstRef, Schedule, SimError, SimOptions, UnwrittenRead, describe, late_writers, run};
use hir_plan::*;

/// Stream 1 copies what stream 0 fills, and stream 0 reads the result. `joined` selects which waits for
/// events are present.
fn two_streams(joined: [bool; 2]) -> Vec<Plan> {
    let mut it = RankPlanBuilder::new(0, 1, 2);
    let (from, to) = (it.buffer(1), it.output(1));
    it.fill(0, &from, 5).on(0, InstKind::RecordEvent { event: 0 });
    if joined[0] {
        it.on(1, InstKind::WaitEvent { event: 0 });
    }
    it.copy(1, (0, &from), (0, &to)).on(1, InstKind::RecordEvent { event: 1 });
    if joined[1] {
        it.on(0, InstKind::WaitEvent { event: 1 });
    }
    vec![it.finish()]
}

#[test]
fn a_missing_join_is_found() -> Result<(), SimError> {
    let sound = two_streams([true, true]);
    for schedule in schedules(50) {
        assert_eq!(values(&go(&sound, no_inputs(&sound), &schedule)?, 0), [5.0]);
    }
    for joined in [[false, true], [true, false]] {
        let plans = two_streams(joined);
        let wrong =
            |it: Schedule| go(&plans, no_inputs(&plans), &it).is_ok_and(|it| values(&it, 0) == [-1.0]);
        assert!(wrong(Schedule::Adversarial));
        assert!((0..50).step_by(2).map(Schedule::Seed).any(wrong), "by priorities");
        assert!((1..50).step_by(2).map(Schedule::Seed).any(wrong), "by uniform choice");
        assert!(!wrong(Schedule::Program));
    }
    Ok(())
}

#[test]
fn finish_reads_what_is_there_and_tells_what_is_not() -> Result<(), SimError> {
    let plans = two_streams([true, false]);
    let options = SimOptions {
        watch: vec![ViewOnRank {
            rank: 0,
            view: plans[0].outputs[0].shard.view.clone().unwrap_or(View::contiguous(0, vec![])),
        }],
        trace: true,
        ..SimOptions::default()
    };
    let plans = World::new(plans);
    let outcome = run(&plans, no_inputs(&plans), &Schedule::Adversarial, &options)?;
    assert_eq!(values(&outcome, 0), [-1.0]);
    assert_eq!(outcome.watched[0].data, *floats(&[5.0]));
    let copy = InstRef { rank: 0, inst: 3 };
    assert_eq!(late_writers(&plans, &outcome, 0, 0), [copy]);
    assert_eq!(describe(&plans, copy), "line 4 on stream 1");
    assert_eq!(outcome.trace.map(|it| it.len()), Some(plans[0].code.len()));
    let unordered = two_streams([false, true]);
    let outcome = go(&unordered, no_inputs(&unordered), &Schedule::Adversarial)?;
    let read =
        UnwrittenRead { reader: InstRef { rank: 0, inst: 2 }, rank: 0, buffer: 0, missing: 1, elements: 1 };
    assert_eq!(outcome.notes.unwritten, [read]);
    assert_eq!(late_writers(&unordered, &outcome, 0, 0), []);
    Ok(())
}

#[test]
fn a_rank_may_wait_for_itself() {
    let mut it = RankPlanBuilder::new(0, 1, 2);
    it.on(0, InstKind::WaitEvent { event: 0 }).on(0, InstKind::RecordEvent { event: 0 });
    it.on(1, InstKind::WaitEvent { event: 0 });
    assert_eq!(
        text(go(&[it.finish()], vec![Vec::new()], &Schedule::Program)),
        "deadlock: rank 0 waits for itself\n\
         help: move the statement that waits behind the one that it waits for\n\
         rank 0: line 1, on stream 0: waits for line 2 on stream 0\n\
         rank 0: line 3, on stream 1: waits for line 2 on stream 0"
    );
}

#[test]
fn an_event_that_is_never_recorded_is_reported() {
    let mut it = RankPlanBuilder::new(0, 1, 1);
    it.on(0, InstKind::WaitEvent { event: 0 });
    assert_eq!(
        text(go(&[it.finish()], vec![Vec::new()], &Schedule::Program)),
        "deadlock: rank 0 waits at line 1 for an event that it never records\n\
         help: add what this statement waits for to the rank that never does it, or remove this statement\n\
         rank 0: line 1, on stream 0: waits for an event that is never recorded"
    );
}
