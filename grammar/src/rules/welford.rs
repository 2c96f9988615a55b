//! `Welford`: mean, sum of squared differences and count.

use super::*;

/// The results have the axes of the operand, some of them as reduction axes.
pub(super) struct Welford;

impl Rule for Welford {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let Some(first) = args.first().copied() else { return };
        let dims = check.dims(first);
        for out in Program::tensors_of(&check.stmt.outs).collect::<Vec<_>>() {
            let logical = check.program.tensors[out].domains.logical.clone();
            if logical.len() != dims.len() {
                let name = check.program.tensor_name(out);
                let message = format!("`Welford`: `{name}` has {}", count_text(logical.len(), "axis"));
                let label = format!("expected {} axes; a reduced axis is written with `r`", dims.len());
                return check.acc.push(Diagnostic::new(
                    Code::ShapeMismatch,
                    check.place(out),
                    message,
                    label,
                ));
            }
            check.equal_pairs(first, out, dims.iter().copied().zip(logical).collect());
        }
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let logical = &operand.program.tensors[operand.out].domains.logical;
        let is_reduction = |axis: &AxisId| operand.program.axes[*axis].kind == AxisKind::Reduction;
        let maps = logical.iter().map(|axis| is_reduction(axis).then_some(DimMap::Reduction));
        Some(OperandMap::Dims(number_unmapped(maps)))
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.equations.push((args[0], out, 0, RankCount::WithReductions));
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }

    fn axes_state(&self) -> AxesState {
        AxesState::Reductions
    }
}
