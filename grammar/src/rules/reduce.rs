//! `reduction`.

use super::*;

/// The result has the axes of the operand, some of them as reduction axes.
pub(super) struct Reduce;

impl Rule for Reduce {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(first), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let (have, want) = (check.dims(first).len(), check.program.tensors[out].domains.logical.len());
        if have != want {
            let name = check.program.tensor_name(out);
            let message = format!(
                "`reduction`: `{name}` has {want} {}, but the operand has {have}",
                if want == 1 { "axis" } else { "axes" }
            );
            // The first axis of the operand whose extent the result does not have is probably a reduced one.
            let logical = &check.program.tensors[out].domains.logical;
            let mut dims = check.dims(first).into_iter();
            let reduced = dims.find(|it| logical.iter().all(|other| check.unequal(*it, *other)));
            let example = reduced.map_or(String::new(), |it| {
                format!(", as in `r{}`", axis_text(check.program, it).trim_start_matches('i'))
            });
            let label = format!("expected {have} axes; a reduced axis is written with `r`{example}");
            check.acc.push(Diagnostic::new(Code::ShapeMismatch, check.place(out), message, label));
        }
        if have == want {
            // Includes reduction axes, which are not dimensions.
            let logical = check.program.tensors[out].domains.logical.iter().copied();
            check.equal_pairs(first, out, check.dims(first).into_iter().zip(logical).collect());
        }
        check.equal_types(&[first, out]);
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let logical = &operand.program.tensors[operand.out].domains.logical;
        let is_reduction = |axis: &AxisId| operand.program.axes[*axis].kind == AxisKind::Reduction;
        let dims =
            number_unmapped(logical.iter().map(|axis| is_reduction(axis).then_some(DimMap::Reduction)));
        Some(OperandMap::Dims(dims))
    }

    fn unmapped_dim(&self, _: &Program, _: &OpStmt, _: AxisId) -> ResultDim {
        ResultDim::Broadcast
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.equations.push((args[0], out, 0, RankCount::WithReductions));
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }

    fn keeps_meaning_without(&self, _: &LostDim<'_>) -> bool {
        true
    }

    fn axes_state(&self) -> AxesState {
        AxesState::Reductions
    }
}
