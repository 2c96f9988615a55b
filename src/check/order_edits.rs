//! The edits by which a communication follows an earlier one: a transfer over peer memory the one before that has its semaphore, and a
//! kernel of NCCL the kernel of another communicator.

use super::{
    execution_fault::{ExecutionFault, ExecutionFaultKind},
    plan_index::PlanIndex,
    race_side::stream_of,
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
};
use hir_plan::{InstKind, Plan, PlanStream, SignalId, SignalKind, sync::CommOrderEdge};

/// Returns the edit that removes a fault of a transfer that is posted again: the rank that posts waits for the end of the first transfer;
/// the copying rank has a stream wait for its first copy. If the next run posts it, the wait is at the end of the run, or in the next one.
/// `index` is that of the plan of the rank.
pub(super) fn edit_of_semaphore(fault: &ExecutionFault, index: PlanIndex<'_>) -> Option<Repair> {
    let plan = index.plan();
    let [earlier, later] = fault.again?;
    let ended = match &plan.code[earlier].kind {
        InstKind::Signal { .. } | InstKind::WaitSignal { .. }
            if !stream_of(plan, earlier).is_in_program() =>
        {
            index.first_wait_for(earlier)
        }
        InstKind::Signal { signal } => index.signal_wait(end_of(*signal)?),
        InstKind::WaitSignal { signal } => index.signal(end_of(*signal)?),
        _ => return None,
    };
    if fault.kind != (ExecutionFaultKind::PostedAgain { between_runs: true }) {
        return Some(follow(index, earlier, ended, later));
    }
    Some(match ended {
        Some(ended) => follow_in_next_run((index, ended), (stream_of(plan, later), before(plan, later))),
        None => wait_for_next_run(index, earlier, later),
    })
}

/// Returns the edit by which a rank starts two kernels in the order in which it issues them, if nothing orders them. `index` is that of
/// the plan of the rank.
pub(super) fn edit_of_kernels(edge: &CommOrderEdge, index: PlanIndex<'_>) -> Option<Repair> {
    let (earlier, later) = (edge.second.inst, edge.first.inst);
    let plan = index.plan();
    let [later_run, earlier_run] = edge.runs;
    edge.is_swapped().then(|| {
        if earlier_run == later_run {
            follow(index, earlier, index.first_wait_for(earlier), later)
        } else {
            match index.first_wait_for(earlier) {
                None => wait_for_next_run(index, earlier, later),
                Some(_) => edit_in_next_run(index, earlier, (stream_of(plan, later), before(plan, later))),
            }
        }
    })
}

/// Returns the edit that lets the stream `waiting` of the next run wait, before one of its instructions, for the communication `earlier` of
/// this run. `index` is that of the plan of this run.
pub(super) fn edit_in_next_run(
    index: PlanIndex<'_>,
    earlier: usize,
    place: (&PlanStream, InsertionPoint),
) -> Repair {
    let plan = index.plan();
    match index.first_wait_for(earlier) {
        Some(awaited) => follow_in_next_run((index, awaited), place),
        None => Repair::insert_wait(index, plan.code[earlier].origin, InsertionPoint::end(plan), None),
    }
}

/// Returns the edit that waits for the communication `earlier` so that the instruction `later` of the next run follows it: on the stream of
/// `later`, if this stream does not wait in the next run for the stream that is current at entry, which follows the end of this run.
pub(super) fn wait_for_next_run(index: PlanIndex<'_>, earlier: usize, later: usize) -> Repair {
    let plan = index.plan();
    let origin = plan.code[earlier].origin;
    let (posts, waiting) = (stream_of(plan, earlier), stream_of(plan, later));
    let entry = plan.code.iter().position(|it| it.stream == 0 && !it.kind.effect().runs_on_host());
    let waited = entry.and_then(|it| index.first_stream_wait(it, plan.code[later].stream));
    let follows_entry = *waiting == PlanStream::Entry || waited.is_some_and(|it| it < later);
    if follows_entry || !waiting.is_in_program() {
        return Repair::insert_wait(index, origin, InsertionPoint::end(plan), None);
    }
    let statement = NamedStmt::from_origin(plan, origin);
    let behind = InsertionPoint::After { statement: statement.clone(), current: posts.clone() };
    if posts != waiting {
        return Repair::InsertWait { communication: statement, before: behind }.on_stream(waiting, &|_| true);
    }
    Repair::insert_wait(index, origin, behind, plan.origins[origin as usize].iteration)
}

/// Returns the edit that lets the stream `waiting` of the next run wait, before one of its instructions, for the instruction `awaited` of this
/// run. `index` is that of the plan of this run.
pub(super) fn follow_in_next_run(
    (index, awaited): (PlanIndex<'_>, usize),
    (waiting, before): (&PlanStream, InsertionPoint),
) -> Repair {
    let plan = index.plan();
    let exit = plan.exit().map(|it| plan.code[it].stream);
    let stream = WaitedStream::from_stream(stream_of(plan, awaited), None);
    if *waiting == PlanStream::Entry {
        // The next run begins behind the end of this one.
        Repair::InsertSynchronize { stream, before: InsertionPoint::end(plan) }
    } else if exit.is_some_and(|exit| index.first_stream_wait(awaited, exit).is_some()) {
        Repair::synchronize_with_entry(before)
    } else {
        Repair::InsertSynchronize { stream, before }
    }
}

/// Returns the place before an instruction.
pub(super) fn before(plan: &Plan, inst: usize) -> InsertionPoint {
    let current = Some(stream_of(plan, inst)).filter(|it| it.is_in_program()).cloned();
    InsertionPoint::Before { statement: NamedStmt::from_origin(plan, plan.code[inst].origin), current }
}

/// Returns the edit that lets the stream of an instruction wait for an earlier one. `ended` is the instruction that follows the end of the
/// earlier one on a stream of the program.
fn follow(index: PlanIndex<'_>, earlier: usize, ended: Option<usize>, later: usize) -> Repair {
    let plan = index.plan();
    let before = before(plan, later);
    match ended {
        None => {
            let frame = plan.origins[plan.code[later].origin as usize].iteration;
            Repair::insert_wait(index, plan.code[earlier].origin, before, frame)
        }
        Some(at) if at < later => {
            Repair::InsertSynchronize { stream: WaitedStream::of(plan, Some(at)), before }
        }
        Some(at) => Repair::move_wait(plan, at, before),
    }
}

/// Returns the signal by which the transfer ends that `posted` posts.
fn end_of(posted: SignalId) -> Option<SignalId> {
    let kind = match posted.kind {
        SignalKind::Ready => SignalKind::Done,
        SignalKind::PutReady => SignalKind::PutDone,
        SignalKind::Done
        | SignalKind::PutDone
        | SignalKind::TeamReady(_)
        | SignalKind::TeamDone(_)
        | SignalKind::TeamData(_)
        | SignalKind::TeamResult(_) => return None,
    };
    Some(SignalId { from: posted.to, to: posted.from, kind, index: posted.index })
}
