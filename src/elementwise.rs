//! What operators that work element by element compute: for each one the function of the simulator and the expression of the
//! CUDA kernels, side by side.
//!
//! A function of floats is evaluated in binary64, and says whether its value is the true one: `sim::kernels` tells what exact
//! means. `cast` and `bit_cast` convert and have no function; complex numbers are not supported.

use grammar::ops::Op;

mod functions;
mod table;

/// An operator with its functions.
#[derive(Clone, Copy, Debug)]
pub struct Elementwise {
    /// The operator.
    pub op: Op,
    /// What it computes on integers and truth values; `None` where it has no meaning there.
    pub integer: Option<IntegerFunction>,
    /// What it computes on floats; `None` where it has no meaning there.
    pub float: Option<FloatFunction>,
}

/// A function of integers.
#[derive(Clone, Copy, Debug)]
pub struct IntegerFunction {
    /// Its value; `None` where it divides by zero.
    pub function: fn([i128; 3]) -> Option<i128>,
    /// The same in CUDA, of `a`, `b` and `c`, which have the computed type `C`.
    pub cuda: &'static str,
}

/// A function of floats.
#[derive(Clone, Copy, Debug)]
pub struct FloatFunction {
    /// Its value where the precision is binary32.
    pub single: FloatEval,
    /// Its value where the precision is binary64.
    pub double: FloatEval,
    /// The same in CUDA, of `a`, `b` and `c`, which have the computed type `C`. `@` ends the name of a mathematical function:
    /// `expf` computes in binary32, `exp` in binary64.
    pub cuda: &'static str,
    /// Whether a small change of an operand may make a large one of the result.
    pub is_discontinuous: bool,
    /// Whether it rounds more than once.
    pub is_composed: bool,
}

/// A function of floats, by how its rounding is judged.
#[derive(Clone, Copy, Debug)]
pub enum FloatEval {
    /// Its binary64 value is the true one.
    Exact(fn([f64; 3]) -> f64),
    /// Tells whether its binary64 value is the true one.
    Checked(fn([f64; 3]) -> (f64, bool)),
    /// Its binary64 value is the true one where binary32 holds it.
    Rounded(fn([f64; 3]) -> f64),
    /// A comparison.
    Predicate(fn([f64; 3]) -> bool),
}

/// The functions of an operator; `None` where it is none of these.
pub fn elementwise(op: Op) -> Option<&'static Elementwise> {
    table::TABLE.iter().find(|it| it.op == op)
}

impl FloatEval {
    /// The value, and whether it is the true one.
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
    use grammar::ops::{OPS, OpClass};

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
