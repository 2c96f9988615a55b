//! `--fix=check`: applies the edits of findings until nothing is left to find.
//!
//! An edit is taken where it is the only one of a finding that helps: the edited text reads as the same program but for the edit, the
//! finding is gone in all iterations and on all ranks, and there is no other finding that was not there before, a deadlock least of all.
//! Where no edit does that, one outside of loops is taken that ends the race of the two streams at hand: a loop's streams are joined one by one.
//! Insertions and moves of Synchronize and Wait only add orders that the order of the statements has already, so a program that is right in
//! that order gives the same results.

use std::collections::{BTreeMap, BTreeSet};

use grammar::{codes::Code, diagnostic::has_errors, ir::Program, span::LineIndex};

use super::{
    apply::{Applied, Lines, is_in_loop},
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
        let mut attempts = Attempts::new();
        let races = state.races();
        let fixed = races.iter().find_map(|it| world.fix_one(&state, it, &mut attempts));
        let Some((applied, next)) = fixed else { break };
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
    reads: usize,
}

/// Most texts that are tried before an edit is taken.
const MOST_ATTEMPTS: usize = 256;

impl State {
    fn is_clean(&self) -> bool {
        self.found.is_clean()
    }

    /// The races, those that reports show first.
    fn races(&self) -> Vec<Race> {
        let shown = self.found.clone().report(&self.plans).findings.into_iter();
        let shown = shown.filter_map(|it| match it {
            Finding::Race { race, .. } => Some(race),
            Finding::Unwritten { .. } | Finding::Deadlock(_) | Finding::Excess(_) => None,
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
            if attempts.len() >= MOST_ATTEMPTS && !attempts.contains_key(&text) {
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
        let is_same = applied.changes_nothing_else(&state.program, &next.program);
        is_same.then_some(Attempt { keys: next.keys, reads: next.found.reads.len() })
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

/// How far an edit helps against a race; `None`: not at all, or it does harm.
fn help(state: &State, key: &Key, edit: &Edit, next: &Attempt) -> Option<Help> {
    if next.keys.contains(key) || !next.keys.is_subset(&state.keys) {
        return None;
    }
    // What an iteration reads and has not written came from an earlier one.
    let is_safe = match edit {
        Edit::ShortAllocate { .. } => next.reads == 0,
        Edit::InsertSynchronize { .. }
        | Edit::CaptureEntryStream { .. }
        | Edit::InsertWait { .. }
        | Edit::MoveWait { .. } => true,
    };
    let help = if next.keys.iter().any(|it| it.is_like(key)) { Help::Part } else { Help::Whole };
    let is_taken = is_safe && (help == Help::Whole || !is_in_loop(&state.program, edit));
    is_taken.then_some(help)
}
