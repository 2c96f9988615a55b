//! What this executor does not support.

use std::borrow::Cow;

use grammar::{DType, Op};

use hir_plan::ReduceOp;

/// What no kernel and no library call of this executor does. `ExecutorError::unsupported` adds the instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsupported {
    /// An operator has no kernel for an element type.
    #[error("`{}` on element type `{}` has no kernel", op.name(), dtype.short_name())]
    Operator {
        /// The operator.
        op: Op,
        /// The element type.
        dtype: DType,
    },
    /// A reduction has no kernel for an element type.
    #[error("{op:?} of element type `{}` has no kernel", dtype.short_name())]
    Reduction {
        /// The operation.
        op: ReduceOp,
        /// The element type.
        dtype: DType,
    },
    /// The operands do not have the types, shapes or strides of any kernel or call; the reason in words.
    #[error("{0}")]
    Operands(Cow<'static, str>),
}

impl<T: Into<Cow<'static, str>>> From<T> for Unsupported {
    fn from(reason: T) -> Self {
        Self::Operands(reason.into())
    }
}
