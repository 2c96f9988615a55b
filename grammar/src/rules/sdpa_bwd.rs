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
        // The state of random numbers has fewer dimensions.
        let is_batch = |at: usize| at < rows && rows < count;
        let dim = |at| match groups {
            _ if !is_batch(at) => DimMap::RequiresWhole,
            // The gradients of one head of keys and values depend on all heads of the query.
            Some(1) if at + 1 == rows => DimMap::RequiresWhole,
            _ => batch_dim(at, rows, groups),
        };
        Some(OperandMap::Dims((0..count).map(dim).collect()))
    }

    fn has_dims_of_first_result(&self, position: usize, _: bool) -> bool {
        // Rows and keys are whole, and parts of the heads of keys and values have the same number as those of the query.
        position < 3
    }
}
