//! The Rust types of elements, and their conversions.

use grammar::DType;
use half::{bf16, f16};

use super::{Data, E2m1, E4m3, E5m2, E8m0, SmallFloat};

/// A Rust type of elements.
pub trait Element: Copy + Default + PartialEq + Send + Sync + 'static {
    /// The element type; `Int64` stands for `Index` too.
    const DTYPE: DType;
    /// Whether the type is a floating-point type.
    const FLOAT: bool;
    /// Converts to binary64; integers beyond 2^53 are rounded.
    fn to_f64(self) -> f64;
    /// Converts to an integer; floats are truncated and saturate.
    fn to_i128(self) -> i128;
    /// Returns the nearest value and whether it differs from `v`. Integers truncate and saturate; bool is
    /// `v != 0` and never differs.
    fn from_f64(v: f64) -> (Self, bool);
    /// Returns the nearest value and whether it differs from `v`. Integers wrap; bool is `v != 0` and never
    /// differs.
    fn from_i128(v: i128) -> (Self, bool);
    /// Returns the bits, zero-extended.
    fn to_bits(self) -> u64;
    /// Returns the element with these low bits.
    fn from_bits(bits: u64) -> Self;
    /// Returns the elements of `data` if they have this type.
    fn of(data: &Data) -> Option<&[Self]>;
}

/// The part of `Element` that is the same for all types.
macro_rules! common {
    ($name:ident, $dtype:ident, $float:literal) => {
        const DTYPE: DType = DType::$dtype;
        const FLOAT: bool = $float;
        fn of(data: &Data) -> Option<&[Self]> {
            if let Data::$name(it) = data { Some(it) } else { None }
        }
    };
}

macro_rules! integers {
    ($($name:ident($type:ty) = $dtype:ident;)*) => {$(
        impl Element for $type {
            common!($name, $dtype, false);
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn to_i128(self) -> i128 {
                i128::from(self)
            }
            fn from_f64(v: f64) -> (Self, bool) {
                let near = v as $type;
                (near, near as f64 != v || (near == <$type>::MAX && v >= 2f64.powi(63)))
            }
            fn from_i128(v: i128) -> (Self, bool) {
                (v as $type, i128::from(v as $type) != v)
            }
            fn to_bits(self) -> u64 {
                (self as u64) & (u64::MAX >> (64 - <$type>::BITS))
            }
            fn from_bits(bits: u64) -> Self {
                bits as $type
            }
        }
    )*};
}

macro_rules! floats {
    ($($name:ident($type:ty) = $dtype:ident, $from_f64:expr, $from_i128:expr;)*) => {$(
        impl Element for $type {
            common!($name, $dtype, true);
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn to_i128(self) -> i128 {
                f64::from(self) as i128
            }
            fn from_f64(v: f64) -> (Self, bool) {
                let near: Self = $from_f64(v);
                (near, f64::from(near) != v && !v.is_nan())
            }
            fn from_i128(v: i128) -> (Self, bool) {
                let near: Self = $from_i128(v);
                (near, !near.is_finite() || f64::from(near) as i128 != v)
            }
            fn to_bits(self) -> u64 {
                u64::from(<$type>::to_bits(self))
            }
            fn from_bits(bits: u64) -> Self {
                <$type>::from_bits(bits as _)
            }
        }
    )*};
}

integers! {
    I8(i8) = Int8;
    I16(i16) = Int16;
    I32(i32) = Int32;
    I64(i64) = Int64;
    U8(u8) = UInt8;
    U16(u16) = UInt16;
    U32(u32) = UInt32;
    U64(u64) = UInt64;
}

// `half` drops the low 32 bits of a binary64 before it rounds, so ties are rounded incorrectly. Converting
// through a binary32 that is rounded to odd is exact (Boldo and Melquiond, "When double rounding is odd",
// 2005).
floats! {
    F64(f64) = Double, |v| v, |v| v as f64;
    F32(f32) = Float, |v| v as f32, |v| v as f32;
    F16(f16) = Half, |v| f16::from_f32(round_to_odd_f32(v)), |v| f16::from_f32(round_to_odd_f32(round_to_odd_f64(v)));
    Bf16(bf16) = BFloat, |v| bf16::from_f32(round_to_odd_f32(v)), |v| bf16::from_f32(round_to_odd_f32(round_to_odd_f64(v)));
}

macro_rules! small_floats {
    ($($name:ident = $dtype:ident;)*) => {$(
        impl Element for $name {
            common!($name, $dtype, true);
            fn to_f64(self) -> f64 {
                self.value()
            }
            fn to_i128(self) -> i128 {
                self.value() as i128
            }
            fn from_f64(v: f64) -> (Self, bool) {
                Self::nearest(v)
            }
            fn from_i128(v: i128) -> (Self, bool) {
                let near = Self::nearest(v as f64).0;
                (near, near.value() as i128 != v)
            }
            fn to_bits(self) -> u64 {
                u64::from(self.0)
            }
            fn from_bits(bits: u64) -> Self {
                SmallFloat(bits as u8)
            }
        }
    )*};
}

small_floats! {
    E4m3 = E4M3;
    E5m2 = E5M2;
    E8m0 = E8M0;
    E2m1 = E2M1;
}

impl Element for bool {
    common!(Bool, Bool, false);
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn to_i128(self) -> i128 {
        i128::from(self)
    }
    fn from_f64(v: f64) -> (Self, bool) {
        (v != 0.0, false)
    }
    fn from_i128(v: i128) -> (Self, bool) {
        (v != 0, false)
    }
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
    fn from_bits(bits: u64) -> Self {
        bits & 1 != 0
    }
}

/// Rounds to odd: toward zero, with the last bit set if the result is inexact. A later rounding to fewer bits
/// then gives the correctly rounded result.
fn round_to_odd_f32(v: f64) -> f32 {
    let near = v as f32;
    let back = f64::from(near);
    if back == v || v.is_nan() {
        return near;
    }
    f32::from_bits((near.to_bits() - u32::from(back.abs() > v.abs())) | 1)
}

/// As `round_to_odd_f32`, from an integer to binary64.
fn round_to_odd_f64(v: i128) -> f64 {
    let near = v as f64;
    let back = near as i128;
    if back == v {
        return near;
    }
    f64::from_bits((near.to_bits() - u64::from(back.unsigned_abs() > v.unsigned_abs())) | 1)
}
