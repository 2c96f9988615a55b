//! Operators whose results hir does not check, and of whose dimensions it knows nothing.

use super::*;

/// Any results.
pub(super) struct Unchecked;

impl Rule for Unchecked {
    fn check(&self, _: &mut Check<'_, '_>, _: &[TensorId]) {}

    fn unmapped_dim(&self, _: &Program, stmt: &OpStmt, _: AxisId) -> ResultDim {
        if stmt.tensor_operands().is_empty() { ResultDim::IndexDependent } else { ResultDim::RequiresWhole }
    }

    fn runs_on_outermost_parts(&self) -> bool {
        true
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::Unknown
    }
}
