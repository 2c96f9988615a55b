//! Many edits in one round. If a program has many races, most of them need edits that do not depend on each other, and a
//! check of the whole program after each edit takes too long.
//!
//! Each race that no edit of another removes proposes its edit. All edits are made at once. An edit whose race is left is taken back. If the
//! edits add a finding, those that only insert statements are tried, and the others, or else each half of them, and so on.

use std::collections::BTreeSet;

use hir_ir::edit::{Edit, Edits};

use super::{CheckedText, FindingKey, FixSession, Fixed, Round, limit::MAX_INSTRUCTIONS};
use crate::{finding::Finding, fixable_race::FixableRace, removal::leaders};

/// The number of edits up to which they are made one at a time.
const MAX_SINGLE: usize = 16;

/// A race and the edit that removes it.
struct ProposedEdit {
    key: FindingKey,
    edited: Edits,
    /// True if the edit is safe only if every read is written.
    needs_written: bool,
}

/// Edits that are made together, and the text with them.
#[derive(Default)]
struct JoinedEdits {
    edited: Edits,
    keys: BTreeSet<FindingKey>,
    needs_written: bool,
    next: Option<CheckedText>,
}

impl FixSession<'_> {
    /// Returns the text with the edits of many races, if there are many.
    pub(super) fn fix_many(&self, round: &Round<'_>, findings: &[Finding]) -> Option<Fixed> {
        if findings.len() <= MAX_SINGLE {
            return None;
        }
        let proposed = proposed_edits(round, findings);
        let mut joined = JoinedEdits::default();
        if proposed.len() > MAX_SINGLE {
            self.join(round.state, proposed.iter().collect(), &mut joined);
        }
        Some((round.state.made(&joined.edited), joined.next?))
    }

    /// Adds those edits to `joined` that remove their races together.
    fn join(&self, state: &CheckedText, mut edits: Vec<&ProposedEdit>, joined: &mut JoinedEdits) {
        // What is left of the budget is for single edits.
        while !edits.is_empty() && self.instructions.get().spent() <= MAX_INSTRUCTIONS / 2 {
            let all = joined.with(&edits);
            match self.effect(state, &all) {
                Effect::Helps(next) => {
                    *joined = JoinedEdits { next: Some(*next), ..all };
                    return;
                }
                Effect::Leaves(left) => {
                    let count = edits.len();
                    edits.retain(|it| !left.contains(&it.key.without_actors()));
                    if edits.len() == count {
                        return;
                    }
                }
                Effect::Harms => {
                    let (mut first, mut second): (Vec<_>, Vec<_>) =
                        edits.iter().partition(|it| it.edited.list().iter().all(Edit::only_orders));
                    if first.is_empty() || second.is_empty() {
                        second = edits.split_off(edits.len() / 2);
                        first = edits;
                    }
                    if first.is_empty() {
                        return;
                    }
                    self.join(state, first, joined);
                    self.join(state, second, joined);
                    return;
                }
            }
        }
    }

    /// Makes edits, and returns what they do.
    fn effect(&self, state: &CheckedText, edits: &JoinedEdits) -> Effect {
        let Some(next) = self.attempt_text(state, edits.edited.list()) else { return Effect::Harms };
        let is_checked = state.is_checked_as_far(&next.found.not_checked);
        let is_safe = !edits.needs_written || next.is_every_read_written();
        // Statements that only make streams wait add no race: what is found now was hidden by these.
        let only_waits = edits.edited.list().iter().all(Edit::only_orders);
        let is_known = next.keys.difference(&state.keys).all(|it| only_waits && it.may_be_hidden());
        if !(is_checked && is_safe && is_known) {
            return Effect::Harms;
        }
        let mut left: BTreeSet<FindingKey> = next.keys.iter().map(FindingKey::without_actors).collect();
        let of_edits: BTreeSet<FindingKey> = edits.keys.iter().map(FindingKey::without_actors).collect();
        left.retain(|it| of_edits.contains(it));
        if left.is_empty() { Effect::Helps(Box::new(next)) } else { Effect::Leaves(left) }
    }
}

/// What several edits do.
enum Effect {
    /// They remove all of their races, and add no finding. With the text that has them.
    Helps(Box<CheckedText>),
    /// They leave these races, without streams and queues, and add no finding.
    Leaves(BTreeSet<FindingKey>),
    /// They add a finding, or the program is another one.
    Harms,
}

impl JoinedEdits {
    /// Returns these edits and more.
    fn with(&self, edits: &[&ProposedEdit]) -> Self {
        let mut all = Self {
            edited: self.edited.clone(),
            keys: self.keys.clone(),
            needs_written: self.needs_written,
            next: None,
        };
        for it in edits {
            // An edit of the same statement waits for the next round.
            if all.edited.add(it.edited.list()) {
                all.keys.insert(it.key.clone());
                all.needs_written |= it.needs_written;
            }
        }
        all
    }
}

/// Returns the edits of the races that no edit of another race removes, of those races that have one edit or a preferred one.
fn proposed_edits(round: &Round<'_>, findings: &[Finding]) -> Vec<ProposedEdit> {
    let state = round.state;
    let of = |it| FixableRace::of(&state.plans, it, &round.indexes, &|_| Some(&state.text));
    let races: Vec<Option<FixableRace<'_>>> = findings.iter().map(of).collect();
    let leaders = leaders(&races);
    let mut proposed = Vec::new();
    for (at, finding) in findings.iter().enumerate().filter(|it| leaders[it.0] == it.0) {
        let (Finding::Race { race, .. }, Some(fixable)) = (finding, &races[at]) else { continue };
        let apply = |edit| Some((edit, state.text.apply(edit)?));
        let mut edits = fixable.edits.iter().filter_map(apply);
        if let Some((edit, edited)) = edits.next()
            && (edit.is_preferred() || edits.next().is_none())
        {
            let needs_written = edit.gives_own_storage();
            proposed.push(ProposedEdit { key: state.key(race), edited, needs_written });
        }
    }
    proposed
}
