//! `sdpa_bwd`: the gradients of scaled dot-product attention.

use super::*;

/// Gradients of the query, the keys and the values. Nothing runs it, and its operands are not checked.
pub(super) struct SdpaBwd;

impl Rule for SdpaBwd {
    fn check(&self, _: &mut Check<'_, '_>, _: &[TensorId]) {}

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        // Each batch element is independent of the others. The gradients of keys and values depend on all rows.
        let batch = operand.result_extents.len().checked_sub(2);
        let count = operand.operand_extents.len();
        // The state of random numbers has fewer dimensions.
        let is_batch = |at: usize| batch.is_some_and(|batch| at < batch && batch < count);
        let dims = (0..count).map(|at| parallel_or_whole(is_batch(at).then_some(at))).collect();
        Some(OperandMap::Dims(dims))
    }
}
