//! Operators of complex numbers that do not compute both parts alike.

use grammar::{DType, Op};

use super::{OperatorCall, Result, expect_shape, misfit};
use crate::{
    Number, View,
    inst_builder::{InstBuilder, int, view},
};

impl OperatorCall<'_> {
    pub(super) fn complex(&self, code: &mut InstBuilder) -> Result<()> {
        let out = self.result(0)?;
        let wide = |at: usize| {
            let it = self.operand(at)?;
            it.expand(&out.shape).ok_or_else(|| misfit(it, &out.shape))
        };
        match self.stmt.op {
            Op::Complex => {
                code.copy(&wide(0)?, out);
                code.copy(&wide(1)?, &out.imaginary());
            }
            Op::Imag => code.copy(&wide(0)?.imaginary(), out),
            Op::IsReal => code.map(Op::Eq, [view(&wide(0)?.imaginary()), int(0)], out),
            Op::ViewAsScalar => {
                let pairs = self.operand(0)?.clone().with_parts(self.operand_dtype(0));
                expect_shape(out, &pairs.shape)?;
                code.copy(&pairs, out);
            }
            Op::Mul if self.operands.len() == 2 && self.are_complex() => {
                let (a, b) = (wide(0)?, wide(1)?);
                let dtype = self.operand_dtype(0);
                let dtype = dtype.part().unwrap_or(dtype);
                let products = [[&a, &b], [&a.imaginary(), &b.imaginary()]];
                let real = Self::sum_of_products(code, Op::Sub, products, dtype);
                let products = [[&a, &b.imaginary()], [&a.imaginary(), &b]];
                let imaginary = Self::sum_of_products(code, Op::Add, products, dtype);
                code.copy(&real, out);
                code.copy(&imaginary, &out.imaginary());
            }
            // `std::real`, and conversions from or to a real type.
            Op::Real | Op::Cast => {
                code.copy(&wide(0)?, out);
                if self.result_dtype(0).part().is_some() {
                    code.fill(&out.imaginary(), Number::Int(0));
                }
            }
            _ => self.complex_function(code)?,
        }
        Ok(())
    }

    fn are_complex(&self) -> bool {
        (0..self.operands.len()).all(|at| self.operand_dtype(at).part().is_some())
    }

    /// Returns `a · b` plus or minus `c · d`.
    fn sum_of_products(code: &mut InstBuilder, op: Op, [ab, cd]: [[&View; 2]; 2], dtype: DType) -> View {
        let [sum, other] =
            ["products", "other products"].map(|it| code.temporary(it, dtype, ab[0].shape.clone()));
        code.map(Op::Mul, ab.map(view), &sum);
        code.map(Op::Mul, cd.map(view), &other);
        code.map(op, [view(&sum), view(&other)], &sum);
        sum
    }
}
