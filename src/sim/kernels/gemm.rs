//! Matrix multiplication.

use std::{borrow::Cow, ops::Add};

use grammar::{DType, dtype::Class};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::{
    Exactness, FixedPointRange, Precision, Result, narrow, overflow::FiniteRange, shadow_lanes, wrap,
};
use hir_tensor::{
    data::{Data, Shadow, WrittenMask, shadow::EXACT},
    dense::DenseTensor,
};

/// Computes `out[b…, m, n] = Σₖ a[b…, m, k] · b[b…, k, n] + bias[b…, m, n]`, with one rounding to
/// `out_dtype`.
///
/// Floats are accumulated in binary32, or in binary64 if any type is binary64. Integers are exact and wrap.
/// The order of summation is that of the `matrixmultiply` crate, and is fixed for each shape on one machine. A sum is
/// exact if all operands are multiples of a power of two and Σ|a·b| + |bias| ≤ 2^24 (2^53 in binary64) times
/// that of the product. This is tested first with the largest magnitudes, and then, in binary64, for each
/// element. Of operands of 8 bits or less, tensor cores keep about 14 bits of a sum (DeepSeek-V3 Technical Report, 2024,
/// section 3.3.2), so these sums are exact up to 2^13, and may have errors as large as that.
///
/// # Errors
/// `Data` does not support the result type.
pub fn gemm(
    a: &DenseTensor,
    b: &DenseTensor,
    bias: Option<&DenseTensor>,
    out_dtype: DType,
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let sizes = Sizes::of(a, b);
    let bias_data = bias.map(|it| &it.data);
    let types = [a.data.dtype(), b.data.dtype(), out_dtype];
    let blocks: Vec<&DenseTensor> = [a, b].into_iter().chain(bias).collect();
    let is_shadowed = blocks.iter().any(|it| it.shadow.is_some());
    let (data, shadow) = if types.into_iter().all(DType::is_integral) {
        let sums = |it: &[Data]| wrap(out_dtype, sizes.integers(&it[0], &it[1], it.get(2)).into_iter());
        let data = wrap(out_dtype, sizes.integers(&a.data, &b.data, bias_data).into_iter())?;
        let shadow = shadow_lanes::shadow_per_lane(&blocks, &data, sums)?;
        (data, shadow)
    } else {
        let types = types.into_iter().chain(bias_data.map(Data::dtype));
        let before = exactness.inexact();
        let precision = Precision::of(types);
        let data = match precision {
            Precision::Single => {
                let bias = bias_data.map(singles);
                sizes.floats(&singles(&a.data), &singles(&b.data), bias.as_deref(), out_dtype, exactness)?
            }
            Precision::Double => {
                let bias = bias_data.map(Data::to_f64);
                sizes.floats(&a.data.to_f64(), &b.data.to_f64(), bias.as_deref(), out_dtype, exactness)?
            }
        };
        let shadow = if exactness.shadows && (is_shadowed || exactness.inexact() > before) {
            sizes.shadow(&blocks, precision, &data)?
        } else {
            None
        };
        (data, shadow)
    };
    let written = sizes.mask(&a.written, &b.written, bias.map(|it| &it.written));
    let mut shape = a.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = sizes.n;
    }
    Ok(DenseTensor { shape, data, written, shadow })
}

/// The sizes of a batched matrix multiplication.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    /// How much larger than those of binary32 the errors of sums on tensor cores are.
    coarseness: f64,
}

/// Minimum number of rows that a thread multiplies at a time.
const MIN_ROWS: usize = 64;

/// Number of elements that a thread looks at a time.
const PART: usize = 1 << 15;

/// An element type that the `matrixmultiply` crate supports.
trait Scalar: Copy + Default + Into<f64> + Add<Output = Self> + Send + Sync + 'static {
    const PRECISION: Precision;
    const ZERO: Self;

    /// Sets `out` to the product of two row-major matrices.
    fn multiply(sizes: Sizes, a: &[Self], b: &[Self], out: &mut [Self]);
}

macro_rules! scalars {
    ($($type:ty: $precision:ident, $gemm:path;)*) => {$(
        impl Scalar for $type {
            const PRECISION: Precision = Precision::$precision;
            const ZERO: Self = 0.0;

            #[expect(unsafe_code, reason = "the crate takes pointers; the lengths are checked before")]
            fn multiply(Sizes { m, n, k, .. }: Sizes, a: &[Self], b: &[Self], out: &mut [Self]) {
                assert!(a.len() == m * k && b.len() == k * n && out.len() == m * n);
                let (row_of_a, row_of_out) = (k as isize, n as isize);
                let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
                // SAFETY: the slices are row-major matrices of m·k, k·n and m·n elements. With unit column strides and these
                // row strides, every access lies inside them. `out` is borrowed mutably, so it overlaps neither operand.
                unsafe {
                    $gemm(m, k, n, 1.0, a, row_of_a, 1, b, row_of_out, 1, 0.0, out, row_of_out, 1);
                }
            }
        }
    )*};
}

scalars! {
    f32: Single, matrixmultiply::sgemm;
    f64: Double, matrixmultiply::dgemm;
}

impl Sizes {
    fn of(a: &DenseTensor, b: &DenseTensor) -> Self {
        let end = |shape: &[usize], back: usize| shape.iter().rev().nth(back).copied().unwrap_or(1);
        let batch = a.shape.iter().rev().skip(2).product();
        let is_small = [a, b].iter().all(|it| it.data.dtype().class() == Class::SmallFloat);
        let coarseness = if is_small { 2f64.powi(24 - 13) } else { 1.0 };
        Self { batch, m: end(&a.shape, 1), n: end(&b.shape, 0), k: end(&a.shape, 0), coarseness }
    }

    fn floats<T: Scalar>(
        self,
        a: &[T],
        b: &[T],
        bias: Option<&[T]>,
        out_dtype: DType,
        exactness: &mut Exactness,
    ) -> Result<Data> {
        let mut sums = self.multiply(a, b);
        if let Some(bias) = bias {
            sums.iter_mut().zip(bias).for_each(|(sum, &it)| *sum = *sum + it);
        }
        exactness.count(self.inexact_sums(a, b, bias));
        let (data, changed) = narrow(out_dtype, sums.into_iter().map(Into::into))?;
        exactness.count(changed);
        Ok(data)
    }

    /// Returns the shadow of the product of the first two blocks plus the bias, if there is a third block.
    fn shadow(self, blocks: &[&DenseTensor], precision: Precision, data: &Data) -> Result<Option<Shadow>> {
        let sums = |blocks: Vec<Vec<f64>>| {
            let mut sums = self.multiply(&blocks[0], &blocks[1]);
            if let Some(bias) = blocks.get(2) {
                sums.iter_mut().zip(bias).for_each(|(sum, it)| *sum += it);
            }
            sums
        };
        let lane =
            |lane: usize| blocks.iter().map(|it| shadow_lanes::lane_values(it, lane)).collect::<Vec<_>>();
        let magnitudes =
            |it: Vec<Vec<f64>>| it.into_iter().map(|it| it.into_iter().map(f64::abs).collect()).collect();
        let magnitudes = sums(magnitudes(lane(EXACT)));
        let exact = sums(lane(EXACT));
        // Without shadows, all lanes are equal and have the same products.
        let is_exact = blocks.iter().all(|it| it.shadow.is_none());
        let of_lane = |it: usize| if is_exact { exact.clone() } else { sums(lane(it)) };
        let engine = (self.coarseness * precision.unit_roundoff(), FiniteRange::of(precision));
        shadow_lanes::sum_shadow(of_lane, &magnitudes, engine, false, data)
    }

    /// Returns the number of sums that are not known to be exact.
    fn inexact_sums<T: Scalar>(self, a: &[T], b: &[T], bias: Option<&[T]>) -> usize {
        let part = |values: &[T]| FixedPointRange::of(values.iter().map(|&it| it.into()));
        let extent = |values: &[T]| {
            let parts = values.par_chunks(PART).map(part);
            parts.try_reduce(|| FixedPointRange::EMPTY, |one, other| Some(one.union(other)))
        };
        let all = self.batch * self.m * self.n;
        let (Some(a_all), Some(b_all), Some(bias_all)) =
            (extent(a), extent(b), extent(bias.unwrap_or_default()))
        else {
            return all;
        };
        let grain = a_all.grain.saturating_add(b_all.grain).min(bias_all.grain);
        let Some(limit) = T::PRECISION.limit(grain).map(|it| it / self.coarseness) else { return all };
        if self.k as f64 * a_all.largest * b_all.largest + bias_all.largest <= limit {
            return 0;
        }
        let magnitudes = |values: &[T]| -> Vec<f64> { values.iter().map(|&it| it.into().abs()).collect() };
        let mut sums = self.multiply(&magnitudes(a), &magnitudes(b));
        if let Some(bias) = bias {
            sums.iter_mut().zip(magnitudes(bias)).for_each(|(sum, it)| *sum += it);
        }
        // These sums are themselves exact below 2^53. At 2^53, they may have been rounded down to the limit.
        sums.iter().filter(|&&sum| sum > limit || (T::PRECISION == Precision::Double && sum == limit)).count()
    }

    /// Multiplies all matrices of the batch, and blocks of rows of each, at the same time. Each sum is the same, whatever the blocks are.
    fn multiply<T: Scalar>(self, a: &[T], b: &[T]) -> Vec<T> {
        let Self { batch, m, n, k, .. } = self;
        let mut out = vec![T::ZERO; batch * m * n];
        if m * n * k == 0 {
            return out;
        }
        // The right operand is packed again for each block, so blocks are not small.
        let rows = m.div_ceil(rayon::current_num_threads()).max(MIN_ROWS);
        let matrices =
            out.par_chunks_exact_mut(m * n).zip(a.par_chunks_exact(m * k)).zip(b.par_chunks_exact(k * n));
        matrices.for_each(|((out, a), b)| {
            out.par_chunks_mut(rows * n).zip(a.par_chunks(rows * k)).for_each(|(out, a)| {
                T::multiply(Self { batch: 1, m: out.len() / n, ..self }, a, b, out);
            });
        });
        out
    }

    fn integers(self, a: &Data, b: &Data, bias: Option<&Data>) -> Vec<i128> {
        let Self { batch, m, n, k, .. } = self;
        // Arithmetic modulo 2^64 is sufficient for every integer type.
        let wide = |data: &Data| -> Vec<i64> { data.to_i128().into_iter().map(|it| it as i64).collect() };
        let (a, b) = (wide(a), wide(b));
        let mut out = bias.map_or_else(|| vec![0; batch * m * n], wide);
        for row in 0..batch * m {
            let sums = &mut out[row * n..][..n];
            for (at, &left) in a[row * k..][..k].iter().enumerate() {
                let right = &b[(row / m * k + at) * n..][..n];
                for (sum, &it) in sums.iter_mut().zip(right) {
                    *sum = sum.wrapping_add(left.wrapping_mul(it));
                }
            }
        }
        out.into_iter().map(i128::from).collect()
    }

    /// Returns the written mask. An element is written if its row of `a`, its column of `b` and its bias are.
    fn mask(self, a: &WrittenMask, b: &WrittenMask, bias: Option<&WrittenMask>) -> WrittenMask {
        let Self { batch, m, n, k, .. } = self;
        if a.is_full() && b.is_full() && bias.is_none_or(WrittenMask::is_full) {
            return WrittenMask::full(batch * m * n);
        }
        let rows: Vec<bool> = (0..batch * m).map(|row| (0..k).all(|at| a.get(row * k + at))).collect();
        let column = |at: usize| (0..k).all(|row| b.get((at / n * k + row) * n + at % n));
        let columns: Vec<bool> = (0..batch * n).map(column).collect();
        let element = |at: usize| {
            let (row, column) = (at / n, at % n);
            rows[row] && columns[row / m * n + column] && bias.is_none_or(|it| it.get(at))
        };
        WrittenMask::from_flags((0..batch * m * n).map(element).collect())
    }
}

/// Returns the elements as binary32.
fn singles(data: &Data) -> Cow<'_, [f32]> {
    match data {
        Data::F32(it) => Cow::Borrowed(it),
        Data::F16(it) => Cow::Owned(it.to_f32_vec()),
        Data::Bf16(it) => Cow::Owned(it.to_f32_vec()),
        other => Cow::Owned(other.to_f64().into_iter().map(|it| it as f32).collect()),
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn block(shape: &[usize], values: &[f32]) -> DenseTensor {
        DenseTensor::full(shape.to_vec(), Data::F32(values.to_vec()))
    }

    fn bf16s(shape: &[usize], value: impl Fn(usize) -> f32) -> DenseTensor {
        let len = shape.iter().product();
        DenseTensor::full(shape.to_vec(), Data::Bf16((0..len).map(|at| bf16::from_f32(value(at))).collect()))
    }

    #[test]
    fn batched_with_bias() -> Result<()> {
        let a = block(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
        let b = block(&[2, 2, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let bias = block(&[2, 1, 2], &[10.0, 20.0, 30.0, 40.0]);
        let mut exactness = Exactness::default();
        let out = gemm(&a, &b, Some(&bias), DType::Float, &mut exactness)?;
        assert_eq!(out, block(&[2, 1, 2], &[11.0, 22.0, 37.0, 47.0]));
        assert_eq!(out.shadow, None);
        assert!(exactness.is_exact());
        Ok(())
    }

    #[test]
    fn integers_wrap() -> Result<()> {
        let a = DenseTensor::full(vec![1, 2], Data::I8(vec![100, 2]));
        let b = DenseTensor::full(vec![2, 2], Data::I8(vec![2, 1, 1, 1]));
        let out = gemm(&a, &b, None, DType::Int8, &mut Exactness::default())?;
        assert_eq!(out.data, Data::I8(vec![202u8 as i8, 102]));
        Ok(())
    }

    #[test]
    fn rounds_once_after_the_bias() -> Result<()> {
        // 256 + 1 is not representable in bf16, but 256 + 1 + 1 is. Rounding before the bias would give 256.
        let a = bf16s(&[1, 2], |at| [16.0, 1.0][at]);
        let b = bf16s(&[2, 1], |at| [16.0, 1.0][at]);
        let mut exactness = Exactness::default();
        let out = gemm(&a, &b, Some(&bf16s(&[1, 1], |_| 1.0)), DType::BFloat, &mut exactness)?;
        assert_eq!(out.data.to_f64(), [258.0]);
        assert!(exactness.is_exact());
        let out = gemm(&a, &b, None, DType::BFloat, &mut exactness)?;
        assert_eq!((out.data.to_f64(), exactness.inexact()), (vec![256.0], 1));
        Ok(())
    }

    #[test]
    fn exactness_both_ways() -> Result<()> {
        let inexact = |a: &DenseTensor, b: &DenseTensor| {
            let mut exactness = Exactness::default();
            gemm(a, b, None, a.data.dtype(), &mut exactness).map(|_| exactness.inexact())
        };
        // The bound from the largest magnitudes fails, but the sum itself is small enough.
        let a = block(&[1, 3], &[4096.0, 1.0, 1.0]);
        assert_eq!(inexact(&a, &block(&[3, 1], &[1.0, 4096.0, 0.5]))?, 0);
        assert_eq!(inexact(&a, &block(&[3, 1], &[4095.0, 1.0, 4095.0]))?, 0);
        // 2^24 + 1 needs 25 bits; the other element does not.
        assert_eq!(inexact(&a, &block(&[3, 2], &[4096.0, 1.0, 1.0, 0.0, 0.0, 0.0]))?, 1);
        // Every order of summation must be exact: 2^24 + 1 - 2^24.
        assert_eq!(inexact(&a, &block(&[3, 1], &[4096.0, 1.0, -16777216.0]))?, 1);
        assert_eq!(inexact(&block(&[1, 1], &[0.1]), &block(&[1, 1], &[0.1]))?, 1);
        assert_eq!(inexact(&block(&[1, 1], &[f32::NAN]), &block(&[1, 1], &[1.0]))?, 1);
        let wide = |values: &[f64]| DenseTensor::full(vec![1, 1], Data::F64(values.to_vec()));
        assert_eq!(inexact(&wide(&[2f64.powi(30) + 1.0]), &wide(&[2f64.powi(20) + 1.0]))?, 0);
        assert_eq!(inexact(&wide(&[2f64.powi(30) + 1.0]), &wide(&[2f64.powi(30) + 1.0]))?, 1);
        Ok(())
    }

    #[test]
    fn masks_spread_over_rows_and_columns() -> Result<()> {
        let mut a = block(&[2, 2], &[1.0; 4]);
        let mut b = block(&[2, 3], &[1.0; 6]);
        a.written = WrittenMask::from_flags(vec![true, false, true, true]);
        b.written = WrittenMask::from_flags(vec![true, true, true, true, true, false]);
        let out = gemm(&a, &b, None, DType::Float, &mut Exactness::default())?;
        assert_eq!(out.written, WrittenMask::from_flags(vec![false, false, false, true, true, false]));
        let mut bias = block(&[2, 3], &[1.0; 6]);
        bias.written = WrittenMask::from_flags(vec![true, true, true, false, true, true]);
        let out = gemm(&a, &b, Some(&bias), DType::Float, &mut Exactness::default())?;
        assert_eq!(out.written, WrittenMask::from_flags(vec![false, false, false, false, true, false]));
        Ok(())
    }

    #[test]
    fn empty_sums_are_zero() -> Result<()> {
        let out =
            gemm(&block(&[2, 0], &[]), &block(&[0, 2], &[]), None, DType::Float, &mut Exactness::default())?;
        assert_eq!(out, block(&[2, 2], &[0.0; 4]));
        Ok(())
    }

    #[test]
    fn large_products_agree_with_a_plain_loop() -> Result<()> {
        let size = 256;
        let small = |at: usize| ((at * 7919) % 5) as f32 - 2.0;
        let (a, b) = (bf16s(&[size, size], small), bf16s(&[size, size], |at| small(at + 3)));
        let mut exactness = Exactness::default();
        let out = gemm(&a, &b, None, DType::Float, &mut exactness)?;
        assert!(exactness.is_exact());
        let (left, right, sums) = (a.data.to_f64(), b.data.to_f64(), out.data.to_f64());
        for at in (0..size * size).step_by(97) {
            let term = |k: usize| left[at / size * size + k] * right[k * size + at % size];
            assert_eq!(sums[at], (0..size).map(term).sum::<f64>());
        }
        Ok(())
    }
}
