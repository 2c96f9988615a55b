//! `--fix=check`: applies the suggested edits of findings until no edit helps.
//!
//! An edit is made only if the edited text parses to the same program plus the edit, the finding is gone on
//! all ranks and in all iterations, and no new fault appears. If several streams race, an edit
//! may also remove the race with one of them, so that they are joined one at a time: in a loop only if no other edit helps, and all at once if
//! one is not enough (`streams`). If two edits qualify, neither is made, unless one of them is the move of a Deallocate, which lets no stream wait.
//!
//! Inserted Synchronize and Wait statements, and those that move up, only add orders that already hold in statement order: a
//! stream that loses its Wait waits for the stream that gets it. A Wait that moves down out of a branch adds no race, or it does not
//! move. A Deallocate that moves down only frees its storage later. A program that is correct when its statements execute in order therefore gives the same results.
//!
//! A program with many races gets many edits at once (`many`). If the edits make a program slower, streams that it
//! selects may be the wrong ones (`selection`).

mod key;
mod limit;
mod many;
mod ordered;
mod redundant;
mod selection;
mod stmt_ids;
mod streams;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use grammar::{Code, LineIndex, Program, Source, has_errors};
use hir_ir::{
    edit::{Edit, Edits},
    search::Budget,
    streams::synchronized,
};

use super::{
    apply::{Change, ChangeKind},
    checker::{CheckResults, run_checks},
    conflict::Race,
    editable_text::EditableText,
    execution_fault::ExecutionFaultKind,
    explanation::RaceExplanation,
    finding::{Checks, Finding},
    fixable_race::FixableRace,
    not_checked::NotChecked,
    plan_index::PlanIndexes,
    race_side::RaceSide,
    removal::leaders,
    repair::Repair,
};
use hir_plan::World;
use key::FindingKey;
pub use limit::FixLimit;
use limit::{MAX_ATTEMPTS, MAX_INSTRUCTIONS, MAX_REMOVAL_INSTRUCTIONS, MAX_ROUNDS, MAX_SMALL};
use ordered::{KernelPair, swapped_kernels};
use stmt_ids::StmtIds;

/// A line that an edit inserted, moved or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEdit {
    /// 1-based line in the edited text.
    pub line: u32,
    /// The change as a past-tense phrase: "inserted `Wait(Communication 3)`".
    pub description: String,
}

/// An edited text and its edits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixResult {
    /// The edited text.
    pub text: String,
    /// The edits, in text order.
    pub edits: Vec<AppliedEdit>,
    /// The bound at which the search ended while edits were not tried.
    pub limit: Option<FixLimit>,
}

/// Plans a program of a text for all ranks. Returns `None` if that fails.
pub type Planner<'a> = &'a dyn Fn(&mut Program, &LineIndex) -> Option<World>;

/// Applies edits to a text until its `number`th program, counted from 0, has no finding of `checks` that edits remove, or no edit helps.
/// The caller checks the result again to report the remaining findings.
///
/// Races, and semaphores that are used again too early, are fixed if `checks.race` is set, and kernels of several communicators that
/// nothing orders if `checks.comm` is set. An edit is always judged by all faults of a single run, with the models of `checks`; with
/// `checks.repeat`, races with the next run are fixed then, and all edits are judged by both.
///
/// The text is returned unchanged if it has no `number`th program, or if that program is rejected, cannot be planned or deadlocks.
pub fn fix(text: &str, number: usize, checks: Checks, plan: Planner<'_>) -> FixResult {
    let unchanged = || FixResult { text: text.to_owned(), edits: Vec::new(), limit: None };
    if !checks.race && !checks.comm {
        return unchanged();
    }
    let mut session = FixSession {
        number,
        checks: checks.of_faults(),
        plan,
        instructions: Cell::new(Budget::new(MAX_INSTRUCTIONS + 1)),
        limit: Cell::new(None),
    };
    let Some(start) = session.check_text(text.to_owned(), None) else { return unchanged() };
    let may_select_wrong = checks.race && start.may_select_wrong_stream();
    let (mut state, mut all) = session.repair(start, checks, Vec::new());
    if may_select_wrong
        && state.keys.is_empty()
        && state.has_new_synchronize(&all)
        && let Some(better) = session.fix_selection(text, checks, (&state, all.len()))
    {
        (state, all) = better;
    }
    let stmts = state.ids.stmts();
    let edit = |it: MadeEdit| {
        let line = state.text.line_number(*stmts.get(&it.stmt)?);
        Some(AppliedEdit { line, description: it.change.description() })
    };
    let mut edits: Vec<AppliedEdit> = all.into_iter().filter_map(edit).collect();
    edits.sort_by_key(|it| it.line);
    FixResult { text: state.text.text.to_string(), edits, limit: session.limit.get() }
}

/// What an edit has done.
struct MadeEdit {
    /// The number of the statement that it has inserted, moved or changed.
    stmt: u32,
    change: Change,
    /// Whether it was made alone, not together with the edits of other findings.
    is_single: bool,
}

/// What edits have done, and the text with them.
type Fixed = (Vec<MadeEdit>, CheckedText);

/// Parameters that are constant while a text is edited, and the work budget.
struct FixSession<'a> {
    number: usize,
    checks: Checks,
    plan: Planner<'a>,
    /// Counts the instructions of all texts that were tried.
    instructions: Cell<Budget>,
    /// The bound because of which an edit of this round was not tried.
    limit: Cell<Option<FixLimit>>,
}

/// A text and its check results.
struct CheckedText {
    text: EditableText,
    /// The numbers of the statements.
    ids: StmtIds,
    plans: World,
    found: CheckResults,
    keys: BTreeSet<FindingKey>,
}

/// How much of a finding an edit removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FixExtent {
    /// The finding is gone.
    Complete,
    /// The finding is gone for these two streams, but other streams have it on the same lines.
    Partial,
    /// The finding is gone, and one that it hid is found: of several accesses, the check names those whose order covers the others, and a
    /// read that races with a write may get what this one has written. The edit only makes a stream wait, which adds no race, and a
    /// program that is right when its statements execute in order reads only written elements then.
    Unmasking,
}

/// The edits of one text that are tried.
struct Round<'a> {
    state: &'a CheckedText,
    indexes: PlanIndexes<'a>,
    /// Results by edits. Several findings may suggest the same edit.
    attempts: BTreeMap<Vec<Edit>, Option<Attempt>>,
    /// The last text that was tried.
    last: Option<(Vec<Edit>, CheckedText)>,
}

impl<'a> Round<'a> {
    fn new(state: &'a CheckedText) -> Self {
        Self { state, indexes: PlanIndexes::new(&state.plans), attempts: BTreeMap::new(), last: None }
    }

    /// Returns the edits that may remove a race.
    fn edits(&self, race: &Race) -> Vec<Repair> {
        let [first, second] = RaceSide::in_issue_order(&self.state.plans, race);
        RaceExplanation::of(race, &first, &second, &self.indexes).edits
    }
}

/// The findings in an edited text that parses to the same program plus the edit.
struct Attempt {
    keys: BTreeSet<FindingKey>,
    /// The kernels that a rank may start in another order than it issues them.
    kernels: Vec<KernelPair>,
    /// True if every read was compared with the preceding writes and reads only written elements.
    is_every_read_written: bool,
    not_checked: Vec<NotChecked>,
}

impl CheckedText {
    /// Returns the findings of a report.
    fn findings(&self) -> Vec<Finding> {
        self.found.clone().report(&self.plans).findings
    }

    /// Returns all races. Those that reports show come first: those that no edit of another one removes, then the others.
    fn races(&self, findings: &[Finding], indexes: &PlanIndexes<'_>) -> Vec<Race> {
        let of = |it| FixableRace::of(&self.plans, it, indexes, &|_| Some(&self.text));
        let leaders = leaders(&findings.iter().map(of).collect::<Vec<_>>());
        let shown = |is_leader: bool| {
            let chosen = leaders.iter().enumerate().filter(move |(at, it)| (at == *it) == is_leader);
            chosen.filter_map(|(at, _)| findings[at].race().map(|it| *it.0))
        };
        shown(true).chain(shown(false)).chain(self.found.races.iter().copied()).collect()
    }

    fn instruction_count(&self) -> usize {
        self.plans.iter().map(|it| it.code.len()).sum()
    }

    /// Returns true if edits have inserted or moved a Synchronize, in whose place a stream may be selected.
    fn has_new_synchronize(&self, made: &[MadeEdit]) -> bool {
        let stmts = self.ids.stmts();
        let mut made = made.iter().filter_map(|it| stmts.get(&it.stmt));
        made.any(|it| synchronized(&self.text.program, *it).is_some())
    }

    /// Returns true if the text has races that are not on storage that is used again, and so few instructions that many edits of it can be
    /// tried.
    fn may_select_wrong_stream(&self) -> bool {
        self.found.races.iter().any(|it| it.reused.is_none()) && self.instruction_count() <= MAX_SMALL
    }

    /// Returns true if every read was compared with the preceding writes and reads only written elements.
    fn is_every_read_written(&self) -> bool {
        self.found.unwritten_reads.is_empty() && self.found.not_checked.is_empty()
    }

    /// Returns true if the check of an edited text left out no more than the check of this one.
    fn is_checked_as_far(&self, not_checked: &[NotChecked]) -> bool {
        not_checked.iter().all(|it| self.found.not_checked.iter().any(|own| own.includes(*it)))
    }

    fn key(&self, race: &Race) -> FindingKey {
        FindingKey::of_race(&self.ids, &self.plans, race)
    }

    /// Returns what edits do to the statements.
    fn made(&self, edits: &Edits) -> Vec<MadeEdit> {
        let inserts = |it: &&Edit| matches!(it, Edit::Insert { .. });
        let made = |change: Change| {
            let stmt = match edits.list()[change.edit].touched() {
                Some(stmt) => self.ids.number(stmt)?,
                None => self.ids.next + edits.list()[..change.edit].iter().filter(inserts).count() as u32,
            };
            Some(MadeEdit { stmt, change, is_single: true })
        };
        self.text.changes(edits.list()).into_iter().filter_map(made).collect()
    }
}

impl FixSession<'_> {
    /// Makes edits until none helps. `all` are those that were made before. Returns the text with all of them.
    fn repair(
        &mut self,
        mut state: CheckedText,
        asked: Checks,
        mut all: Vec<MadeEdit>,
    ) -> (CheckedText, Vec<MadeEdit>) {
        for rounds in 0.. {
            if rounds == MAX_ROUNDS {
                self.limit.set(Some(FixLimit::Rounds));
                break;
            }
            self.limit.set(None);
            let mut round = Round::new(&state);
            let mut fixed = None;
            let mut is_single = true;
            if asked.race {
                let findings = state.findings();
                let races = state.races(&findings, &round.indexes);
                fixed = self.fix_many(&round, &findings);
                is_single = fixed.is_none();
                fixed = fixed
                    .or_else(|| races.iter().find_map(|it| self.fix_one(&mut round, it, false)))
                    .or_else(|| self.fix_with_wait(&round, &races))
                    .or_else(|| races.iter().find_map(|it| self.fix_one(&mut round, it, true)))
                    .or_else(|| races.iter().find_map(|it| self.fix_with_each_stream(&mut round, it)))
                    .or_else(|| self.fix_semaphore(&mut round));
            }
            if asked.comm || self.checks.repeat {
                fixed = fixed.or_else(|| self.fix_kernels(&mut round));
            }
            let Some((made, next)) = fixed else {
                // Two runs are compared once a single one has no race.
                if !asked.repeat || self.checks.repeat || !state.found.races.is_empty() {
                    break;
                }
                self.checks.repeat = true;
                let Some(of_runs) = self.check_edited(&state, &[]) else { break };
                state = of_runs;
                continue;
            };
            state = next;
            for mut it in made {
                // A Wait that was inserted and then moved is reported as inserted.
                let is_known =
                    |known: &MadeEdit| known.stmt == it.stmt && it.change.kind != ChangeKind::Inserted;
                if let Some(known) = all.iter().position(is_known) {
                    it.change = all.remove(known).change;
                }
                all.push(MadeEdit { is_single, ..it });
            }
        }
        // Of kernels that nothing orders, one finding stands for all: which edits it still needs is not known.
        if state.found.races.is_empty() && swapped_kernels(&state).is_empty() {
            self.remove_redundant(&mut state, &mut all, (true, usize::MAX));
            self.remove_redundant(&mut state, &mut all, (false, MAX_REMOVAL_INSTRUCTIONS));
        }
        (state, all)
    }

    /// Parses, plans and checks a text. Returns `None` if it is rejected or deadlocks, or if its program is not the one before with edits.
    fn check_text(&self, text: String, before: Option<(&CheckedText, &[Edit])>) -> Option<CheckedText> {
        let source = Source::new(String::new(), text);
        let (programs, diagnostics) = source.programs();
        let mut program = programs.into_iter().nth(self.number).filter(|_| !has_errors(&diagnostics))?;
        let plans = (self.plan)(&mut program, &source.lines)?;
        let ids = match before {
            None => StmtIds::of(&program),
            Some((before, edits)) => before.ids.after(&before.text.program, edits, &program)?,
        };
        let found = run_checks(&plans, self.checks);
        if found.deadlock.is_some() {
            return None;
        }
        let mut keys = BTreeSet::new();
        keys.extend(found.races.iter().map(|it| FindingKey::of_race(&ids, &plans, it)));
        keys.extend(found.unwritten_reads.iter().map(|it| FindingKey::of_read(&ids, &plans, it)));
        // A warning about the number of streams prevents no edit.
        let faults = found
            .execution_faults
            .iter()
            .filter(|it| !matches!(it.kind, ExecutionFaultKind::TooFewQueues(_)));
        keys.extend(faults.map(|it| FindingKey::of_fault(&ids, &plans, it)));
        let kernels = found.communicator_order.iter().chain(&found.order_of_runs);
        keys.extend(kernels.map(|_| FindingKey::of_stmt(Code::CommunicatorOrder, None)));
        Some(CheckedText { text: EditableText::new(source.text, program), ids, plans, found, keys })
    }

    /// Parses, plans and checks the text with edits.
    fn check_edited(&self, state: &CheckedText, edits: &[Edit]) -> Option<CheckedText> {
        let text = grammar::edited(&state.text.text, &state.text.fixes(edits)?);
        self.check_text(text, Some((state, edits)))
    }

    /// Returns the edited text of the only edit that helps against `race`, and its check results. With `joins_in_loops`, an edit in a
    /// loop may join one of several streams.
    fn fix_one(&self, round: &mut Round<'_>, race: &Race, joins_in_loops: bool) -> Option<Fixed> {
        let state = round.state;
        let key = state.key(race);
        let mut helpful: Vec<(FixExtent, Edits)> = Vec::new();
        for edit in round.edits(race) {
            let mut help = None;
            for (placed, applied) in state.text.applications(&edit) {
                let attempt = self.attempt(round, &applied);
                help = attempt.and_then(|it| fix_extent(state, &key, &placed, it));
                let is_enough = |it: &FixExtent| {
                    *it != FixExtent::Partial || joins_in_loops || !state.text.is_in_loop(&placed)
                };
                help = help.filter(is_enough);
                helpful.extend(help.map(|help| (help, applied)));
                // The next place only makes streams wait for more.
                if help.is_some() {
                    break;
                }
            }
            if help == Some(FixExtent::Complete) && edit.is_preferred() {
                helpful.drain(..helpful.len() - 1);
                break;
            }
        }
        let best = helpful.iter().map(|it| it.0).min()?;
        let mut helpful = helpful.into_iter().filter(|it| it.0 == best);
        let (_, applied) = helpful.next()?;
        if helpful.next().is_some() {
            return None;
        }
        self.accept(round, &applied)
    }

    /// Fixes a race with a communication for which nothing waits, if its Wait is not enough: the stream that
    /// executes the Wait has to be joined, too. Returns the text with both edits.
    fn fix_with_wait(&self, round: &Round<'_>, races: &[Race]) -> Option<Fixed> {
        let state = round.state;
        let mut tried = BTreeSet::new();
        for race in races {
            let edits = round.edits(race);
            let ([edit @ Repair::InsertWait { .. }] | [edit @ Repair::InsertWait { .. }, _]) =
                edits.as_slice()
            else {
                continue;
            };
            let Some(wait) = state.text.apply(edit) else { continue };
            // `fix_one` has tried this text.
            let is_valid = round.attempts.get(wait.list()).is_some_and(|it| {
                it.as_ref().is_some_and(|it| it.keys.is_subset(&state.keys) && it.not_checked.is_empty())
            });
            if !is_valid || !tried.insert(wait.list().to_vec()) {
                continue;
            }
            let Some(next) = self.check_edited(state, wait.list()) else { continue };
            let mut after = Round::new(&next);
            let races = next.races(&next.findings(), &after.indexes);
            let fixed = races.iter().find_map(|it| self.fix_one(&mut after, it, false));
            let Some((made, next)) = fixed else { continue };
            if next.keys.len() < state.keys.len() && next.keys.is_subset(&state.keys) {
                return Some((state.made(&wait).into_iter().chain(made).collect(), next));
            }
        }
        None
    }

    /// Returns the bound that no further text of a round may be tried for.
    fn reached_limit(&self, round: &Round<'_>) -> Option<FixLimit> {
        if self.instructions.get().is_spent() {
            Some(FixLimit::Instructions)
        } else {
            (round.attempts.len() >= MAX_ATTEMPTS).then_some(FixLimit::Attempts)
        }
    }

    /// Tries edits, if they were not tried and the limits allow it.
    fn attempt<'r>(&self, round: &'r mut Round<'_>, applied: &Edits) -> Option<&'r Attempt> {
        if !round.attempts.contains_key(applied.list()) {
            if let Some(limit) = self.reached_limit(round) {
                self.limit.set(Some(limit));
                return None;
            }
            let next = self.attempt_text(round.state, applied.list());
            let attempt = next.as_ref().map(|next| Attempt {
                keys: next.keys.clone(),
                kernels: swapped_kernels(next),
                is_every_read_written: next.is_every_read_written(),
                not_checked: next.found.not_checked.clone(),
            });
            round.attempts.insert(applied.list().to_vec(), attempt);
            round.last = next.map(|next| (applied.list().to_vec(), next));
        }
        round.attempts.get(applied.list())?.as_ref()
    }

    /// Returns what edits that were tried have done, and the text with them.
    fn accept(&self, round: &mut Round<'_>, applied: &Edits) -> Option<Fixed> {
        let last = round.last.take().filter(|it| it.0 == applied.list()).map(|it| it.1);
        let next = last.or_else(|| self.check_edited(round.state, applied.list()))?;
        Some((round.state.made(applied), next))
    }

    /// Returns the text with edits, if it parses to the same program plus the edits.
    fn attempt_text(&self, state: &CheckedText, edits: &[Edit]) -> Option<CheckedText> {
        let next = self.check_edited(state, edits)?;
        let mut instructions = self.instructions.get();
        instructions.spend(next.instruction_count());
        self.instructions.set(instructions);
        Some(next)
    }
}

/// Whether what is found after an edit was there before, or may have been hidden: then the edit only makes streams wait.
fn adds_no_fault(state: &CheckedText, edit: &Repair, next: &Attempt) -> bool {
    let only_waits = match edit {
        Repair::MoveWait { .. } => state.text.waits_earlier(edit),
        _ => edit.insertion().is_some(),
    };
    next.keys.difference(&state.keys).all(|it| only_waits && it.may_be_hidden())
}

/// Returns how much of the finding an edit removes. Returns `None` if it removes nothing or adds a finding.
fn fix_extent(state: &CheckedText, key: &FindingKey, edit: &Repair, next: &Attempt) -> Option<FixExtent> {
    if next.keys.contains(key) || !state.is_checked_as_far(&next.not_checked) {
        return None;
    }
    if !next.keys.is_subset(&state.keys) {
        return adds_no_fault(state, edit, next).then_some(FixExtent::Unmasking);
    }
    // Elements that an iteration reads and has not written come from an earlier iteration.
    let is_safe = !edit.gives_own_storage() || next.is_every_read_written;
    let help = if next.keys.iter().any(|it| it.has_same_stmts(key)) {
        FixExtent::Partial
    } else {
        FixExtent::Complete
    };
    is_safe.then_some(help)
}
