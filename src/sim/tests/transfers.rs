//! Tests of sends and receives between two ranks.

use grammar::dtype::DType;

use super::{RankPlanBuilder, go, no_inputs, ring, schedules, text, values};
use crate::{Schedule, SimError};
use hir_plan::*;

#[test]
fn transfers_among_all_pairs() -> Result<(), SimError> {
    let world = 4;
    let mut plans = Vec::new();
    for rank in 0..world {
        let mut it = RankPlanBuilder::new(rank, world, 1);
        let (given, got) = (it.buffer(world), it.output(world));
        let communicator = it.communicator(&[0, 1, 2, 3]);
        for peer in 0..world {
            it.fill(0, &View { offset: peer, ..View::contiguous(0, vec![1]) }, (10 * rank + peer) as i64);
        }
        let part = |view: &View, at: usize| View { offset: at, ..View::contiguous(view.buffer, vec![1]) };
        let parts: Vec<(View, View)> = (0..world).map(|at| (part(&given, at), part(&got, at))).collect();
        let sides: Vec<_> = (0..world)
            .flat_map(|it| [(Direction::Send, it, &parts[it].0), (Direction::Recv, it, &parts[it].1)])
            .collect();
        let work = it.transfer(communicator, &sides);
        it.wait(work);
        plans.push(it.finish());
    }
    for schedule in schedules(20) {
        let outcome = go(&plans, no_inputs(&plans), &schedule)?;
        for rank in 0..world {
            let want: Vec<f64> = (0..world).map(|it| (10 * it + rank) as f64).collect();
            assert_eq!(values(&outcome, rank), want, "{schedule}");
        }
    }
    Ok(())
}

#[test]
fn a_ring_works_as_one_transfer_and_hangs_as_two() -> Result<(), SimError> {
    for schedule in schedules(20) {
        let plans = ring(3, true);
        let outcome = go(&plans, no_inputs(&plans), &schedule)?;
        assert_eq!([values(&outcome, 0), values(&outcome, 1), values(&outcome, 2)], [[2.0], [0.0], [1.0]]);
        let plans = ring(3, false);
        assert_eq!(
            text(go(&plans, no_inputs(&plans), &schedule)),
            "deadlock: each rank sends before it receives: 0 → 1 → 2 → 0\n\
             help: put the send and the receive between StartCoalescing and EndCoalescing, or let one rank \
             receive first\n\
             each of the 3 ranks: line 2 (a send or receive) on NCCL (0 1 2): waits for another rank to receive; \
             that rank is at line 2 (a send or receive), waiting for another rank"
        );
    }
    Ok(())
}

#[test]
fn transfers_must_agree_on_size_and_type() {
    let plans = |dtype: DType, len: usize| {
        let (mut sender, mut receiver) = (RankPlanBuilder::new(0, 2, 1), RankPlanBuilder::new(1, 2, 1));
        let (given, got) = (sender.buffer(2), receiver.typed(len, dtype));
        let communicators = (sender.communicator(&[0, 1]), receiver.communicator(&[0, 1]));
        sender.transfer(communicators.0, &[(Direction::Send, 1, &given)]);
        receiver.fill(0, &got, 0).transfer(communicators.1, &[(Direction::Recv, 0, &got)]);
        [sender.finish(), receiver.finish()]
    };
    let run = |plans: [Plan; 2]| text(go(&plans, no_inputs(&plans), &Schedule::Program));
    assert_eq!(run(plans(DType::Float, 2)), "no fault");
    let message = "rank 0: line 1: sends 2 x f32, but rank 1 at line 2 receives";
    assert_eq!(run(plans(DType::Float, 3)), format!("{message} 3 x f32"));
    assert_eq!(run(plans(DType::Int32, 2)), format!("{message} 2 x i32"));
}
