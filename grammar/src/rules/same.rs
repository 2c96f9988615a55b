//! Copies, such as `Set`.

use super::*;

/// The result has the shape and the element type of the operand.
pub(super) struct Same;

impl Rule for Same {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.same_shape(args);
        check.equal_types_of_result(args);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        operands.dims(0)
    }

    fn keeps_each_dim(&self) -> bool {
        true
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Whole)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }
}
