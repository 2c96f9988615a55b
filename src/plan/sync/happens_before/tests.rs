//! Tests of the happens-before order with plans built by hand.

use std::ops::ControlFlow;

use grammar::CommunicationType;

use super::{InstRef, Occurrence, OrderError, World, walk, walk_ignoring};
use crate::{
    Backend, Collective, CollectiveKind, Communicator, Direction, Inst, InstKind, Number, P2pGroup, P2pOp,
    Plan, PlanStream, ReduceOp, SignalId, SignalKind, View,
};

/// Returns a rank's plan with instructions on streams. It has one communicator, of all ranks.
fn plan(rank: usize, world: usize, code: Vec<(u32, InstKind)>) -> Plan {
    let streams = code.iter().map(|it| it.0 + 1).max().unwrap_or(1);
    Plan {
        communicators: vec![Communicator {
            backend: Backend::Nccl,
            team: (0..world).collect(),
            pair_of: None,
        }],
        code: code.into_iter().map(|(stream, kind)| Inst { kind, stream, origin: 0 }).collect(),
        event_count: 8,
        work_count: 8,
        ..Plan::empty(rank, world, (0..i64::from(streams)).map(PlanStream::Indexed).collect())
    }
}

fn view(len: usize) -> View {
    View::contiguous(0, vec![len])
}

fn fill() -> InstKind {
    InstKind::Fill { to: Box::new(view(1)), value: Number::Int(0) }
}

fn collective(kind: CollectiveKind, work: u32, gets: Option<usize>) -> InstKind {
    let output = gets.map(view);
    InstKind::Collective(Box::new(Collective { communicator: 0, kind, input: Some(view(1)), output, work }))
}

fn transfer(work: u32, sides: &[(Direction, usize, usize)]) -> InstKind {
    let side = |&(direction, peer, len): &(Direction, usize, usize)| P2pOp {
        direction,
        peer,
        view: view(len),
        origin: 0,
    };
    InstKind::P2pGroup(P2pGroup {
        communicator: 0,
        ops: sides.iter().map(side).collect(),
        is_coalesced: true,
        work,
    })
}

/// An instruction: rank and index.
type At = (usize, usize);

/// The visits of a walk.
struct Walked(Vec<Occurrence>);

impl Walked {
    fn of(plans: &[Plan]) -> Result<Self, OrderError> {
        let mut all = Vec::new();
        walk(&World::new(plans.to_vec()), &mut |it| all.push(it))?;
        Ok(Self(all))
    }

    /// Returns whether one instruction happens before another. Both must have been visited.
    fn before(&self, a: At, b: At) -> bool {
        let at = |it: At| {
            self.0
                .iter()
                .position(|occurrence| (occurrence.rank, occurrence.inst) == it)
                .unwrap_or(usize::MAX)
        };
        self.0[at(a)].happens_before(&self.0[at(b)])
    }
}

fn ordered(plans: &[Plan], pairs: &[(At, At)]) -> Result<Vec<bool>, OrderError> {
    let walked = Walked::of(plans)?;
    Ok(pairs.iter().map(|(a, b)| walked.before(*a, *b)).collect())
}

#[test]
fn events_order_streams() -> Result<(), OrderError> {
    let record = InstKind::RecordEvent { event: 0 };
    let join = || InstKind::WaitEvent { event: 0 };
    let code = vec![(0, fill()), (1, fill()), (0, record), (0, fill()), (1, join()), (1, fill())];
    let plans = [plan(0, 1, code)];
    let pairs = [((0, 0), (0, 3)), ((0, 3), (0, 0)), ((0, 0), (0, 1)), ((0, 0), (0, 5)), ((0, 3), (0, 5))];
    assert_eq!(ordered(&plans, &pairs)?, [true, false, false, true, false]);
    // A wait has no effect on an event that is recorded only later.
    let code = vec![(1, join()), (1, fill()), (0, fill()), (0, InstKind::RecordEvent { event: 0 })];
    assert_eq!(ordered(&[plan(0, 1, code)], &[((0, 2), (0, 1))])?, [false]);
    Ok(())
}

#[test]
fn without_its_wait_nothing_orders_two_streams() -> Result<(), OrderError> {
    let record = InstKind::RecordEvent { event: 0 };
    let code = vec![(0, fill()), (0, record), (1, InstKind::WaitEvent { event: 0 }), (1, fill())];
    let world = World::new(vec![plan(0, 1, code)]);
    for (dropped, is_ordered) in [(None, true), (Some(0), true), (Some(1), false), (Some(2), false)] {
        let mut all = Vec::new();
        let is_dropped = |at: InstRef| Some(at.inst) == dropped;
        let mut visit = |it| {
            all.push(it);
            ControlFlow::Continue(())
        };
        assert_eq!(walk_ignoring(&world, &is_dropped, &mut visit)?, ControlFlow::Continue(()));
        // Dropped instructions are still visited, so numbers do not change.
        assert_eq!(all.len(), 4, "{dropped:?}");
        assert_eq!(Walked(all).before((0, 0), (0, 3)), is_ordered, "{dropped:?}");
    }
    Ok(())
}

#[test]
fn queues_follow_postings_and_streams_follow_waits() -> Result<(), OrderError> {
    let op = ReduceOp::Sum;
    let post = |work| collective(CollectiveKind::new(CommunicationType::Allreduce, 0, op), work, Some(1));
    let code = vec![
        (0, fill()),
        (0, post(0)),
        (0, fill()),
        (1, post(1)),
        (1, fill()),
        (0, InstKind::Wait { work: 0 }),
        (0, fill()),
        (1, InstKind::Wait { work: 1 }),
        (1, fill()),
    ];
    let at = |inst| (0, inst);
    let pairs = [
        // The stream continues after a post, and the queue does not begin before it.
        (at(0), at(1)),
        (at(1), at(2)),
        (at(1), at(6)),
        (at(2), at(3)),
        // Both use one queue: the second follows the first, whichever streams post them.
        (at(1), at(3)),
        (at(3), at(6)),
        (at(1), at(8)),
        (at(4), at(3)),
        (at(2), at(8)),
    ];
    let expected = [true, false, true, false, true, false, true, false, false];
    assert_eq!(ordered(&[plan(0, 1, code)], &pairs)?, expected);
    Ok(())
}

#[test]
fn flags_order_ranks_and_hosts_do_not() -> Result<(), OrderError> {
    let signal = |from, to| SignalId { from, to, kind: SignalKind::Ready, index: 0 };
    let first = vec![(0, fill()), (0, InstKind::Signal { signal: signal(0, 1) }), (0, fill())];
    let second = vec![
        (0, fill()),
        (0, InstKind::WaitSignal { signal: signal(0, 1) }),
        (0, InstKind::Signal { signal: signal(1, 2) }),
        (0, fill()),
    ];
    let third = vec![(0, InstKind::WaitSignal { signal: signal(1, 2) }), (0, fill())];
    let plans = [plan(0, 3, first), plan(1, 3, second), plan(2, 3, third)];
    let pairs = [
        ((0, 0), (1, 3)),
        ((0, 0), (1, 0)),
        ((0, 2), (1, 3)),
        ((0, 0), (2, 1)),
        ((1, 3), (2, 1)),
        ((2, 1), (0, 0)),
    ];
    assert_eq!(ordered(&plans, &pairs)?, [true, false, false, true, false, false]);

    let code = || {
        vec![
            (0, fill()),
            (0, InstKind::Barrier),
            (0, InstKind::ShareMemHandles { handles: Vec::new() }),
            (0, fill()),
        ]
    };
    let plans = [plan(0, 2, code()), plan(1, 2, code())];
    assert_eq!(ordered(&plans, &[((0, 0), (1, 3)), ((0, 0), (0, 3))])?, [false, true]);
    Ok(())
}

/// Returns, for each of three members, the members whose instructions before a collective happen before its
/// own instructions after it, as digits.
fn known(
    kind: impl Fn(usize) -> CollectiveKind,
    gets: impl Fn(usize) -> Option<usize>,
) -> Result<[String; 3], OrderError> {
    let code = |rank| {
        vec![
            (0, fill()),
            (0, collective(kind(rank), 0, gets(rank))),
            (0, InstKind::Wait { work: 0 }),
            (0, fill()),
        ]
    };
    let plans: Vec<Plan> = (0..3).map(|rank| plan(rank, 3, code(rank))).collect();
    let walked = Walked::of(&plans)?;
    let of =
        |me: usize| (0..3).filter(|it| walked.before((*it, 0), (me, 3))).map(|it| it.to_string()).collect();
    Ok([0, 1, 2].map(of))
}

#[test]
fn members_wait_for_those_whose_data_they_get() -> Result<(), OrderError> {
    use CommunicationType::*;
    let of = |of, root| CollectiveKind::new(of, root, ReduceOp::Sum);
    let all = |_| Some(3);
    let one = |member| move |rank| (rank == member).then_some(3);
    assert_eq!(known(|_| of(Broadcast, 1), all)?, ["01", "1", "12"]);
    assert_eq!(known(|_| of(Scatter, 1), all)?, ["01", "1", "12"]);
    assert_eq!(known(|_| of(Gather, 1), one(1))?, ["0", "012", "2"]);
    assert_eq!(known(|_| of(Reduce, 2), one(2))?, ["0", "1", "012"]);
    for kind in [Allgather, Allreduce, ReduceScatter, AllToAll].map(|it| of(it, 0)) {
        assert_eq!(known(|_| kind, all)?, ["012", "012", "012"]);
        // No data arrives if there is nothing to send.
        assert_eq!(known(|_| kind, |_| Some(0))?, ["0", "1", "2"]);
    }
    let ring = |rank| CollectiveKind::permute((rank + 1) % 3, (rank + 2) % 3);
    assert_eq!(known(ring, all)?, ["02", "01", "12"]);
    assert_eq!(known(|_| of(SendRecv, 0), one(1))?, ["0", "01", "2"]);
    Ok(())
}

#[test]
fn receives_follow_the_sends_they_match() -> Result<(), OrderError> {
    use Direction::{Recv, Send};
    let wait = |work| (0, InstKind::Wait { work });
    let first = vec![
        (0, fill()),
        (0, transfer(0, &[(Send, 1, 1)])),
        (0, fill()),
        (0, transfer(1, &[(Send, 1, 1), (Recv, 1, 1)])),
        wait(1),
        (0, fill()),
    ];
    let second = vec![
        (0, fill()),
        (0, transfer(0, &[(Recv, 0, 1)])),
        wait(0),
        (0, fill()),
        (0, transfer(1, &[(Recv, 0, 1), (Send, 0, 1)])),
        wait(1),
        (0, fill()),
    ];
    let plans = [plan(0, 2, first), plan(1, 2, second)];
    let pairs = [
        ((0, 0), (1, 3)),
        ((0, 2), (1, 3)),
        ((0, 2), (1, 6)),
        ((1, 3), (0, 5)),
        ((1, 0), (0, 2)),
        ((1, 4), (0, 5)),
    ];
    assert_eq!(ordered(&plans, &pairs)?, [true, false, true, true, false, false]);
    Ok(())
}

#[test]
fn what_has_no_end_has_no_order() {
    let signal = SignalId { from: 1, to: 0, kind: SignalKind::Done, index: 7 };
    let error = |plans: Vec<Plan>| walk(&World::new(plans), &mut |_| ()).err();
    let plans = vec![plan(0, 2, vec![(0, InstKind::WaitSignal { signal })]), plan(1, 2, vec![(0, fill())])];
    assert_eq!(error(plans), Some(OrderError::Deadlock));
    let one_sided =
        vec![plan(0, 2, vec![(0, transfer(0, &[(Direction::Recv, 1, 1)]))]), plan(1, 2, Vec::new())];
    assert_eq!(error(one_sided), Some(OrderError::Deadlock));
    assert_eq!(error(vec![plan(0, 1, vec![(20_000, fill())])]), Some(OrderError::TooLarge));
    assert_eq!(error(Vec::new()), None);
}
