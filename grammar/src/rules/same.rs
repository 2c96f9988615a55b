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

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        Some(OperandMap::Dims(operand.each_dim()))
    }

    fn unmapped_dim(&self, _: &Program, _: &OpStmt, _: AxisId) -> ResultDim {
        ResultDim::Broadcast
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.equal(args[0], out);
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Whole)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }

    fn keeps_meaning_without(&self, _: &LostDim<'_>) -> bool {
        true
    }
}
