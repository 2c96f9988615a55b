//! Tests of collectives of arbitrary teams.

use super::{RankPlanBuilder, floats, go, no_inputs, schedules, text, values};
use crate::{Schedule, SimError};
use grammar::words::CommunicationType;
use hir_plan::*;

const TEAM: [usize; 3] = [2, 0, 3];

fn all_gather() -> CollectiveKind {
    CollectiveKind::new(CommunicationType::Allgather, 0, ReduceOp::Sum)
}

/// Runs one collective of the team (2 0 3) in a world of four. Member m contributes `10 (m + 1) + element`.
fn collective(
    input: usize,
    output: usize,
    kind: impl Fn(usize) -> CollectiveKind,
    schedule: &Schedule,
) -> Result<Vec<Vec<f64>>, SimError> {
    let (mut plans, mut inputs) = (Vec::new(), Vec::new());
    for rank in 0..4 {
        let mut it = RankPlanBuilder::new(rank, 4, 1);
        let (from, to) = (it.input(input), it.output(output));
        let member = TEAM.iter().position(|&it| it == rank);
        inputs.push(vec![floats(
            &(0..input).map(|i| (10 * (member.unwrap_or(8) + 1) + i) as f32).collect::<Vec<_>>(),
        )]);
        if let Some(member) = member {
            let communicator = it.communicator(&TEAM);
            let work = it.collective(communicator, kind(member), Some(&from), Some(&to));
            it.wait(work);
        }
        plans.push(it.finish());
    }
    let outcome = go(&plans, inputs, schedule)?;
    Ok(TEAM.iter().map(|&it| values(&outcome, it)).collect())
}

#[test]
fn collectives_on_an_arbitrary_team() -> Result<(), SimError> {
    use CommunicationType::*;
    let of = |of, root| CollectiveKind::new(of, root, ReduceOp::Sum);
    let none = |len: usize| vec![-1.0; len];
    for schedule in schedules(20) {
        let res = collective(2, 2, |_| of(Broadcast, 1), &schedule)?;
        assert_eq!(res, vec![vec![20.0, 21.0]; 3]);
        let res = collective(1, 3, |_| of(Gather, 2), &schedule)?;
        assert_eq!(res, [none(3), none(3), vec![10.0, 20.0, 30.0]]);
        let res = collective(2, 6, |_| of(Allgather, 0), &schedule)?;
        assert_eq!(res, vec![vec![10.0, 11.0, 20.0, 21.0, 30.0, 31.0]; 3]);
        let res = collective(3, 1, |_| of(Scatter, 0), &schedule)?;
        assert_eq!(res, [[10.0], [11.0], [12.0]]);
        let res = collective(2, 2, |_| of(Reduce, 0), &schedule)?;
        assert_eq!(res, [vec![60.0, 63.0], none(2), none(2)]);
        let res = collective(2, 2, |_| of(Allreduce, 0), &schedule)?;
        assert_eq!(res, vec![vec![60.0, 63.0]; 3]);
        let res = collective(3, 1, |_| of(ReduceScatter, 0), &schedule)?;
        assert_eq!(res, [[60.0], [63.0], [66.0]]);
        let res = collective(3, 3, |_| of(AllToAll, 0), &schedule)?;
        assert_eq!(res, [[10.0, 20.0, 30.0], [11.0, 21.0, 31.0], [12.0, 22.0, 32.0]]);
        let res = collective(1, 1, |_| of(SendRecv, 1), &schedule)?;
        assert_eq!(res, [[20.0], [-1.0], [-1.0]]);
        let permute = |it| CollectiveKind::permute((it + 1) % 3, (it + 2) % 3);
        assert_eq!(collective(1, 1, permute, &schedule)?, [[30.0], [10.0], [20.0]]);
    }
    Ok(())
}

#[test]
fn mismatching_collectives_name_both_places() {
    use CommunicationType::*;
    let of = |of, root| CollectiveKind::new(of, root, ReduceOp::Sum);
    let root = |member| of(Broadcast, usize::from(member == 2));
    let res = collective(2, 2, root, &Schedule::Program).err().map(|it| it.to_string());
    assert_eq!(
        res.as_deref(),
        Some("rank 3: line 1: Broadcast from member 1; rank 2 at line 1: Broadcast from member 0")
    );
    let res = collective(2, 1, |_| of(ReduceScatter, 0), &Schedule::Program);
    assert_eq!(
        res.err().map(|it| it.to_string()).as_deref(),
        Some("rank 2: line 1: ReduceScatter (Sum) of 2 elements cannot be split equally among 3 members")
    );
    let res = collective(2, 5, |_| of(Allgather, 0), &Schedule::Program).err().map(|it| it.to_string());
    assert_eq!(
        res.as_deref(),
        Some("rank 2: line 1: Allgather delivers 6 x f32, but the output holds 5 x f32")
    );
}

#[test]
fn a_member_that_never_comes_is_named() {
    let mut plans = Vec::new();
    for rank in 0..3 {
        let mut it = RankPlanBuilder::new(rank, 3, 1);
        let (from, to) = (it.buffer(1), it.output(3));
        let communicator = it.communicator(&[0, 1, 2]);
        it.fill(0, &from, 1);
        if rank != 1 {
            let work = it.collective(communicator, all_gather(), Some(&from), Some(&to));
            it.wait(work);
        }
        plans.push(it.finish());
    }
    assert_eq!(
        text(go(&plans, no_inputs(&plans), &Schedule::Program)),
        "deadlock: rank 1 never posts the 1st collective of team (0 1 2), line 2 (Allgather) of rank 0\n\
         rank 0 posts 1 collective on this team, rank 1 posts 0\n\
         help: post it on rank 1, too, or remove it on all ranks\n\
         ranks 0 2: line 2 (Allgather) on NCCL (0 1 2): waits for rank 1; rank 1 has finished"
    );
}

#[test]
fn postings_order_a_queue_and_only_waits_order_a_stream() -> Result<(), SimError> {
    // Two broadcasts write to one buffer, and the later one wins. Without the wait, the output may be read
    // earlier.
    let plans = |waits: bool| -> Vec<Plan> {
        (0..2)
            .map(|rank| {
                let mut it = RankPlanBuilder::new(rank, 2, 1);
                let (a, b, to) = (it.buffer(1), it.buffer(1), it.output(1));
                let communicator = it.communicator(&[0, 1]);
                it.fill(0, &a, 1).fill(0, &b, 2);
                let kind = CollectiveKind::new(CommunicationType::Broadcast, 0, ReduceOp::Sum);
                it.collective(communicator, kind, Some(&a), Some(&to));
                let work = it.collective(communicator, kind, Some(&b), Some(&to));
                if waits {
                    it.wait(work);
                }
                it.finish()
            })
            .collect()
    };
    let (sound, racy) = (plans(true), plans(false));
    let mut seen = Vec::new();
    for schedule in schedules(50) {
        assert_eq!(values(&go(&sound, no_inputs(&sound), &schedule)?, 1), [2.0]);
        seen.extend(values(&go(&racy, no_inputs(&racy), &schedule)?, 1));
    }
    seen.sort_by(f64::total_cmp);
    seen.dedup();
    assert_eq!(seen, [-1.0, 1.0, 2.0]);
    Ok(())
}
