//! The edits of a communication for which nothing waits, if statements on several streams use its operands: a second Wait for it is an
//! error (E0411), so that one Wait has to order all of them.

use rustc_hash::FxHashSet;

use super::{
    overlap::Footprint,
    plan_index::PlanIndex,
    race_side::{RaceSide, stream_of},
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
};
use hir_plan::{CostClass, InstKind, Plan, StreamNo};

/// The maximum number of later uses of a buffer that are examined for one race.
const MAX_USES: usize = 64;

/// Returns the edits that order `second` after the communication that `first` posts, and for which nothing waits. Returns `None` if
/// statements on one stream use its operands, or if the Wait would be in a loop without the post.
///
/// If the streams wait for that of the post behind the post, the stream of the post waits before that. This is preferred, unless that
/// stream also has other work then, which would start later. The alternative: the first of the statements waits, and the
/// streams of the others wait for its stream.
pub fn edits_of_readers(
    first: &RaceSide<'_>,
    second: &RaceSide<'_>,
    index: PlanIndex<'_>,
) -> Option<Vec<Repair>> {
    let (plan, post) = (index.plan(), first.inst_index()?);
    let is_unawaited = first.communication().is_some() && first.first_wait(index).is_none();
    if !is_unawaited || !second.is_in_program() || second.frees() {
        return None;
    }
    let users = users_of(post, index);
    let streams: FxHashSet<StreamNo> = users.iter().map(|it| plan.code[*it].stream).collect();
    let earliest = *users.first()?;
    if streams.len() < 2 || !users.contains(&second.inst_index()?) {
        return None;
    }
    let is_in_loop = frame_of(plan, earliest) != first.frame();
    let mut edits = Vec::new();
    if let Some(behind) = fork_of(post, &users, index) {
        let statement = NamedStmt::from_origin(plan, plan.code[behind].origin);
        let communication = NamedStmt::from_origin(plan, first.origin);
        let before = InsertionPoint::After { statement, current: stream_of(plan, post).clone() };
        edits.push(Repair::InsertWait { communication, before });
    }
    if is_in_loop && edits.is_empty() {
        return None;
    }
    // The stream of the later statement may wait for that of the first one already.
    let last = second.inst_index()?;
    let joined = index.first_stream_wait(earliest, plan.code[last].stream).is_some_and(|it| it < last);
    edits.push(if is_in_loop || joined || stream_of(plan, earliest) == second.stream() {
        let statement = NamedStmt::from_origin(plan, plan.code[earliest].origin);
        let before = InsertionPoint::Before { statement, current: Some(stream_of(plan, earliest).clone()) };
        Repair::insert_wait(index, first.origin, before, frame_of(plan, earliest))
    } else {
        let before = InsertionPoint::before(second);
        Repair::InsertSynchronize { stream: WaitedStream::of(plan, Some(earliest)), before }
    });
    Some(edits)
}

fn frame_of(plan: &Plan, at: usize) -> Option<u32> {
    plan.origins[plan.code[at].origin as usize].iteration
}

/// Returns the instructions behind a post, in its iteration or in loops in it, that access elements which the communication writes, or write elements which it
/// reads. Later communications of its communicator follow it.
fn users_of(post: usize, index: PlanIndex<'_>) -> Vec<usize> {
    let plan = index.plan();
    let around = |frame| std::iter::successors(frame, |it: &u32| plan.iterations[*it as usize].parent);
    let posted = frame_of(plan, post);
    let is_inside = |at: usize| posted.is_none_or(|posted| around(frame_of(plan, at)).any(|it| it == posted));
    let queue = |at: usize| plan.code[at].kind.communication().map(|it| it.communicator());
    let mut found = Vec::new();
    for operand in plan.code[post].kind.accesses(plan.rank) {
        let Some(footprint) = Footprint::of(operand.view) else { continue };
        let uses = index.own_uses(operand.view.buffer);
        let later = uses[uses.partition_point(|it| *it <= post)..].iter().take(MAX_USES);
        found.extend(later.copied().filter(|at| {
            let conflicts = index.own_accesses(*at, operand.view.buffer).any(|it| {
                (operand.is_write || it.is_write)
                    && Footprint::of(it.view).is_some_and(|it| it.overlaps(&footprint))
            });
            let is_queued = queue(*at).is_some_and(|it| Some(it) == queue(post));
            conflicts && !is_queued && is_inside(*at) && stream_of(plan, *at).is_in_program()
        }));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the last instruction of the stream of a post, in its iteration, behind which a Wait orders all `users` of the communication:
/// their streams wait for this stream later. Returns `None` if there is none, or if the stream has other work before it joins one of these.
fn fork_of(post: usize, users: &[usize], index: PlanIndex<'_>) -> Option<usize> {
    let plan = index.plan();
    let own = plan.code[post].stream;
    let is_own = |at: &usize| plan.code[*at].stream == own;
    let others = users.iter().filter(|it| !is_own(it));
    let mut others = others.map(|at| (*at, index.first_wait_for_stream((own, post), plan.code[*at].stream)));
    if !others.all(|(at, wait)| wait.is_some_and(|wait| wait < at)) {
        return None;
    }
    let own_use = users.iter().copied().find(is_own);
    let is_record = |at: &usize| is_own(at) && matches!(plan.code[*at].kind, InstKind::RecordEvent { .. });
    let end = (post..own_use.unwrap_or(plan.code.len())).find(is_record).or(own_use)?;
    let behind = (post..end).rev().find(|at| is_own(at) && frame_of(plan, *at) == frame_of(plan, post))?;
    let later = plan.code.iter().enumerate().skip(behind + 1).take(MAX_LATER).filter(|it| it.1.stream == own);
    let mut until_join = later.take_while(|(at, it)| {
        !matches!(it.kind, InstKind::WaitEvent { .. }) && own_use.is_none_or(|own_use| *at < own_use)
    });
    let is_work = |it: &hir_plan::Inst| it.kind.cost_info().class == CostClass::Compute;
    (!until_join.any(|it| is_work(it.1))).then_some(behind)
}

/// The maximum number of later instructions among which work of the stream of a post is searched.
const MAX_LATER: usize = 4_096;
