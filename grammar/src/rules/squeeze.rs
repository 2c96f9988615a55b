//! `squeeze`.

use super::*;

/// The operand has one axis for each flag; flagged axes have extent 1 and are removed.
pub(super) struct Squeeze;

impl Rule for Squeeze {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(arg), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let pairs = check.mapped(0);
        check.flags(args, arg, out, pairs);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (flags, dims) = (operands.stmt.get(attr::FLAGS)?, operands.dims(0)?);
        let kept = dims.into_iter().zip(flags).filter(|(_, gone)| !**gone);
        Some(kept.map(|(axis, _)| axis).collect())
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let flags = flagged_dims(operand.program, operand.stmt, operand.arg);
        let dims = flags.into_iter().map(|gone| gone.then_some(DimMap::Reduction));
        Some(OperandMap::Dims(number_unmapped(dims)))
    }

    fn unmapped_dim(&self, _: &Program, _: &OpStmt, _: AxisId) -> ResultDim {
        ResultDim::Broadcast
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Squeezed)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }

    fn keeps_meaning_without(&self, lost: &LostDim<'_>) -> bool {
        lost.stmt.get(attr::FLAGS).is_some()
    }
}
