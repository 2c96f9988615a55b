//! Reductions along axes and over ranks.

#[cfg(test)]
mod tests;

use grammar::DType;

use super::{
    Exactness, FixedPointRange, KernelError, Precision, Result,
    map::constant,
    narrow,
    overflow::{FactorMagnitudes, FiniteRange},
    shadow_lanes, wrap,
};
use hir_plan::{Number, ReduceOp, View};
use hir_tensor::{
    data::{
        Data, Shadow, WrittenMask, for_each_run,
        shadow::{EXACT, LANES, ORDER_ERROR, ORDERED, ROUNDED},
    },
    dense::DenseTensor,
};

/// Reduces `input` along `axes` (ascending), starting from `init`, in index order. The result has the
/// remaining axes.
///
/// Floats are reduced in binary32, or in binary64 if any type is binary64, and rounded once. Integers are
/// exact and wrap. `Avg` divides the sum once by the number of elements. A sum is exact if all terms are
/// multiples of a power of two and the sum of their magnitudes is at most 2^24 (2^53 in binary64) times it. A
/// product is exact if no step rounded and no order of the factors overflows.
///
/// # Errors
/// Bitwise operations on floats, or a result type that `Data` does not support.
pub fn reduce(
    op: ReduceOp,
    init: Number,
    input: &DenseTensor,
    axes: &[usize],
    out_dtype: DType,
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    reduce_axes(op, Some(init), input, axes, out_dtype, exactness)
}

/// Reduces equally shaped tensors of several ranks element by element, in the given order. Otherwise works
/// like `reduce`.
///
/// # Errors
/// Like `reduce`.
pub fn peer_reduce(
    op: ReduceOp,
    parts: &[DenseTensor],
    out_dtype: DType,
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let Some(first) = parts.first() else {
        return Ok(DenseTensor::full(vec![0], Data::zeros(out_dtype, 0)?));
    };
    let len = first.data.len();
    let mut stack = DenseTensor {
        shape: [&[parts.len()], first.shape.as_slice()].concat(),
        data: Data::zeros(first.data.dtype(), parts.len() * len)?,
        written: WrittenMask::full(parts.len() * len),
        shadow: None,
    };
    if parts.iter().any(|it| it.shadow.is_some()) {
        stack.shadow = Some(Shadow::of(&stack.data));
    }
    for (at, part) in parts.iter().enumerate() {
        let view = View { buffer: 0, offset: at * len, shape: vec![len], strides: vec![1] };
        if !stack.data.scatter(&view, &part.data) {
            return Err(KernelError::ReduceOp(op, part.data.dtype()));
        }
        stack.written.scatter(&view, &part.written);
        if let Some(shadow) = &mut stack.shadow {
            shadow.scatter(&view, &part.shadow());
        }
    }
    reduce_axes(op, None, &stack, &[0], out_dtype, exactness)
}

/// Maps the elements of the input to those of the result.
struct OutputMap {
    /// A view of the result with the input's shape. Reduced axes have stride 0.
    view: View,
    /// The shape of the result.
    shape: Vec<usize>,
    /// The number of elements that are reduced to one.
    terms: usize,
}

impl OutputMap {
    fn of(shape: &[usize], axes: &[usize]) -> Self {
        let kept: Vec<usize> = (0..shape.len()).filter(|it| !axes.contains(it)).collect();
        let out = View::contiguous(0, kept.iter().map(|&it| shape[it]).collect());
        let mut strides = vec![0; shape.len()];
        kept.iter().zip(&out.strides).for_each(|(&axis, &stride)| strides[axis] = stride);
        let terms = axes.iter().map(|&it| shape[it]).product();
        Self { view: View { buffer: 0, offset: 0, shape: shape.to_vec(), strides }, shape: out.shape, terms }
    }

    /// Accumulates all input elements into those of the result, in index order.
    fn accumulate<T: Copy, S: Copy>(&self, start: T, input: &[S], step: impl Fn(T, S) -> T) -> Vec<T> {
        let mut out = vec![start; self.shape.iter().product()];
        for_each_run(&self.view, |position, at, count, stride| {
            let part = &input[position..position + count];
            match stride {
                0 => out[at] = part.iter().fold(out[at], |sum, &it| step(sum, it)),
                _ => part.iter().enumerate().for_each(|(i, &it)| {
                    out[at + i * stride] = step(out[at + i * stride], it);
                }),
            }
        });
        out
    }
}

fn reduce_axes(
    op: ReduceOp,
    init: Option<Number>,
    input: &DenseTensor,
    axes: &[usize],
    out_dtype: DType,
    exactness: &mut Exactness,
) -> Result<DenseTensor> {
    let target = OutputMap::of(&input.shape, axes);
    let dtype = input.data.dtype();
    let (data, shadow) = if dtype.is_integral() && out_dtype.is_integral() {
        let fold = |it: &Data| wrap(out_dtype, integers(op, init, it, &target, out_dtype)?.into_iter());
        let data = fold(&input.data)?;
        let shadow = shadow_lanes::shadow_per_lane(&[input], &data, |it| fold(&it[0]))?;
        (data, shadow)
    } else {
        let before = exactness.inexact();
        let (values, changed) = floats(op, init, &input.data, &target, out_dtype, exactness)?;
        exactness.count(changed);
        let rounds = input.shadow.is_some() || exactness.inexact() > before;
        let shadow =
            if exactness.shadows && rounds { shadow(op, init, input, &target, &values)? } else { None };
        (values, shadow)
    };
    let written = if input.written.is_full() {
        WrittenMask::full(data.len())
    } else {
        let positions: Vec<usize> = (0..input.written.len()).collect();
        WrittenMask::from_flags(target.accumulate(true, &positions, |all, it| all && input.written.get(it)))
    };
    Ok(DenseTensor { shape: target.shape, data, written, shadow })
}

fn integers(
    op: ReduceOp,
    init: Option<Number>,
    input: &Data,
    target: &OutputMap,
    out_dtype: DType,
) -> Result<Vec<i128>> {
    let neutral = match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Or | ReduceOp::Xor => 0,
        ReduceOp::Product => 1,
        ReduceOp::Min | ReduceOp::FMin => i128::MAX,
        ReduceOp::Max | ReduceOp::FMax => i128::MIN,
        ReduceOp::And => -1,
    };
    let start = match init {
        None => neutral,
        Some(it) => {
            let mut cell = Data::zeros(out_dtype, 1)?;
            cell.set(0, it);
            cell.to_i128()[0]
        }
    };
    let values = input.to_i128();
    let step: fn(i128, i128) -> i128 = match op {
        ReduceOp::Sum | ReduceOp::Avg => |a, b| a.wrapping_add(b),
        ReduceOp::Product => |a, b| a.wrapping_mul(b),
        ReduceOp::Min | ReduceOp::FMin => |a, b| a.min(b),
        ReduceOp::Max | ReduceOp::FMax => |a, b| a.max(b),
        ReduceOp::And => |a, b| a & b,
        ReduceOp::Or => |a, b| a | b,
        ReduceOp::Xor => |a, b| a ^ b,
    };
    let mut out = target.accumulate(start, &values, step);
    if op == ReduceOp::Avg {
        out.iter_mut().for_each(|it| *it /= target.terms.max(1) as i128);
    }
    Ok(out)
}

/// Returns the initial value of a reduction of floats, or `None` for bitwise operations.
fn start_value(op: ReduceOp, init: Option<Number>, precision: Precision) -> Option<f64> {
    let neutral = match op {
        // The neutral element of addition is -0, because 0 + -0 is 0.
        ReduceOp::Sum | ReduceOp::Avg => -0.0,
        ReduceOp::Product => 1.0,
        ReduceOp::Min => f64::INFINITY,
        ReduceOp::Max => f64::NEG_INFINITY,
        ReduceOp::FMin | ReduceOp::FMax => f64::NAN,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => return None,
    };
    Some(init.map_or(neutral, |it| constant(it, precision)))
}

/// Returns the minima or maxima.
fn extreme(op: ReduceOp, start: f64, values: &[f64], target: &OutputMap) -> Vec<f64> {
    match op {
        ReduceOp::Min => target.accumulate(start, values, |a, b| if a.is_nan() || a <= b { a } else { b }),
        ReduceOp::FMin => target.accumulate(start, values, f64::min),
        ReduceOp::FMax => target.accumulate(start, values, f64::max),
        ReduceOp::Max
        | ReduceOp::Sum
        | ReduceOp::Product
        | ReduceOp::Avg
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => target.accumulate(start, values, |a, b| if a.is_nan() || a >= b { a } else { b }),
    }
}

/// Returns the shadow of reduced floats. `init` is `None` for a reduction over ranks, where each rank may
/// store a partial result.
fn shadow(
    op: ReduceOp,
    init: Option<Number>,
    input: &DenseTensor,
    target: &OutputMap,
    data: &Data,
) -> Result<Option<Shadow>> {
    let dtype = input.data.dtype();
    let precision = Precision::of([dtype, data.dtype()]);
    let start = start_value(op, init, precision).ok_or(KernelError::ReduceOp(op, dtype))?;
    let engine = if init.is_none() { shadow_lanes::unit_roundoff(data.dtype()) } else { 0.0 }
        .max(precision.unit_roundoff());
    let range = partial_range(precision, init, data.dtype());
    let terms = target.terms.max(1) as f64;
    let values: [Vec<f64>; LANES] =
        [EXACT, ORDERED, ROUNDED].map(|lane| shadow_lanes::lane_values(input, lane));
    let divisor = if op == ReduceOp::Avg { terms } else { 1.0 };
    match op {
        ReduceOp::Sum | ReduceOp::Avg => {
            let sums = |lane: usize| {
                let sums = target.accumulate(start, &values[lane], |sum, it| sum + it);
                sums.into_iter().map(|it| it / divisor).collect()
            };
            let magnitudes = target.accumulate(start.abs(), &values[EXACT], |sum, it| sum + it.abs());
            let magnitudes: Vec<f64> = magnitudes.into_iter().map(|it| it / divisor).collect();
            let is_exact =
                op == ReduceOp::Sum && shadow_lanes::sums_are_exact(&values[EXACT], start, target.terms);
            shadow_lanes::sum_shadow(sums, &magnitudes, (engine, range), is_exact, data)
        }
        ReduceOp::Product => {
            let products = |lane: usize| {
                let mut products = target.accumulate(start, &values[lane], |product, it| product * it);
                let error = [0.0, ORDER_ERROR, engine][lane] * terms;
                products.iter_mut().for_each(|it| *it = shadow_lanes::perturb(*it, error * it.abs(), lane));
                products
            };
            let mut lanes = [EXACT, ORDERED, ROUNDED].map(products);
            let results = data.to_f64();
            for (lane, range) in [(ORDERED, FiniteRange::of(Precision::Double)), (ROUNDED, range)] {
                let depend = order_dependent_products(start, &values[EXACT], target, range);
                for at in (0..results.len()).filter(|at| depend[*at]) {
                    lanes[lane][at] = shadow_lanes::undetermined(lanes[EXACT][at], results[at]);
                }
            }
            shadow_lanes::into_shadow(lanes, data)
        }
        ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::FMin
        | ReduceOp::FMax
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => {
            let stored = if dtype == data.dtype() { 0.0 } else { shadow_lanes::unit_roundoff(data.dtype()) };
            let extremes = |lane: usize| {
                let mut extremes = extreme(op, start, &values[lane], target);
                let error = if lane == ROUNDED { stored } else { 0.0 };
                extremes.iter_mut().for_each(|it| *it = shadow_lanes::perturb(*it, error * it.abs(), lane));
                extremes
            };
            shadow_lanes::into_shadow([EXACT, ORDERED, ROUNDED].map(extremes), data)
        }
    }
}

/// Returns the result, and the number of elements that the last rounding changed.
fn floats(
    op: ReduceOp,
    init: Option<Number>,
    input: &Data,
    target: &OutputMap,
    out_dtype: DType,
    exactness: &mut Exactness,
) -> Result<(Data, usize)> {
    let precision = Precision::of([input.dtype(), out_dtype]);
    let start = start_value(op, init, precision).ok_or(KernelError::ReduceOp(op, input.dtype()))?;
    let values = input.to_f64();
    let out = match op {
        ReduceOp::Sum | ReduceOp::Avg => {
            exactness.count(inexact_sums(start, &values, target, precision));
            match precision {
                Precision::Single => {
                    let sums = target.accumulate(start as f32, &values, |a, b| a + b as f32);
                    sums.into_iter().map(f64::from).collect()
                }
                Precision::Double => target.accumulate(start, &values, |a, b| a + b),
            }
        }
        ReduceOp::Product => {
            let step = |(product, exact): (f64, bool), it: f64| {
                let next = precision.round(product * it);
                (next, exact && product.mul_add(it, -next) == 0.0)
            };
            let products = target.accumulate((start, true), &values, step);
            let range = partial_range(precision, init, out_dtype);
            let depend = order_dependent_products(start, &values, target, range);
            exactness.count(products.iter().zip(depend).filter(|(it, depends)| !it.1 || *depends).count());
            products.into_iter().map(|it| it.0).collect()
        }
        ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::FMin
        | ReduceOp::FMax
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => extreme(op, start, &values, target),
    };
    if op != ReduceOp::Avg {
        return narrow(out_dtype, out.into_iter());
    }
    let terms = target.terms.max(1) as f64;
    let average = |sum: f64| precision.round(sum / terms);
    let divided: Vec<f64> = out.iter().map(|&sum| average(sum)).collect();
    let differs = |(quotient, sum): &(&f64, &f64)| quotient.mul_add(terms, -**sum) != 0.0;
    exactness.count(divided.iter().zip(&out).filter(differs).count());
    narrow(out_dtype, divided.into_iter())
}

/// Returns the range of the partial results of a reduction. Without `init`, ranks may store them with the type of the result.
fn partial_range(precision: Precision, init: Option<Number>, out_dtype: DType) -> FiniteRange {
    let range = FiniteRange::of(precision);
    if init.is_none() { range.stored_as(out_dtype) } else { range }
}

/// Returns which products may overflow or underflow in some orders only.
fn order_dependent_products(start: f64, values: &[f64], target: &OutputMap, range: FiniteRange) -> Vec<bool> {
    let none = FactorMagnitudes::default().with(start);
    let factors = target.accumulate(none, values, |factors, it| factors.with(it));
    factors.into_iter().map(|it| it.depend_on_order(range)).collect()
}

/// Returns the number of sums that are not known to be exact.
fn inexact_sums(start: f64, values: &[f64], target: &OutputMap, precision: Precision) -> usize {
    let all = target.shape.iter().product();
    let Some(extent) = FixedPointRange::of(values.iter().copied().chain([start])) else { return all };
    let Some(limit) = precision.limit(extent.grain) else { return all };
    if (target.terms as f64 + 1.0) * extent.largest <= limit {
        return 0;
    }
    let sums = target.accumulate(start.abs(), values, |sum, it| sum + it.abs());
    // Sums of magnitudes are themselves exact below 2^53. At 2^53, they may have been rounded down to the
    // limit.
    sums.iter().filter(|&&sum| sum > limit || (precision == Precision::Double && sum == limit)).count()
}
