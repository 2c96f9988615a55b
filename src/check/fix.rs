//! `--fix=check`: applies the edits of findings until nothing is left to find.
//!
//! An edit is taken where it is the only one of a finding that helps: the edited text reads as the same program but for the edit, the
//! finding is gone in all iterations and on all ranks, and there is no other finding that was not there before, a deadlock least of all.
//! Insertions and moves of Synchronize and Wait only add orders that the order of the statements has already, so a program that is right in
//! that order gives the same results.

use std::collections::BTreeSet;

use grammar::{codes::Code, diagnostic::has_errors, ir::Program, span::LineIndex};

use super::{
    apply::{Applied, Lines},
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

/// An edit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The line in the edited text.
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
    pub edits: Vec<Made>,
}

/// Plans a program of a text, for all ranks; `None` where that is not possible.
pub type Planner<'a> = &'a dyn Fn(&mut Program, &LineIndex) -> Option<Vec<Plan>>;

/// Applies edits to a text until the checks find no fault in its `number`th program, or no edit helps. What is left is for a check of the
/// result to report.
pub fn fix(text: &str, number: usize, checks: Checks, plan: Planner<'_>) -> Fixed {
    let world = World { number, checks, plan };
    let unchanged = || Fixed { text: text.to_owned(), edits: Vec::new() };
    let Some(mut state) = world.state(Lines::of(text)) else { return unchanged() };
    let mut made: Vec<Applied> = Vec::new();
    while made.len() < MOST_EDITS && !state.is_clean() {
        let Some((applied, next)) = state.findings().find_map(|it| world.fix_one(&state, it)) else { break };
        made.push(applied);
        state = next;
    }
    if state.is_clean() {
        world.drop_needless(&mut state, &mut made);
    }
    let line = |it: &Applied| state.lines.line(it.line).unwrap_or(0);
    let mut edits: Vec<Made> = made.iter().map(|it| Made { line: line(it), what: it.what.clone() }).collect();
    edits.sort_by_key(|it| it.line);
    Fixed { text: state.lines.text(), edits }
}

/// What stays the same while a text is edited.
struct World<'a> {
    number: usize,
    checks: Checks,
    plan: Planner<'a>,
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
    /// The numbers of the lines, those of races in ascending order; `None`: the caller.
    lines: [Option<u32>; 2],
}

impl State {
    fn is_clean(&self) -> bool {
        self.found.is_clean()
    }

    /// The races that reports show.
    fn findings(&self) -> impl Iterator<Item = Race> + use<> {
        let found = self.found.clone().report(&self.plans).findings.into_iter();
        found.filter_map(|it| match it {
            Finding::Race { race, .. } => Some(race),
            Finding::Unwritten { .. } | Finding::Deadlock(_) => None,
        })
    }

    fn key(&self, race: &Race) -> Key {
        race_key(&self.lines, &self.plans, race)
    }
}

fn race_key(lines: &Lines, plans: &[Plan], race: &Race) -> Key {
    let sides = RaceSide::both(plans, race);
    let mut at = sides.each_ref().map(|it| it.is_in_program().then(|| lines.id(it.line())).flatten());
    at.sort_unstable();
    Key {
        code: RaceSide::code(race, &sides).text(),
        is_entry: sides.iter().any(|it| it.party == Party::CallerBefore),
        is_reuse: race.reused.is_some(),
        buffer: plans[race.rank].buffers[race.buffer as usize].name.clone(),
        lines: at,
    }
}

impl World<'_> {
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
            let line = plans[read.at.rank].origins[plans[read.at.rank].code[read.at.inst].origin as usize].line;
            let code = if read.output.is_some() { Code::UnwrittenOutput } else { Code::UnwrittenRead };
            Key {
                code: code.text(),
                is_entry: false,
                is_reuse: false,
                buffer: plans[read.rank].buffers[read.buffer as usize].name.clone(),
                lines: [lines.id(line), None],
            }
        }));
        Some(State { lines, program, plans, found, keys })
    }

    /// The only edit of a race that helps, and the text after it.
    fn fix_one(&self, state: &State, race: Race) -> Option<(Applied, State)> {
        let [first, second] = RaceSide::in_order(&state.plans, &race);
        let edits = Reason::of(&race, &first, &second).edits;
        let key = state.key(&race);
        let mut helpful = edits.iter().filter_map(|edit| self.helps(state, &key, edit));
        let only = helpful.next()?;
        helpful.next().is_none().then_some(only)
    }

    fn helps(&self, state: &State, key: &Key, edit: &Edit) -> Option<(Applied, State)> {
        let applied = state.lines.apply(&state.program, edit)?;
        let next = self.state(applied.lines.clone())?;
        let is_better = !next.keys.contains(key) && next.keys.is_subset(&state.keys);
        // What an iteration reads and has not written came from an earlier one.
        let is_safe = match edit {
            Edit::ShortAllocate { .. } => next.found.reads.is_empty(),
            Edit::InsertSynchronize { .. }
            | Edit::CaptureEntryStream { .. }
            | Edit::InsertWait { .. }
            | Edit::MoveWait { .. } => true,
        };
        let is_right = is_better && is_safe && applied.changes_nothing_else(&state.program, &next.program);
        is_right.then_some((applied, next))
    }

    /// Takes insertions back that later ones have made needless.
    fn drop_needless(&self, state: &mut State, made: &mut Vec<Applied>) {
        for at in (0..made.len()).rev() {
            if !made[at].replaced.is_empty() || made.len() == 1 {
                continue;
            }
            let without = self.state(state.lines.without(&made[at].touched));
            if let Some(next) = without.filter(|it| it.is_clean() && it.keys.is_subset(&state.keys)) {
                *state = next;
                made.remove(at);
            }
        }
    }
}
