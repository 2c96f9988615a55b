//! Tests of peer memory: signals, the exchange of memory handles, and barriers.

use super::{RankPlanBuilder, go, no_inputs, schedules, text, values};
use crate::{Schedule, SimError};
use hir_plan::*;

fn slot(from: usize, to: usize, meaning: SignalKind) -> SignalId {
    SignalId { from, to, kind: meaning, index: 0 }
}

/// Rank 0 passes one element to rank 1 through peer memory. With `get`, rank 1 copies, otherwise rank 0.
fn one_sided(get: bool, guarded: bool) -> Vec<Plan> {
    let (mut sender, mut receiver) = (RankPlanBuilder::new(0, 2, 1), RankPlanBuilder::new(1, 2, 1));
    let (given, got) = (sender.buffer(1), receiver.output(1));
    sender.output(1);
    let (ready, done) = if get {
        (slot(0, 1, SignalKind::Ready), slot(1, 0, SignalKind::Done))
    } else {
        (slot(1, 0, SignalKind::Ready), slot(0, 1, SignalKind::Done))
    };
    sender.fill(0, &given, 7);
    let (mover, other) = if get { (&mut receiver, &mut sender) } else { (&mut sender, &mut receiver) };
    other.on(0, InstKind::Signal { signal: ready });
    if guarded {
        mover.on(0, InstKind::WaitSignal { signal: ready });
    }
    mover.copy(0, (0, &given), (1, &got)).on(0, InstKind::Signal { signal: done });
    if guarded {
        other.on(0, InstKind::WaitSignal { signal: done });
    }
    // Reusing the buffer before `done` would change the result.
    sender.fill(0, &given, 8);
    vec![sender.finish(), receiver.finish()]
}

#[test]
fn get_and_put_protocols() -> Result<(), SimError> {
    for get in [true, false] {
        let guarded = one_sided(get, true);
        for schedule in schedules(50) {
            assert_eq!(values(&go(&guarded, no_inputs(&guarded), &schedule)?, 1), [7.0], "{schedule}");
        }
        let bare = one_sided(get, false);
        let wrong = |it: Schedule| go(&bare, no_inputs(&bare), &it).is_ok_and(|it| values(&it, 1) != [7.0]);
        assert!(schedules(50).any(wrong));
    }
    Ok(())
}

#[test]
fn exchanges_match_by_channel_and_index() -> Result<(), SimError> {
    let handle = |direction, peer, number| MemHandle { direction, peer, index: 0, number };
    let share = |rank: usize, world: usize, handles: Vec<MemHandle>| {
        let mut it = RankPlanBuilder::new(rank, world, 2);
        it.on(1, InstKind::ShareMemHandles { handles }).on(0, InstKind::Barrier);
        it.finish()
    };
    let (send, recv) = (Direction::Send, Direction::Recv);
    let ring = |at: usize| share(at, 3, vec![handle(send, (at + 1) % 3, 4), handle(recv, (at + 2) % 3, 5)]);
    let plans: Vec<Plan> = (0..3).map(ring).collect();
    for schedule in schedules(10) {
        go(&plans, no_inputs(&plans), &schedule)?;
    }
    let plans = [
        share(0, 3, vec![handle(send, 1, 38)]),
        share(1, 3, vec![handle(send, 2, 38)]),
        share(2, 3, vec![handle(send, 0, 38)]),
    ];
    assert_eq!(
        text(go(&plans, no_inputs(&plans), &Schedule::Program)),
        "deadlock: rank 1 never shares P2PCommunication 38 as receiver from rank 0, for which rank 0 waits in \
         line 1 (ShareMemHandles)\n\
         help: list the transfer in a ShareMemHandles on rank 1, too\n\
         each of the 3 ranks: line 1 (ShareMemHandles): waits for another rank to share P2PCommunication 38 as \
         receiver from this rank; that rank never does: it is at line 1 (ShareMemHandles), waiting for another rank"
    );
    // Each rank first shares as sender, then as receiver, which forms a cycle.
    let twice = |at: usize| {
        let mut it = RankPlanBuilder::new(at, 3, 2);
        it.on(1, InstKind::ShareMemHandles { handles: vec![handle(send, (at + 1) % 3, 38)] });
        it.on(1, InstKind::ShareMemHandles { handles: vec![handle(recv, (at + 2) % 3, 39)] });
        it.finish()
    };
    let plans: Vec<Plan> = (0..3).map(twice).collect();
    let report = text(go(&plans, no_inputs(&plans), &Schedule::Seed(3)));
    assert_eq!(
        report.lines().take(3).collect::<Vec<_>>(),
        [
            "deadlock: ranks wait for each other: 0 → 1 → 2 → 0",
            "help: let all ranks execute these statements in the same order",
            "each of the 3 ranks: line 1 (ShareMemHandles): waits for another rank to share P2PCommunication 38 as \
             receiver from this rank; that rank is at line 1 (ShareMemHandles), waiting for another rank",
        ]
    );
    Ok(())
}

#[test]
fn a_barrier_without_one_rank_hangs() {
    let plan = |rank: usize| {
        let mut it = RankPlanBuilder::new(rank, 3, 1);
        if rank != 2 {
            it.on(0, InstKind::Barrier);
        }
        it.finish()
    };
    let plans: Vec<Plan> = (0..3).map(plan).collect();
    assert_eq!(
        text(go(&plans, no_inputs(&plans), &Schedule::Program)),
        "deadlock: rank 2 never executes the 1st ShareMemHandles, where all ranks wait: rank 0 in line 1 (a \
         barrier)\n\
         rank 0 executes 1 ShareMemHandles, rank 2 executes 0\n\
         help: a ShareMemHandles waits for all ranks: execute as many on rank 2 as on rank 0\n\
         ranks 0 1: line 1 (a barrier): waits at its barrier for rank 2; rank 2 has finished"
    );
}
