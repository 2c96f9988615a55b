//! Scalar constants, and their text in reports.

use std::fmt;

use grammar::scalars::Value;

/// A scalar constant. Two constants are equal if replacing one by the other never changes a result: zeros of
/// different signs are not equal, and a NaN is equal to itself.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

impl Number {
    /// Returns the notation of plans.
    pub(crate) fn plan_text(self) -> String {
        match self {
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
        }
    }
}

impl From<Value> for Number {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(it) => Self::Int(it),
            Value::Bool(it) => Self::Bool(it),
            Value::Float(it) => Self::Float(it),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(_) | Self::Float(_) | Self::Bool(_), _) => false,
        }
    }
}

/// Formats a number as `40`, `-0.5`, `nan` or `true`. A float that binary32 represents exactly is printed
/// with the digits that binary32 needs.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Int(it) => write!(f, "{it}"),
            Self::Bool(it) => write!(f, "{it}"),
            Self::Float(it) if it.is_nan() => f.write_str("nan"),
            Self::Float(it) => {
                let short = it as f32;
                match (f64::from(short) == it, prints_without_exponent(it) || it.is_infinite()) {
                    (true, true) => write!(f, "{short}"),
                    (true, false) => write!(f, "{short:e}"),
                    (false, true) => write!(f, "{it}"),
                    (false, false) => write!(f, "{it:e}"),
                }
            }
        }
    }
}

/// Returns whether a number is printed without an exponent.
pub fn prints_without_exponent(number: f64) -> bool {
    number == 0.0 || (1e-5..1e16).contains(&number.abs())
}
