//! Writes or adds elements at indices.

use grammar::DType;

use super::{indices_of, lines};
use crate::kernels::{
    Exactness, FixedPointRange, KernelError, Precision, Result, convert, narrow, overflow::FiniteRange,
    shadow_lanes, wrap,
};
use hir_tensor::{
    data::{WrittenMask, shadow::EXACT},
    dense::DenseTensor,
};

/// Returns `base`, of type `dtype`, with the elements of `value` written to, or added at, the indices along a dimension, in
/// ascending order. Elements of unwritten indices change nothing, and then no element of the result is written.
///
/// A sum is exact under the conditions of a reduction.
pub(super) fn scatter(
    (dim, accumulates): (usize, bool),
    base: &DenseTensor,
    index: &DenseTensor,
    value: &DenseTensor,
    dtype: DType,
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let base = convert(base, dtype, exactness)?;
    let extent = base.shape[dim];
    let numbers = indices_of(index);
    let (starts, step) = lines(&index.shape, dim);
    let (base_starts, _) = lines(&base.shape, dim);
    // The element of the result for each element of `value`.
    let mut places = vec![0; numbers.len()];
    for (start, to) in starts.zip(base_starts) {
        for at in (start..).step_by(step.max(1)).take(index.shape[dim]) {
            if index.written.get(at) {
                let own = usize::try_from(numbers[at]).ok().filter(|it| *it < extent);
                let fault = KernelError::Index { index: numbers[at], extent, element: at };
                places[at] = to + own.ok_or(fault)? * step;
            }
        }
    }
    if !index.written.is_full() {
        return Ok(DenseTensor { written: WrittenMask::empty(base.data.len()), ..base });
    }
    if !accumulates {
        let value = convert(value, dtype, exactness)?;
        let all = vec![true; places.len()];
        let mut out = base;
        out.data.put(&places, &all, &value.data);
        if out.shadow.is_some() || value.shadow.is_some() {
            let mut shadow = out.shadow().into_owned();
            shadow.put(&places, &all, &value.shadow());
            out.shadow = Some(shadow);
        }
        let mut flags: Vec<bool> = (0..out.data.len()).map(|at| out.written.get(at)).collect();
        places.iter().enumerate().for_each(|(at, place)| flags[*place] = value.written.get(at));
        out.written = WrittenMask::from_flags(flags);
        return Ok(out);
    }
    let mut flags: Vec<bool> = (0..base.data.len()).map(|at| base.written.get(at)).collect();
    places.iter().enumerate().for_each(|(at, place)| flags[*place] &= value.written.get(at));
    let written = WrittenMask::from_flags(flags);
    let shape = base.shape.clone();
    if dtype.is_integral() {
        let mut sums = base.data.to_i128();
        let terms = value.data.to_i128();
        places.iter().zip(terms).for_each(|(place, it)| sums[*place] = sums[*place].wrapping_add(it));
        return Ok(DenseTensor { shape, data: wrap(dtype, sums.into_iter())?, written, shadow: None });
    }
    let precision = Precision::of([dtype, value.data.dtype()]);
    let add = |sums: &mut [f64], terms: &[f64], round: &dyn Fn(f64) -> f64| {
        places.iter().zip(terms).for_each(|(place, it)| sums[*place] = round(sums[*place] + it));
    };
    let (mut sums, terms) = (base.data.to_f64(), value.data.to_f64());
    let mut magnitudes: Vec<f64> = sums.iter().map(|it| it.abs()).collect();
    let sizes: Vec<f64> = terms.iter().map(|it| it.abs()).collect();
    add(&mut magnitudes, &sizes, &|it| it);
    let range = FixedPointRange::of(sums.iter().chain(&terms).copied());
    let is_exact = |precision: Precision| {
        let limit = range.and_then(|it| precision.limit(it.grain));
        limit.is_some_and(|limit| magnitudes.iter().all(|it| *it <= limit))
    };
    add(&mut sums, &terms, &|it| precision.round(it));
    let (data, changed) = narrow(dtype, sums.into_iter())?;
    let rounds = changed > 0 || !is_exact(precision);
    exactness.count(if rounds { places.len().max(changed) } else { 0 });
    let is_shadowed = base.shadow.is_some() || value.shadow.is_some();
    let shadow = if exactness.shadows && (rounds || is_shadowed) {
        let sums = |lane: usize| {
            let mut sums = shadow_lanes::lane_values(&base, lane);
            add(&mut sums, &shadow_lanes::lane_values(value, lane), &|it| it);
            sums
        };
        let mut sizes: Vec<f64> = shadow_lanes::lane_values(&base, EXACT).iter().map(|it| it.abs()).collect();
        let terms: Vec<f64> = shadow_lanes::lane_values(value, EXACT).iter().map(|it| it.abs()).collect();
        add(&mut sizes, &terms, &|it| it);
        let engine = (precision.unit_roundoff(), FiniteRange::of(precision));
        shadow_lanes::sum_shadow(sums, &sizes, engine, is_exact(Precision::Double) && !is_shadowed, &data)?
    } else {
        None
    };
    Ok(DenseTensor { shape, data, written, shadow })
}
