//! `Welford`: mean, sum of squared differences from it, and count. `mma` in bodies of kernels.

use grammar::Op;

use super::{OperatorCall, Result, expect_shape, misfit, sum_dtype};
use crate::{
    Number, ReduceOp, View,
    inst_builder::{InstBuilder, view},
};

impl OperatorCall<'_> {
    /// The mean first, then the differences from it (two passes), which is at least as accurate as Welford's one pass.
    pub(super) fn welford(&self, code: &mut InstBuilder) -> Result<()> {
        let input = self.operand(0)?;
        if self.operands.len() != 1 {
            let why = "it merges statistics of parts";
            return Err(self.unsupported(why));
        }
        let [avg, var, count] = [self.result(0)?, self.result(1)?, self.result(2)?];
        let axes = self.reduced_dims();
        let kept: Vec<usize> = (0..input.shape.len()).filter(|at| !axes.contains(at)).collect();
        let kept: Vec<usize> = kept.into_iter().map(|at| input.shape[at]).collect();
        for out in [avg, var, count] {
            expect_shape(out, &kept)?;
        }
        let dtype = sum_dtype(self.operand_dtype(0));
        let terms: usize = axes.iter().map(|at| input.shape[*at]).product();
        // Without copies of the results, one kernel does all of this on GPUs.
        let mut target = |at: usize, out: &View| {
            if self.result_dtype(at) == dtype && !out.may_alias(input) {
                out.clone()
            } else {
                code.temporary("statistics", dtype, kept.clone())
            }
        };
        let (mean, sum) = (target(0, avg), target(1, var));
        let difference = code.temporary("differences", dtype, input.shape.clone());
        code.reduce(ReduceOp::Avg, Number::Float(0.0), input, &axes, &mean);
        let repeated = axes.iter().fold(mean.clone(), |it, axis| View::unsqueeze(&it, *axis));
        let repeated = repeated.expand(&input.shape).ok_or_else(|| misfit(&mean, &input.shape))?;
        code.map(Op::Sub, [view(input), view(&repeated)], &difference);
        code.map(Op::Mul, [view(&difference), view(&difference)], &difference);
        code.reduce(ReduceOp::Sum, Number::Float(0.0), &difference, &axes, &sum);
        for (from, to) in [(&mean, avg), (&sum, var)] {
            if from != to {
                code.copy(from, to);
            }
        }
        code.fill(count, Number::Int(terms as i64));
        Ok(())
    }

    /// Sums of products along the reduction axes of the result; operands of extent 1 are repeated.
    pub(super) fn mma(&self, code: &mut InstBuilder) -> Result<()> {
        let (a, b, out) = (self.operand(0)?, self.operand(1)?, self.result(0)?);
        let axes = self.reduced_dims();
        if a.shape.len() != b.shape.len() || axes.is_empty() {
            return Err(self.unsupported("its operands and its result are not those of a product"));
        }
        let shape: Vec<usize> = a.shape.iter().zip(&b.shape).map(|(a, b)| *a.max(b)).collect();
        let wide = |it: &View| it.expand(&shape).ok_or_else(|| misfit(it, &shape));
        let (a, b) = (wide(a)?, wide(b)?);
        let kept: Vec<usize> = (0..shape.len()).filter(|at| !axes.contains(at)).map(|at| shape[at]).collect();
        expect_shape(out, &kept)?;
        let product = code.temporary("products", sum_dtype(self.result_dtype(0)), shape);
        code.map(Op::Mul, [view(&a), view(&b)], &product);
        code.reduce(ReduceOp::Sum, Number::Float(0.0), &product, &axes, out);
        Ok(())
    }
}
