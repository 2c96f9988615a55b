//! The kernels that compute the results of instructions, as pure functions on dense tensors.
//!
//! Arithmetic: floats of up to 32 bits are computed in binary32 and binary64 in binary64, and then rounded
//! once to the result's type. Integers are exact and wrap. An element of a result is written if everything
//! that it depends on is written.
//!
//! Exactness: a result is exact if no rounding changed a value, in any order of summation. All engines agree
//! bit for bit on exact results. A result that is not known to be exact counts as inexact and gets an f64
//! shadow (`hir_tensor::data::shadow`). From then on, every kernel computes the shadow beside the rounded values.

use grammar::{DType, Op};

use hir_plan::ReduceOp;
use hir_tensor::{
    data::{Data, Element, UnsupportedDtype, each},
    elementwise::{FloatEval, FloatFunction},
};

mod gemm;
mod hidden_values;
mod map;
mod overflow;
mod reduce;
mod routine;
mod shadow_lanes;

pub use gemm::gemm;
pub use hidden_values::{is_finite, mark_hidden_values};
pub use map::{Operand, convert, map};
pub use reduce::{peer_reduce, reduce};
pub use routine::routine;

/// What a kernel computes, or why it cannot.
type Result<T, E = KernelError> = std::result::Result<T, E>;

/// An error that prevents a kernel from computing a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The simulator does not support the operator on this element type.
    #[error("`{}` on element type `{}` is not supported", .0.name(), .1.short_name())]
    Op(Op, DType),
    /// The simulator does not support the reduction on this element type.
    #[error("a reduction with {0:?} on element type `{dtype}` is not supported", dtype = .1.short_name())]
    ReduceOp(ReduceOp, DType),
    /// The simulator does not support the element type.
    #[error(transparent)]
    Dtype(#[from] UnsupportedDtype),
    /// The program divides an integer by zero.
    #[error("division by zero in `{}`, element {element} of the result", op.name())]
    DivisionByZero {
        /// The operator.
        op: Op,
        /// The row-major index of the first such element.
        element: usize,
    },
    /// An index is outside of its dimension.
    #[error(
        "index {index} is outside of a dimension of extent {extent} (element {element} of what it selects)"
    )]
    Index {
        /// The index.
        index: i128,
        /// The extent of the dimension.
        extent: usize,
        /// The row-major index of the first such element.
        element: usize,
    },
    /// The ends of groups do not ascend, or exceed the dimension.
    #[error("group {group} begins at {start} and ends at {end}, in a dimension of extent {extent}")]
    Groups {
        /// The number of the group.
        group: usize,
        /// Its first index.
        start: usize,
        /// The index behind its last one.
        end: i128,
        /// The extent of the dimension.
        extent: usize,
    },
}

/// Counts the elements that rounding changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exactness {
    /// True if inexact results get an f64 shadow.
    pub shadows: bool,
    inexact: usize,
}

impl Default for Exactness {
    fn default() -> Self {
        Self { shadows: true, inexact: 0 }
    }
}

impl Exactness {
    /// Counts elements that are not known to be exact.
    pub fn count(&mut self, elements: usize) {
        self.inexact += elements;
    }

    /// Returns the number of elements that were not known to be exact, over all kernels.
    pub fn inexact(&self) -> usize {
        self.inexact
    }

    /// Returns true if all elements were exact.
    pub fn is_exact(&self) -> bool {
        self.inexact == 0
    }
}

/// The precision of floating-point arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precision {
    Single,
    Double,
}

impl Precision {
    /// Returns double precision if any type is binary64.
    fn of(dtypes: impl IntoIterator<Item = DType>) -> Self {
        if dtypes.into_iter().any(|it| it == DType::Double) { Self::Double } else { Self::Single }
    }

    /// Returns the function of an operator in this precision.
    fn function(self, it: &FloatFunction) -> FloatEval {
        match self {
            Self::Single => it.single,
            Self::Double => it.double,
        }
    }

    /// Returns the nearest number of this precision. For sums, differences, products, quotients and square
    /// roots of binary32 numbers, the intermediate rounding to binary64 is innocuous (Figueroa, "When is
    /// double rounding innocuous?", 1995).
    fn round(self, v: f64) -> f64 {
        match self {
            Self::Single => f64::from(v as f32),
            Self::Double => v,
        }
    }

    /// Returns the largest sum of magnitudes for which every sum of multiples of 2^`grain`, in any order, is
    /// representable: 2^(24 + grain), or 2^(53 + grain) in binary64. Returns `None` if a multiple may
    /// underflow or a sum may overflow.
    fn limit(self, grain: i32) -> Option<f64> {
        let (bits, lowest, highest) = match self {
            Self::Single => (24, -149, 127),
            Self::Double => (53, -1074, 1023),
        };
        match grain {
            i32::MAX => Some(f64::INFINITY),
            // A product with zero has the grain `i32::MAX` plus that of the other operand, which may be
            // negative. It still exceeds that of any number.
            _ if grain > highest => Some(f64::INFINITY),
            _ if grain >= lowest && grain + bits <= highest => Some(2f64.powi(bits + grain)),
            _ => None,
        }
    }
}

/// The range of finite numbers, as integers times a power of two.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FixedPointRange {
    /// The largest magnitude.
    largest: f64,
    /// The largest g for which all values are multiples of 2^g; `i32::MAX` if all are 0.
    grain: i32,
}

impl FixedPointRange {
    /// The range of no values.
    const EMPTY: Self = Self { largest: 0.0, grain: i32::MAX };

    /// Returns the range of the values, or `None` if one is infinite or a NaN.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all = Self::EMPTY;
        for it in values {
            let bits = it.abs().to_bits();
            let exponent = (bits >> 52) as i32;
            if exponent == 0x7ff {
                return None;
            }
            if bits != 0 {
                let fraction = bits & ((1 << 52) - 1);
                let significand = if exponent == 0 { fraction } else { fraction | 1 << 52 };
                all.grain = all.grain.min(exponent.max(1) - 1075 + significand.trailing_zeros() as i32);
                all.largest = all.largest.max(it.abs());
            }
        }
        Some(all)
    }

    /// Returns the range of the values of both.
    fn union(self, other: Self) -> Self {
        Self { largest: self.largest.max(other.largest), grain: self.grain.min(other.grain) }
    }
}

/// Rounds numbers to `dtype`, and returns how many changed.
fn narrow(dtype: DType, values: impl ExactSizeIterator<Item = f64>) -> Result<(Data, usize)> {
    fn all<T: Element>(to: &mut [T], values: impl Iterator<Item = f64>) -> usize {
        let mut changed = 0;
        for (slot, it) in to.iter_mut().zip(values) {
            let (near, differs) = T::from_f64(it);
            *slot = near;
            changed += usize::from(differs);
        }
        changed
    }
    let mut data = Data::zeros(dtype, values.len())?;
    let changed = each!(&mut data, to => all(to, values));
    Ok((data, changed))
}

/// Wraps integers to `dtype`.
fn wrap(dtype: DType, values: impl ExactSizeIterator<Item = i128>) -> Result<Data> {
    fn all<T: Element>(to: &mut [T], values: impl Iterator<Item = i128>) {
        to.iter_mut().zip(values).for_each(|(slot, it)| *slot = T::from_i128(it).0);
    }
    let mut data = Data::zeros(dtype, values.len())?;
    each!(&mut data, to => all(to, values));
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_find_the_common_power_of_two() {
        assert_eq!(FixedPointRange::of([3.0, -8.0]), Some(FixedPointRange { largest: 8.0, grain: 0 }));
        assert_eq!(FixedPointRange::of([0.75, 4.0, 0.0]), Some(FixedPointRange { largest: 4.0, grain: -2 }));
        assert_eq!(FixedPointRange::of([f64::from_bits(2)]).map(|it| it.grain), Some(-1073));
        assert_eq!(FixedPointRange::of([0.0]), Some(FixedPointRange { largest: 0.0, grain: i32::MAX }));
        assert_eq!(FixedPointRange::of([f64::NAN]), None);
    }

    #[test]
    fn limits_are_powers_of_two() {
        assert_eq!(Precision::Single.limit(0), Some(16777216.0));
        assert_eq!(Precision::Double.limit(-53), Some(1.0));
        assert_eq!(Precision::Single.limit(-150), None);
        assert_eq!(Precision::Single.limit(104), None);
    }
}
