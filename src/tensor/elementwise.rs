//! Elementwise operators. Each has a Rust function for the simulator and an expression for CUDA kernels, side
//! by side.
//!
//! A floating-point function is evaluated in binary64 and reports whether the value is exact; `sim::kernels`
//! defines exactness. `cast` and `bit_cast` are conversions and have no function. Complex numbers are not
//! supported.

use grammar::Op;

mod functions;
mod table;

/// An elementwise operator and its functions.
#[derive(Clone, Copy, Debug)]
pub struct Elementwise {
    /// The operator.
    pub op: Op,
    /// The function on integers and booleans; `None` if the operator does not apply to them.
    pub integer: Option<IntegerFunction>,
    /// The function on floats; `None` if the operator does not apply to them.
    pub float: Option<FloatFunction>,
}

/// A function on integers.
#[derive(Clone, Copy, Debug)]
pub struct IntegerFunction {
    /// Returns the value, or `None` if it divides by zero.
    pub function: fn([i128; 3]) -> Option<i128>,
    /// The CUDA expression in `a`, `b` and `c`, which have the compute type `C`.
    pub cuda: &'static str,
}

/// A function on floats.
#[derive(Clone, Copy, Debug)]
pub struct FloatFunction {
    /// Evaluates the function for binary32 precision.
    pub single: FloatEval,
    /// Evaluates the function for binary64 precision.
    pub double: FloatEval,
    /// The CUDA expression in `a`, `b` and `c`, which have the compute type `C`. `@` ends the name of a
    /// mathematical function, which gets the suffix of the precision: `expf` in binary32, `exp` in binary64.
    pub cuda: &'static str,
    /// True if a small change of an operand can cause a large change of the result.
    pub is_discontinuous: bool,
    /// True if the function rounds more than once.
    pub is_composed: bool,
}

/// A function on floats, by how its exactness is determined.
#[derive(Clone, Copy, Debug)]
pub enum FloatEval {
    /// The binary64 value is always exact.
    Exact(fn([f64; 3]) -> f64),
    /// The function itself reports whether its binary64 value is exact.
    Checked(fn([f64; 3]) -> (f64, bool)),
    /// The binary64 value is exact if it is representable in binary32.
    Rounded(fn([f64; 3]) -> f64),
    /// A predicate.
    Predicate(fn([f64; 3]) -> bool),
}

/// Returns the functions of an operator, or `None` if it is not elementwise.
pub fn elementwise(op: Op) -> Option<&'static Elementwise> {
    table::TABLE.iter().find(|it| it.op == op)
}

impl FloatEval {
    /// Returns the value, and whether it is exact.
    pub fn eval(self, operands: [f64; 3]) -> (f64, bool) {
        match self {
            Self::Exact(function) => (function(operands), true),
            Self::Checked(function) => function(operands),
            Self::Rounded(function) => {
                let value = function(operands);
                (value, value.is_nan() || f64::from(value as f32) == value)
            }
            Self::Predicate(function) => (f64::from(u8::from(function(operands))), true),
        }
    }
}

#[cfg(test)]
mod tests {
    use grammar::{OPS, OpClass};

    use super::*;

    #[test]
    fn each_operator_has_one_row() {
        for row in OPS {
            let is_here = row.class == OpClass::Elementwise
                && !matches!(row.op, Op::Cast | Op::BitCast | Op::Complex | Op::Real | Op::Imag);
            let rows = table::TABLE.iter().filter(|it| it.op == row.op).count();
            assert_eq!(rows, usize::from(is_here), "`{}`", row.mnemonic);
        }
    }
}
