//! The scalar expressions that statements hold, visited in one place.

use crate::ir::{Attr, ExprId, OpStmt, Operand};

impl OpStmt {
    /// Visits the scalar operands and attributes; not the indices of streams, and not what ShareMemHandles lists.
    pub fn scalars(&self, visit: &mut dyn FnMut(ExprId)) {
        let mut copy = self.clone();
        copy.scalars_mut(&mut |expr| visit(*expr));
    }

    /// As `scalars`, to change them.
    pub fn scalars_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        self.outs.iter_mut().chain(&mut self.args).for_each(|it| it.scalar_mut(visit));
        self.attrs.iter_mut().for_each(|(_, attr)| attr.scalars_mut(visit));
    }
}

impl Operand {
    fn scalar_mut(&mut self, visit: &mut dyn FnMut(&mut ExprId)) {
        match self {
            Self::Scalar(expr) => visit(expr),
            Self::Tensor(_) | Self::Stream(_) => (),
        }
    }
}

impl Attr {
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
}
