//! The edits against faults that are no races: transfers over peer memory that come too early for their semaphore, and kernels of several
//! communicators that nothing orders.

use hir_plan::sync::CommOrderEdge;

use super::{Attempt, CheckedText, FindingKey, FixSession, Fixed, Round, adds_no_fault, fix_extent};
use crate::{order_edits, race_side::stream_of, repair::Repair};

/// Two kernels, by the number of its statement and its stream: the one that a rank may start first, although it issues it later, and the other one.
pub(super) type KernelPair = [Option<(u32, String)>; 2];

impl FixSession<'_> {
    /// Returns the text with the edit by which a transfer over peer memory no longer comes too early for its semaphore. If the transfer
    /// has to follow several, it may follow one of them then.
    pub(super) fn fix_semaphore(&self, round: &mut Round<'_>) -> Option<Fixed> {
        let state = round.state;
        let applied = state.found.execution_faults.iter().find_map(|fault| {
            let edit = order_edits::edit_of_semaphore(fault, round.indexes.of(fault.rank))?;
            let key = FindingKey::of_fault(&state.ids, &state.plans, fault);
            let ordered = state.text.in_order(edit.clone());
            let mut all = state.text.applications(&ordered).into_iter().chain(state.text.applications(&edit));
            all.find_map(|(placed, applied)| {
                fix_extent(state, &key, &placed, self.attempt(round, &applied)?)?;
                Some(applied)
            })
        })?;
        self.accept(round, &applied)
    }

    /// Returns the text with the edit by which a rank starts kernels of two communicators in issue order. Other kernels may be left that
    /// nothing orders.
    pub(super) fn fix_kernels(&self, round: &mut Round<'_>) -> Option<Fixed> {
        let state = round.state;
        let applied = swapped_edges(state).find_map(|edge| {
            let edit = order_edits::edit_of_kernels(edge, round.indexes.of(edge.first.rank))?;
            let kernels = kernel_pair(state, edge);
            let helps = |placed: &Repair, it: &Attempt| {
                !it.kernels.contains(&kernels)
                    && state.is_checked_as_far(&it.not_checked)
                    && adds_no_fault(state, placed, it)
            };
            let mut all = state.text.applications(&edit).into_iter();
            let found = all.find(|(placed, it)| self.attempt(round, it).is_some_and(|it| helps(placed, it)));
            found.map(|it| it.1)
        })?;
        self.accept(round, &applied)
    }
}

/// Returns the kernels that a rank may start in another order than it issues them.
pub(super) fn swapped_kernels(text: &CheckedText) -> Vec<KernelPair> {
    swapped_edges(text).map(|edge| kernel_pair(text, edge)).collect()
}

/// The other edges of a cycle need no edit: they may be the reverse of one that an edit has removed.
fn swapped_edges(text: &CheckedText) -> impl Iterator<Item = &CommOrderEdge> {
    let cycles = text.found.communicator_order.iter().chain(&text.found.order_of_runs);
    cycles.flat_map(|it| &it.edges).filter(|it| it.is_swapped())
}

fn kernel_pair(text: &CheckedText, edge: &CommOrderEdge) -> KernelPair {
    [edge.first, edge.second].map(|at| {
        let plan = &text.plans[at.rank];
        let stmt = text.ids.of_origin(plan, plan.code[at.inst].origin)?;
        Some((stmt, stream_of(plan, at.inst).to_string()))
    })
}
