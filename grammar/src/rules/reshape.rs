//! `reshape`.

use super::{Rule, check::Check};
use crate::{
    codes::Code,
    ir::{AxisId, TensorId},
};

/// The result has the number of elements of the operand, in row-major order.
pub(super) struct Reshape;

impl Rule for Reshape {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(first), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let count = |dims: Vec<AxisId>| {
            dims.into_iter().try_fold(1i64, |count, axis| count.checked_mul(check.constant(axis)?))
        };
        if let (Some(a), Some(b)) = (count(check.dims(first)), count(check.dims(out)))
            && a != b
        {
            let message = format!("`reshape`: the operand has {a} elements and the result has {b}");
            check.error(Code::ShapeMismatch, message, "expected the same number of elements");
        }
        check.equal_types(&[first, out]);
    }
}
