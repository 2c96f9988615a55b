//! `slice`.

use super::*;

/// The same number of axes; no extent exceeds that of the operand.
pub(super) struct Slice;

impl Rule for Slice {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        if let (Some(first), Some(ranges)) = (args.first(), check.stmt.get(attr::RANGES)) {
            let have = check.dims(*first).len();
            if have != ranges.len() {
                let name = check.program.tensor_name(*first);
                let message = format!(
                    "`slice`: {} for the {have} dimensions of `{name}`",
                    count_text(ranges.len(), "range")
                );
                let place = check.place(*first);
                let label = format!("expected {have} ranges: one `{{start, stop, step}}` for each dimension");
                check.acc.push(Diagnostic::new(Code::ShapeMismatch, place, message, label));
                return;
            }
            check.equal_types_of_result(args);
        }
        check.ranks(args, 0);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (ranges, mut found) = (operands.stmt.get(attr::RANGES)?, operands.dims(0)?);
        for (axis, range) in found.iter_mut().zip(ranges) {
            let [start, stop, step] = range.map(|it| operands.program.constant(it));
            let (start, step) = (start?, step.filter(|it| *it > 0)?);
            let extent = stop?.checked_sub(start)?.checked_add(step - 1)? / step;
            if operands.program.constant(axis.extent) != Some(extent) {
                let extent = operands.program.intern_int(extent);
                *axis = Axis::new(AxisKind::Iteration, ParallelType::Serial, 0, extent);
            }
        }
        Some(found)
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let ranges = operand.stmt.get(attr::RANGES)?.len();
        let takes_all = |at| slice_takes_all(operand.program, operand.stmt, operand.arg, at, operand.value);
        Some(OperandMap::Dims((0..ranges).map(|at| parallel_or_whole(takes_all(at).then_some(at))).collect()))
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.equal(args[0], out);
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Sliced)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }
}

/// Returns whether a slice selects every index of a dimension of its operand.
pub fn slice_takes_all(
    program: &Program,
    stmt: &OpStmt,
    arg: TensorId,
    dim: usize,
    value: ScalarEvaluator<'_>,
) -> bool {
    let Some([start, stop, step]) = stmt.get(attr::RANGES).and_then(|it| it.get(dim)) else { return true };
    let extent = extents(program, arg).get(dim).copied();
    value(*start) == Some(0)
        && value(*step) == Some(1)
        && extent.is_some_and(|it| are_equal(value, it, *stop))
}
