//! Products of scaled operands, and blocks with their scales. Scales are in the order of rows and blocks; the layout in which the kernels of
//! nvFuser store those of 8 bits is a matter of storage.

use grammar::{DType, Op, attr};

use super::{OperatorCall, OperatorFault, Result, expect_shape, misfit};
use crate::{
    Arg, GroupedDim, Number, ReduceOp, RoutineKind, View,
    inst_builder::{InstBuilder, float, view},
};

impl OperatorCall<'_> {
    /// `alpha · (mat1 · scale1) · (mat2 · scale2) + beta · bias`. A scale is one number, one for each row of `mat1` or column of
    /// `mat2`, or one for each block of the summed dimension of a row or column.
    pub(super) fn scaled_mma(&self, code: &mut InstBuilder) -> Result<()> {
        let (stmt, out) = (self.stmt, self.result(0)?);
        // The part of `k` of this rank.
        let partial = self.partial_dim().filter(|it| out.shape.get(*it) == Some(&1));
        let out = &partial.map_or_else(|| out.clone(), |it| out.select(it, 0));
        let needs = || self.unsupported("it needs `mat1=`, `mat2=`, `scale1=` and `scale2=`");
        if self.results.len() > 1 {
            return Err(self.unsupported("it has results for scales"));
        }
        let keyed = |key| self.keyed(stmt.get(key)).ok_or_else(needs);
        let (a, b) = (keyed(attr::MAT1)?, keyed(attr::MAT2)?);
        let (scale1, scale2) = (keyed(attr::SCALE1)?, keyed(attr::SCALE2)?);
        let ([rows, depth], [other, columns]) = (&a.shape[..], &b.shape[..]) else {
            return Err(misfit(b, &a.shape));
        };
        if depth != other || out.shape != [*rows, *columns] {
            return Err(misfit(out, &[*rows, *columns]));
        }
        let sum = code.temporary("products", DType::Float, out.shape.clone());
        let factors = (row_factors(scale1, &sum.shape), row_factors(&transposed(scale2), &[*columns, *rows]));
        if let (Some(of_rows), Some(of_columns)) = factors {
            // cuBLASLt multiplies 8-bit operands. What it adds up is scaled afterwards.
            code.gemm(a, b, &sum);
            code.map(Op::Mul, [view(&sum), view(&of_rows)], &sum);
            code.map(Op::Mul, [view(&sum), view(&of_columns.permute(&[1, 0]))], &sum);
        } else {
            let a = self.scaled(code, a, scale1)?;
            let b = self.scaled(code, &b.permute(&[1, 0]), &transposed(scale2))?.permute(&[1, 0]);
            code.gemm(&a, &b, &sum);
        }
        self.with_bias(code, &sum)?;
        code.copy(&sum, out);
        Ok(())
    }

    /// Multiplies the products of a statement by `alpha`, and adds `beta · bias`.
    pub(super) fn with_bias(&self, code: &mut InstBuilder, sum: &View) -> Result<()> {
        let stmt = self.stmt;
        if let Some(alpha) = self.keyed(stmt.get(attr::ALPHA)) {
            let alpha = repeated(alpha, &sum.shape)?;
            code.map(Op::Mul, [view(sum), view(&alpha)], sum);
        }
        if let Some(bias) = self.keyed(stmt.get(attr::BIAS)) {
            let wide = bias.broadcast(&sum.shape).ok_or_else(|| misfit(bias, &sum.shape))?;
            let mut term = wide;
            if let Some(beta) = self.keyed(stmt.get(attr::BETA)) {
                let scaled = code.temporary("bias", DType::Float, sum.shape.clone());
                code.map(Op::Mul, [view(&term), view(&repeated(beta, &sum.shape)?)], &scaled);
                term = scaled;
            }
            code.map(Op::Add, [view(sum), view(&term)], sum);
        }
        Ok(())
    }

    /// Copies the scales of the groups: where each group is stored is a matter of storage.
    pub(super) fn preprocess_scales(&self, code: &mut InstBuilder) -> Result<()> {
        let (input, out) = (self.keyed(self.stmt.get(attr::INPUT)), self.result(0)?);
        let input = input.ok_or_else(|| self.unsupported("it needs `input=`"))?;
        expect_shape(out, &input.shape)?;
        code.copy(input, out);
        Ok(())
    }

    /// `alpha[g] · (mat1 · scale1)[rows of g] · (mat2 · scale2)[g]`, `0` for rows of no group. Group `g` begins at row
    /// `expert_offsets[g]` and has `problem_sizes[g, 0]` rows.
    pub(super) fn scaled_grouped_mma(&self, code: &mut InstBuilder) -> Result<()> {
        let (stmt, out) = (self.stmt, self.result(0)?);
        let keyed = |key: attr::Key<_>| {
            let why = || OperatorFault::Unsupported(format!("it needs `{}=`", key.name()));
            self.keyed(stmt.get(key)).ok_or_else(why)
        };
        let (a, b) = (keyed(attr::MAT1)?, keyed(attr::MAT2)?);
        let (scale1, scale2) = (keyed(attr::SCALE1)?, keyed(attr::SCALE2)?);
        let (alpha, sizes, starts) =
            (keyed(attr::ALPHA)?, keyed(attr::PROBLEM_SIZES)?, keyed(attr::EXPERT_OFFSETS)?);
        let ([rows, depth], [groups, other, columns]) = (&a.shape[..], &b.shape[..]) else {
            return Err(misfit(b, &a.shape));
        };
        if depth != other || out.shape != [*rows, *columns] {
            return Err(misfit(out, &[*rows, *columns]));
        }
        for (it, wanted) in [(alpha, vec![*groups]), (sizes, vec![*groups, 3]), (starts, vec![*groups])] {
            expect_shape(it, &wanted)?;
        }
        let a = self.scaled(code, a, scale1)?;
        // `[groups, columns, depth]` as rows of all groups, with scales `[groups, columns, blocks]`.
        let by_column =
            code.temporary("columns", self.dtype(stmt.get(attr::MAT2)), vec![*groups, *columns, *depth]);
        code.copy(&b.permute(&[0, 2, 1]), &by_column);
        if scale2.shape.get(..2) != Some(&[*groups, *columns]) || scale2.shape.len() != 3 {
            return Err(misfit(scale2, &[*groups, *columns, 1]));
        }
        let blocks = scale2.shape[2];
        let factors = code.temporary("scales of columns", DType::Float, vec![groups * columns, blocks]);
        code.copy(scale2, &View::contiguous(factors.buffer, scale2.shape.clone()));
        let flat = View::contiguous(by_column.buffer, vec![groups * columns, *depth]);
        let b = self.scaled(code, &flat, &factors)?;
        let b = View::contiguous(b.buffer, vec![*groups, *columns, *depth]).permute(&[0, 2, 1]);
        // Between the groups are rows of none: each group follows one with a matrix of zeros.
        let ends = code.temporary("ends of gaps and groups", DType::Int64, vec![*groups, 2]);
        code.copy(starts, &ends.select(1, 0));
        code.map(Op::Add, [view(starts), view(&sizes.select(1, 0))], &ends.select(1, 1));
        let ends = View::contiguous(ends.buffer, vec![2 * groups]);
        let with_gaps = |code: &mut InstBuilder, name: &str, it: &View| {
            let [_, rows, columns] = it.shape[..] else { return it.clone() };
            let all = code.temporary(name, DType::Float, vec![*groups, 2, rows, columns]);
            code.fill(&all, Number::Int(0));
            code.copy(it, &all.select(1, 1));
            View::contiguous(all.buffer, vec![2 * groups, rows, columns])
        };
        let b = with_gaps(code, "matrices of gaps and groups", &b);
        let (sum, ones, alphas) = (
            code.temporary("products", DType::Float, out.shape.clone()),
            code.temporary("ones", DType::Float, vec![*rows, 1]),
            code.temporary("alphas of rows", DType::Float, vec![*rows, 1]),
        );
        code.fill(&ones, Number::Int(1));
        let kind = RoutineKind::GroupedGemm(GroupedDim::Rows);
        let factors =
            View { shape: vec![*groups, 1, 1], strides: vec![alpha.strides[0], 0, 0], ..alpha.clone() };
        let factors = with_gaps(code, "alphas of gaps and groups", &factors);
        for (a, b, out) in [(a, b, &sum), (ones, factors, &alphas)] {
            code.routine(kind, vec![a, b, ends.clone()], vec![out.clone()]);
        }
        let alphas = View { shape: out.shape.clone(), strides: vec![1, 0], ..alphas };
        code.map(Op::Mul, [view(&sum), view(&alphas)], &sum);
        code.copy(&sum, out);
        Ok(())
    }

    /// Returns a matrix `[rows, depth]`, times its scales, in binary32.
    fn scaled(&self, code: &mut InstBuilder, matrix: &View, scale: &View) -> Result<View> {
        let [rows, depth] = matrix.shape[..] else { return Err(misfit(matrix, &[1, 1])) };
        let wide = code.temporary("operand", DType::Float, vec![rows, depth]);
        code.copy(matrix, &wide);
        let scales = code.temporary("scales", DType::Float, scale.shape.clone());
        code.copy(scale, &scales);
        let blocks = match scales.shape[..] {
            _ if scales.len() == 1 => 1,
            [count] | [count, 1] if count == rows => 1,
            [count, blocks] if count == rows && blocks > 0 && depth % blocks == 0 => blocks,
            _ => return Err(misfit(scale, &[rows, 1])),
        };
        let shape = vec![rows, blocks, depth / blocks];
        let strides = match scales.len() {
            1 => vec![0, 0, 0],
            _ => vec![blocks, usize::from(blocks > 1), 0],
        };
        let scales = View { shape: shape.clone(), strides, ..scales };
        let target = View::contiguous(wide.buffer, shape);
        code.map(Op::Mul, [view(&target), view(&scales)], &target);
        Ok(wide)
    }

    /// Blocks of 16 elements with scales of type e4m3 for results of type e2m1, and of 32 with e8m0 for e4m3. The scale is the
    /// largest magnitude divided by the largest number of the type; an element is divided by the rounded scale (NVFP4; OCP
    /// Microscaling Formats Specification 1.0). Scales of type e4m3 may have a global factor, by which a scale is divided again before
    /// elements are divided by it.
    pub(super) fn block_quantize(&self, code: &mut InstBuilder) -> Result<()> {
        let input = self.operand(0)?;
        // The offsets of groups say where the scales of each group are stored.
        let offsets = if self.stmt.op == Op::GroupedBlockQuantize { 2 } else { 0 };
        let global = self.operands.get(1 + offsets);
        if self.operands.len() > 2 + offsets {
            return Err(self.unsupported("it has several global scales"));
        }
        let dtypes = [self.result_dtype(0), self.result_dtype(1)];
        let (quantized, scales, dtype, scale_dtype) = match dtypes {
            [DType::E2M1, scale] | [DType::E4M3, scale @ DType::E8M0] => (0, 1, dtypes[0], scale),
            [scale, DType::E2M1] | [scale @ DType::E8M0, DType::E4M3] => (1, 0, dtypes[1], scale),
            _ => return Err(self.unsupported("its results are not e2m1 with e4m3, or e4m3 with e8m0")),
        };
        let (quantized, scales) = (self.result(quantized)?, self.result(scales)?);
        let (length, largest) = if dtype == DType::E2M1 { (16, 6.0) } else { (32, 448.0) };
        let Some((extent, outer)) = input.shape.split_last().filter(|it| it.0 % length == 0) else {
            return Err(OperatorFault::Unsupported(format!("its rows are not blocks of {length} elements")));
        };
        let blocks = [outer, &[extent / length]].concat();
        expect_shape(quantized, &input.shape)?;
        if scales.shape != blocks {
            return Err(misfit(scales, &blocks));
        }
        let parts = [&blocks[..], &[length]].concat();
        let split = |it: &View| it.reshape(&parts).ok_or_else(|| misfit(it, &parts));
        let (source, target) = (split(input)?, split(quantized)?);
        let sizes = code.temporary("magnitudes", DType::Float, parts.clone());
        code.map(Op::Abs, [view(&source)], &sizes);
        let scale = code.temporary("scales", DType::Float, blocks.clone());
        code.reduce_rows(ReduceOp::Max, Number::Float(0.0), &sizes, &scale);
        code.map(Op::Div, [view(&scale), float(largest)], &scale);
        let global = match global {
            Some(_) if scale_dtype != DType::E4M3 => {
                return Err(self.unsupported("it has a global scale, and scales that are powers of two"));
            }
            Some(it) => Some(repeated(it, &blocks)?),
            None => None,
        };
        if let Some(global) = &global {
            code.map(Op::Mul, [view(&scale), view(global)], &scale);
        }
        if scale_dtype == DType::E4M3 {
            // The smallest normal number, so that a block of zeros has a scale.
            code.map(Op::Max, [view(&scale), float(2f64.powi(-6))], &scale);
        } else {
            // The next power of two, so that no element exceeds the type.
            code.map(Op::Log2, [view(&scale)], &scale);
            code.map(Op::Ceil, [view(&scale)], &scale);
            code.map(Op::Exp2, [view(&scale)], &scale);
        }
        code.copy(&scale, scales);
        code.copy(scales, &scale);
        if let Some(global) = &global {
            code.map(Op::Div, [view(&scale), view(global)], &scale);
        }
        let each = View { shape: parts.clone(), strides: [&scale.strides[..], &[0]].concat(), ..scale };
        let quotients = code.temporary("quotients", DType::Float, parts);
        code.map(Op::Div, [view(&source), Arg::View(each)], &quotients);
        code.copy(&quotients, &target);
        Ok(())
    }
}

/// Returns the factor of each element of a shape `[rows, columns]`, if `scale` has one for each row, or one number.
fn row_factors(scale: &View, shape: &[usize]) -> Option<View> {
    let step = match scale.shape[..] {
        _ if scale.len() == 1 => 0,
        [count] | [count, 1] if count == shape[0] => scale.strides[0],
        _ => return None,
    };
    Some(View { shape: shape.to_vec(), strides: vec![step, 0], ..scale.clone() })
}

/// Returns a view with exchanged dimensions; a vector of scales stays.
fn transposed(scale: &View) -> View {
    if scale.shape.len() == 2 { scale.permute(&[1, 0]) } else { scale.clone() }
}

/// Returns one number for every element of a shape.
fn repeated(number: &View, shape: &[usize]) -> Result<View> {
    match number.len() {
        1 => Ok(View { shape: shape.to_vec(), strides: vec![0; shape.len()], ..number.clone() }),
        _ => Err(misfit(number, &[1])),
    }
}
