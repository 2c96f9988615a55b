//! `GroupedMmaOp`: one matrix product for each group.

use grammar::{DType, Op, attr};

use super::{OperatorCall, Result, expect_shape, misfit};
use crate::{
    GroupedDim, Number, RoutineKind, View,
    inst_builder::{InstBuilder, view},
};

impl OperatorCall<'_> {
    /// `offsets` has the index behind the last one of each group, as in `torch._grouped_mm`.
    pub(super) fn grouped_mma(&self, code: &mut InstBuilder) -> Result<()> {
        let stmt = self.stmt;
        let needs = || self.unsupported("it needs `mat1=`, `mat2=` and `offsets=`");
        let a = self.keyed(stmt.get(attr::MAT1)).ok_or_else(needs)?;
        let b = self.keyed(stmt.get(attr::MAT2)).ok_or_else(needs)?;
        let ends = self.keyed(stmt.get(attr::OFFSETS)).ok_or_else(needs)?;
        let out = self.result(0)?;
        let [groups] = ends.shape[..] else { return Err(misfit(ends, &[1])) };
        let (dim, wanted) = match (&a.shape[..], &b.shape[..]) {
            ([m, k], [g, depth, n]) if k == depth && *g == groups => (GroupedDim::Rows, vec![*m, *n]),
            ([m, k], [depth, n]) if k == depth => (GroupedDim::Depth, vec![groups, *m, *n]),
            ([g, m, k], [depth, n]) if k == depth && *g == groups => (GroupedDim::Columns, vec![*m, *n]),
            _ => return Err(misfit(b, &a.shape)),
        };
        expect_shape(out, &wanted)?;
        let inputs = vec![a.clone(), b.clone(), ends.clone()];
        let kind = RoutineKind::GroupedGemm(dim);
        let keys = [attr::SCALE1, attr::SCALE2, attr::ALPHA, attr::BIAS, attr::BETA];
        if keys.iter().all(|it| stmt.get(*it).is_none()) {
            code.routine(kind, inputs, vec![out.clone()]);
            return Ok(());
        }
        if self.results.len() > 1 {
            return Err(self.unsupported("it has results for scales"));
        }
        let sum = code.temporary("products", DType::Float, wanted);
        code.routine(kind, inputs, vec![sum.clone()]);
        for (key, kept) in [(attr::SCALE1, 0), (attr::SCALE2, 1)] {
            if let Some(scale) = self.keyed(stmt.get(key)) {
                let factors = self.scales_of_products(code, (dim, ends), scale, kept, &sum)?;
                code.map(Op::Mul, [view(&sum), view(&factors)], &sum);
            }
        }
        self.with_bias(code, &sum)?;
        code.copy(&sum, out);
        Ok(())
    }

    /// Returns a factor for each element of the products. A scale has the shape of its operand with an extent of 1 in the summed dimension,
    /// and one matrix for each group if the products or the operand have. `kept` is 0 for the scale of rows and 1 for that of columns.
    fn scales_of_products(
        &self,
        code: &mut InstBuilder,
        (dim, ends): (GroupedDim, &View),
        scale: &View,
        kept: usize,
        sum: &View,
    ) -> Result<View> {
        let [rows, columns] = sum.shape[sum.shape.len() - 2..] else { return Err(misfit(sum, &[1, 1])) };
        let matrix = if kept == 0 { [rows, 1] } else { [1, columns] };
        let has_groups = match dim {
            GroupedDim::Rows => kept == 1,
            GroupedDim::Depth => true,
            GroupedDim::Columns => kept == 0,
        };
        let groups = if has_groups { vec![ends.shape[0]] } else { Vec::new() };
        let shape = [&groups[..], &matrix].concat();
        expect_shape(scale, &shape)?;
        if !has_groups || matches!(dim, GroupedDim::Depth) {
            return scale.expand(&sum.shape).ok_or_else(|| misfit(scale, &sum.shape));
        }
        // The scale of the group of each row or column: a product with ones.
        let ones =
            code.temporary("ones", DType::Float, if kept == 1 { vec![rows, 1] } else { vec![1, columns] });
        code.fill(&ones, Number::Int(1));
        let factors = code.temporary("scales", DType::Float, sum.shape.clone());
        let operands = if kept == 1 { [&ones, scale] } else { [scale, &ones] };
        let inputs = operands.into_iter().chain([ends]).cloned().collect();
        code.routine(RoutineKind::GroupedGemm(dim), inputs, vec![factors.clone()]);
        Ok(factors)
    }
}
