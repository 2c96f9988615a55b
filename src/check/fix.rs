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
    apply::{Applied, Change, Lines, is_in_loop},
    conflict::{Party, Race},
    edit::Edit,
    examine::{Examined, examine},
    finding::{Checks, Finding},
    reason::Reason,
    side::RaceSide,
};
use crate::{plan::Plan, source::Source};

/// Most edits of one program.
const MOST_EDITS: usize = 64;

/// A line that an edit has inserted, moved or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEdit {
    /// The line in the edited text, from 1.
    pub line: u32,
    /// What was done: "inserted `Wait(Communication 3)`".
    pub what: String,
}

/// A text after the edits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
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
pub fn fix(text: &str, number: usize, checks: Checks, plan: Planner<'_>) -> Fixed {
    let unchanged = || Fixed { text: text.to_owned(), edits: Vec::new() };
    if !checks.race {
        return unchanged();
    }
    // All faults: an edit that leaves a read without its write does harm, whatever the caller asks for.
    let checks = Checks { model: checks.model, ..Checks::FAULTS };
    let session = FixSession { number, checks, plan, instructions: Cell::new(0) };
    let Some(mut state) = session.state(Lines::of(text)) else { return unchanged() };
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..MOST_EDITS {
        let mut attempts = Attempts::new();
        let races = state.races();
        let fixed = races.iter().find_map(|it| session.fix_one(&state, it, &mut attempts));
        let Some((mut applied, next)) = fixed else { break };
        state = next;
        // A Wait that was inserted and then moved was inserted.
        for gone in changes.extract_if(.., |it| state.lines.line(it.line).is_none()) {
            if let Some(moved) = applied.changes.iter_mut().find(|it| !it.is_insertion) {
                (moved.what, moved.is_insertion) = (gone.what, gone.is_insertion);
            }
        }
        changes.append(&mut applied.changes);
    }
    if state.found.races.is_empty() {
        session.drop_needless(&mut state, &mut changes);
    }
    let edit = |it: Change| Some(AppliedEdit { line: state.lines.line(it.line)?, what: it.what });
    let mut edits: Vec<AppliedEdit> = changes.into_iter().filter_map(edit).collect();
    edits.sort_by_key(|it| it.line);
    Fixed { text: state.lines.text(), edits }
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
struct State {
    lines: Lines,
    program: Program,
    plans: Vec<Plan>,
    found: Examined,
    keys: BTreeSet<Key>,
}

/// A finding that an edit may remove, without rank and iteration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    code: &'static str,
    is_entry: bool,
    is_reuse: bool,
    buffer: String,
    /// The lines of both sides and the streams or queues that execute them, in ascending order; `None`: the caller.
    sides: [Option<(u32, String)>; 2],
}

impl Key {
    /// Whether two are the same but for streams and queues.
    fn is_like(&self, other: &Self) -> bool {
        let lines = |it: &Self| it.sides.each_ref().map(|it| it.as_ref().map(|it| it.0));
        let rest = |it: &Self| (it.code, it.is_entry, it.is_reuse);
        rest(self) == rest(other) && self.buffer == other.buffer && lines(self) == lines(other)
    }
}

/// How far an edit helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Help {
    /// The finding is gone.
    Whole,
    /// The race of the two streams is gone, and the finding is left between others.
    Part,
}

/// Edited texts of a state: several races have the same edit.
type Attempts = BTreeMap<String, Option<Attempt>>;

/// What is found in an edited text that reads as the same program but for the edit.
struct Attempt {
    keys: BTreeSet<Key>,
    /// Whether every read was compared with the writes before it, and all elements that are read are written.
    is_written: bool,
    not_checked: Vec<String>,
}

/// Most texts that are tried before an edit is taken.
const MOST_ATTEMPTS: usize = 256;
/// Most instructions of all texts that are tried.
const MOST_INSTRUCTIONS: usize = 2_000_000;

impl State {
    /// The races, those that reports show first.
    fn races(&self) -> Vec<Race> {
        let shown = self.found.clone().report(&self.plans).findings.into_iter();
        let shown = shown.filter_map(|it| match it {
            Finding::Race { race, .. } => Some(race),
            Finding::Unwritten { .. } | Finding::Deadlock(_) | Finding::Crossing(_) | Finding::Excess(_) => {
                None
            }
        });
        shown.chain(self.found.races.iter().copied()).collect()
    }

    fn key(&self, race: &Race) -> Key {
        race_key(&self.lines, &self.plans, race)
    }
}

fn race_key(lines: &Lines, plans: &[Plan], race: &Race) -> Key {
    let sides = RaceSide::both(plans, race);
    let mut places = sides.each_ref().map(|it| {
        let line = it.is_in_program().then(|| lines.id(it.line())).flatten()?;
        Some((line, it.actor().to_owned()))
    });
    places.sort_unstable();
    Key {
        code: RaceSide::code(race, &sides).text(),
        is_entry: sides.iter().any(|it| it.party == Party::CallerBefore),
        is_reuse: race.reused.is_some(),
        buffer: plans[race.rank].buffers[race.buffer as usize].name.clone(),
        sides: places,
    }
}

impl FixSession<'_> {
    /// Reads, plans and checks a text; `None`: it is rejected, or its ranks get stuck.
    fn state(&self, lines: Lines) -> Option<State> {
        let source = Source::new(String::new(), lines.text());
        let (programs, diagnostics) = source.programs();
        let mut program = programs.into_iter().nth(self.number).filter(|_| !has_errors(&diagnostics))?;
        let plans = (self.plan)(&mut program, &source.lines)?;
        let found = examine(&plans, self.checks);
        if found.deadlock.is_some() {
            return None;
        }
        let mut keys: BTreeSet<Key> = found.races.iter().map(|it| race_key(&lines, &plans, it)).collect();
        keys.extend(found.reads.iter().map(|read| {
            let line =
                plans[read.at.rank].origins[plans[read.at.rank].code[read.at.inst].origin as usize].line;
            let code = if read.output.is_some() { Code::UnwrittenOutput } else { Code::UnwrittenRead };
            Key {
                code: code.text(),
                is_entry: false,
                is_reuse: false,
                buffer: plans[read.rank].buffers[read.buffer as usize].name.clone(),
                sides: [lines.id(line).map(|line| (line, String::new())), None],
            }
        }));
        Some(State { lines, program, plans, found, keys })
    }

    /// The only edit of a race that helps, and the text after it.
    fn fix_one(&self, state: &State, race: &Race, attempts: &mut Attempts) -> Option<(Applied, State)> {
        let [first, second] = RaceSide::in_order(&state.plans, race);
        let key = state.key(race);
        let mut helpful: Vec<(Help, Applied)> = Vec::new();
        for edit in Reason::of(race, &first, &second).edits {
            let Some(applied) = state.lines.apply(&state.program, &edit) else { continue };
            let text = applied.lines.text();
            let is_over = attempts.len() >= MOST_ATTEMPTS || self.instructions.get() > MOST_INSTRUCTIONS;
            if is_over && !attempts.contains_key(&text) {
                continue;
            }
            let attempt = attempts.entry(text).or_insert_with(|| self.attempt(state, &applied));
            let help = attempt.as_ref().and_then(|it| help(state, &key, &edit, it));
            helpful.extend(help.map(|help| (help, applied)));
        }
        let best = if helpful.iter().any(|it| it.0 == Help::Whole) { Help::Whole } else { Help::Part };
        let mut helpful = helpful.into_iter().filter(|it| it.0 == best);
        let (_, applied) = helpful.next()?;
        let next = self.state(applied.lines.clone()).filter(|_| helpful.next().is_none())?;
        Some((applied, next))
    }

    fn attempt(&self, state: &State, applied: &Applied) -> Option<Attempt> {
        let next = self.state(applied.lines.clone())?;
        let instructions: usize = next.plans.iter().map(|it| it.code.len()).sum();
        self.instructions.set(self.instructions.get() + instructions);
        let is_same = applied.changes_nothing_else(&state.program, &next.program);
        let Examined { reads, not_checked, .. } = next.found;
        let is_written = reads.is_empty() && not_checked.is_empty();
        is_same.then_some(Attempt { keys: next.keys, is_written, not_checked })
    }

    /// Removes inserted lines that later edits have made redundant. The last line that uses a captured stream goes before the capture.
    fn drop_needless(&self, state: &mut State, changes: &mut Vec<Change>) {
        if changes.len() < 2 {
            return;
        }
        for at in (0..changes.len()).rev().filter(|at| changes[*at].is_insertion).collect::<Vec<_>>() {
            let without = self.state(state.lines.without(&[changes[at].line]));
            if let Some(next) = without.filter(|it| it.keys.is_subset(&state.keys)) {
                *state = next;
                changes.remove(at);
            }
        }
    }
}

/// How far an edit helps against a race; `None`: not at all, or it does harm.
fn help(state: &State, key: &Key, edit: &Edit, next: &Attempt) -> Option<Help> {
    let is_checked = next.not_checked.iter().all(|it| state.found.not_checked.contains(it));
    if next.keys.contains(key) || !next.keys.is_subset(&state.keys) || !is_checked {
        return None;
    }
    // What an iteration reads and has not written came from an earlier one.
    let is_safe = match edit {
        Edit::ShortAllocate { .. } => next.is_written,
        Edit::InsertSynchronize { .. }
        | Edit::CaptureEntryStream { .. }
        | Edit::InsertWait { .. }
        | Edit::MoveWait { .. } => true,
    };
    let help = if next.keys.iter().any(|it| it.is_like(key)) { Help::Part } else { Help::Whole };
    let is_taken = is_safe && (help == Help::Whole || !is_in_loop(&state.program, edit));
    is_taken.then_some(help)
}
