//! Formats numbers for reports.

use std::fmt;

use crate::plan::Number;

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
                match (f64::from(short) == it, is_plain(it) || it.is_infinite()) {
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
pub(super) fn is_plain(number: f64) -> bool {
    number == 0.0 || (1e-5..1e16).contains(&number.abs())
}
