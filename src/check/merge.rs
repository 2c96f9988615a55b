//! Formats the findings of a report. Races that one edit removes are one diagnostic; a note lists the others.

use grammar::diagnostic::Diagnostic;

use super::{
    diagnostics::{DiagnosticBuilder, MAX_LISTED, format_lines},
    edit::Edit,
    explanation::RaceExplanation,
    finding::{Finding, Report},
    race_side::{RaceSide, stream_of},
    stream_waits::first_stream_wait,
};
use crate::{
    plan::{Plan, PlanStream, StreamNo},
    source::Source,
};

impl Report {
    /// Formats the findings as diagnostics, each with the index of its source text. Rank `r` runs text `r`, or
    /// the last text if there are fewer texts than ranks.
    pub fn diagnostics(&self, plans: &[Plan], sources: &[Source]) -> Vec<(usize, Diagnostic)> {
        let races: Vec<Option<FixableRace<'_>>> =
            self.findings.iter().map(|it| FixableRace::of(plans, it)).collect();
        // A finding is a note of a finding whose edits remove it. If the edits of each remove the other, a race of
        // two statements comes before one of a statement with itself.
        let rank = |at: usize| (races[at].as_ref().is_none_or(|it| it.lines().len() < 2), at);
        let removed_with = |at: usize| {
            let removes = |it: &usize| {
                let is_first = |is_mutual: bool| !is_mutual || rank(*it) < rank(at);
                let pair = races[*it].as_ref().filter(|_| *it != at).zip(races[at].as_ref());
                pair.is_some_and(|(a, b)| a.removes(b) && is_first(b.removes(a)))
            };
            (0..races.len()).find(removes)
        };
        let next: Vec<Option<usize>> = (0..races.len()).map(removed_with).collect();
        // The finding that is reported for a finding: the last of the chain, or itself if the chain has no end.
        let leader = |at: usize| {
            let mut last = at;
            for _ in 0..next.len() {
                match next[last] {
                    Some(it) => last = it,
                    None => return last,
                }
            }
            at
        };
        let leaders: Vec<usize> = (0..races.len()).map(leader).collect();
        let texts = DiagnosticBuilder::new(plans, sources);
        let mut shown = Vec::new();
        for (at, finding) in self.findings.iter().enumerate().filter(|it| leaders[it.0] == it.0) {
            let (text, mut it) = texts.finding(finding);
            let others: Vec<String> = (0..races.len())
                .filter(|other| *other != at && leaders[*other] == at)
                .map(|other| {
                    let found = texts.finding(&self.findings[other]).1;
                    let lines = races[other].as_ref().map_or(String::new(), |it| format_lines(&it.lines()));
                    format!("[{}] {} ({lines})", found.code.text(), found.message)
                })
                .collect();
            if !others.is_empty() {
                let more = others.len().saturating_sub(MAX_LISTED);
                let mut note =
                    format!("the same edit also removes:\n{}", others[..others.len() - more].join("\n"));
                if more > 0 {
                    note += &format!("\n… and {more} more");
                }
                it = it.note(note);
            }
            shown.push((text, it));
        }
        shown
    }
}

/// A race of one run with the edits that its help proposes.
struct FixableRace<'a> {
    sides: [RaceSide<'a>; 2],
    /// True if the finding contains races of other lines.
    has_other_lines: bool,
    edits: Vec<Edit>,
}

impl<'a> FixableRace<'a> {
    /// Returns `None` if the finding is not a race, or if no edit is proposed for it.
    fn of(plans: &'a [Plan], finding: &Finding) -> Option<Self> {
        let Finding::Race { race, more } = finding else { return None };
        let sides = RaceSide::in_issue_order(plans, race);
        let [first, second] = &sides;
        let edits = RaceExplanation::of(race, first, second).edits;
        let has_other_lines = more.lines.iter().any(|line| !sides.iter().any(|it| it.line() == *line));
        (!edits.is_empty() && !race.between_runs).then_some(Self { sides, has_other_lines, edits })
    }

    /// Returns the lines of the statements.
    fn lines(&self) -> Vec<u32> {
        let mut lines: Vec<u32> =
            self.sides.iter().filter(|it| it.is_in_program()).map(RaceSide::line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// Returns whether the edits of this race also order the accesses of another race: they are the same, or
    /// the only edit waits for the same work before the edit of the other race would, and the stream that this one
    /// blocks has waited by then.
    fn removes(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&Edit, &Edit)| a.is_same_as(b);
        if self.edits.len() == other.edits.len() && self.edits.iter().zip(&other.edits).all(is_same) {
            return true;
        }
        let wanted = match other.edits.as_slice() {
            [wanted] => wanted,
            [first, wanted] if first.costs_no_overlap() => {
                if self.edits.first() == Some(first) {
                    return true;
                }
                wanted
            }
            _ => return false,
        };
        let [edit] = self.edits.as_slice() else { return false };
        if !edit.inserts_same_as(wanted) || other.has_other_lines {
            return false;
        }
        let [first, second] = &self.sides;
        let ranks = [first, second, &other.sides[0], &other.sides[1]].map(|it| it.plan.rank);
        let is_on_one_rank = ranks.iter().all(|it| *it == ranks[0]);
        let is_before_loops =
            second.is_in_program() && second.frame().is_none() && other.sides[0].frame().is_none();
        // The work for which the edit waits must be complete, or known to the awaited stream, where the
        // statement is inserted.
        let done = match edit {
            Edit::InsertSynchronize { .. } if other.sides[0].is_posted() => other.sides[0].first_wait(),
            Edit::InsertSynchronize { .. }
            | Edit::CaptureEntryStream { .. }
            | Edit::InsertWait { .. }
            | Edit::MoveWait { .. }
            | Edit::MoveDeallocate { .. }
            | Edit::ShortenAllocate { .. } => other.sides[0].inst_index(),
        };
        let before = |a: Option<usize>, b: Option<usize>| a.zip(b).is_some_and(|(a, b)| a < b);
        let is_later = before(second.inst_index(), other.sides[1].inst_index()) || other.edits[0].is_at_end();
        is_on_one_rank
            && is_before_loops
            && is_later
            && before(done, second.inst_index())
            && self.blocks_before(edit, wanted, other)
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
            let wait = first_stream_wait(plan, at, number(waiting)? as StreamNo)?;
            other.sides[1].inst_index().filter(|end| wait < *end)
        };
        blocked == waiting || ordered().is_some()
    }
}
