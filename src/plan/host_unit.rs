//! Inlines HostUnits: the statements of a posted unit are lowered in place, in their own namespace.

use grammar::{Code, OpStmt, Operand, ParallelType, Program, Stmt, StmtId, TensorId, attr};

use super::{
    View,
    context::{PlanBuilder, Result},
    opaque_call::body_text,
    scalar::Value,
};

impl PlanBuilder<'_> {
    /// Lowers the statements of a unit in place. The unit's inputs and outputs are bound to the views of the
    /// posting statement.
    pub(super) fn post_unit(&mut self, stmt: &OpStmt) -> Result<()> {
        let program = self.program;
        let (Some(id), Some(inputs), Some(outputs)) =
            (stmt.get(attr::UNIT), stmt.get(attr::INPUTS), stmt.get(attr::OUTPUTS))
        else {
            return Ok(());
        };
        let unit = &program.units[id];
        let Some(body) = unit.body else {
            return self.opaque_call(stmt, body_text(unit.number));
        };
        let here = Program::tensors_of(outputs).any(|tensor| self.holds_part(tensor));
        if !here {
            return Ok(());
        }
        if (inputs.len(), outputs.len()) != (unit.inputs.len(), unit.outputs.len()) {
            let message = format!(
                "HostUnit{} has {} inputs and {} outputs, but is posted with {} and {}",
                unit.number,
                unit.inputs.len(),
                unit.outputs.len(),
                inputs.len(),
                outputs.len()
            );
            let label = format!("expected {} inputs and {} outputs", unit.inputs.len(), unit.outputs.len());
            return Err(self.error(Code::BadOperands, message, label));
        }
        for (inner, outer) in unit.inputs.iter().zip(inputs) {
            match (inner, outer) {
                (Operand::Tensor(inner), Operand::Tensor(outer)) => {
                    let view = self.view(*outer)?;
                    self.check_dim_count(*inner, &view)?;
                    self.bind_extents(*inner, &view);
                    self.bind(*inner, view, None);
                }
                (Operand::Scalar(inner), Operand::Scalar(outer)) => {
                    let value = self.value(*outer, "the unit's operand")?;
                    if let grammar::ir::Expr::Symbol(symbol) = program.exprs[*inner] {
                        self.scalars.bind(symbol, Some(value));
                    }
                }
                _ => {
                    let message = format!(
                        "HostUnit{} expects a tensor where it is posted with a scalar, or the reverse",
                        unit.number
                    );
                    return Err(self.error(
                        Code::BadOperands,
                        message,
                        "pass what the HostUnit declares here",
                    ));
                }
            }
        }
        let ports = Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs));
        let ports: Vec<(TensorId, TensorId)> = ports.collect();
        for (inner, outer) in &ports {
            let view = match self.binding(*outer) {
                Some(bound) => bound.view.clone(),
                None => {
                    let view = self.allocate(*inner, false)?;
                    self.check_dim_count(*outer, &view)?;
                    let wanted = self.layout(*outer)?.local_shape();
                    if wanted != view.shape {
                        let name = self.program.tensor_name(*outer);
                        let message = format!(
                            "HostUnit{} writes shape {:?} to `{name}`, which has shape {wanted:?}",
                            unit.number, view.shape
                        );
                        return Err(self.error(Code::RuntimeShape, message, "both need the same shape"));
                    }
                    self.bind(*outer, view.clone(), None);
                    view
                }
            };
            self.check_dim_count(*inner, &view)?;
            self.bind(*inner, view, None);
        }
        let (origin, span) = (self.origin, self.span);
        let program_block: Vec<StmtId> = program.block(body).to_vec();
        for inner in program_block {
            // Instructions of a unit have the origin of the posting statement, because a user steps through
            // that statement.
            (self.origin, self.span) = (origin, span);
            match &program.stmts[inner] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => self.define(*symbol, *value)?,
                Stmt::For(_) | Stmt::If(_) => {
                    return Err(self.unsupported(stmt.op, "a HostUnit may contain operators only"));
                }
            }
        }
        // The unit's names go out of scope, and with them the storage that no other name refers to.
        self.origin = origin;
        let inputs = Program::tensors_of(&unit.inputs);
        inputs.chain(ports.iter().map(|it| it.0)).for_each(|inner| self.unbind(inner));
        let results = program.ops_in(body).flat_map(|(_, it)| Program::tensors_of(&it.outs));
        results.for_each(|out| self.unbind(out));
        Ok(())
    }

    /// Binds the symbols that are extents of a unit's input to the extents of the given view.
    fn bind_extents(&mut self, tensor: TensorId, view: &View) {
        let program = self.program;
        for (axis, extent) in program.dimensions(tensor).zip(&view.shape) {
            if let grammar::ir::Expr::Symbol(symbol) = program.exprs[program.axes[axis].extent] {
                // The view is the part of this rank.
                let parts = program.loop_axes_of(tensor, axis).into_iter().map(|leaf| {
                    match program.axes[leaf].parallel {
                        ParallelType::Device(dim) => program.tensors[tensor].mesh.extent(dim),
                        ParallelType::Serial | ParallelType::Stream | ParallelType::Kernel(_) => 1,
                    }
                });
                let whole = parts.fold(*extent, usize::saturating_mul);
                self.scalars.bind(symbol, Some(Value::Int(whole as i64)));
            }
        }
    }
}
