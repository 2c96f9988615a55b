//! `sdpa_bwd`: the gradients of scaled dot-product attention.

use super::{
    sdpa::{batch_dim, shared_heads},
    *,
};

/// Gradients of the query, the keys and the values. The planner checks its shapes.
pub(super) struct SdpaBwd;

impl Rule for SdpaBwd {
    fn check(&self, _: &mut Check<'_, '_>, _: &[TensorId]) {}

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        // Each batch element is independent of the others. The gradients of keys and values depend on all rows.
        let rows = operand.result_extents.len().saturating_sub(2);
        let count = operand.operand_extents.len();
        let groups = shared_heads(operand, [1, 2]);
        // A bias or mask `[…, l, s]` has the dimensions of the scores, aligned at the end.
        let tensor = operand.stmt.tensor_operands().get(operand.position).copied();
        let is_score =
            [attr::BIAS, attr::MASK].iter().any(|it| tensor.is_some() && operand.stmt.get(*it) == tensor);
        let skipped = if is_score { (rows + 2).saturating_sub(count) } else { 0 };
        // The state of random numbers has fewer dimensions.
        let is_batch = |to: usize| to < rows && rows < count + skipped;
        let dim = |at| match (at + skipped, groups) {
            (to, _) if !is_batch(to) => DimMap::RequiresWhole,
            // The gradients of one head of keys and values depend on all heads of the query.
            (to, Some(1)) if to + 1 == rows => DimMap::RequiresWhole,
            (to, _) => batch_dim(to, rows, groups),
        };
        Some(OperandMap::Dims((0..count).map(dim).collect()))
    }

    fn has_dims_of_first_result(&self, position: usize, _: bool) -> bool {
        // Rows and keys are whole, and parts of the heads of keys and values have the same number as those of the query.
        position < 3
    }
}
