//! Combines each element with those before it.

use grammar::DType;

use super::lines;
use crate::kernels::{
    Exactness, FixedPointRange, KernelError, Precision, Result, narrow, overflow::FiniteRange, shadow_lanes,
    wrap,
};
use hir_plan::ReduceOp;
use hir_tensor::{
    data::{WrittenMask, shadow::EXACT},
    dense::DenseTensor,
};

/// Returns, for each element of `input` along a dimension, what the elements up to it reduce to, in ascending order. A sum is exact
/// under the conditions of a reduction.
pub(super) fn scan(
    (dim, op): (usize, ReduceOp),
    input: &DenseTensor,
    dtype: DType,
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let (shape, length) = (input.shape.clone(), input.shape[dim]);
    let (starts, step) = lines(&shape, dim);
    let mut flags = vec![false; input.data.len()];
    let mut order = Vec::with_capacity(flags.len());
    for start in starts {
        let mut is_written = true;
        for (number, at) in (start..).step_by(step.max(1)).take(length).enumerate() {
            is_written &= input.written.get(at);
            flags[at] = is_written;
            if number > 0 {
                order.push((at, at - step));
            }
        }
    }
    let written = WrittenMask::from_flags(flags);
    if input.data.dtype().is_integral() && dtype.is_integral() {
        let mut values = input.data.to_i128();
        for &(at, before) in &order {
            values[at] = match op {
                ReduceOp::Min | ReduceOp::FMin => values[before].min(values[at]),
                ReduceOp::Max | ReduceOp::FMax => values[before].max(values[at]),
                _ => values[before].wrapping_add(values[at]),
            };
        }
        return Ok(DenseTensor { shape, data: wrap(dtype, values.into_iter())?, written, shadow: None });
    }
    let precision = Precision::of([dtype, input.data.dtype()]);
    let scanned = |mut values: Vec<f64>, round: &dyn Fn(f64) -> f64| {
        for &(at, before) in &order {
            let (a, b) = (values[before], values[at]);
            values[at] = match op {
                ReduceOp::Min if a.is_nan() || a <= b => a,
                ReduceOp::Max if a.is_nan() || a >= b => a,
                ReduceOp::Min | ReduceOp::Max => b,
                ReduceOp::FMin => a.min(b),
                ReduceOp::FMax => a.max(b),
                _ => round(a + b),
            };
        }
        values
    };
    let adds = !matches!(op, ReduceOp::Min | ReduceOp::Max | ReduceOp::FMin | ReduceOp::FMax);
    let terms = input.data.to_f64();
    let sizes = |values: &[f64]| scanned(values.iter().map(|it| it.abs()).collect(), &|it| it);
    let range = FixedPointRange::of(terms.iter().copied());
    let magnitudes = if adds { sizes(&terms) } else { Vec::new() };
    let is_exact = |precision: Precision| {
        let limit = range.and_then(|it| precision.limit(it.grain));
        limit.is_some_and(|limit| magnitudes.iter().all(|it| *it <= limit))
    };
    let (data, changed) = narrow(dtype, scanned(terms, &|it| precision.round(it)).into_iter())?;
    let rounds = changed > 0 || adds && !is_exact(precision);
    exactness.count(if rounds { input.data.len() } else { 0 });
    let shadow = if !exactness.shadows || (!rounds && input.shadow.is_none()) {
        None
    } else if adds {
        let sums = |lane: usize| scanned(shadow_lanes::lane_values(input, lane), &|it| it);
        let engine = (precision.unit_roundoff(), FiniteRange::of(precision));
        let magnitudes = sizes(&shadow_lanes::lane_values(input, EXACT));
        let is_exact = is_exact(Precision::Double) && input.shadow.is_none();
        shadow_lanes::sum_shadow(sums, &magnitudes, engine, is_exact, &data)?
    } else {
        let lanes = shadow_lanes::per_lane(|lane| {
            let values = scanned(shadow_lanes::lane_values(input, lane), &|it| it);
            Ok::<_, KernelError>(narrow(dtype, values.into_iter())?.0.to_f64())
        })?;
        shadow_lanes::into_shadow(lanes, &data)?
    };
    Ok(DenseTensor { shape, data, written, shadow })
}
