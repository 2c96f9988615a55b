//! Inserted statements that later edits make redundant.

use hir_ir::edit::Edit;

use super::{ChangeKind, CheckedText, FixSession, MadeEdit};

impl FixSession<'_> {
    /// Removes those of the statements that edits alone, or together, have inserted, and that other edits make redundant, as far as the
    /// number of instructions `left` allows. What uses a captured stream is removed before the capture.
    pub(super) fn remove_redundant(
        &self,
        state: &mut CheckedText,
        made: &mut Vec<MadeEdit>,
        (is_single, mut left): (bool, usize),
    ) {
        if made.len() < 2 {
            return;
        }
        let is_tried = |it: &MadeEdit| it.change.kind == ChangeKind::Inserted && it.is_single == is_single;
        for at in (0..made.len()).rev().filter(|at| is_tried(&made[*at])).collect::<Vec<_>>() {
            let Some(after) = left.checked_sub(state.instruction_count()) else { return };
            left = after;
            let inserted = state.ids.stmts().get(&made[at].stmt).copied();
            let without = inserted.and_then(|it| self.check_edited(state, &[Edit::Remove(it)]));
            if let Some(next) = without.filter(|it| it.keys.is_subset(&state.keys)) {
                *state = next;
                made.remove(at);
            }
        }
    }
}
