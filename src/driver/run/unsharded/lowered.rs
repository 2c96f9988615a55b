//! Statements of lowered programs that have a meaning on whole tensors: HostUnits, and collectives between tensors that the
//! statements name. The storage that a program allocates, its streams and its waits have none: each tensor is one value.

use grammar::{
    CommunicationType, Expr, Id, OpClass, OpStmt, Operand, ParallelType, Program, TensorId, attr,
    dtype::Class,
};

use super::{Result, UnshardedPlanner, operators::copy, values::TensorValue};
use hir_plan::{InstKind, Number, Reduce, ReduceOp, View, scalar::Value};

impl UnshardedPlanner<'_> {
    /// Plans a statement of a lowered program; returns false for any other one.
    pub(super) fn lowered_statement(&mut self, it: &OpStmt) -> Result<bool> {
        match it.op.def().class {
            OpClass::Stream | OpClass::Wait | OpClass::Deallocate => (),
            // Zeros would be a first value.
            OpClass::Allocate if it.get(attr::ZERO_INIT) != Some(true) => (),
            OpClass::HostUnit => self.host_unit(it)?,
            OpClass::Communicate => match it.get(attr::TYPE) {
                Some(kind) => self.collective(it, kind)?,
                None => return Ok(false),
            },
            OpClass::Condition
            | OpClass::Allocate
            | OpClass::View
            | OpClass::Compute
            | OpClass::Elementwise
            | OpClass::Coalescing
            | OpClass::ShareHandles
            | OpClass::Opaque => return Ok(false),
        }
        Ok(true)
    }

    /// Plans the statements of a HostUnit on the values of its operands.
    fn host_unit(&mut self, it: &OpStmt) -> Result<()> {
        let (program, span) = (self.program, self.span);
        let (Some(id), Some(inputs), Some(outputs)) =
            (it.get(attr::UNIT), it.get(attr::INPUTS), it.get(attr::OUTPUTS))
        else {
            return Err(self.unsupported(it.op));
        };
        let unit = &program.units[id];
        let is_whole = (inputs.len(), outputs.len()) == (unit.inputs.len(), unit.outputs.len());
        let Some(body) = unit.body.filter(|_| is_whole) else { return Err(self.unsupported(it.op)) };
        // Each execution has values of its own.
        for (tensor, _) in program.tensors.iter().filter(|(_, it)| it.unit == Some(id)) {
            self.values[tensor.index()] = TensorValue::default();
        }
        for pair in unit.inputs.iter().zip(inputs) {
            match pair {
                (Operand::Tensor(inner), Operand::Tensor(outer)) => {
                    let value = self.value(*outer)?;
                    if self.dtype(*inner).part() != self.dtype(*outer).part() {
                        return Err(self.unsupported(it.op));
                    }
                    for (axis, extent) in program.dimensions(*inner).zip(&value.shape) {
                        if let Expr::Symbol(symbol) = program.exprs[program.axes[axis].extent] {
                            self.scalars.bind(symbol, Some(Value::Int(*extent as i64)));
                        }
                    }
                    self.bind(*inner, value);
                }
                (Operand::Scalar(inner), Operand::Scalar(outer)) => {
                    let value = self.scalars.eval(*outer).map_err(|it| self.scalar_fault(it))?;
                    if let Expr::Symbol(symbol) = program.exprs[*inner] {
                        self.scalars.bind(symbol, Some(value));
                    }
                }
                _ => return Err(self.unsupported(it.op)),
            }
        }
        for stmt in program.block(body) {
            self.statement(*stmt)?;
        }
        self.span = span;
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs)) {
            let value = self.value(inner)?;
            let to = self.result(outer)?;
            self.copy(it, value, to, outer)?;
        }
        Ok(())
    }

    /// Plans a collective: the sum over the devices, or a copy between two shardings.
    fn collective(&mut self, it: &OpStmt, kind: CommunicationType) -> Result<()> {
        let (Some(from), Some(to)) = (it.get(attr::INPUT), it.get(attr::OUTPUT)) else {
            return Err(self.unsupported(it.op));
        };
        let value = self.value(from)?;
        match kind {
            CommunicationType::Reduce | CommunicationType::Allreduce | CommunicationType::ReduceScatter => {
                let Some(op) = it.get(attr::RED_OP).map(ReduceOp::from) else {
                    return Err(self.unsupported(it.op));
                };
                if self.dtype(from).part().is_some() {
                    return Err(self.unsupported(it.op));
                }
                let axes = self.device_dims(from);
                let kept = (0..value.shape.len()).filter(|at| !axes.contains(at));
                let kept: Vec<usize> = kept.map(|at| value.shape[at]).collect();
                let out = self.result(to)?;
                if axes.is_empty() || kept != out.shape {
                    return Err(self.lowered(&format!("`{}`", it.op.name())));
                }
                let init = match op {
                    ReduceOp::Product => Number::Int(1),
                    ReduceOp::Min | ReduceOp::FMin if self.is_float(to) => Number::Float(f64::INFINITY),
                    ReduceOp::Max | ReduceOp::FMax if self.is_float(to) => Number::Float(f64::NEG_INFINITY),
                    ReduceOp::Min | ReduceOp::FMin => Number::Int(i64::MAX),
                    ReduceOp::Max | ReduceOp::FMax => Number::Int(i64::MIN),
                    ReduceOp::And => Number::Int(-1),
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Or | ReduceOp::Xor => Number::Int(0),
                };
                self.emit(InstKind::Reduce(Box::new(Reduce { op, init, input: value, axes, out })));
                Ok(())
            }
            CommunicationType::Gather
            | CommunicationType::Allgather
            | CommunicationType::Scatter
            | CommunicationType::Broadcast
            | CommunicationType::AllToAll => {
                let out = self.result(to)?;
                self.copy(it, value, out, to)
            }
            // They exchange the parts of ranks.
            CommunicationType::SendRecv | CommunicationType::CollectivePermute => {
                Err(self.lowered(&format!("a `{}` of type {}", it.op.name(), kind.text())))
            }
        }
    }

    /// Copies a value to that of `tensor`.
    fn copy(&mut self, it: &OpStmt, from: View, to: View, tensor: TensorId) -> Result<()> {
        if from.shape != to.shape {
            return Err(self.shape_mismatch(it.op, &from.shape, &to.shape));
        }
        let dtype = self.dtype(tensor);
        self.emit(copy(from.with_parts(dtype), to.with_parts(dtype)));
        Ok(())
    }

    fn is_float(&self, tensor: TensorId) -> bool {
        self.dtype(tensor).class() == Class::Float
    }

    /// Returns the dimensions of a tensor that count devices.
    fn device_dims(&self, tensor: TensorId) -> Vec<usize> {
        let program = self.program;
        let is_device = |axis| matches!(program.axes[axis].parallel, ParallelType::Device(_));
        let dims = program.dimensions(tensor).enumerate();
        dims.filter(|(_, axis)| is_device(*axis)).map(|(at, _)| at).collect()
    }
}
