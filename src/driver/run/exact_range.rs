//! The range of generated inputs with which a program rounds nothing, and whether their signs matter.

use hir_plan::{CostClass, InstKind, Plan, ReduceOp};
use hir_tensor::generate::ExactRange;

/// Returns the range for a program.
pub(super) fn of(plans: &[Plan]) -> ExactRange {
    ExactRange::for_terms(longest_sum(plans), min_significand_bits(plans))
}

/// Returns the largest number of products that are summed into one element, including sums over ranks.
fn longest_sum(plans: &[Plan]) -> usize {
    let mut local = 1;
    let mut over_ranks = 1;
    let sums = |op: ReduceOp| matches!(op, ReduceOp::Sum | ReduceOp::Avg);
    let mut visit = |kind: &InstKind, plan: &Plan| {
        let cost = kind.cost_info();
        match cost.class {
            CostClass::PeerAccess => over_ranks = over_ranks.max(cost.reduction_len),
            CostClass::Ordering | CostClass::DataMovement | CostClass::Compute => {
                local = local.max(cost.reduction_len)
            }
        }
        if let InstKind::Collective(it) = kind
            && it.kind.op.is_some_and(sums)
        {
            over_ranks = over_ranks.max(plan.communicators[it.communicator as usize].team.len());
        }
    };
    for plan in plans {
        for inst in &plan.code {
            match &inst.kind {
                InstKind::Reshard(it) => it.body.iter().for_each(|kind| visit(kind, plan)),
                kind => visit(kind, plan),
            }
        }
    }
    local * over_ranks
}

/// Returns whether a program takes a maximum or a minimum of elements or of ranks, whose start may be wrong.
#[cfg(feature = "launch")]
pub(crate) fn has_extremes(plans: &[Plan]) -> bool {
    let is_extreme = |op| matches!(op, ReduceOp::Min | ReduceOp::Max | ReduceOp::FMin | ReduceOp::FMax);
    plans.iter().flat_map(|it| &it.code).any(|inst| match &inst.kind {
        InstKind::Reduce(it) => is_extreme(it.op),
        InstKind::Collective(it) => it.kind.op.is_some_and(is_extreme),
        _ => false,
    })
}

/// Returns the smallest significand width of any buffer, in bits; 53 if no buffer has a float type.
fn min_significand_bits(plans: &[Plan]) -> u32 {
    let buffers = plans.iter().flat_map(|plan| &plan.buffers);
    buffers.filter_map(|it| it.dtype.significand_bits()).min().unwrap_or(53)
}
