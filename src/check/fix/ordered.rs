//! The edits against faults that are no races: transfers over peer memory that come too early for their semaphore, and kernels of several
//! communicators that nothing orders.

use hir_plan::sync::CommOrderEdge;

use super::{CheckedText, EditedText, FindingKey, FixSession, MAX_INSTRUCTIONS, Round, fix_extent};
use crate::order_edits;

impl FixSession<'_> {
    /// Returns the text with an edit against one of these faults.
    pub(super) fn fix_order(&self, round: &Round<'_>) -> Option<(EditedText, CheckedText)> {
        self.fix_semaphore(round).or_else(|| self.fix_kernels(round))
    }

    /// Returns the text with the edit by which a transfer over peer memory no longer comes too early for its semaphore.
    fn fix_semaphore(&self, round: &Round<'_>) -> Option<(EditedText, CheckedText)> {
        let state = round.state;
        state.found.execution_faults.iter().find_map(|fault| {
            let edit = order_edits::edit_of_semaphore(fault, round.indexes.of(fault.rank))?;
            let key = FindingKey::of_fault(&state.text.lines, &state.plans, fault);
            let ordered = state.text.in_order(edit.clone());
            let all = state.text.applications(&ordered).into_iter().chain(state.text.applications(&edit));
            let mut all = all.take_while(|_| self.instructions.get() <= MAX_INSTRUCTIONS);
            all.find_map(|(placed, applied)| {
                let next = self.attempt(state, &applied)?;
                fix_extent(state, &key, &placed, &next)?;
                let next = self.check_text(applied.lines.apply(&state.text.lines))?;
                Some((applied, next))
            })
        })
    }

    /// Returns the text with the edit by which a rank starts kernels of two communicators in issue order. Other kernels may be left that
    /// nothing orders.
    fn fix_kernels(&self, round: &Round<'_>) -> Option<(EditedText, CheckedText)> {
        let state = round.state;
        let lines = |it: &CheckedText, edge: &CommOrderEdge| {
            let mut both = [edge.first, edge.second].map(|at| {
                let plan = &it.plans[at.rank];
                it.text.lines.id(plan.origins[plan.code[at.inst].origin as usize].line)
            });
            both.sort_unstable();
            both
        };
        let edges = |it: &CheckedText| -> Vec<CommOrderEdge> {
            it.found.communicator_order.as_ref().map(|it| it.edges.clone()).unwrap_or_default()
        };
        edges(state).iter().find_map(|edge| {
            let edit = order_edits::edit_of_kernels(edge, round.indexes.of(edge.first.rank))?;
            state.text.applications(&edit).into_iter().find_map(|(_, applied)| {
                let next = self.attempt_text(state, &applied)?;
                let is_left = edges(&next).iter().any(|it| lines(&next, it) == lines(state, edge));
                let is_checked = next.found.not_checked.iter().all(|it| state.found.not_checked.contains(it));
                let is_better = !is_left && is_checked && next.keys.is_subset(&state.keys);
                (is_better && self.instructions.get() <= MAX_INSTRUCTIONS).then_some((applied, next))
            })
        })
    }
}
