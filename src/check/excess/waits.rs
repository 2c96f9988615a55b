//! Waits that the program does not need.
//!
//! The plans are walked once more for each wait, without it. Where all work follows the same other work, the wait is implied. Where some
//! does not, and the checker finds no race without the wait, no two accesses depend on it. What the end of the program and the caller's
//! work at entry order is always needed: the caller may depend on it in the next run.

use super::{
    Excess, ExcessKind, ExcessNotSearched,
    candidates::{WaitCandidate, wait_candidates},
    work_order::{OrderDifference, WorkOrder, is_work},
};
use crate::{
    check::{ordering_model::OrderingModel, race::RaceDetector},
    plan::{
        InstKind, Plan,
        sync::{CommMatching, InstRef, happens_before},
    },
};

/// Most instructions that are walked for all candidates together.
const MAX_INSTRUCTIONS: usize = 2_000_000;
/// Most numbers that are compared for all candidates together.
const MAX_COMPARISONS: usize = 1 << 28;

/// All waits that the program does not need, and what was not looked at. The plans have no race.
pub fn unneeded_waits(
    plans: &[Plan],
    matched: &CommMatching,
    model: OrderingModel,
) -> (Vec<Excess>, Option<ExcessNotSearched>) {
    let mut candidates = wait_candidates(plans, matched);
    let all = candidates.len();
    let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
    candidates.truncate(MAX_INSTRUCTIONS / instructions.max(1));
    let mut found = Vec::new();
    let order = if candidates.is_empty() { None } else { WorkOrder::of(plans, matched) };
    candidates.truncate(order.as_ref().map_or(0, |it| MAX_COMPARISONS / it.comparison_count().max(1)));
    if let Some(order) = &order {
        found.extend(candidates.iter().filter_map(|it| check_wait(plans, matched, model, order, it)));
    }
    let left = all - candidates.len();
    (found, (left > 0).then_some(ExcessNotSearched::Waits { left, all }))
}

/// Whether the program can do without a wait.
fn check_wait(
    plans: &[Plan],
    matched: &CommMatching,
    model: OrderingModel,
    order: &WorkOrder,
    it: &WaitCandidate,
) -> Option<Excess> {
    let mut races = RaceDetector::new(plans, model);
    let mut pair = None;
    let mut is_needed = false;
    let walked = happens_before::walk_ignoring(plans, matched, &|at| it.insts.contains(&at), &mut |at| {
        if is_needed {
            return;
        }
        races.visit(&at);
        is_needed = !races.found.is_empty() || races.not_compared > 0;
        let kind = &plans[at.rank].code[at.inst].kind;
        if is_needed || !is_work(kind) {
            return;
        }
        match order.difference(&at) {
            OrderDifference::Unchanged => (),
            OrderDifference::LostCallerOrder => is_needed = true,
            OrderDifference::LostOrder(_) if matches!(kind, InstKind::ReadOutputs) => is_needed = true,
            OrderDifference::LostOrder(earlier) => {
                pair.get_or_insert([earlier, InstRef { rank: at.rank, inst: at.inst }]);
            }
        }
    });
    if walked.is_err() || is_needed {
        return None;
    }
    let kind = pair.map_or(ExcessKind::ImpliedWait, |pair| ExcessKind::UnneededWait { pair });
    let origin = plans[it.first.rank].code[it.first.inst].origin;
    Some(Excess {
        stmt: (it.first.rank, origin),
        kind,
        ranks: it.insts.iter().map(|it| it.rank).collect(),
        count: instance_count(plans, it),
    })
}

/// How often a statement is executed, on all ranks.
fn instance_count(plans: &[Plan], it: &WaitCandidate) -> usize {
    let mut all: Vec<(usize, u32)> =
        it.insts.iter().map(|at| (at.rank, plans[at.rank].code[at.inst].origin)).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}
