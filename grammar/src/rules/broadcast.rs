//! `broadcast`.

use super::*;

/// The result has one axis for each flag; flagged axes are new.
pub(super) struct Broadcast;

impl Rule for Broadcast {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(arg), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let swap = |(mine, theirs)| (theirs, mine);
        let pairs = check.mapped(0).into_iter().map(swap).collect();
        check.flags(args, out, arg, pairs);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let flags = operands.stmt.get(attr::FLAGS)?;
        let one = operands.program.intern_int(1);
        let mut rest = operands.dims(0)?.into_iter();
        let found = flags.iter().map(|is_new| {
            if *is_new {
                Some(Axis::new(AxisKind::Broadcast, ParallelType::Serial, 0, one))
            } else {
                rest.next()
            }
        });
        found.collect()
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let new = flagged_dims(operand.program, operand.stmt, operand.out);
        Some(OperandMap::Dims((0..new.len()).filter(|at| !new[*at]).map(DimMap::Parallel).collect()))
    }

    fn unmapped_dim(&self, _: &Program, _: &OpStmt, _: AxisId) -> ResultDim {
        ResultDim::Broadcast
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Broadcast)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::Any
    }

    fn keeps_meaning_without(&self, lost: &LostDim<'_>) -> bool {
        lost.stmt.get(attr::FLAGS).is_some()
    }
}

/// Returns for each dimension of `wide` whether a broadcast adds it or a squeeze removes it.
///
/// This is the attribute `flags =`. Older dialects omit the attribute; then the broadcast axes of `wide` are
/// used.
pub fn flagged_dims(program: &Program, stmt: &OpStmt, wide: TensorId) -> Vec<bool> {
    match stmt.get(attr::FLAGS) {
        Some(flags) => flags.to_vec(),
        None => program.dimensions(wide).map(|axis| program.axes[axis].kind == AxisKind::Broadcast).collect(),
    }
}
