//! `expand`.

use super::*;

/// The operand broadcasts to the shape of the result, which states the sizes.
pub(super) struct Expand;

impl Rule for Expand {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.broadcasts(args);
        check.equal_types_of_result(args);
    }

    fn keeps_each_dim(&self) -> bool {
        true
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Expanded)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::Any
    }
}
