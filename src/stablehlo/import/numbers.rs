//! The numbers that an element type has.

use grammar::DType;

use crate::value::Scalar;

/// Returns an integer or a boolean that a module states. MLIR's `i8` is without sign: 200 and -56 are the same element.
pub(super) fn integer(value: i128, dtype: DType) -> Option<Scalar> {
    if dtype == DType::Bool {
        return (-1..=1).contains(&value).then_some(Scalar::Bool(value != 0));
    }
    let (least, largest) = dtype.integer_range()?;
    let count = largest - least + 1;
    if !(least..count).contains(&value) {
        return None;
    }
    Some(Scalar::Int((if value > largest { value - count } else { value }) as i64))
}

/// Returns whether a type has a number, and the host, too, which computes with `i64`.
pub(super) fn fits(it: i128, dtype: DType) -> bool {
    let has = dtype.integer_range().is_some_and(|(least, largest)| (least..=largest).contains(&it));
    has && i64::try_from(it).is_ok()
}

/// Returns the element of a float type that is nearest to a number, as MLIR rounds a constant: to even, and beyond the largest
/// one to infinity, or to NaN if the type has no infinity.
pub(super) fn rounded(value: f64, dtype: DType) -> f64 {
    // The bits of the fraction, the least exponent of a normal number, the largest number, and what is beyond it.
    let (fraction, least, largest, beyond) = match dtype {
        DType::Float => return f64::from(value as f32),
        DType::Half => (10, -14, 65504.0, f64::INFINITY),
        DType::BFloat => (7, -126, 255.0 * 2f64.powi(120), f64::INFINITY),
        DType::E4M3 => (3, -6, 448.0, f64::NAN),
        DType::E5M2 => (2, -14, 57344.0, f64::INFINITY),
        _ => return value,
    };
    if !value.is_finite() {
        return if value.is_nan() { value } else { beyond.copysign(value) };
    }
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let unit = 2f64.powi(exponent.max(least) - fraction);
    let near = (value / unit).round_ties_even() * unit;
    if near.abs() > largest { beyond.copysign(value) } else { near }
}

/// Returns a value as an element of type `dtype` has it; `None` if hir does not fold numbers of that type.
pub(super) fn wrapped(value: i64, dtype: DType) -> Option<i64> {
    Some(match dtype {
        DType::Int8 => i64::from(value as i8),
        DType::Int16 => i64::from(value as i16),
        DType::Int32 => i64::from(value as i32),
        DType::Int64 | DType::UInt64 => value,
        DType::UInt8 => i64::from(value as u8),
        DType::UInt16 => i64::from(value as u16),
        DType::UInt32 => i64::from(value as u32),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn constants_are_rounded_as_mlir_rounds_them() {
        assert_eq!(rounded(0.1, DType::BFloat), 0.100_097_656_25);
        assert_eq!(rounded(65519.0, DType::Half), 65504.0);
        assert_eq!(rounded(65520.0, DType::Half), f64::INFINITY);
        assert_eq!(rounded(-464.0, DType::E4M3), -448.0);
        assert!(rounded(465.0, DType::E4M3).is_nan() && rounded(f64::INFINITY, DType::E4M3).is_nan());
        assert_eq!(rounded(-61440.0, DType::E5M2), f64::NEG_INFINITY);
        // Every element, and the numbers between it and the next one.
        for bits in 0..0x7c00 {
            let [it, next] = [bits, bits + 1].map(|it| f16::from_bits(it).to_f64());
            let even = if bits % 2 == 0 { it } else { next };
            for (value, want) in [(it, it), (it * 0.75 + next * 0.25, it), ((it + next) / 2.0, even)] {
                assert!(next.is_infinite() || rounded(value, DType::Half) == want, "{value}");
            }
        }
        for bits in 0..0x7f7f {
            let [it, next] = [bits, bits + 1].map(|it| bf16::from_bits(it).to_f64());
            let even = if bits % 2 == 0 { it } else { next };
            for (value, want) in [(it, it), (it * 0.25 + next * 0.75, next), ((it + next) / 2.0, even)] {
                assert_eq!(rounded(-value, DType::BFloat), -want, "{value}");
            }
        }
    }

    #[test]
    fn integers_have_no_sign() {
        let int = |value: i128, dtype| integer(value, dtype);
        assert_eq!(int(200, DType::Int8), Some(Scalar::Int(-56)));
        assert_eq!(int(255, DType::Int8), Some(Scalar::Int(-1)));
        assert_eq!(int(-128, DType::Int8), Some(Scalar::Int(-128)));
        assert_eq!(
            [int(256, DType::Int8), int(-129, DType::Int8), int(-1, DType::UInt8), int(256, DType::UInt8)],
            [const { None }; 4]
        );
        assert_eq!(int((1 << 64) - 1, DType::Int64), Some(Scalar::Int(-1)));
        assert_eq!(int((1 << 64) - 1, DType::UInt64), Some(Scalar::Int(-1)));
        assert_eq!(
            [int(1, DType::Bool), int(-1, DType::Bool), int(0, DType::Bool), int(2, DType::Bool)],
            [Some(Scalar::Bool(true)), Some(Scalar::Bool(true)), Some(Scalar::Bool(false)), None]
        );
    }
}
