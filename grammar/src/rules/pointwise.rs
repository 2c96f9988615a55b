//! Operators that work element by element.

use super::{Rule, check::Check};
use crate::{
    ir::{Operand, TensorId},
    ops::Op,
};

/// Operands broadcast to the shape of the result; all have one element type, except conditions and comparisons.
pub(super) struct Pointwise;

impl Rule for Pointwise {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let Some(out) = check.stmt.out_tensor() else { return };
        for (position, arg) in args.iter().enumerate() {
            let (a, b) = (check.dims(*arg), check.dims(out));
            if a.len() != b.len() {
                return check.rank_error(*arg, a.len(), b.len());
            }
            for (x, y) in check.mapped(position) {
                if check.constant(x) != Some(1) {
                    check.equal_axes(*arg, x, out, y);
                }
            }
        }
        let condition = matches!(check.stmt.op, Op::Where);
        let operands = match (condition, check.stmt.args.first()) {
            (true, Some(Operand::Tensor(_))) => &args[1..],
            _ => args,
        };
        check.equal_types(operands);
        if check.stmt.op == Op::Expand {
            check.equal_types_of_result(args);
        }
    }
}
