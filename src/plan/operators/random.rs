//! Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//!
//! The numbers of an element depend on the seed, the offset of the statement, and the row-major index of the element in the
//! whole tensor, so shardings, chunks and passes do not change them. The key is the seed; the counter consists of the offset
//! (words 0 and 1) and the index (words 2 and 3), as in `curand_init(seed, index, 4 · offset)` of cuRAND.
//!
//! * Uniform: the upper `p` bits of word 0 times 2^-p, for a type with `p` significant bits; of words 1 and 0 for binary64.
//! * Normal: `sqrt(-2 ln u) · cos(2π v)` (Box and Muller, 1958), with u in (0, 1] and v in [0, 1) from the upper 24 bits of
//!   words 0 and 1.

use std::f64::consts::TAU;

use grammar::{DType, Op, Operand, attr, dtype::Class};

use super::{OperatorCall, OperatorFault, Result, expect_shape, misfit};
use crate::{
    Arg, Number, ShardLayout, View,
    indices::Indices,
    inst_builder::{InstBuilder, float, int, view},
};

impl OperatorCall<'_> {
    pub(super) fn random(&self, code: &mut InstBuilder) -> Result<()> {
        let out = self.result(0)?;
        let seed = self.seed()?;
        let offset = self.offset()?;
        let dtype = self.result_dtype(0);
        if dtype.class() != Class::Float {
            return Err(OperatorFault::Unsupported(format!(
                "its result is {dtype}, not a floating-point type"
            )));
        }
        let bits = random_bits(code, self.layout, out, seed, Arg::Number(Number::Int(offset)))?;
        match self.stmt.op {
            Op::RngUniform => uniform(code, &bits, dtype, out),
            Op::RngUniformRange => {
                let (low, high) = (self.real(0)?, self.real(1)?);
                uniform(code, &bits, dtype, out);
                code.map(Op::Mul, [view(out), float(high - low)], out);
                code.map(Op::Add, [view(out), float(low)], out);
            }
            Op::RngNormal => normal(code, &bits, dtype, out),
            _ => {
                let (mean, deviation) = (self.real(0)?, self.real(1)?);
                normal(code, &bits, dtype, out);
                code.map(Op::Mul, [view(out), float(deviation)], out);
                code.map(Op::Add, [view(out), float(mean)], out);
            }
        }
        Ok(())
    }

    /// Returns the offset of the statement, which the reader adds.
    pub(super) fn offset(&self) -> Result<i64> {
        self.stmt.get(attr::RNG_OFFSET).map_or(Ok(0), |it| self.integer(it))
    }

    fn real(&self, at: usize) -> Result<f64> {
        Ok(self.scalar(self.scalar_arg(at)?)?.real())
    }

    /// Returns the seed, 0 if the statement has none.
    fn seed(&self) -> Result<Arg> {
        let scalars = match self.stmt.op {
            Op::RngUniformRange | Op::RngNormalGeneral => 2,
            _ => 0,
        };
        Ok(match self.stmt.args.get(scalars) {
            None => int(0),
            Some(Operand::Scalar(it)) => Arg::Number(Number::Int(self.integer(*it)?)),
            Some(Operand::Tensor(_) | Operand::Stream(_)) => view(self.operand(0)?),
        })
    }
}

/// Returns 64 random bits for each element of the part `layout` of a tensor. `seed` and `offset` are numbers or views with
/// one element.
pub(super) fn random_bits(
    code: &mut InstBuilder,
    layout: &ShardLayout,
    out: &View,
    seed: Arg,
    offset: Arg,
) -> Result<View> {
    let index = element_indices(code, layout, out)?;
    let repeated = |it: Arg| match it {
        Arg::View(it) if it.len() == 1 => {
            let strides = vec![0; index.shape.len()];
            Ok(Arg::View(View { shape: index.shape.clone(), strides, ..it }))
        }
        Arg::View(it) => Err(misfit(&it, &[])),
        number @ Arg::Number(_) => Ok(number),
    };
    let (seed, offset) = (repeated(seed)?, repeated(offset)?);
    code.map(Op::Philox, [view(&index), seed, offset], &index);
    Ok(index)
}

/// Returns the row-major index of each element of a part in the whole tensor.
fn element_indices(code: &mut InstBuilder, layout: &ShardLayout, out: &View) -> Result<View> {
    expect_shape(out, &layout.local_shape())?;
    let all = code.temporary("indices", DType::Int64, out.shape.clone());
    if out.shape.is_empty() {
        code.fill(&all, Number::Int(0));
    }
    let whole = View::contiguous(0, layout.shape.clone()).strides;
    for (dim, pieces) in layout.pieces.iter().enumerate() {
        let own = code.temporary("indices", DType::Int64, vec![out.shape[dim]]);
        let step = whole[dim] as i64;
        for run in Indices::of(pieces).runs() {
            let part = View {
                offset: run.local,
                shape: vec![run.count],
                strides: vec![run.local_step],
                ..own.clone()
            };
            code.iota(&part, run.whole as i64 * step, run.whole_step as i64 * step);
        }
        let mut strides = vec![0; out.shape.len()];
        strides[dim] = 1;
        let own = View { shape: out.shape.clone(), strides, ..own };
        match dim {
            0 => code.copy(&own, &all),
            _ => code.map(Op::Add, [view(&all), view(&own)], &all),
        }
    }
    Ok(all)
}

/// Writes uniform numbers in [0, 1). They have the precision of `dtype`, so that none is rounded to 1.
pub(super) fn uniform(code: &mut InstBuilder, bits: &View, dtype: DType, out: &View) {
    let digits = match dtype {
        DType::Double => 53,
        DType::Half => 11,
        DType::BFloat => 8,
        _ => 24,
    };
    let shift = if digits > 32 { 64 - digits } else { 32 - digits };
    let number = whole(code, bits, (shift, digits), dtype);
    code.map(Op::Mul, [view(&number), float(2f64.powi(-(digits as i32)))], out);
}

/// Returns some of the bits as whole numbers in the type in which numbers of `dtype` are computed.
fn whole(code: &mut InstBuilder, bits: &View, (shift, digits): (i64, i64), dtype: DType) -> View {
    let whole = code.temporary("bits", DType::Int64, bits.shape.clone());
    code.map(Op::Shr, [view(bits), int(shift)], &whole);
    code.map(Op::BitAnd, [view(&whole), int((1 << digits) - 1)], &whole);
    let wide = if dtype == DType::Double { DType::Double } else { DType::Float };
    let number = code.temporary("uniform", wide, bits.shape.clone());
    code.copy(&whole, &number);
    number
}

/// Writes numbers of the standard normal distribution.
fn normal(code: &mut InstBuilder, bits: &View, dtype: DType, out: &View) {
    let [radius, angle] = [8, 40].map(|shift| whole(code, bits, (shift, 24), dtype));
    let unit = 2f64.powi(-24);
    code.map(Op::Add, [view(&radius), float(1.0)], &radius);
    code.map(Op::Mul, [view(&radius), float(unit)], &radius);
    code.map(Op::Log, [view(&radius)], &radius);
    code.map(Op::Mul, [view(&radius), float(-2.0)], &radius);
    code.map(Op::Sqrt, [view(&radius)], &radius);
    code.map(Op::Mul, [view(&angle), float(unit * TAU)], &angle);
    code.map(Op::Cos, [view(&angle)], &angle);
    code.map(Op::Mul, [view(&radius), view(&angle)], out);
}
