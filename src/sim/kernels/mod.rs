//! What instructions compute: pure functions on blocks.
//!
//! Numbers: floats of up to 32 bits are computed in binary32, binary64 in binary64, and rounded once more to the
//! result's type; integers are exact and wrap. An element of a result is written when everything it depends on is.
//!
//! Exactness: a result is exact when no rounding changed a value, whatever the order of summation; engines agree bit
//! for bit there. What cannot be shown exact counts as inexact, and gets an f64 shadow (`io::data::shadow`), which every
//! kernel computes beside the rounded values from there on.

use grammar::{dtype::DType, ops::Op};

use crate::{
    elementwise::{FloatEval, FloatFunction},
    io::data::{Data, Element, UnsupportedDtype, each},
    plan::ReduceOp,
};

mod gemm;
mod map;
mod reduce;
mod shadow_lanes;

pub use gemm::gemm;
pub use map::{Operand, convert, map};
pub use reduce::{combine, reduce};

/// Why a kernel has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// The simulator lacks it.
    #[error("`{}` on element type `{}` is not supported", .0.name(), .1.short_name())]
    Op(Op, DType),
    /// The simulator lacks it.
    #[error("a reduction with {0:?} on element type `{dtype}` is not supported", dtype = .1.short_name())]
    ReduceOp(ReduceOp, DType),
    /// The simulator lacks the type.
    #[error(transparent)]
    Dtype(#[from] UnsupportedDtype),
    /// A fault of the program: an integer was divided by zero.
    #[error("division by zero in `{}`, element {element} of the result", op.name())]
    DivisionByZero {
        /// The operator.
        op: Op,
        /// The first element, row-major.
        element: usize,
    },
}

/// Counts the elements that a rounding changed, and remembers where that began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exactness {
    /// Whether results that are inexact get an f64 shadow.
    pub shadows: bool,
    inexact: usize,
    label: String,
    first: Option<String>,
}

impl Default for Exactness {
    fn default() -> Self {
        Self { shadows: true, inexact: 0, label: String::new(), first: None }
    }
}

impl Exactness {
    /// Names what follows, for `first`.
    pub fn set_label(&mut self, label: &str) {
        self.label.clear();
        self.label.push_str(label);
    }

    /// Adds elements that are not shown to be exact.
    pub fn count(&mut self, elements: usize) {
        if elements > 0 && self.first.is_none() {
            self.first = Some(self.label.clone());
        }
        self.inexact += elements;
    }

    /// Number of elements that were not shown to be exact, over all kernels.
    pub fn inexact(&self) -> usize {
        self.inexact
    }

    /// Whether there was none.
    pub fn is_exact(&self) -> bool {
        self.inexact == 0
    }

    /// The label under which the first one was counted.
    pub fn first_label(&self) -> Option<&str> {
        self.first.as_deref()
    }
}

/// The precision that floats are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precision {
    Single,
    Double,
}

impl Precision {
    /// Double when any type is binary64.
    fn of(dtypes: impl IntoIterator<Item = DType>) -> Self {
        match dtypes.into_iter().any(|it| it == DType::Double) {
            true => Self::Double,
            false => Self::Single,
        }
    }

    /// What an operator computes in this precision.
    fn function(self, it: &FloatFunction) -> FloatEval {
        match self {
            Self::Single => it.single,
            Self::Double => it.double,
        }
    }

    /// The nearest number of this precision. For sums, differences, products, quotients and square roots of
    /// binary32 numbers the way through binary64 is innocuous (Figueroa, "When is double rounding innocuous?", 1995).
    fn round(self, v: f64) -> f64 {
        match self {
            Self::Single => f64::from(v as f32),
            Self::Double => v,
        }
    }

    /// The sum of magnitudes up to which every sum of multiples of 2^`grain`, in any order, is representable:
    /// 2^(24 + grain), or 2^(53 + grain). `None` where a multiple may underflow or a sum overflow.
    fn limit(self, grain: i32) -> Option<f64> {
        let (bits, lowest, highest) = match self {
            Self::Single => (24, -149, 127),
            Self::Double => (53, -1074, 1023),
        };
        match grain {
            i32::MAX => Some(f64::INFINITY),
            // Products of zeros have a grain that is less by the other operand's: beyond any number's.
            _ if grain > highest => Some(f64::INFINITY),
            _ if grain >= lowest && grain + bits <= highest => Some(2f64.powi(bits + grain)),
            _ => None,
        }
    }
}

/// Finite numbers as integers times a power of two.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FixedPointRange {
    /// The largest magnitude.
    largest: f64,
    /// The largest g for which all are multiples of 2^g; `i32::MAX` when all are 0.
    grain: i32,
}

impl FixedPointRange {
    /// `None` when a number is infinite or a NaN.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all = Self { largest: 0.0, grain: i32::MAX };
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
}

/// Numbers rounded to `dtype`, and how many changed.
fn narrow(dtype: DType, values: impl ExactSizeIterator<Item = f64>) -> Result<(Data, usize), KernelError> {
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

/// Integers wrapped to `dtype`.
fn wrap(dtype: DType, values: impl ExactSizeIterator<Item = i128>) -> Result<Data, KernelError> {
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

    #[test]
    fn the_first_inexact_label_stays() {
        let mut exactness = Exactness::default();
        exactness.set_label("line 3");
        exactness.count(0);
        assert!(exactness.is_exact());
        exactness.count(2);
        exactness.set_label("line 4");
        exactness.count(1);
        assert_eq!((exactness.inexact(), exactness.first_label()), (3, Some("line 3")));
    }
}
