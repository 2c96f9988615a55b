//! `expand`.

use super::*;

/// The operand broadcasts to the shape of the result, which states the sizes.
pub(super) struct Expand;

impl Rule for Expand {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.broadcasts(args);
        check.equal_types_of_result(args);
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
        Aliasing::View(OperandView::Expanded)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::Any
    }

    fn keeps_meaning_without(&self, _: &LostDim<'_>) -> bool {
        true
    }
}
