//! Elements in memory: one vector of a concrete type per tensor, and the one place where numbers are rounded.
//!
//! Invariant: every conversion rounds once, to nearest, halves to even; integers that do not fit wrap on their way from
//! integers and saturate on their way from floats, as CUDA's conversions do.

use grammar::dtype::DType;
use half::{bf16, f16};

use crate::plan::{Number, View};

mod mask;
mod number;
pub mod shadow;
mod strided;
#[cfg(test)]
mod tests;

pub use mask::WrittenMask;
use number::is_plain;
pub use shadow::{Shadow, ShadowedTensor};
pub(crate) use strided::for_each_run;
use strided::{gather, scatter};

/// An element type that the simulator does not compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("element type `{}` is not supported here: use a real type of 16 bits or more, an integer or bool", .0.short_name())]
pub struct UnsupportedDtype(pub DType);

/// A Rust type that elements have.
pub trait Element: Copy + Default + PartialEq + Send + Sync + 'static {
    /// The element type; `Int64` stands for `Index` too.
    const DTYPE: DType;
    /// Whether it is floating point.
    const FLOAT: bool;
    /// The value as binary64; integers beyond 2^53 are rounded.
    fn to_f64(self) -> f64;
    /// The value as an integer; floats are truncated and saturate.
    fn to_i128(self) -> i128;
    /// The nearest value and whether it differs. Integers truncate and saturate; bool is `v != 0` and never differs.
    fn from_f64(v: f64) -> (Self, bool);
    /// The nearest value and whether it differs. Integers wrap; bool is `v != 0` and never differs.
    fn from_i128(v: i128) -> (Self, bool);
    /// The bits, zero-extended.
    fn to_bits(self) -> u64;
    /// The element with these low bits.
    fn from_bits(bits: u64) -> Self;
    /// The elements of `data`, when it holds this type.
    fn of(data: &Data) -> Option<&[Self]>;
}

/// Writes the enum and what is the same for all types from one list.
macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $dtype:ident $(| $more:ident)?;)*) => {
        /// The elements of a tensor, or of a rank's part of one, in row-major order.
        #[derive(Clone, Debug)]
        pub enum Data { $($(#[$doc])* $name(Vec<$type>),)* }

        /// Runs `$body` with `$v` bound to the typed vector inside `$data`.
        macro_rules! each {
            ($data:expr, $v:ident => $body:expr) => {
                match $data { $($crate::io::data::Data::$name($v) => $body,)* }
            };
        }
        pub(crate) use each;

        impl Data {
            /// `len` zeros. `Index` is kept as `Int64`.
            ///
            /// # Errors
            /// Types of 8 bits or less that are not integers, and complex types.
            pub fn zeros(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
                match dtype {
                    $(DType::$dtype $(| DType::$more)? => Ok(Self::$name(vec![Default::default(); len])),)*
                    DType::E4M3 | DType::E5M2 | DType::E8M0 | DType::E2M1 | DType::E2M1x2 | DType::Complex64
                    | DType::Complex128 | DType::Composite(_) => Err(UnsupportedDtype(dtype)),
                }
            }
        }

        $(impl From<Vec<$type>> for Data {
            fn from(elements: Vec<$type>) -> Self {
                Self::$name(elements)
            }
        })*
    };
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

elements! {
    /// Truth values.
    Bool(bool) = Bool;
    /// binary64.
    F64(f64) = Double;
    /// binary32.
    F32(f32) = Float;
    /// binary16.
    F16(f16) = Half;
    /// bfloat16.
    Bf16(bf16) = BFloat;
    /// 8-bit signed integers.
    I8(i8) = Int8;
    /// 16-bit signed integers.
    I16(i16) = Int16;
    /// 32-bit signed integers.
    I32(i32) = Int32;
    /// 64-bit signed integers.
    I64(i64) = Int64 | Index;
    /// 8-bit unsigned integers.
    U8(u8) = UInt8;
    /// 16-bit unsigned integers.
    U16(u16) = UInt16;
    /// 32-bit unsigned integers.
    U32(u32) = UInt32;
    /// 64-bit unsigned integers.
    U64(u64) = UInt64;
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

// `half` drops the low 32 bits of a binary64 before it rounds, so ties are wrong there: the way through an
// odd-rounded binary32 is exact (Boldo and Melquiond, "When double rounding is odd", 2005).
floats! {
    F64(f64) = Double, |v| v, |v| v as f64;
    F32(f32) = Float, |v| v as f32, |v| v as f32;
    F16(f16) = Half, |v| f16::from_f32(round_to_odd_f32(v)), |v| f16::from_f32(round_to_odd_f32(round_to_odd_f64(v)));
    Bf16(bf16) = BFloat, |v| bf16::from_f32(round_to_odd_f32(v)), |v| bf16::from_f32(round_to_odd_f32(round_to_odd_f64(v)));
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

impl Data {
    /// The element type; `Int64` where `Index` was asked for.
    pub fn dtype(&self) -> DType {
        fn of<T: Element>(_: &[T]) -> DType {
            T::DTYPE
        }
        each!(self, v => of(v))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i`, for scalars and reports. A `u64` beyond `i64` comes as the nearest float.
    pub fn get(&self, i: usize) -> Number {
        fn number<T: Element>(it: T) -> Number {
            match T::DTYPE {
                DType::Bool => Number::Bool(it.to_bits() != 0),
                _ if T::FLOAT => Number::Float(it.to_f64()),
                _ => i64::try_from(it.to_i128()).map_or(Number::Float(it.to_f64()), Number::Int),
            }
        }
        each!(self, v => number(v[i]))
    }

    /// Element `i` as a literal that reads back as the same element: a double in its own shortest form, which may be
    /// longer than that of a float of equal value.
    pub fn text(&self, i: usize) -> String {
        match (self, self.get(i)) {
            (Self::F64(_), Number::Float(it)) if it.is_finite() => match is_plain(it) {
                true => format!("{it}"),
                false => format!("{it:e}"),
            },
            (_, number) => number.to_string(),
        }
    }

    /// Sets element `i` with one rounding; true when the value changed by it.
    pub fn set(&mut self, i: usize, value: Number) -> bool {
        fn put<T: Element>(slot: &mut T, value: Number) -> bool {
            let (it, changed) = match value {
                Number::Int(it) => T::from_i128(i128::from(it)),
                Number::Float(it) => T::from_f64(it),
                Number::Bool(it) => T::from_i128(i128::from(it)),
            };
            *slot = it;
            changed
        }
        each!(self, v => put(&mut v[i], value))
    }

    /// The same values in another type, and how many of them changed by rounding or saturation. Floats become
    /// integers by truncation and integers wrap; neither counts.
    ///
    /// # Errors
    /// As `zeros`.
    pub fn convert(&self, dtype: DType) -> Result<(Self, usize), UnsupportedDtype> {
        fn all<S: Element, T: Element>(from: &[S], to: &mut [T]) -> usize {
            let mut changed = 0;
            for (slot, &it) in to.iter_mut().zip(from) {
                let (near, differs) = match (S::FLOAT, T::FLOAT) {
                    (true, true) => T::from_f64(it.to_f64()),
                    (true, false) if T::DTYPE == DType::Bool => T::from_f64(it.to_f64()),
                    (true, false) => T::from_f64(it.to_f64().trunc()),
                    (false, _) => T::from_i128(it.to_i128()),
                };
                *slot = near;
                changed += usize::from(differs && (S::FLOAT || T::FLOAT));
            }
            changed
        }
        let mut out = Self::zeros(dtype, self.len())?;
        if out.dtype() == self.dtype() {
            return Ok((self.clone(), 0));
        }
        let changed = each!(self, from => each!(&mut out, to => all(from, to)));
        Ok((out, changed))
    }

    /// The elements as binary64; integers beyond 2^53 are rounded.
    pub fn to_f64(&self) -> Vec<f64> {
        each!(self, v => v.iter().map(|it| it.to_f64()).collect())
    }

    /// The elements as integers; floats are truncated.
    pub fn to_i128(&self) -> Vec<i128> {
        each!(self, v => v.iter().map(|it| it.to_i128()).collect())
    }

    /// The elements of `view`, dense. The view must lie inside.
    pub fn gather(&self, view: &View) -> Self {
        each!(self, v => gather(v, view).into())
    }

    /// Writes dense elements to `view`; false, and nothing is written, when the types differ.
    pub fn scatter(&mut self, view: &View, from: &Self) -> bool {
        fn same<T: Element>(to: &mut [T], view: &View, from: &Data) -> bool {
            T::of(from).map(|it| scatter(to, view, it)).is_some()
        }
        each!(self, v => same(v, view, from))
    }

    /// The elements at `indices`, in that order.
    pub fn pick(&self, indices: &[usize]) -> Self {
        each!(self, v => indices.iter().map(|&at| v[at]).collect::<Vec<_>>().into())
    }

    /// Writes element `i` to `indices[i]` where `chosen[i]`; false, and nothing is written, when the types differ.
    pub fn put(&mut self, indices: &[usize], chosen: &[bool], from: &Self) -> bool {
        fn same<T: Element>(to: &mut [T], indices: &[usize], chosen: &[bool], from: &Data) -> bool {
            let Some(from) = T::of(from) else { return false };
            for ((&at, _), &it) in indices.iter().zip(chosen).zip(from).filter(|((_, chosen), _)| **chosen) {
                to[at] = it;
            }
            true
        }
        each!(self, v => same(v, indices, chosen, from))
    }

    /// Whether element `i` has the same type and bits in both.
    pub fn same_bits(&self, i: usize, other: &Self) -> bool {
        fn same<T: Element>(left: T, i: usize, right: &Data) -> bool {
            T::of(right).is_some_and(|it| it[i].to_bits() == left.to_bits())
        }
        each!(self, v => same(v[i], i, other))
    }

    /// The first element whose bits differ, of two equally long vectors of one type.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        fn find<T: Element>(left: &[T], right: &Data) -> Option<usize> {
            let right = T::of(right)?;
            left.iter().zip(right).position(|(a, b)| a.to_bits() != b.to_bits())
        }
        each!(self, v => find(v, other))
    }
}

/// Equality of types, lengths and bits: NaNs are equal when their bits are, and 0 differs from -0.
impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        self.dtype() == other.dtype() && self.len() == other.len() && self.first_difference(other).is_none()
    }
}

/// A dense tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct NdArray {
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data,
}

/// Towards zero with the last bit set when anything was lost: a later rounding to fewer bits is then the only one.
fn round_to_odd_f32(v: f64) -> f32 {
    let near = v as f32;
    let back = f64::from(near);
    if back == v || v.is_nan() {
        return near;
    }
    f32::from_bits((near.to_bits() - u32::from(back.abs() > v.abs())) | 1)
}

/// As `odd_f32`, from an integer.
fn round_to_odd_f64(v: i128) -> f64 {
    let near = v as f64;
    let back = near as i128;
    if back == v {
        return near;
    }
    f64::from_bits((near.to_bits() - u64::from(back.unsigned_abs() > v.unsigned_abs())) | 1)
}
