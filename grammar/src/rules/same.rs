//! Copies, such as `Set`.

use super::{Rule, check::Check};
use crate::ir::TensorId;

/// The result has the shape and the element type of the operand.
pub(super) struct Same;

impl Rule for Same {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.same_shape(args);
        check.equal_types_of_result(args);
    }
}
