//! `cast` and `bit_cast`.

use super::*;

/// The result has the shape of the operand; the element types may differ.
pub(super) struct Cast;

impl Rule for Cast {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.same_shape(args);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        operands.dims(0)
    }

    fn result_dtype(&self, operands: &Operands<'_>) -> Option<DType> {
        if operands.stmt.op == Op::Cast { cast_dtype(operands.text) } else { None }
    }

    fn keeps_each_dim(&self) -> bool {
        true
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }
}

/// Returns the element type to which a cast such as `T2 = __to_int64_t(T1);` or `T2 = __bfloat2float(T1);` converts.
fn cast_dtype(text: &str) -> Option<DType> {
    DType::of_cast(text.split_once('=')?.1.split('(').next()?.trim())
}
