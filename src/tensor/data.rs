//! Elements in memory: one vector of a concrete type per tensor, and all conversions that round.
//!
//! Invariant: each conversion rounds once, to nearest even. Integers that do not fit wrap when converted from
//! integers and saturate when converted from floats, as in CUDA.

use grammar::DType;
use half::{bf16, f16};

use hir_plan::{Number, View};

pub mod bytes;
mod element;
mod equality;
mod mask;
pub mod shadow;
mod small_floats;
mod strided;
#[cfg(test)]
mod tests;

pub use element::Element;
pub use mask::WrittenMask;
pub use shadow::{Shadow, ShadowedTensor};
pub use small_floats::{E2m1, E4m3, E5m2, E8m0, SmallFloat};
pub use strided::for_each_run;
use strided::{gather, scatter};

/// The error for an element type that the simulator does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("element type `{}` is not supported here: use a real type of one element, an integer or bool", .0.short_name())]
pub struct UnsupportedDtype(pub DType);

/// Declares the enum and the code that is the same for all types from one list.
macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $dtype:ident $(| $more:ident)?;)*) => {
        /// The elements of a tensor or of one rank's shard, in row-major order.
        #[derive(Clone, Debug)]
        pub enum Data { $($(#[$doc])* $name(Vec<$type>),)* }

        /// Evaluates `$body` with `$v` bound to the typed vector inside `$data`.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! each {
            ($data:expr, $v:ident => $body:expr) => {
                match $data { $($crate::data::Data::$name($v) => $body,)* }
            };
        }
        #[doc(inline)]
        pub use each;

        impl Data {
            /// Creates `len` zeros. `Index` is stored as `Int64`.
            ///
            /// # Errors
            /// Rejects pairs of 4-bit numbers, and complex types.
            pub fn zeros(dtype: DType, len: usize) -> Result<Self, UnsupportedDtype> {
                match dtype {
                    $(DType::$dtype $(| DType::$more)? => Ok(Self::$name(vec![Default::default(); len])),)*
                    DType::E2M1x2 | DType::Complex64 | DType::Complex128 | DType::Composite(_) => Err(UnsupportedDtype(dtype)),
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

elements! {
    /// Booleans.
    Bool(bool) = Bool;
    /// binary64.
    F64(f64) = Double;
    /// binary32.
    F32(f32) = Float;
    /// binary16.
    F16(f16) = Half;
    /// bfloat16.
    Bf16(bf16) = BFloat;
    /// e4m3.
    E4m3(E4m3) = E4M3;
    /// e5m2.
    E5m2(E5m2) = E5M2;
    /// Powers of two.
    E8m0(E8m0) = E8M0;
    /// e2m1, one element a byte.
    E2m1(E2m1) = E2M1;
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

impl Data {
    /// Returns the element type; `Int64` for data created as `Index`.
    pub fn dtype(&self) -> DType {
        fn of<T: Element>(_: &[T]) -> DType {
            T::DTYPE
        }
        each!(self, v => of(v))
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns element `i`, for scalars and reports. A `u64` beyond the range of `i64` is returned as the
    /// nearest float.
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

    /// Returns element `i` as a literal that parses to the same element. A double is printed in its own
    /// shortest form, which may be longer than that of a float of equal value.
    pub fn text(&self, i: usize) -> String {
        match (self, self.get(i)) {
            (Self::F64(_), Number::Float(it)) if it.is_finite() => {
                if hir_plan::prints_without_exponent(it) {
                    format!("{it}")
                } else {
                    format!("{it:e}")
                }
            }
            // A `Number` holds integers up to those of `i64`.
            (Self::U64(all), _) => all[i].to_string(),
            (_, number) => number.to_string(),
        }
    }

    /// Sets element `i`, rounding once; returns whether rounding changed the value.
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

    /// Converts to another type; returns also the number of values that rounding or saturation changed.
    /// Truncation of floats to integers and wrapping of integers are not counted.
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

    /// Converts the elements to binary64; integers beyond 2^53 are rounded.
    pub fn to_f64(&self) -> Vec<f64> {
        each!(self, v => v.iter().map(|it| it.to_f64()).collect())
    }

    /// Converts the elements to integers; floats are truncated.
    pub fn to_i128(&self) -> Vec<i128> {
        each!(self, v => v.iter().map(|it| it.to_i128()).collect())
    }

    /// Returns the elements of `view` as a dense vector. The view must lie inside the data.
    pub fn gather(&self, view: &View) -> Self {
        each!(self, v => gather(v, view).into())
    }

    /// Writes dense elements to `view`. Returns false and writes nothing if the types differ.
    pub fn scatter(&mut self, view: &View, from: &Self) -> bool {
        fn same<T: Element>(to: &mut [T], view: &View, from: &Data) -> bool {
            T::of(from).map(|it| scatter(to, view, it)).is_some()
        }
        each!(self, v => same(v, view, from))
    }

    /// Returns the elements at `indices`, in that order.
    pub fn pick(&self, indices: &[usize]) -> Self {
        each!(self, v => indices.iter().map(|&at| v[at]).collect::<Vec<_>>().into())
    }

    /// Writes element `i` to `indices[i]` if `chosen[i]`. Returns false and writes nothing if the types
    /// differ.
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

    /// Returns whether element `i` has the same type and bits in both.
    pub fn same_bits(&self, i: usize, other: &Self) -> bool {
        fn same<T: Element>(left: T, i: usize, right: &Data) -> bool {
            T::of(right).is_some_and(|it| it[i].to_bits() == left.to_bits())
        }
        each!(self, v => same(v[i], i, other))
    }

    /// Returns the first index at which the bits of two vectors of equal type and length differ.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        fn find<T: Element>(left: &[T], right: &Data) -> Option<usize> {
            let right = T::of(right)?;
            left.iter().zip(right).position(|(a, b)| a.to_bits() != b.to_bits())
        }
        each!(self, v => find(v, other))
    }
}

/// Compares types, lengths and bits: NaNs are equal if their bits are equal, and 0 differs from -0.
impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        self.dtype() == other.dtype() && self.len() == other.len() && self.first_difference(other).is_none()
    }
}

/// A dense array.
#[derive(Clone, Debug, PartialEq)]
pub struct NdArray {
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data,
}
