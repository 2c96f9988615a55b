//! Many edits in one round. If a program has many races, most of them need edits that do not depend on each other, and a
//! check of the whole program after each edit takes too long.
//!
//! Each race that no edit of another removes proposes its edit. All edits are made at once. If that adds a finding, or leaves
//! one of the races, each half of them is tried, and so on.

use std::collections::BTreeSet;

use super::{Change, CheckedText, EditedText, FindingKey, FixSession, MAX_INSTRUCTIONS, Round};
use crate::{edit::Edit, finding::Finding, fixable_race::FixableRace, removal::leaders};

/// The number of edits up to which they are made one at a time.
const MAX_SINGLE: usize = 16;

/// A race and the edit that removes it.
struct ProposedEdit {
    key: FindingKey,
    edited: EditedText,
    /// True if the edit is safe only if every read is written.
    needs_written: bool,
}

/// Edits that are made together, and the text with them.
#[derive(Default)]
struct JoinedEdits {
    edited: EditedText,
    keys: BTreeSet<FindingKey>,
    needs_written: bool,
    next: Option<CheckedText>,
}

impl FixSession<'_> {
    /// Returns the text with the edits of many races, if there are many.
    pub(super) fn fix_many(
        &self,
        round: &Round<'_>,
        findings: &[Finding],
    ) -> Option<(EditedText, CheckedText)> {
        if findings.len() <= MAX_SINGLE {
            return None;
        }
        let proposed = proposed_edits(round, findings);
        let mut joined = JoinedEdits::default();
        if proposed.len() > MAX_SINGLE {
            self.join(round.state, &proposed, &mut joined);
        }
        Some((joined.edited, joined.next?))
    }

    /// Adds all edits to `joined`, if the text with them has fewer findings, or those of each half.
    fn join(&self, state: &CheckedText, edits: &[ProposedEdit], joined: &mut JoinedEdits) {
        // What is left of the budget is for single edits.
        if edits.is_empty() || self.instructions.get() > MAX_INSTRUCTIONS / 2 {
            return;
        }
        let mut all = JoinedEdits {
            edited: joined.edited.clone(),
            keys: joined.keys.clone(),
            needs_written: joined.needs_written,
            next: None,
        };
        for it in edits {
            // An edit of the same lines waits for the next round.
            if all.edited.add(&state.text.lines, &it.edited) {
                all.keys.insert(it.key.clone());
                all.needs_written |= it.needs_written;
            }
        }
        if let Some(next) = self.helps(state, &all) {
            *joined = JoinedEdits { next: Some(next), ..all };
        } else if edits.len() > 1 {
            let (first, second) = edits.split_at(edits.len() / 2);
            self.join(state, first, joined);
            self.join(state, second, joined);
        }
    }

    /// Returns the edited text if the edits remove all of their races and add no finding.
    fn helps(&self, state: &CheckedText, edits: &JoinedEdits) -> Option<CheckedText> {
        let next = self.attempt_text(state, &edits.edited)?;
        let is_checked = state.is_checked_as_far(&next.found.not_checked);
        let left: BTreeSet<FindingKey> = next.keys.iter().map(FindingKey::without_actors).collect();
        let is_gone = edits.keys.iter().all(|it| !left.contains(&it.without_actors()));
        let is_safe = !edits.needs_written || next.is_every_read_written();
        // Statements that only make streams wait add no race: what is found now was hidden by these.
        let only_waits = edits.edited.changes.iter().all(Change::is_insertion);
        let is_known = next.keys.difference(&state.keys).all(|it| only_waits && it.may_be_hidden());
        (is_checked && is_gone && is_safe && is_known).then_some(next)
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
            let needs_written = matches!(edit, Edit::MoveAllocate { .. } | Edit::ShortenAllocate { .. });
            proposed.push(ProposedEdit { key: state.key(race), edited, needs_written });
        }
    }
    proposed
}
