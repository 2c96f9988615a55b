//! `select` and `HirAliasSelect`.

use super::*;

/// The result has one axis less than the operand.
pub(super) struct Select;

impl Rule for Select {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let Some(axis) = check.stmt.get(attr::AXIS) else { return };
        let Some(first) = args.first().copied() else { return };
        let it = &check.program.tensors[first].domains;
        if !it.logical.contains(&axis) {
            let message = format!(
                "`{}`: `{}` is not a logical axis of `{}`",
                check.stmt.op.name(),
                axis_text(check.program, axis),
                check.program.tensor_name(first)
            );
            let axes: Vec<String> = it.logical.iter().map(|it| axis_text(check.program, *it)).collect();
            let label = format!("expected {}", list_text(axes.iter().map(String::as_str), 6, "or"));
            let place = check.program.attr_span(check.id, attr::AXIS.name());
            check.acc.push(Diagnostic::new(Code::ShapeMismatch, place, message, label));
            return;
        }
        if check.dims(first).contains(&axis) {
            check.ranks(args, 1);
        }
        check.equal_types_of_result(args);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (tensor, axis) = (*operands.args.first()?, operands.stmt.get(attr::AXIS)?);
        let dims = operands.program.dimensions(tensor).filter(|it| *it != axis);
        Some(dims.map(|it| operands.dim(tensor, it)).collect())
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let gone = selected_dim(operand.program, operand.stmt, operand.arg);
        let count = operand.operand_extents.len();
        let dims = (0..count).map(|at| (Some(at) == gone).then_some(DimMap::RequiresWhole));
        Some(OperandMap::Dims(number_unmapped(dims)))
    }

    fn unmapped_dim(&self, _: &Program, _: &OpStmt, _: AxisId) -> ResultDim {
        ResultDim::Broadcast
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Selected)
    }
}

/// Returns the dimension of the operand that `axis =` of a select names, or `None` for a reduction axis.
pub fn selected_dim(program: &Program, stmt: &OpStmt, arg: TensorId) -> Option<usize> {
    let axis = stmt.get(attr::AXIS)?;
    program.dimensions(arg).position(|it| it == axis)
}
