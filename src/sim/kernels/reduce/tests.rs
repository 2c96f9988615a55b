//! Tests of reductions on dense tensors.

use half::bf16;

use super::*;

fn singles(shape: &[usize], values: &[f32]) -> DenseTensor {
    DenseTensor::full(shape.to_vec(), Data::F32(values.to_vec()))
}

fn halves(values: &[f32]) -> DenseTensor {
    DenseTensor::full(vec![values.len()], Data::Bf16(values.iter().map(|&it| bf16::from_f32(it)).collect()))
}

/// Returns the elements and the number of inexact roundings.
fn values(
    op: ReduceOp,
    init: Number,
    input: &DenseTensor,
    axes: &[usize],
) -> Result<(Vec<f64>, usize), KernelError> {
    let mut exactness = Exactness::default();
    let out = reduce(op, init, input, axes, input.data.dtype(), &mut exactness)?;
    Ok((out.data.to_f64(), exactness.inexact()))
}

#[test]
fn sums_along_axes() -> Result<(), KernelError> {
    let input = singles(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let zero = Number::Float(0.0);
    assert_eq!(values(ReduceOp::Sum, zero, &input, &[0])?, (vec![5.0, 7.0, 9.0], 0));
    assert_eq!(values(ReduceOp::Sum, zero, &input, &[1])?, (vec![6.0, 15.0], 0));
    assert_eq!(values(ReduceOp::Sum, Number::Int(1), &input, &[0, 1])?, (vec![22.0], 0));
    assert_eq!(values(ReduceOp::Avg, zero, &input, &[1])?, (vec![2.0, 5.0], 0));
    assert_eq!(values(ReduceOp::Product, Number::Int(1), &input, &[0])?, (vec![4.0, 10.0, 18.0], 0));
    assert_eq!(values(ReduceOp::Sum, zero, &singles(&[2, 0], &[]), &[1])?, (vec![0.0, 0.0], 0));
    let middle = singles(&[2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(values(ReduceOp::Sum, zero, &middle, &[1])?, (vec![4.0, 6.0, 12.0, 14.0], 0));
    assert_eq!(values(ReduceOp::Sum, zero, &middle, &[0, 2])?, (vec![14.0, 22.0], 0));
    Ok(())
}

#[test]
fn integers_are_exact_and_wrap() -> Result<(), KernelError> {
    let input = DenseTensor::full(vec![3], Data::I8(vec![100, 100, -7]));
    let one = |op, init| values(op, init, &input, &[0]).map(|it| it.0[0]);
    assert_eq!(one(ReduceOp::Sum, Number::Int(0))?, -63.0);
    assert_eq!(one(ReduceOp::Max, Number::Float(f64::NEG_INFINITY))?, 100.0);
    assert_eq!(one(ReduceOp::Min, Number::Int(127))?, -7.0);
    assert_eq!(one(ReduceOp::Avg, Number::Int(0))?, 64.0);
    assert_eq!(one(ReduceOp::And, Number::Int(-1))?, 96.0);
    assert_eq!(one(ReduceOp::Xor, Number::Int(0))?, -7.0);
    let flags = DenseTensor::full(vec![2], Data::Bool(vec![true, false]));
    assert_eq!(values(ReduceOp::And, Number::Bool(true), &flags, &[0])?.0, [0.0]);
    assert_eq!(values(ReduceOp::Or, Number::Bool(false), &flags, &[0])?.0, [1.0]);
    assert!(values(ReduceOp::And, Number::Int(1), &halves(&[1.0]), &[0]).is_err());
    Ok(())
}

#[test]
fn nans_win_or_lose() -> Result<(), KernelError> {
    let input = singles(&[3], &[1.0, f32::NAN, 2.0]);
    let one = |op, init: f64| values(op, Number::Float(init), &input, &[0]).map(|it| it.0[0]);
    assert!(one(ReduceOp::Max, f64::NEG_INFINITY)?.is_nan());
    assert!(one(ReduceOp::Min, f64::INFINITY)?.is_nan());
    assert_eq!(one(ReduceOp::FMax, f64::NEG_INFINITY)?, 2.0);
    assert_eq!(one(ReduceOp::FMin, f64::INFINITY)?, 1.0);
    Ok(())
}

#[test]
fn combines_with_one_rounding() -> Result<(), KernelError> {
    // 256 + 1 is 256 in bf16, so rounding every step would give 256.
    let parts = [halves(&[256.0, -0.0]), halves(&[1.0, -0.0]), halves(&[1.0, -0.0])];
    let mut exactness = Exactness::default();
    let out = peer_reduce(ReduceOp::Sum, &parts, DType::BFloat, &mut exactness)?;
    assert_eq!(out, halves(&[258.0, -0.0]));
    assert!(exactness.is_exact());
    peer_reduce(ReduceOp::Sum, &parts[..2], DType::BFloat, &mut exactness)?;
    assert_eq!(exactness.inexact(), 1);
    let avg = peer_reduce(ReduceOp::Avg, &parts[1..], DType::BFloat, &mut exactness)?;
    assert_eq!(avg.data.to_f64(), [1.0, 0.0]);
    assert_eq!(
        peer_reduce(ReduceOp::Max, &parts, DType::BFloat, &mut exactness)?.data.to_f64(),
        [256.0, 0.0]
    );
    Ok(())
}

#[test]
fn exactness_both_ways() -> Result<(), KernelError> {
    let zero = Number::Float(0.0);
    let inexact = |op, input: &[f32]| values(op, zero, &singles(&[input.len()], input), &[0]).map(|it| it.1);
    assert_eq!(inexact(ReduceOp::Sum, &[8388608.0, 8388607.0, 1.0])?, 0);
    assert_eq!(inexact(ReduceOp::Sum, &[8388608.0, 8388608.0, 1.0])?, 1);
    assert_eq!(inexact(ReduceOp::Sum, &[16777216.0, -16777216.0, 1.0])?, 1);
    assert_eq!(inexact(ReduceOp::Sum, &[0.5, 0.25, 1024.0])?, 0);
    assert_eq!(inexact(ReduceOp::Avg, &[1.0, 1.0, 2.0])?, 1);
    assert_eq!(inexact(ReduceOp::Avg, &[1.0, 1.0, 1.0, 2.0])?, 0);
    let product = |init| values(ReduceOp::Product, Number::Int(init), &singles(&[1], &[4097.0]), &[0]);
    assert_eq!((product(4095)?.1, product(8193)?.1), (0, 1));
    Ok(())
}

#[test]
fn a_result_needs_all_its_elements() -> Result<(), KernelError> {
    let mut input = singles(&[2, 2], &[1.0; 4]);
    input.written = WrittenMask::from_flags(vec![true, false, true, true]);
    let out = reduce(ReduceOp::Sum, Number::Int(0), &input, &[1], DType::Float, &mut Exactness::default())?;
    assert_eq!(out.written, WrittenMask::from_flags(vec![false, true]));
    let parts = [singles(&[4], &[1.0; 4]), DenseTensor { shape: vec![4], ..input }];
    let out = peer_reduce(ReduceOp::Sum, &parts, DType::Float, &mut Exactness::default())?;
    assert_eq!(out.written, WrittenMask::from_flags(vec![true, false, true, true]));
    Ok(())
}
