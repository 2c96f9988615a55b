//! Computes the f64 shadows of results in the three lanes that `hir_tensor::data::shadow` defines.

use grammar::{DType, Op};

use super::{
    FixedPointRange, KernelError, Precision, Result,
    map::{Columns, Operand, constant},
    narrow,
    overflow::FiniteRange,
};
use hir_tensor::{
    data::{
        Data, Shadow, WrittenMask,
        shadow::{EXACT, LANES, ORDER_ERROR, ORDERED, ROUNDED},
    },
    dense::DenseTensor,
    elementwise::{FloatEval, FloatFunction},
    generate::mix,
};

/// Largest error, in units in the last place, that lane `ROUNDED` adds for a mathematical function. The
/// smallest is half of it. The tolerance is eight times the added error, that is, at least 8 units. This is
/// the largest error in the tables of the CUDA C++ Programming Guide, "Mathematical Functions".
const FUNCTION_ULPS: f64 = 2.0;

/// An outcome is undecided if it can change within this factor of the distance between the operands' lanes.
const MARGIN: f64 = 4.0;

/// Returns the largest relative error of one rounding to a type: half a unit in the last place of 1. Returns
/// 0 for integers.
pub(super) fn unit_roundoff(dtype: DType) -> f64 {
    dtype.significand_bits().map_or(0.0, |bits| 2f64.powi(-(bits as i32)))
}

impl Precision {
    /// Returns the largest relative error of one rounding.
    pub(super) fn unit_roundoff(self) -> f64 {
        match self {
            Self::Single => unit_roundoff(DType::Float),
            Self::Double => unit_roundoff(DType::Double),
        }
    }
}

/// Adds an error of either sign between half of `error` and all of it. The result depends only on the value,
/// the error and the lane.
pub(super) fn perturb(value: f64, error: f64, lane: usize) -> f64 {
    if error == 0.0 || !value.is_finite() {
        return value;
    }
    let bits = mix(value.to_bits().wrapping_add(lane as u64));
    let size = 0.5 + (bits >> 12) as f64 / 2f64.powi(53);
    value + if bits & 1 == 0 { size } else { -size } * error
}

/// Returns the value of a lane for a result that another engine may not have at all: neither equal to the exact value nor
/// to the rounded one, and infinitely far from both.
pub(super) fn undetermined(exact: f64, rounded: f64) -> f64 {
    let is = |it: f64, other: f64| it == other || it.is_nan() && other.is_nan();
    let mut values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter();
    values.find(|it| !is(*it, exact) && !is(*it, rounded)).unwrap_or(f64::NAN)
}

/// Returns the shadow of `data` with these lanes, or `None` if all lanes equal `data`. Lanes of integer types
/// are converted to integers. Lanes of floats get the range of the type: what overflows or saturates there is no rounding.
pub(super) fn into_shadow(lanes: [Vec<f64>; LANES], data: &Data) -> Result<Option<Shadow>> {
    let mut lanes = lanes;
    if data.dtype().is_integral() {
        for lane in &mut lanes {
            *lane = narrow(data.dtype(), lane.iter().map(|it| it.trunc()))?.0.to_f64();
        }
    } else if data.dtype() != DType::Double {
        let ends = narrow(data.dtype(), [-f64::MAX, f64::MAX].into_iter())?.0.to_f64();
        for lane in &mut lanes {
            let stored = narrow(data.dtype(), lane.iter().copied())?.0.to_f64();
            for (it, stored) in lane.iter_mut().zip(stored) {
                let is_outside = *it < ends[0] || *it > ends[1] || it.is_nan() || !stored.is_finite();
                *it = if is_outside { stored } else { *it };
            }
        }
    }
    let shadow = Shadow::from_lanes(lanes);
    Ok((!shadow.equals_data(data)).then_some(shadow))
}

/// Computes each lane in turn.
pub(super) fn per_lane<E>(lane: impl FnMut(usize) -> Result<Vec<f64>, E>) -> Result<[Vec<f64>; LANES], E> {
    let mut lane = lane;
    Ok([lane(EXACT)?, lane(ORDERED)?, lane(ROUNDED)?])
}

/// Returns a lane of a block's shadow, or the block's exact values if it has no shadow.
pub(super) fn lane_values(block: &DenseTensor, lane: usize) -> Vec<f64> {
    block.shadow.as_ref().map_or_else(|| block.data.to_f64(), |it| it.lane(lane).to_vec())
}

/// Returns a lane converted to the block's element type.
pub(super) fn lane_data(block: &DenseTensor, lane: usize) -> Result<Data> {
    match &block.shadow {
        None => Ok(block.data.clone()),
        Some(it) => Ok(narrow(block.data.dtype(), it.lane(lane).iter().copied())?.0),
    }
}

/// Returns the shadow of an operator on integers, or of any operator that adds no error, by applying `kernel`
/// to each lane.
pub(super) fn shadow_per_lane(
    blocks: &[&DenseTensor],
    data: &Data,
    kernel: impl Fn(&[Data]) -> Result<Data>,
) -> Result<Option<Shadow>> {
    if blocks.iter().all(|it| it.shadow.is_none()) {
        return Ok(None);
    }
    let lanes = per_lane(|lane| {
        let operands = blocks.iter().map(|it| lane_data(it, lane)).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, KernelError>(kernel(&operands)?.to_f64())
    })?;
    into_shadow(lanes, data)
}

/// Returns the shadow of a floating-point function, element by element. `data` contains the rounded results.
pub(super) fn map_shadow(
    (op, row): (Op, &FloatFunction),
    args: &[Operand],
    precision: Precision,
    data: &Data,
    written: &WrittenMask,
) -> Result<Option<Shadow>> {
    let function = precision.function(row);
    // The step of `nextafter` is that of the precision; all other functions are those of exact operands.
    let unrounded = if op == Op::NextAfter { function } else { row.double };
    let number = |it| constant(it, precision);
    let column = |lane: usize| Columns::of(args, |it| lane_values(it, lane), number);
    let (exact, ordered, rounded) = (column(EXACT), column(ORDERED), column(ROUNDED));
    let given = Columns::of(args, |it| it.data.to_f64(), number);
    let results = data.to_f64();
    let jumps = is_discontinuous(op, row, args);
    let engine_error = unit_roundoff(data.dtype())
        + match function {
            FloatEval::Rounded(_) => FUNCTION_ULPS * 2.0 * precision.unit_roundoff(),
            FloatEval::Exact(_) | FloatEval::Checked(_) | FloatEval::Predicate(_) => {
                precision.unit_roundoff()
            }
        };
    let mut lanes = [const { Vec::new() }; LANES].map(|_: Vec<f64>| vec![0.0; results.len()]);
    for at in (0..results.len()).filter(|at| written.get(*at)) {
        let (a, b, c, d) = (exact.at(at), ordered.at(at), rounded.at(at), given.at(at));
        let value = unrounded.eval(a).0;
        lanes[EXACT][at] = value;
        let spread = |b: [f64; 3]| [0, 1, 2].map(|it: usize| (b[it] - a[it]).abs());
        lanes[ORDERED][at] = match unrounded.eval(b) {
            (_, true) if jumps => farthest_result(unrounded, a, spread(b)),
            (it, true) => it,
            (it, false) => {
                let it = if jumps { farthest_result(unrounded, a, spread(b)) } else { it };
                perturb(it, ORDER_ERROR * it.abs(), ORDERED)
            }
        };
        // If all engines agree on the operands and the operator rounds correctly, all engines agree on the
        // result.
        lanes[ROUNDED][at] = if c == d && is_deterministic(function, row) {
            results[at]
        } else {
            let it = if jumps {
                let (of_data, of_lane) = (spread(d), spread(c));
                farthest_result(function, a, [0, 1, 2].map(|it| of_data[it].max(of_lane[it])))
            } else {
                function.eval(c).0
            };
            match function {
                FloatEval::Exact(_) => it,
                FloatEval::Predicate(_) if jumps => it,
                FloatEval::Checked(_) | FloatEval::Rounded(_) | FloatEval::Predicate(_) => {
                    perturb(it, engine_error * it.abs(), ROUNDED)
                }
            }
        };
    }
    into_shadow(lanes, data)
}

/// Returns the result that differs most from that of `operands` when each operand moves by up to `MARGIN`
/// times its `spread`.
fn farthest_result(function: FloatEval, operands: [f64; 3], spread: [f64; 3]) -> f64 {
    let value = function.eval(operands).0;
    let mut far = (0.0, value);
    for (at, sign) in [0, 1, 2].into_iter().flat_map(|at| [(at, 1.0), (at, -1.0)]) {
        if spread[at] == 0.0 || !spread[at].is_finite() {
            continue;
        }
        let mut moved = operands;
        moved[at] += sign * MARGIN * spread[at];
        let it = function.eval(moved).0;
        let differs = it.to_bits() != value.to_bits() && !(it.is_nan() && value.is_nan());
        let distance = Some((it - value).abs()).filter(|it| !it.is_nan()).unwrap_or(f64::INFINITY);
        if differs && distance > far.0 {
            far = (distance, it);
        }
    }
    far.1
}

/// Returns true if a small change of an operand can cause a large change of the result.
fn is_discontinuous(op: Op, row: &FloatFunction, args: &[Operand]) -> bool {
    let is_rounded =
        |condition: &Operand| matches!(condition, Operand::Tensor(it) if !it.data.dtype().is_integral());
    match op {
        // Rounding does not change an integer condition.
        Op::Where => args.first().is_some_and(is_rounded),
        _ => row.is_discontinuous,
    }
}

/// Returns true if all engines compute the same bits from the same operands, which holds for operators with
/// one correct rounding.
fn is_deterministic(function: FloatEval, row: &FloatFunction) -> bool {
    match function {
        FloatEval::Exact(_) | FloatEval::Predicate(_) => true,
        FloatEval::Checked(_) => !row.is_composed,
        FloatEval::Rounded(_) => false,
    }
}

/// Returns the shadow of sums. `sums` returns those of a lane, and `magnitudes` are the sums of the terms'
/// magnitudes. Each addition has the relative error `engine`, and the result has the rounding error of its
/// type. With `is_exact`, binary64 represents all partial sums, so lane `ORDERED` needs no error for the
/// order of the sum. Engines store partial sums in `range`.
pub(super) fn sum_shadow(
    sums: impl Fn(usize) -> Vec<f64>,
    magnitudes: &[f64],
    (engine, range): (f64, FiniteRange),
    is_exact: bool,
    data: &Data,
) -> Result<Option<Shadow>> {
    let (stored, results) = (unit_roundoff(data.dtype()), data.to_f64());
    let mut lanes = per_lane(|lane| {
        let mut values = sums(lane);
        for (it, magnitude) in values.iter_mut().zip(magnitudes) {
            let error = match lane {
                ORDERED if !is_exact => ORDER_ERROR * magnitude,
                ROUNDED => engine * magnitude + stored * it.abs(),
                _ => 0.0,
            };
            *it = perturb(*it, error, lane);
        }
        Ok::<_, KernelError>(values)
    })?;
    let binary64 = FiniteRange::of(Precision::Double);
    for (at, magnitude) in magnitudes.iter().enumerate() {
        let exact = lanes[EXACT][at];
        for (lane, range) in [(ORDERED, binary64), (ROUNDED, range)] {
            if range.sum_depends_on_order(exact, *magnitude) {
                lanes[lane][at] = undetermined(exact, results[at]);
            }
        }
    }
    into_shadow(lanes, data)
}

/// Returns true if binary64 represents every sum of `start` and up to `terms` of these values.
pub(super) fn sums_are_exact(values: &[f64], start: f64, terms: usize) -> bool {
    let Some(extent) = FixedPointRange::of(values.iter().copied().chain([start])) else { return false };
    let limit = Precision::Double.limit(extent.grain);
    limit.is_some_and(|limit| (terms as f64 + 1.0) * extent.largest < limit)
}

/// Returns the shadow of a conversion from `block` to `data`, in which `changed` elements were rounded.
pub(super) fn convert_shadow(block: &DenseTensor, data: &Data, changed: usize) -> Result<Option<Shadow>> {
    let (from, to) = (block.data.dtype(), data.dtype());
    if from == to {
        return Ok(block.shadow.clone());
    }
    let is_float = |it: DType| !it.is_integral();
    let Some(shadow) = &block.shadow else {
        // A conversion to an integer has the same result on all engines. So does a rounding, but the other
        // lanes keep the value before it.
        if changed == 0 || !is_float(to) {
            return Ok(None);
        }
        let values = block.data.to_f64();
        return into_shadow([values.clone(), values, data.to_f64()], data);
    };
    match (is_float(from), is_float(to)) {
        (_, true) => {
            let (old, new) = (block.data.to_f64(), data.to_f64());
            let error = unit_roundoff(to);
            let rounded = shadow.lane(ROUNDED).iter().enumerate().map(|(at, &it)| {
                if it == old[at] { new[at] } else { perturb(it, error * it.abs(), ROUNDED) }
            });
            let rounded = rounded.collect();
            into_shadow([shadow.lane(EXACT).to_vec(), shadow.lane(ORDERED).to_vec(), rounded], data)
        }
        (false, false) => shadow_per_lane(&[block], data, |it| Ok(it[0].convert(to)?.0)),
        (true, false) => {
            let whole =
                |values: Vec<f64>| -> Result<Vec<f64>> { Ok(Data::F64(values).convert(to)?.0.to_f64()) };
            let exact = shadow.lane(EXACT);
            let value = whole(exact.to_vec())?;
            let old = block.data.to_f64();
            let lanes = per_lane(|lane| {
                let spread = |at: usize| {
                    let off = (shadow.lane(lane)[at] - exact[at]).abs();
                    match lane {
                        ROUNDED if shadow.lane(lane)[at] == old[at] => 0.0,
                        ROUNDED => off.max((old[at] - exact[at]).abs()),
                        _ => off,
                    }
                };
                let moved = |sign: f64| {
                    whole((0..exact.len()).map(|at| exact[at] + sign * MARGIN * spread(at)).collect())
                };
                let (up, down) = (moved(1.0)?, moved(-1.0)?);
                let pick = |at: usize| match () {
                    () if lane == ROUNDED && shadow.lane(lane)[at] == old[at] => data_at(data, at),
                    () if (up[at] - value[at]).abs() > (down[at] - value[at]).abs() => up[at],
                    () => down[at],
                };
                Ok::<_, KernelError>((0..exact.len()).map(pick).collect())
            })?;
            into_shadow(lanes, data)
        }
    }
}

fn data_at(data: &Data, at: usize) -> f64 {
    hir_tensor::data::shadow::number_to_f64(data.get(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Exactness, convert, map as apply, peer_reduce};
    use hir_plan::{Number, ReduceOp};

    fn block(values: &[f32]) -> DenseTensor {
        DenseTensor::full(vec![values.len()], Data::F32(values.to_vec()))
    }

    fn unary(op: Op, block: &DenseTensor, dtype: DType) -> Result<DenseTensor> {
        apply(op, &[Operand::Tensor(block)], dtype, &block.shape, &mut Exactness::default())
    }

    fn lane(block: &DenseTensor, lane: usize) -> Vec<f64> {
        lane_values(block, lane)
    }

    #[test]
    fn exact_results_have_no_shadow() -> Result<()> {
        assert_eq!(unary(Op::Abs, &block(&[-1.5, 2.0]), DType::Float)?.shadow, None);
        assert_eq!(unary(Op::Exp, &block(&[0.0]), DType::Float)?.shadow, None);
        let out = unary(Op::Exp, &block(&[0.0, 1.0]), DType::Float)?;
        assert_eq!(lane(&out, EXACT), [1.0, 1f64.exp()]);
        Ok(())
    }

    #[test]
    fn one_rounding_is_the_same_on_all_engines() -> Result<()> {
        let out = unary(Op::Sqrt, &block(&[2.0]), DType::Float)?;
        assert_eq!(lane(&out, ROUNDED), [f64::from(2f32.sqrt())]);
        // A mathematical function differs between engines, and so does a root of its result.
        let out = unary(Op::Exp, &block(&[1.0]), DType::Float)?;
        assert_ne!(lane(&out, ROUNDED), [f64::from(1f32.exp())]);
        let out = unary(Op::Sqrt, &out, DType::Float)?;
        assert_ne!(lane(&out, ROUNDED), out.data.to_f64());
        Ok(())
    }

    #[test]
    fn sums_in_another_order_stay_within_the_lanes() -> Result<()> {
        let parts: Vec<DenseTensor> = [1e8, -1e8, 1.0].iter().map(|&it| block(&[it])).collect();
        let sum = |order: [usize; 3]| {
            let parts = order.map(|it| parts[it].clone());
            peer_reduce(ReduceOp::Sum, &parts, DType::Float, &mut Exactness::default())
        };
        let (one, other) = (sum([0, 1, 2])?, sum([0, 2, 1])?);
        assert_eq!((one.data.to_f64(), other.data.to_f64()), (vec![1.0], vec![0.0]));
        assert_eq!((lane(&one, EXACT), lane(&other, EXACT)), (vec![1.0], vec![1.0]));
        let rounding = one.shadow.map(|it| it.rounding_error(0, 1.0, DType::Float));
        assert!(rounding.is_some_and(|it| (4.0..40.0).contains(&it)), "{rounding:?}");
        Ok(())
    }

    #[test]
    fn an_outcome_that_rounding_decides_is_undecided() -> Result<()> {
        // 0.1 + 0.2 - 0.3 is 0 or 1e-8, depending on rounding. The sign of 5 + 0.1 - 0.3 does not depend on
        // rounding.
        let near = |values: [f32; 3]| {
            let args: Vec<DenseTensor> = values.iter().map(|&it| block(&[it])).collect();
            peer_reduce(ReduceOp::Sum, &args, DType::Float, &mut Exactness::default())
        };
        let compare = |block: &DenseTensor| {
            let args = [Operand::Tensor(block), Operand::Number(Number::Float(0.0))];
            apply(Op::Gt, &args, DType::Bool, &[1], &mut Exactness::default())
        };
        assert!(compare(&near([0.1, 0.2, -0.3])?)?.shadow.is_some());
        assert!(compare(&near([5.0, 0.1, -0.3])?)?.shadow.is_none());
        let whole = convert(&near([0.7, 0.2, 0.1])?, DType::Int32, &mut Exactness::default())?;
        let mut both = [lane(&whole, EXACT)[0], lane(&whole, ROUNDED)[0]];
        both.sort_by(f64::total_cmp);
        assert_eq!(both, [0.0, 1.0]);
        Ok(())
    }
}
