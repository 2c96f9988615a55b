//! A race with the edits that its help proposes, and which other races these edits remove.

use std::{borrow::Cow, ops::Range};

use super::{
    conflict::{Party, Race},
    editable_text::EditableText,
    explanation::RaceExplanation,
    finding::Finding,
    plan_index::PlanIndexes,
    race_side::{RaceSide, stream_of},
    repair::{InsertionPoint, Repair},
};
use grammar::StmtId;
use hir_plan::{Inst, InstKind, Plan, PlanStream, StreamNo};

/// A race with the edits that its help proposes.
pub(super) struct FixableRace<'a> {
    /// Both sides, in issue order.
    pub(super) sides: [RaceSide<'a>; 2],
    /// True if the second side is in the next run.
    between_runs: bool,
    /// The edits.
    pub(super) edits: Vec<Repair>,
    /// The line before which the last edit inserts a Wait, if that is in no loop or branch: all ranks execute it.
    wait_line: Option<u32>,
    /// The races of the same lines, on all ranks and in all iterations.
    occurrences: &'a [Race],
    plans: &'a [Plan],
    /// With the queues of the race.
    indexes: PlanIndexes<'a>,
}

/// The maximum number of executions of a statement in loops that are looked at.
const MAX_EXECUTIONS: usize = 64;

/// The maximum number of occurrences of a finding whose edits are compared.
const MAX_OCCURRENCES: usize = 16;

/// Which of several races that the same edits remove is reported: the first one in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Priority {
    /// One with an ALLOCATE says less than others.
    allocates: bool,
    /// One of a single statement says less than others.
    is_of_one: bool,
    /// Of several statements that use the operands of a communication, the first one is named: its instruction.
    use_of_operands: usize,
}

impl Priority {
    /// Returns whether it says less than a race of two statements.
    pub(super) fn is_minor(self) -> bool {
        self.allocates || self.is_of_one
    }
}

impl<'a> FixableRace<'a> {
    /// Returns `None` if the finding is not a race, or if no edit is proposed for it.
    /// `text` is that of a rank, if it is known.
    pub(super) fn of<'t>(
        plans: &'a [Plan],
        finding: &'a Finding,
        indexes: &'a PlanIndexes<'a>,
        text: &dyn Fn(usize) -> Option<&'t EditableText>,
    ) -> Option<Self> {
        let (race, more) = finding.race()?;
        let sides = RaceSide::in_issue_order(plans, race);
        let [first, second] = &sides;
        let indexes = indexes.with_queues(race.p2p);
        let edits = RaceExplanation::of(race, first, second, &indexes).edits;
        let last = edits.last()?;
        let wait_line = text(first.plan.rank)
            .filter(|_| first.plan.rank == second.plan.rank)
            .and_then(|text| text.line_of_wait(last));
        let (between_runs, occurrences) = (race.between_runs, more.races.as_slice());
        Some(Self { sides, between_runs, edits, wait_line, occurrences, plans, indexes })
    }

    /// Returns a finding over storage with that occurrence first whose edits order all of them, if the edits of the first one do not.
    pub(super) fn with_edits_of_all<'f, 't>(
        plans: &[Plan],
        finding: &'f Finding,
        indexes: &PlanIndexes<'_>,
        text: &dyn Fn(usize) -> Option<&'t EditableText>,
    ) -> Cow<'f, Finding> {
        let Finding::Race { race, more } = finding else { return Cow::Borrowed(finding) };
        let orders_all = |it: &Finding| {
            let race = FixableRace::of(plans, it, indexes, text)?;
            Some(race.free_edit().is_some() || race.edits.iter().all(|edit| race.orders(edit, &race)))
        };
        if race.reused.is_none() || more.races.len() < 2 || orders_all(finding) != Some(false) {
            return Cow::Borrowed(finding);
        }
        let others = more.races.iter().filter(|it| *it != race).take(MAX_OCCURRENCES);
        let mut others = others.map(|it| Finding::Race { race: *it, more: more.clone() });
        others.find(|it| orders_all(it) == Some(true)).map_or(Cow::Borrowed(finding), Cow::Owned)
    }

    /// Returns which of several races that the same edits remove is reported.
    pub(super) fn priority(&self) -> Priority {
        let [first, second] = &self.sides;
        let is_of_two = first.is_in_program() && second.is_in_program() && first.line() != second.line();
        let use_of_operands = self.free_edit().and(second.inst_index()).unwrap_or(0);
        Priority { allocates: first.allocates(), is_of_one: !is_of_two, use_of_operands }
    }

    /// Returns the edit that is made, and the line before which it inserts a Wait or behind which, if that is a Wait that all ranks execute.
    pub(super) fn wait(&self) -> Option<(&Repair, u32)> {
        match self.free_edit() {
            Some(free) => self.behind_post(free).map(|_| (free, self.sides[0].line())),
            None => self.edits.last().zip(self.wait_line),
        }
    }

    /// Returns the statement behind which an edit inserts a Wait, if that is in no loop.
    fn behind_post(&self, edit: &Repair) -> Option<StmtId> {
        let Some(InsertionPoint::After { statement, .. }) = edit.insertion() else { return None };
        statement.stmt.filter(|_| self.sides[0].frame().is_none())
    }

    /// Returns the instruction of a rank before which it executes the Wait of an edit, if all ranks execute it once.
    fn wait_place(&self, edit: &Repair, plan: &Plan) -> Option<usize> {
        if let Some(stmt) = self.behind_post(edit) {
            return Some(self.indexes.of(plan.rank).of_stmt(stmt).last()? + 1);
        }
        let line = self.wait_line.filter(|_| Some(edit) == self.edits.last())?;
        let is_above = |it: &Inst| {
            !matches!(it.kind, InstKind::ReadOutputs) && plan.origins[it.origin as usize].line < line
        };
        Some(plan.code.partition_point(is_above))
    }

    /// Returns whether the edits of this race also order the accesses of another race, whichever of them is made: the edit is one of the
    /// other race, or it waits for the same work behind the earlier access and before the later one, and the stream that it blocks
    /// executes the later access, or has been awaited by then.
    pub(super) fn removes(&self, other: &Self) -> bool {
        let proposed = self.free_edit().map_or(self.edits.as_slice(), std::slice::from_ref);
        let is_placed = |edit: &Repair, same: &Repair| self.stays_in_loop(edit) || !other.stays_in_loop(same);
        let is_own = |edit: &Repair| other.edits.iter().any(|it| edit.is_same_as(it) && is_placed(edit, it));
        proposed.iter().all(|edit| is_own(edit) || self.orders(edit, other))
    }

    /// Returns whether an edit of this race orders the accesses of another one.
    fn orders(&self, edit: &Repair, other: &Self) -> bool {
        if let Repair::ShortenAllocate { allocate } = edit {
            let [first, _] = &other.sides;
            return first.allocates() && first.plan.origins[first.origin as usize].stmt == *allocate;
        }
        let Some(wanted) = other.late_edit() else { return false };
        if self.is_varied(edit) {
            return self.rank() == other.rank() && self.orders_accesses(edit, wanted, &other.sides, other);
        }
        other.occurrences.iter().all(|race| {
            let sides = RaceSide::in_issue_order(self.plans, race);
            self.orders_accesses(edit, wanted, &sides, other)
        })
    }

    /// Returns whether an edit of this race orders the accesses of an occurrence of another one, for which `wanted` is proposed.
    fn orders_accesses(
        &self,
        edit: &Repair,
        wanted: &Repair,
        sides: &[RaceSide<'_>; 2],
        other: &Self,
    ) -> bool {
        let [first, second] = sides;
        let plan = second.plan;
        let is_known = first.plan.rank == plan.rank && plan.program_id == self.sides[1].plan.program_id;
        // The edit is made for each stream that executes the earlier statement.
        let mut awaited = self.awaited_streams();
        let is_repeated = awaited.any(|it| it == first.stream());
        let Some(range) = other.range(sides, edit, is_repeated).filter(|_| is_known) else { return false };
        let Some(blocked) = wanted.blocked_stream() else { return false };
        let waiting = if blocked == other.sides[1].stream() { second.stream() } else { blocked };
        let number =
            |stream: &PlanStream| plan.streams.iter().position(|it| it == stream).map(|it| it as StreamNo);
        let index = other.indexes.of(plan.rank);
        let is_before = |wait: &usize| second.inst_index().is_some_and(|end| *wait < end);
        if let Some(at) = self.wait_place(edit, plan) {
            let joined = |it: &PlanStream| {
                index.first_wait_for_stream((number(it)?, at.checked_sub(1)?), number(waiting)?)
            };
            let joins = |it: &PlanStream| it == waiting || joined(it).as_ref().is_some_and(is_before);
            return edit.inserts_same_as(wanted)
                && range.contains(&at)
                && edit.blocked_stream().is_some_and(joins);
        }
        let is_awaited = |at: usize| index.first_stream_wait(at, number(waiting)?).filter(is_before);
        let blocks = |at: usize| stream_of(plan, at) == waiting || is_awaited(at).is_some();
        self.executions_in(edit, plan, &range).into_iter().any(blocks)
    }

    /// Returns the instructions of a range before which a rank executes a statement that an edit inserts.
    fn executions_in(&self, edit: &Repair, plan: &Plan, range: &Range<usize>) -> Vec<usize> {
        let [_, second] = &self.sides;
        let is_own_rank = plan.rank == second.plan.rank;
        let own = self.inserted_before(edit).filter(|_| is_own_rank);
        let own = own.filter(|at| edit.blocked_stream() == Some(stream_of(plan, *at)));
        let all = edit.insertion().and_then(InsertionPoint::statement);
        let all = all.map_or(&[][..], |it| self.indexes.of(plan.rank).of_stmt(it));
        let is_once = self.is_varied(edit) || !self.stays_in_loop(edit);
        let others = if is_once && is_own_rank { &[][..] } else { all };
        let others = if is_once { &others[..others.len().min(1)] } else { others };
        let is_first = |at: &usize| {
            let earlier = others.partition_point(|it| it < at).checked_sub(1).map(|it| others[it]);
            earlier.is_none_or(|it| plan.code[it].origin != plan.code[*at].origin)
        };
        let from = others.partition_point(|it| *it < range.start);
        let inside = others[from..].iter().copied().take_while(|it| range.contains(it)).take(MAX_EXECUTIONS);
        own.filter(|it| range.contains(it)).into_iter().chain(inside.filter(is_first)).collect()
    }

    /// Returns the streams that execute the earlier statement.
    fn awaited_streams(&self) -> impl Iterator<Item = &'a PlanStream> {
        let plan = self.sides[0].plan;
        let stmt = plan.origins[self.sides[0].origin as usize].stmt;
        let all = stmt.map_or(&[][..], |it| self.indexes.of(plan.rank).of_stmt(it));
        all.iter().take(MAX_EXECUTIONS).map(move |it| stream_of(plan, *it))
    }

    /// Returns whether an edit is in a loop whose iterations may need it for different streams.
    fn is_varied(&self, edit: &Repair) -> bool {
        let [_, second] = &self.sides;
        let mut streams = self.awaited_streams();
        let one = streams.next();
        let place = self.inserted_before(edit).map(|at| second.plan.code[at].origin);
        place.is_some_and(|it| second.plan.origins[it as usize].iteration.is_some())
            && streams.any(|it| Some(it) != one)
    }

    /// Returns the edit that is preferred to the others.
    pub(super) fn free_edit(&self) -> Option<&Repair> {
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

    /// Returns the edit that may order the accesses of races that come later: it inserts a statement.
    pub(super) fn early_edit(&self) -> Option<&Repair> {
        let edit = self.edits.last().filter(|_| self.rank().is_some() && self.free_edit().is_none());
        edit.filter(|it| matches!(it.insertion(), Some(InsertionPoint::Before { .. })))
    }

    /// Returns the edit that is not needed if an earlier statement makes the same stream wait.
    pub(super) fn late_edit(&self) -> Option<&Repair> {
        self.edits.last().filter(|_| self.rank().is_some())
    }

    /// Returns whether the awaited access is in the innermost loop of the place of an edit, so that each iteration has to wait; else the
    /// statement may be inserted before the loop.
    fn stays_in_loop(&self, edit: &Repair) -> bool {
        let [first, second] = &self.sides;
        let plan = second.plan;
        let Some(own) = self.inserted_before(edit).filter(|_| self.rank().is_some()) else { return true };
        let around = |frame| std::iter::successors(frame, |it: &u32| plan.iterations[*it as usize].parent);
        let place = plan.origins[plan.code[own].origin as usize].iteration;
        let frame = first.frame().filter(|_| !self.is_before_entry(first));
        place.is_none_or(|place| around(frame).any(|it| plan.loop_of(it) == plan.loop_of(place)))
    }

    /// Returns whether the earlier access comes before the program begins: that of the caller, or of the run before.
    fn is_before_entry(&self, first: &RaceSide<'_>) -> bool {
        self.between_runs || first.party == Party::CallerBefore
    }

    /// Returns the instructions before which a rank executes a statement that an edit inserts.
    pub(super) fn executions(&self, edit: &Repair) -> Vec<usize> {
        self.executions_in(edit, self.sides[1].plan, &(0..usize::MAX))
    }

    /// Returns the instruction before which a statement is executed that an edit inserts to order this race.
    fn inserted_before(&self, edit: &Repair) -> Option<usize> {
        self.inserted_for(&self.sides, edit)
    }

    /// As `inserted_before`, for an occurrence.
    fn inserted_for(&self, sides: &[RaceSide<'_>; 2], edit: &Repair) -> Option<usize> {
        let Some(InsertionPoint::Before { statement, .. }) = edit.insertion() else { return None };
        let [_, second] = sides;
        let (plan, stmt) = (second.plan, statement.stmt?);
        let last = second.inst_index()?;
        if plan.origins[second.origin as usize].stmt == Some(stmt) {
            return Some(last);
        }
        let all = self.indexes.of(plan.rank).of_stmt(stmt);
        let all = &all[..all.partition_point(|it| *it <= last)];
        let origin = plan.code[*all.last()?].origin;
        all.iter().rev().copied().take_while(|it| plan.code[*it].origin == origin).last()
    }

    /// Returns the instructions before which `edit`, the edit of another race, may be inserted to remove this race.
    pub(super) fn insertion_range(&self, edit: &Repair) -> Option<Range<usize>> {
        self.range(&self.sides, edit, false)
    }

    /// As `insertion_range`, for an occurrence. With `is_repeated`, the edit is made for its stream, too.
    fn range(&self, sides: &[RaceSide<'_>; 2], edit: &Repair, is_repeated: bool) -> Option<Range<usize>> {
        let [first, second] = sides;
        let wanted = self.late_edit()?;
        let is_same = || edit.inserts_same_as(wanted).then_some(());
        let start = match edit.awaited_stream() {
            _ if self.between_runs && wanted.is_at_end() => return None,
            _ if self.is_before_entry(first) => is_same().map(|()| 0)?,
            // The awaited stream must have executed the earlier access, or have waited for it.
            Some(stream) => {
                let is_own = wanted.awaited_stream().is_some_and(|it| it.is(self.sides[0].stream()));
                let is_each = is_repeated && is_own && is_same().is_some();
                let is_awaited = |it: &PlanStream| if is_each { it == first.stream() } else { stream.is(it) };
                let awaited = first.plan.streams.iter().position(is_awaited)?;
                let index = self.indexes.of(first.plan.rank);
                index.first_stream_wait(first.inst_index()?, awaited as StreamNo)? + 1
            }
            None => is_same().and(first.inst_index())? + 1,
        };
        let end =
            if wanted.is_at_end() { None } else { self.inserted_for(sides, wanted).or(second.inst_index()) };
        Some(start..end.map_or(usize::MAX, |it| it + 1))
    }
}
