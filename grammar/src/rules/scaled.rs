//! `ScaledMmaOp` and `GroupedMmaOp`: products with scales, and one product for each group.

use super::*;

/// `mat1[m, k] · mat2[k, n]`, times the scales, `+ bias`. If one operand has a dimension of groups, each group has its own rows or columns of
/// the other one; if none of `GroupedMmaOp` has, each group has a range of `k`, and the result has the dimension.
pub(super) struct Scaled;

impl Rule for Scaled {
    fn check(&self, check: &mut Check<'_, '_>, _: &[TensorId]) {
        if let Some(offsets) = check.stmt.get(attr::OFFSETS) {
            check.integers(offsets, "the offsets");
        }
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let MappedOperand { program, stmt, arg, operand_extents, .. } = operand;
        let is = |keys: [attr::Key<TensorId>; 2]| keys.iter().any(|it| stmt.get(*it) == Some(*arg));
        let rank = |key| Some(program.dimensions(stmt.get(key)?).count());
        let (left, right) = (is([attr::MAT1, attr::SCALE1]), is([attr::MAT2, attr::SCALE2]));
        let (own, count) = (operand.own_dims(), operand_extents.len());
        let to =
            |back: usize| parallel_or_whole(own.len().checked_sub(back).and_then(|at| own.get(at).copied()));
        // Counted from the last dimension, because those of groups come first.
        let (kept, has_groups) = if left { (2, rank(attr::MAT2)? > 2) } else { (1, rank(attr::MAT1)? > 2) };
        let sums =
            [attr::MAT1, attr::MAT2].iter().any(|it| stmt.get(*it) == Some(*arg)) && sums_parts(operand);
        let is_vector = count == 1;
        let dim = |back: usize| match (left, right) {
            _ if left && right || stmt.get(attr::OFFSETS) == Some(*arg) => DimMap::RequiresWhole,
            (false, false) => to(back),
            _ if back == kept || is_vector => {
                if has_groups {
                    DimMap::RequiresWhole
                } else {
                    to(kept)
                }
            }
            _ if back == 3 - kept && sums => DimMap::Reduction,
            _ => DimMap::RequiresWhole,
        };
        Some(OperandMap::Dims((1..=count).rev().map(dim).collect()))
    }

    fn unmapped_dim(&self, program: &Program, stmt: &OpStmt, axis: AxisId) -> ResultDim {
        let is_partial = stmt.out_tensor().is_some_and(|out| program.is_partial(out, axis));
        if is_partial { ResultDim::Partial } else { ResultDim::RequiresWhole }
    }

    fn is_matrix_product(&self) -> bool {
        true
    }
}

/// Returns whether a part of `k` gives a partial sum: no bias is added to it, and neither groups nor scales divide `k`.
fn sums_parts(operand: &MappedOperand<'_>) -> bool {
    let MappedOperand { program, stmt, value, .. } = operand;
    let dims = |key| stmt.get(key).map(|it| extents(program, it));
    let is_number = |at: Option<&ExprId>| at.is_some_and(|it| value(*it) == Some(1));
    let has_no_blocks = |key, is_first: bool| {
        dims(key).is_none_or(|it| {
            it.len() < 2 || is_number(if is_first { it.get(it.len() - 2) } else { it.last() })
        })
    };
    stmt.op == Op::ScaledMma
        && stmt.get(attr::BIAS).is_none()
        && has_no_blocks(attr::SCALE1, false)
        && has_no_blocks(attr::SCALE2, true)
}
