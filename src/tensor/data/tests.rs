use super::*;

fn rounded(dtype: DType, value: Number) -> (Number, bool) {
    let mut data = Data::zeros(dtype, 1).unwrap_or(Data::F64(vec![0.0]));
    let changed = data.set(0, value);
    (data.get(0), changed)
}

#[test]
fn rounds_once_to_even() {
    // 1 + 2^-8 is half way between the bf16 numbers 1 and 1 + 2^-7; a much smaller bit breaks the tie.
    assert_eq!(rounded(DType::BFloat, Number::Float(1.00390625)), (Number::Float(1.0), true));
    assert_eq!(rounded(DType::BFloat, Number::Float(1.00390625 + 1e-14)), (Number::Float(1.0078125), true));
    assert_eq!(
        rounded(DType::BFloat, Number::Int((1 << 60) + (1 << 52) + 1)).0,
        Number::Float(2f64.powi(60) * 1.0078125)
    );
    assert_eq!(rounded(DType::Half, Number::Int(2049)), (Number::Float(2048.0), true));
    assert_eq!(rounded(DType::Half, Number::Float(65520.0)), (Number::Float(f64::INFINITY), true));
    assert_eq!(rounded(DType::Float, Number::Int(1 << 24)), (Number::Float(16777216.0), false));
    assert!(!rounded(DType::Float, Number::Float(f64::NAN)).1);
    assert_eq!(rounded(DType::Int8, Number::Float(-1e9)), (Number::Int(-128), true));
    assert_eq!(rounded(DType::Int64, Number::Float(2f64.powi(63))), (Number::Int(i64::MAX), true));
    assert_eq!(rounded(DType::UInt8, Number::Int(-1)), (Number::Int(255), true));
    assert_eq!(rounded(DType::Index, Number::Int(-1)), (Number::Int(-1), false));
}

#[test]
fn numbers_are_short() {
    let text = |it: f64| Number::Float(it).to_string();
    assert_eq!(
        [text(40.0), text(-0.5), text(f64::NAN), text(f64::NEG_INFINITY)],
        ["40", "-0.5", "nan", "-inf"]
    );
    assert_eq!([text(f64::from(0.1f32)), text(1e300), text(1e-7)], ["0.1", "1e300", "1e-7"]);
    assert_eq!(Number::Bool(true).to_string(), "true");
    assert_eq!(Number::Int(-3).to_string(), "-3");
}

#[test]
fn unsupported_types_are_named() {
    let error = Data::zeros(DType::Complex64, 1).err().map(|it| it.to_string()).unwrap_or_default();
    assert!(error.starts_with("element type `c64` is not supported"), "{error}");
}

#[test]
fn converts_and_counts() {
    let data = Data::F32(vec![1.0, 0.1, -2.7, f32::NAN, 1e30]);
    let counted = |dtype| data.convert(dtype).map(|it| it.1);
    assert_eq!(counted(DType::BFloat), Ok(3)); // 0.1, -2.7 and 1e30
    assert_eq!(data.convert(DType::Int32), Ok((Data::I32(vec![1, 0, -2, 0, i32::MAX]), 2)));
    assert_eq!(data.convert(DType::Bool), Ok((Data::Bool(vec![true; 5]), 0)));
    assert_eq!(Data::I32(vec![300]).convert(DType::UInt8), Ok((Data::U8(vec![44]), 0)));
    assert_eq!(data.convert(DType::Float), Ok((data.clone(), 0)));
}

#[test]
fn bit_equality() {
    assert_eq!(Data::F32(vec![f32::NAN]), Data::F32(vec![f32::NAN]));
    assert_ne!(Data::F32(vec![0.0]), Data::F32(vec![-0.0]));
    assert_ne!(Data::I64(vec![0]), Data::U64(vec![0]));
    assert_eq!(Data::I8(vec![1, -1]).first_difference(&Data::I8(vec![1, 1])), Some(1));
}

#[test]
fn strided_views_and_masks() {
    let data = Data::I32((0..6).collect());
    let transposed = View { buffer: 0, offset: 0, shape: vec![3, 2], strides: vec![1, 3] };
    let repeated = View { buffer: 0, offset: 4, shape: vec![2, 2], strides: vec![0, 1] };
    assert_eq!(data.gather(&transposed), Data::I32(vec![0, 3, 1, 4, 2, 5]));
    assert_eq!(data.gather(&repeated), Data::I32(vec![4, 5, 4, 5]));
    let mut back = Data::I32(vec![0; 6]);
    assert!(back.scatter(&transposed, &Data::I32(vec![0, 3, 1, 4, 2, 5])));
    assert_eq!(back, data);
    assert!(!back.scatter(&transposed, &Data::F32(vec![0.0; 6])));

    let mut mask = WrittenMask::empty(6);
    mask.scatter(&View { buffer: 0, offset: 1, shape: vec![2], strides: vec![3] }, &WrittenMask::full(2));
    assert_eq!(mask, WrittenMask::from_flags(vec![false, true, false, false, true, false]));
    assert_eq!(mask.first_unwritten(), Some(0));
    mask.scatter(&View::contiguous(0, vec![6]), &WrittenMask::full(6));
    assert!(mask.is_full());
}

#[test]
fn scalars_and_empty_views() {
    let scalar = View { buffer: 0, offset: 2, shape: vec![], strides: vec![] };
    assert_eq!(Data::I8(vec![1, 2, 3]).gather(&scalar), Data::I8(vec![3]));
    let none = View { buffer: 0, offset: 0, shape: vec![2, 0], strides: vec![0, 1] };
    assert_eq!(Data::I8(vec![1]).gather(&none), Data::I8(vec![]));
}

#[test]
fn transposed_matrices_are_gathered_by_their_formula() {
    let from = Data::I32((0..40 * 100).collect());
    for (rows, columns, stride, offset) in [
        (1, 1, 1, 0),
        (3, 5, 7, 2),
        (32, 32, 32, 0),
        (33, 70, 40, 11),
        (40, 100, 40, 0),
        (2, 0, 9, 4000),
        (0, 3, 9, 0),
    ] {
        let view = View { buffer: 0, offset, shape: vec![rows, columns], strides: vec![1, stride] };
        let wanted =
            (0..rows).flat_map(|row| (0..columns).map(move |column| (offset + row + column * stride) as i32));
        assert_eq!(from.gather(&view), Data::I32(wanted.collect()), "{rows}x{columns}");
    }
}
