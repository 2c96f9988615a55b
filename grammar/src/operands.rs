//! What statements hold, visited in one place: scalar expressions and tensors.

use crate::{
    attr,
    ir::{Attr, ExprId, OpStmt, Operand, Program, TensorId},
    ops::Op,
};

impl OpStmt {
    /// The tensors that the operator reads, positional ones first.
    pub fn tensor_operands(&self) -> Vec<TensorId> {
        let keyed = self.attrs.iter().filter_map(|(_, attr)| attr.tensor());
        Program::tensors_of(&self.args).chain(keyed).collect()
    }

    /// The logical shape of the result of full, iota and eye; `None` for other operators.
    pub fn generated_shape(&self) -> Option<Vec<ExprId>> {
        let length = || match self.args.first() {
            Some(Operand::Scalar(length)) => Some(*length),
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => None,
        };
        match (self.op, self.get(attr::SHAPE)) {
            (Op::Full, Some(shape)) => Some(shape.to_vec()),
            (Op::Iota, _) => Some(vec![length()?]),
            (Op::Eye, _) => Some(vec![length()?; 2]),
            _ => None,
        }
    }

    /// Visits the scalar operands and attributes; not the indices of streams, and not what ShareMemHandles lists.
    pub fn scalars(&self, visit: &mut dyn FnMut(ExprId)) {
        self.outs.iter().chain(&self.args).for_each(|it| it.scalar(visit));
        self.attrs.iter().for_each(|(_, attr)| attr.scalars(visit));
    }

    /// As `scalars`, to change them.
    pub fn scalars_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        self.outs.iter_mut().chain(&mut self.args).for_each(|it| it.scalar_mut(visit));
        self.attrs.iter_mut().for_each(|(_, attr)| attr.scalars_mut(visit));
    }

    /// Visits the tensors of results, operands and attributes, to change them; not those of what ShareMemHandles lists.
    pub fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut TensorId)) {
        self.outs.iter_mut().chain(&mut self.args).for_each(|it| it.tensor_mut(visit));
        self.attrs.iter_mut().for_each(|(_, attr)| attr.tensors_mut(visit));
    }
}

impl Operand {
    fn scalar(&self, visit: &mut dyn FnMut(ExprId)) {
        match self {
            Self::Scalar(expr) => visit(*expr),
            Self::Tensor(_) | Self::Stream(_) => (),
        }
    }

    fn scalar_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        match self {
            Self::Scalar(expr) => visit(expr),
            Self::Tensor(_) | Self::Stream(_) => (),
        }
    }

    fn tensor_mut(&mut self, visit: &mut dyn FnMut(&mut TensorId)) {
        match self {
            Self::Tensor(tensor) => visit(tensor),
            Self::Scalar(_) | Self::Stream(_) => (),
        }
    }
}

impl Attr {
    fn scalars(&self, visit: &mut dyn FnMut(ExprId)) {
        match self {
            Self::Scalar(expr) => visit(*expr),
            Self::Scalars(exprs) => exprs.iter().copied().for_each(visit),
            Self::Ranges(ranges) => ranges.iter().flatten().copied().for_each(visit),
            Self::Values(values) => values.iter().for_each(|it| it.scalar(visit)),
            Self::Tensor(_)
            | Self::Axis(_)
            | Self::Word(_)
            | Self::Name(_)
            | Self::DType(_)
            | Self::Bool(_)
            | Self::Team(_)
            | Self::Flags(_)
            | Self::Unit(_)
            | Self::Work(_)
            | Self::Stmts(_) => (),
        }
    }

    /// Visits the scalar expressions of an attribute, to change them.
    pub fn scalars_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        match self {
            Self::Scalar(expr) => visit(expr),
            Self::Scalars(exprs) => exprs.iter_mut().for_each(visit),
            Self::Ranges(ranges) => ranges.iter_mut().flatten().for_each(visit),
            Self::Values(values) => values.iter_mut().for_each(|it| it.scalar_mut(visit)),
            Self::Tensor(_)
            | Self::Axis(_)
            | Self::Word(_)
            | Self::Name(_)
            | Self::DType(_)
            | Self::Bool(_)
            | Self::Team(_)
            | Self::Flags(_)
            | Self::Unit(_)
            | Self::Work(_)
            | Self::Stmts(_) => (),
        }
    }

    fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut TensorId)) {
        match self {
            Self::Tensor(tensor) => visit(tensor),
            Self::Values(values) => values.iter_mut().for_each(|it| it.tensor_mut(visit)),
            Self::Scalar(_)
            | Self::Scalars(_)
            | Self::Ranges(_)
            | Self::Axis(_)
            | Self::Word(_)
            | Self::Name(_)
            | Self::DType(_)
            | Self::Bool(_)
            | Self::Team(_)
            | Self::Flags(_)
            | Self::Unit(_)
            | Self::Work(_)
            | Self::Stmts(_) => (),
        }
    }
}
