//! Operators of whose shapes and dimensions hir knows nothing. The planner checks the shapes of those that it runs.

use super::*;

/// Any results.
pub(super) struct Unchecked;

impl Rule for Unchecked {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        match (check.stmt.op, args, check.stmt.out_tensor()) {
            (Op::IndexPutAccumulate, &[base, index, value], Some(out)) => {
                check.integers(index, "the indices");
                check.equal_types(&[base, value, out]);
            }
            (Op::Repeat, &[operand], Some(out)) => check.equal_types(&[operand, out]),
            _ => (),
        }
    }

    fn unmapped_dim(&self, _: &Program, stmt: &OpStmt, _: AxisId) -> ResultDim {
        if stmt.tensor_operands().is_empty() { ResultDim::IndexDependent } else { ResultDim::RequiresWhole }
    }

    fn runs_on_outermost_parts(&self, stmt: &OpStmt) -> bool {
        // The others select or sum along their first dimension.
        matches!(stmt.op, Op::Repeat | Op::ViewAsScalar | Op::BlockQuantize)
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::Unknown
    }
}
