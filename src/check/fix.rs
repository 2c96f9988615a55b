//! `--fix=check`: applies the edits of findings until nothing is left to find.
//!
//! An edit is made only if the edited text parses to the same program plus the edit, the finding is gone on all ranks and in all
//! iterations, and no new finding appears. If several streams race, an edit outside a loop may also remove the race with one of them, so
//! that they are joined one at a time. If two edits qualify, none is made.
//!
//! Insertions and moves of Synchronize and Wait only add orders that the order of the statements has already: a stream that loses its Wait
//! waits for the stream that gets it. So a program that is right in that order gives the same results.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use grammar::{codes::Code, diagnostic::has_errors, ir::Program, span::LineIndex};

use super::{
    apply::{Change, EditedText, NumberedLines, is_in_loop},
    checker::{CheckResults, run_checks},
    conflict::{Party, Race},
    edit::Edit,
    explanation::RaceExplanation,
    finding::{Checks, Finding},
    race_side::RaceSide,
};
use crate::{plan::Plan, source::Source};

/// Most edits of one program.
const MAX_EDITS: usize = 64;

/// A line that an edit has inserted, moved or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEdit {
    /// The line in the edited text, from 1.
    pub line: u32,
    /// What was done: "inserted `Wait(Communication 3)`".
    pub description: String,
}

/// A text after the edits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixResult {
    /// The text.
    pub text: String,
    /// The edits, in the order of the text.
    pub edits: Vec<AppliedEdit>,
}

/// Plans a program of a text, for all ranks; `None` where that is not possible.
pub type Planner<'a> = &'a dyn Fn(&mut Program, &LineIndex) -> Option<Vec<Plan>>;

/// Applies edits to a text until its `number`th program, counted from 0, has no race, or no edit helps. What is left is for a check of the
/// result to report.
///
/// The text is returned as it is, without edits, if it has no `number`th program, if that program is rejected, cannot be planned or
/// deadlocks, or if `checks` does not ask for races. Of `checks` only `race` and `model` count besides: whether an edit does harm is
/// always judged by all faults of one run.
pub fn fix(text: &str, number: usize, checks: Checks, plan: Planner<'_>) -> FixResult {
    let unchanged = || FixResult { text: text.to_owned(), edits: Vec::new() };
    if !checks.race {
        return unchanged();
    }
    // All faults: an edit that leaves a read without its write does harm, whatever the caller asks for.
    let checks = Checks { model: checks.model, ..Checks::ALL_FAULTS };
    let session = FixSession { number, checks, plan, instructions: Cell::new(0) };
    let Some(mut state) = session.check_text(NumberedLines::of(text)) else { return unchanged() };
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..MAX_EDITS {
        let mut attempts = Attempts::new();
        let races = state.races();
        let fixed = races.iter().find_map(|it| session.fix_one(&state, it, &mut attempts));
        let Some((mut applied, next)) = fixed else { break };
        state = next;
        // A Wait that was inserted and then moved was inserted.
        for gone in changes.extract_if(.., |it| state.lines.line(it.line_id).is_none()) {
            if let Some(moved) = applied.changes.iter_mut().find(|it| !it.is_insertion) {
                (moved.description, moved.is_insertion) = (gone.description, gone.is_insertion);
            }
        }
        changes.append(&mut applied.changes);
    }
    if state.found.races.is_empty() {
        session.remove_redundant_lines(&mut state, &mut changes);
    }
    let edit =
        |it: Change| Some(AppliedEdit { line: state.lines.line(it.line_id)?, description: it.description });
    let mut edits: Vec<AppliedEdit> = changes.into_iter().filter_map(edit).collect();
    edits.sort_by_key(|it| it.line);
    FixResult { text: state.lines.text(), edits }
}

/// What stays the same while a text is edited.
struct FixSession<'a> {
    number: usize,
    checks: Checks,
    plan: Planner<'a>,
    /// Instructions of all texts that have been tried.
    instructions: Cell<usize>,
}

/// A text, and what the checks find in it.
struct CheckedText {
    lines: NumberedLines,
    program: Program,
    plans: Vec<Plan>,
    found: CheckResults,
    keys: BTreeSet<FindingKey>,
}

/// A finding that an edit may remove, without rank and iteration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FindingKey {
    code: &'static str,
    is_entry: bool,
    is_reuse: bool,
    buffer: String,
    /// The lines of both sides and the streams or queues that execute them, in ascending order; `None`: the caller.
    sides: [Option<(u32, String)>; 2],
}

impl FindingKey {
    /// Whether two are the same but for streams and queues.
    fn has_same_lines(&self, other: &Self) -> bool {
        let lines = |it: &Self| it.sides.each_ref().map(|it| it.as_ref().map(|it| it.0));
        let rest = |it: &Self| (it.code, it.is_entry, it.is_reuse);
        rest(self) == rest(other) && self.buffer == other.buffer && lines(self) == lines(other)
    }
}

/// How far an edit helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FixExtent {
    /// The finding is gone.
    Complete,
    /// The race of the two streams is gone, and the finding is left between others.
    Partial,
}

/// Edited texts of a state: several races have the same edit.
type Attempts = BTreeMap<String, Option<Attempt>>;

/// What is found in an edited text that reads as the same program but for the edit.
struct Attempt {
    keys: BTreeSet<FindingKey>,
    /// Whether every read was compared with the writes before it, and all elements that are read are written.
    is_every_read_written: bool,
    not_checked: Vec<String>,
}

/// Most texts that are tried before an edit is taken.
const MAX_ATTEMPTS: usize = 256;
/// Most instructions of all texts that are tried.
const MAX_INSTRUCTIONS: usize = 2_000_000;

impl CheckedText {
    /// The races, those that reports show first.
    fn races(&self) -> Vec<Race> {
        let shown = self.found.clone().report(&self.plans).findings.into_iter();
        let shown = shown.filter_map(|it| match it {
            Finding::Race { race, .. } => Some(race),
            Finding::Unwritten { .. }
            | Finding::Deadlock(_)
            | Finding::CommunicatorOrder(_)
            | Finding::Excess(_) => None,
        });
        shown.chain(self.found.races.iter().copied()).collect()
    }

    fn key(&self, race: &Race) -> FindingKey {
        race_key(&self.lines, &self.plans, race)
    }
}

fn race_key(lines: &NumberedLines, plans: &[Plan], race: &Race) -> FindingKey {
    let sides = RaceSide::both(plans, race);
    let mut places = sides.each_ref().map(|it| {
        let line = it.is_in_program().then(|| lines.id(it.line())).flatten()?;
        Some((line, it.actor_name().to_owned()))
    });
    places.sort_unstable();
    FindingKey {
        code: RaceSide::code(race, &sides).text(),
        is_entry: sides.iter().any(|it| it.party == Party::CallerBefore),
        is_reuse: race.reused.is_some(),
        buffer: plans[race.rank].buffers[race.buffer as usize].name.clone(),
        sides: places,
    }
}

impl FixSession<'_> {
    /// Reads, plans and checks a text; `None`: it is rejected, or its ranks get stuck.
    fn check_text(&self, lines: NumberedLines) -> Option<CheckedText> {
        let source = Source::new(String::new(), lines.text());
        let (programs, diagnostics) = source.programs();
        let mut program = programs.into_iter().nth(self.number).filter(|_| !has_errors(&diagnostics))?;
        let plans = (self.plan)(&mut program, &source.lines)?;
        let found = run_checks(&plans, self.checks);
        if found.deadlock.is_some() {
            return None;
        }
        let mut keys: BTreeSet<FindingKey> =
            found.races.iter().map(|it| race_key(&lines, &plans, it)).collect();
        keys.extend(found.unwritten_reads.iter().map(|read| {
            let line = plans[read.inst_ref.rank].origins
                [plans[read.inst_ref.rank].code[read.inst_ref.inst].origin as usize]
                .line;
            let code = if read.output.is_some() { Code::UnwrittenOutput } else { Code::UnwrittenRead };
            FindingKey {
                code: code.text(),
                is_entry: false,
                is_reuse: false,
                buffer: plans[read.rank].buffers[read.buffer as usize].name.clone(),
                sides: [lines.id(line).map(|line| (line, String::new())), None],
            }
        }));
        Some(CheckedText { lines, program, plans, found, keys })
    }

    /// The only edit of a race that helps, and the text after it.
    fn fix_one(
        &self,
        state: &CheckedText,
        race: &Race,
        attempts: &mut Attempts,
    ) -> Option<(EditedText, CheckedText)> {
        let [first, second] = RaceSide::in_issue_order(&state.plans, race);
        let key = state.key(race);
        let mut helpful: Vec<(FixExtent, EditedText)> = Vec::new();
        for edit in RaceExplanation::of(race, &first, &second).edits {
            let Some(applied) = state.lines.apply(&state.program, &edit) else { continue };
            let text = applied.lines.text();
            let is_over = attempts.len() >= MAX_ATTEMPTS || self.instructions.get() > MAX_INSTRUCTIONS;
            if is_over && !attempts.contains_key(&text) {
                continue;
            }
            let attempt = attempts.entry(text).or_insert_with(|| self.attempt(state, &applied));
            let help = attempt.as_ref().and_then(|it| fix_extent(state, &key, &edit, it));
            helpful.extend(help.map(|help| (help, applied)));
        }
        let best = if helpful.iter().any(|it| it.0 == FixExtent::Complete) {
            FixExtent::Complete
        } else {
            FixExtent::Partial
        };
        let mut helpful = helpful.into_iter().filter(|it| it.0 == best);
        let (_, applied) = helpful.next()?;
        let next = self.check_text(applied.lines.clone()).filter(|_| helpful.next().is_none())?;
        Some((applied, next))
    }

    fn attempt(&self, state: &CheckedText, applied: &EditedText) -> Option<Attempt> {
        let next = self.check_text(applied.lines.clone())?;
        let instructions: usize = next.plans.iter().map(|it| it.code.len()).sum();
        self.instructions.set(self.instructions.get() + instructions);
        let is_same = applied.changes_nothing_else(&state.program, &next.program);
        let CheckResults { unwritten_reads: reads, not_checked, .. } = next.found;
        let is_written = reads.is_empty() && not_checked.is_empty();
        is_same.then_some(Attempt { keys: next.keys, is_every_read_written: is_written, not_checked })
    }

    /// Removes inserted lines that later edits have made redundant. The last line that uses a captured stream goes before the capture.
    fn remove_redundant_lines(&self, state: &mut CheckedText, changes: &mut Vec<Change>) {
        if changes.len() < 2 {
            return;
        }
        for at in (0..changes.len()).rev().filter(|at| changes[*at].is_insertion).collect::<Vec<_>>() {
            let without = self.check_text(state.lines.without_lines(&[changes[at].line_id]));
            if let Some(next) = without.filter(|it| it.keys.is_subset(&state.keys)) {
                *state = next;
                changes.remove(at);
            }
        }
    }
}

/// How far an edit helps against a race; `None`: not at all, or it does harm.
fn fix_extent(state: &CheckedText, key: &FindingKey, edit: &Edit, next: &Attempt) -> Option<FixExtent> {
    let is_checked = next.not_checked.iter().all(|it| state.found.not_checked.contains(it));
    if next.keys.contains(key) || !next.keys.is_subset(&state.keys) || !is_checked {
        return None;
    }
    // What an iteration reads and has not written came from an earlier one.
    let is_safe = match edit {
        Edit::ShortenAllocate { .. } => next.is_every_read_written,
        Edit::InsertSynchronize { .. }
        | Edit::CaptureEntryStream { .. }
        | Edit::InsertWait { .. }
        | Edit::MoveWait { .. } => true,
    };
    let help = if next.keys.iter().any(|it| it.has_same_lines(key)) {
        FixExtent::Partial
    } else {
        FixExtent::Complete
    };
    let is_taken = is_safe && (help == FixExtent::Complete || !is_in_loop(&state.program, edit));
    is_taken.then_some(help)
}
