//! Element by element comparison, exact or within tolerances.

use std::fmt;

use grammar::dtype::DType;

use crate::{
    io::{
        data::Tensor,
        generate::Kind,
        shape_match::{is_permutation, is_regrouping},
        shard::unravel,
    },
    plan::Number,
};

/// How far a result may be from what is expected: `|got - expected| <= atol + rtol · |expected|`, as in numpy. Zeros mean
/// equal values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative to the expected value.
    pub rtol: f64,
    /// Absolute.
    pub atol: f64,
}

impl Tolerance {
    /// Equal values.
    pub const EXACT: Self = Self { rtol: 0.0, atol: 0.0 };

    /// What two correct computations of a sum of `terms` products in f32, rounded once to `dtype`, may differ by for
    /// operands below 1 in magnitude: one unit in the last place each way, and the f32 sums' own error,
    /// `terms · 2⁻²⁴ · √terms` (Higham, *Accuracy and Stability of Numerical Algorithms*, section 4.2, taken with the
    /// typical magnitude `√terms` of such a sum).
    pub fn for_terms(dtype: DType, terms: usize) -> Self {
        let ulp = |bits: u32| 2f64.powi(-(bits as i32));
        let bits = dtype.significand_bits().unwrap_or(53);
        let terms = terms as f64;
        Self { rtol: 2.0 * ulp(bits), atol: terms * terms.sqrt() * ulp(bits.max(24)) }
    }
}

/// How near results have to be to what is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Agreement {
    /// Equal.
    Equal,
    /// As near as the user says.
    Within(Tolerance),
    /// As two orders of summing `terms` products.
    Sums {
        /// Terms of the longest sum.
        terms: usize,
    },
    /// As two machines, whose mathematical functions differ besides.
    Machines {
        /// Terms of the longest sum.
        terms: usize,
    },
}

impl Agreement {
    /// What the user says, or else: sums of random numbers are rounded in some order.
    pub fn new(given: Option<Tolerance>, kind: Kind, terms: usize) -> Self {
        match given {
            Some(tolerance) => Self::Within(tolerance),
            None if kind == Kind::Random => Self::Sums { terms },
            None => Self::Equal,
        }
    }

    /// The tolerance for elements of a type.
    pub fn tolerance(self, dtype: DType) -> Tolerance {
        match self {
            Self::Within(tolerance) => tolerance,
            Self::Equal => Tolerance::EXACT,
            Self::Sums { .. } | Self::Machines { .. } if dtype.is_integral() => Tolerance::EXACT,
            Self::Sums { terms } => Tolerance::for_terms(dtype, terms),
            Self::Machines { terms } => {
                let sums = Tolerance::for_terms(dtype, terms);
                let computed = if dtype == DType::Double { 53 } else { 24 };
                Tolerance { rtol: sums.rtol + FUNCTION_ULPS * 2f64.powi(-computed), ..sums }
            }
        }
    }
}

/// Units in the last place by which a mathematical function may be off: the largest in the tables of the CUDA C++
/// Programming Guide, "Mathematical Functions", among those that operators compute.
const FUNCTION_ULPS: f64 = 8.0;

/// The first element that is too far off.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Its index, slowest dimension first.
    pub index: Vec<usize>,
    /// Its place in row-major order.
    pub flat: usize,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
    /// How many elements are too far off.
    pub count: usize,
}

/// Compares by position in row-major order. One shape may be the other one with neighbouring dimensions split or merged.
///
/// # Errors
/// Another shape, as a message.
pub fn compare(got: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<Option<Mismatch>, String> {
    if !is_regrouping(&got.shape, &expected.shape) {
        let hint = if is_permutation(&got.shape, &expected.shape) { "; transposed?" } else { "" };
        return Err(format!("it has shape {:?} and {:?} was expected{hint}", got.shape, expected.shape));
    }
    let far = |at: usize| !close(got.data.get(at), expected.data.get(at), tolerance);
    if tolerance == Tolerance::EXACT && got.data == expected.data {
        return Ok(None);
    }
    let mut wrong = (0..got.data.len()).filter(|at| far(*at));
    let Some(flat) = wrong.next() else { return Ok(None) };
    Ok(Some(Mismatch {
        index: unravel(flat, &got.shape),
        flat,
        expected: expected.data.text(flat),
        got: got.data.text(flat),
        count: 1 + wrong.count(),
    }))
}

fn close(got: Number, expected: Number, tolerance: Tolerance) -> bool {
    match (got, expected) {
        (Number::Int(a), Number::Int(b)) if tolerance == Tolerance::EXACT => a == b,
        (Number::Bool(a), Number::Bool(b)) => a == b,
        _ => {
            let (a, b) = (real(got), real(expected));
            // NaN where NaN is expected is right; zeros of either sign are equal; nothing is near infinity.
            let near = || (a - b).abs() <= tolerance.atol + tolerance.rtol * b.abs();
            a == b || a.is_nan() && b.is_nan() || b.is_finite() && near()
        }
    }
}

fn real(number: Number) -> f64 {
    match number {
        Number::Int(it) => it as f64,
        Number::Float(it) => it,
        Number::Bool(it) => f64::from(u8::from(it)),
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {:?} expected {} got {}", self.index, self.expected, self.got)?;
        if self.count > 1 {
            write!(f, ", {} elements differ", self.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_near_infinity() {
        let tolerance = Tolerance { rtol: 0.5, atol: 0.5 };
        let is_close = |got, expected| close(Number::Float(got), Number::Float(expected), tolerance);
        assert!(is_close(1.4, 1.0) && !is_close(3.0, 1.0));
        assert!(is_close(f64::INFINITY, f64::INFINITY) && is_close(f64::NAN, f64::NAN));
        assert!(!is_close(f64::NEG_INFINITY, f64::INFINITY) && !is_close(5.0, f64::INFINITY));
        assert!(!is_close(f64::INFINITY, 5.0) && !is_close(f64::NAN, 5.0) && !is_close(5.0, f64::NAN));
    }
}
