//! Whether a Wait that moves up makes ranks wait for each other: such an edit is no way out.

use std::cell::Cell;

use grammar::StmtId;
use hir_plan::{Plan, PlanStream, StreamNo, World};

use super::{
    plan_index::PlanIndexes,
    repair::{InsertionPoint, Repair},
};

/// The maximum number of instructions that are executed for all helps of a report.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// Returns whether ranks wait for each other if an edit moves a Wait up as it says. The plans must not deadlock without the edit. `executed` is
/// the number of instructions that were executed for other helps.
pub fn deadlocks(plans: &[Plan], edit: &Repair, indexes: &PlanIndexes<'_>, executed: &Cell<usize>) -> bool {
    let (moved, stream) = match edit {
        Repair::OnStream { blocked, repair } => (&**repair, Some(blocked)),
        other => (other, None),
    };
    let Repair::MoveWait { wait: Some(wait), before: InsertionPoint::Before { statement, .. }, .. } = moved
    else {
        return false;
    };
    let count = executed.get() + plans.iter().map(|it| it.code.len()).sum::<usize>();
    let Some(place) = statement.stmt.filter(|_| plans.len() > 1 && count <= MAX_INSTRUCTIONS) else {
        return false;
    };
    executed.set(count);
    let moved = plans.iter().map(|plan| moved_up(plan, (*wait, stream), place, indexes));
    World::new(moved.collect()).deadlocked_state().is_some()
}

/// Returns a plan in which each execution of a Wait is before the last execution of another statement before it, on a stream, or on that of
/// this statement.
fn moved_up(
    plan: &Plan,
    (wait, stream): (StmtId, Option<&PlanStream>),
    place: StmtId,
    indexes: &PlanIndexes<'_>,
) -> Plan {
    let number = plan.streams.iter().position(|it| Some(it) == stream).map(|it| it as StreamNo);
    let index = indexes.of(plan.rank);
    let mut plan = plan.clone();
    let places = index.of_stmt(place);
    for at in index.of_stmt(wait) {
        let Some(last) = places.partition_point(|it| it < at).checked_sub(1).map(|it| places[it]) else {
            continue;
        };
        let origin = plan.code[last].origin;
        let is_other = |it: &usize| plan.code[*it].origin != origin;
        let first = (0..last).rev().find(is_other).map_or(0, |it| it + 1);
        // What follows an instruction that moves up is one place further down.
        plan.code[*at].stream = number.unwrap_or(plan.code[first].stream);
        plan.code[first..=*at].rotate_right(1);
    }
    plan
}
