//! The type rules of operators: how an operator's results follow from its operands. One file for each rule.
//!
//! `check` verifies a statement, `infer` gives a result that the text does not declare its type, and `dims` maps dimensions
//! of operands to dimensions of results.

mod attention;
mod broadcast;
mod cast;
pub(crate) mod check;
mod communicate;
pub(crate) mod dims;
mod generate;
pub(crate) mod infer;
mod linear;
mod matmul;
mod permute;
mod pointwise;
mod reduce;
mod reshape;
mod same;
mod select;
mod shard;
mod slice;
mod squeeze;
mod unchecked;

use self::{check::Check, infer::Operands};
use crate::{
    dtype::DType,
    ir::{Axis, OpStmt, TensorId},
    ops::TypeRule,
};

/// A type rule. The functions answer what the verifier, the passes and the planner ask about a statement.
pub trait Rule: Sync {
    /// Checks the operands and results of a statement. `args` are its positional tensors.
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]);

    /// Returns the axes of the first result, or `None` if the operands do not determine them: by default, the result
    /// states its sizes, which axes are reduced, or in which order they are.
    fn result_axes(&self, _: &mut Operands<'_>) -> Option<Vec<Axis>> {
        None
    }

    /// Returns the element type of the first result; by default that of the operands.
    fn result_dtype(&self, operands: &Operands<'_>) -> Option<DType> {
        operands.dtype(0)
    }
}

impl TypeRule {
    /// Returns the rule of this name.
    pub fn rule(self) -> &'static dyn Rule {
        match self {
            Self::Unchecked => &unchecked::Unchecked,
            Self::Same => &same::Same,
            Self::Cast => &cast::Cast,
            Self::Pointwise => &pointwise::Pointwise,
            Self::Linear => &linear::Linear,
            Self::Matmul => &matmul::Matmul,
            Self::Attention => &attention::Attention,
            Self::Reduce => &reduce::Reduce,
            Self::Broadcast => &broadcast::Broadcast,
            Self::Squeeze => &squeeze::Squeeze,
            Self::Permute => &permute::Permute,
            Self::Reshape => &reshape::Reshape,
            Self::Select => &select::Select,
            Self::Slice => &slice::Slice,
            Self::Shard => &shard::Shard,
            Self::Communicate => &communicate::Communicate,
            Self::Generate => &generate::Generate,
        }
    }
}

impl OpStmt {
    /// Returns the type rule of the statement's operator.
    pub fn rule(&self) -> &'static dyn Rule {
        self.op.def().type_rule.rule()
    }
}
