//! Edits of the statements that select a stream. If a loop selects a wrong one, a Synchronize in each iteration removes the race, and the
//! iterations run one after another. An edit of the selection restores the fork: a SetCurrentStream is copied before a Synchronize by which the
//! current stream waits for itself, moves there or up to the work that its stream should do, or changes places with another one.
//!
//! Such an edit is made only if fewer other edits are then needed, no fault is left, and the program takes less time in the estimate than with
//! the other edits alone. In a program without races, all orders of the statements give one result, so that streams change no result.

use grammar::StmtId;
use hir_ir::{
    edit::{Edit, Edits, NewStatement, Place},
    search::Budget,
    streams::{stream_set_by, synchronized},
};
use hir_plan::timeline::{estimator::Estimator, machine::Machine};

use super::{CheckedText, FixSession, MadeEdit, ordered::swapped_kernels};
use crate::{editable_text::EditableText, finding::Checks};

/// The maximum number of statements that select a stream, of a program whose selections are edited.
const MAX_SELECTIONS: usize = 12;
/// The maximum total number of instructions of the texts whose selections are edited.
const MAX_INSTRUCTIONS: usize = 100_000;
/// The smallest gain in time for which another edit is made, as a part of the time.
const LEAST_GAIN: f64 = 0.001;

impl FixSession<'_> {
    /// Returns the fixed text with an edit of a selection that takes less time than `fixed`, the one with `count` other edits.
    pub(super) fn fix_selection(
        &mut self,
        text: &str,
        asked: Checks,
        (fixed, count): (&CheckedText, usize),
    ) -> Option<(CheckedText, Vec<MadeEdit>)> {
        self.checks = asked.of_faults();
        let start = self.check_text(text.to_owned(), None)?;
        let mut shortest = duration(fixed)?;
        let limit = self.limit.get();
        let mut budget = Budget::new(MAX_INSTRUCTIONS);
        let mut best = None;
        for edits in start.text.selections() {
            self.checks = asked.of_faults();
            let Some(selected) = self.check_edited(&start, edits.list()) else { continue };
            budget.spend(selected.instruction_count());
            if budget.is_spent() {
                break;
            }
            let is_short = |it: &CheckedText, shortest: f64| {
                duration(it).filter(|time| *time < shortest * (1.0 - LEAST_GAIN))
            };
            // Edits that order statements make no program shorter.
            if count < 2 && !selected.keys.is_empty() || is_short(&selected, shortest).is_none() {
                continue;
            }
            let own = start.made(&edits);
            let most = own.len() + count;
            let (next, made) = self.repair(selected, asked, own);
            let is_clean = next.keys.is_empty() && swapped_kernels(&next).is_empty();
            let is_safe = is_clean && start.is_checked_as_far(&next.found.not_checked);
            if let Some(time) = is_short(&next, shortest).filter(|_| is_safe && made.len() < most) {
                (shortest, best) = (time, Some((next, made)));
            }
        }
        self.limit.set(limit);
        best
    }
}

/// Returns the estimated microseconds of a text on the nominal GPU, whose times depend on the order of the work only.
fn duration(text: &CheckedText) -> Option<f64> {
    let machine = &Machine::default();
    let timeline = Estimator { machine, ..Estimator::default() }.timeline(&text.plans, None);
    timeline.ok().map(|it| it.end())
}

impl EditableText {
    /// Returns edits of the statements that select a stream, those that move one first.
    fn selections(&self) -> Vec<Edits> {
        let (program, mut all, mut waits) = (&self.program, Vec::new(), Vec::new());
        for (it, _) in program.ops() {
            all.extend(stream_set_by(program, it).map(|_| it));
            waits.extend(synchronized(program, it).map(|_| it));
        }
        if all.len() > MAX_SELECTIONS {
            return Vec::new();
        }
        let is_own = |it: &StmtId| {
            let current = self.streams().current(*it);
            current.is_some() && current == self.streams().operand(*it)
        };
        waits.retain(is_own);
        let moves = all.iter().filter_map(|it| self.moved_to_begin(*it, &all));
        let to_waits = waits.iter().filter_map(|it| self.moved_to_wait(*it, &all));
        let pairs =
            all.iter().enumerate().flat_map(|(at, it)| all[at + 1..].iter().map(move |other| (it, other)));
        let swaps = pairs.filter_map(|(one, other)| self.swapped(*one, *other));
        let mut names: Vec<StmtId> = Vec::new();
        for it in &all {
            if names.iter().all(|known| self.statement(*known) != self.statement(*it)) {
                names.push(*it);
            }
        }
        let copies = waits.iter().flat_map(|it| names.iter().map(move |other| (*it, *other)));
        let copies = copies.map(|(it, other)| {
            let (statement, at) = (NewStatement::CopyOf(other), Place::Before(it));
            Edits::from(vec![Edit::Insert { statement, at }])
        });
        moves.chain(to_waits).chain(swaps).chain(copies).collect()
    }

    /// Returns the edit that moves the selection of a stream up to the statement that selects another one in its block, or to the begin
    /// of the block.
    fn moved_to_begin(&self, stmt: StmtId, all: &[StmtId]) -> Option<Edits> {
        let place = self.places().of_stmt(stmt)?;
        let earlier = &self.program.block(place.block)[..place.position];
        let to = match earlier.iter().rposition(|it| all.contains(it)) {
            Some(at) if at + 1 == place.position => return None,
            Some(at) => Place::After(earlier[at]),
            None => Place::Before(*earlier.first()?),
        };
        Some(vec![Edit::Move { stmt, to }].into())
    }

    /// Returns the edit that moves the next selection of a stream in its block before a Synchronize by which the current stream
    /// waits for itself.
    fn moved_to_wait(&self, wait: StmtId, all: &[StmtId]) -> Option<Edits> {
        let place = self.places().of_stmt(wait)?;
        let stmt = *self.program.block(place.block)[place.position..].iter().find(|it| all.contains(it))?;
        Some(vec![Edit::Move { stmt, to: Place::Before(wait) }].into())
    }

    /// Returns the edit by which two selections of different streams in one block change places.
    fn swapped(&self, one: StmtId, other: StmtId) -> Option<Edits> {
        let [first, second] = [one, other].map(|it| self.places().of_stmt(it).map(|it| it.block));
        if first? != second? || self.statement(one) == self.statement(other) {
            return None;
        }
        let [later, earlier] =
            [(one, other), (other, one)].map(|(stmt, to)| Edit::Move { stmt, to: Place::Before(to) });
        Some(vec![later, earlier].into())
    }
}
