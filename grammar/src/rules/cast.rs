//! `cast` and `bit_cast`.

use super::{Rule, check::Check};
use crate::ir::TensorId;

/// The result has the shape of the operand; the element types may differ.
pub(super) struct Cast;

impl Rule for Cast {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.same_shape(args);
    }
}
