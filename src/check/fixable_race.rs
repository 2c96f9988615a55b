//! A race with the edits that its help proposes, and which other races these edits remove.

use std::ops::Range;

use super::{
    edit::{Edit, InsertionPoint},
    explanation::RaceExplanation,
    finding::Finding,
    plan_index::PlanIndexes,
    race_side::{RaceSide, stream_of},
};
use hir_plan::{Plan, PlanStream, StreamNo};

/// A race with the edits that its help proposes.
pub(super) struct FixableRace<'a> {
    /// Both sides, in issue order.
    pub(super) sides: [RaceSide<'a>; 2],
    /// True if the second side is in the next run.
    between_runs: bool,
    /// True if the finding contains races of other lines.
    pub(super) has_other_lines: bool,
    /// The edits.
    pub(super) edits: Vec<Edit>,
    indexes: &'a PlanIndexes<'a>,
}

impl<'a> FixableRace<'a> {
    /// Returns `None` if the finding is not a race, or if no edit is proposed for it.
    pub(super) fn of(plans: &'a [Plan], finding: &Finding, indexes: &'a PlanIndexes<'a>) -> Option<Self> {
        let Finding::Race { race, more } = finding else { return None };
        let sides = RaceSide::in_issue_order(plans, race);
        let [first, second] = &sides;
        let edits = RaceExplanation::of(race, first, second, indexes).edits;
        let has_other_lines = more.lines.iter().any(|line| !sides.iter().any(|it| it.line() == *line));
        let between_runs = race.between_runs;
        (!edits.is_empty()).then_some(Self { sides, between_runs, has_other_lines, edits, indexes })
    }

    /// Returns the lines of the statements.
    pub(super) fn lines(&self) -> Vec<u32> {
        let mut lines: Vec<u32> =
            self.sides.iter().filter(|it| it.is_in_program()).map(RaceSide::line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// Returns whether the edits of this race also order the accesses of another race: they are the same, or
    /// the only edit waits for the same work before the edit of the other race would, and the stream that this one
    /// blocks has waited by then.
    pub(super) fn removes(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&Edit, &Edit)| a.is_same_as(b);
        if self.edits.len() == other.edits.len() && self.edits.iter().zip(&other.edits).all(is_same) {
            return true;
        }
        if other.free_edit().is_some_and(|free| self.edits.first() == Some(free)) {
            return true;
        }
        let (Some(edit), Some(wanted)) = (self.early_edit(), other.late_edit()) else { return false };
        let is_inside = |at: usize| other.insertion_range(edit).is_some_and(|it| it.contains(&at));
        edit.inserts_same_as(wanted)
            && self.rank() == other.rank()
            && self.sides[1].inst_index().is_some_and(is_inside)
            && self.blocks_before(edit, wanted, other)
    }

    /// Returns the edit that is preferred to the others.
    pub(super) fn free_edit(&self) -> Option<&Edit> {
        match self.edits.as_slice() {
            [first, _] if first.is_preferred() => Some(first),
            _ => None,
        }
    }

    /// Returns the rank, if both sides are on one.
    pub(super) fn rank(&self) -> Option<usize> {
        let [first, second] = self.sides.each_ref().map(|it| it.plan.rank);
        (first == second).then_some(first)
    }

    /// Returns the only edit, if it may order the accesses of races that come later: it inserts a statement outside of loops.
    pub(super) fn early_edit(&self) -> Option<&Edit> {
        let edit = match self.edits.as_slice() {
            [edit] => edit,
            [edit, _] if edit.is_preferred() => edit,
            _ => return None,
        };
        let [first, second] = &self.sides;
        let is_behind_post = matches!(edit.insertion(), Some(InsertionPoint::After { .. }));
        let frame = if is_behind_post { first.frame() } else { second.frame() };
        (self.rank().is_some() && second.is_in_program() && frame.is_none()).then_some(edit)
    }

    /// Returns the edit that is not needed if an earlier statement makes the same stream wait.
    pub(super) fn late_edit(&self) -> Option<&Edit> {
        let edit = match self.edits.as_slice() {
            [edit] => edit,
            [first, edit] if first.is_preferred() => edit,
            _ => return None,
        };
        let is_early = self.rank().is_some() && self.sides[0].frame().is_none();
        (is_early && !self.has_other_lines).then_some(edit)
    }

    /// Returns the instructions before which `edit`, the edit of an earlier race, may be inserted to remove this race.
    pub(super) fn insertion_range(&self, edit: &Edit) -> Option<Range<usize>> {
        let [first, second] = &self.sides;
        if self.between_runs {
            return (!self.edits[0].is_at_end()).then_some(0..second.inst_index()?);
        }
        // The work for which the edit waits must be complete, or known to the awaited stream, where the
        // statement is inserted.
        let done = match edit {
            Edit::InsertSynchronize { .. } if first.is_posted() => {
                first.first_wait(self.indexes.of(first.plan.rank))
            }
            Edit::InsertSynchronize { .. }
            | Edit::CaptureEntryStream { .. }
            | Edit::InsertWait { .. }
            | Edit::MoveWait { .. }
            | Edit::SynchronizeOnStream { .. }
            | Edit::WaitOnStream { .. }
            | Edit::MoveDeallocate { .. }
            | Edit::MoveAllocate { .. }
            | Edit::ShortenAllocate { .. } => first.inst_index(),
        };
        let end = if self.edits[0].is_at_end() { Some(usize::MAX) } else { second.inst_index() };
        Some(done? + 1..end?)
    }

    /// Returns whether the stream that `wanted` blocks waits, where `wanted` is inserted, for the stream that `edit`
    /// blocks: it is the same stream, or it waits for that stream in between.
    fn blocks_before(&self, edit: &Edit, wanted: &Edit, other: &Self) -> bool {
        let [_, second] = &self.sides;
        let Some((blocked, waiting)) = edit.blocked_stream().zip(wanted.blocked_stream()) else {
            return false;
        };
        let plan = second.plan;
        let number = |wanted: &PlanStream| plan.streams.iter().position(|it| it == wanted);
        let ordered = || {
            let at = second.inst_index().filter(|at| stream_of(plan, *at) == blocked)?;
            let wait = self.indexes.of(plan.rank).first_stream_wait(at, number(waiting)? as StreamNo)?;
            other.sides[1].inst_index().filter(|end| wait < *end)
        };
        blocked == waiting || ordered().is_some()
    }
}
