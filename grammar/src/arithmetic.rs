//! Folds arithmetic on scalar constants with the semantics of nvFuser's host evaluator: integers have 64
//! bits, `/` and `%` truncate toward zero, and `ceilDiv(a, b)` is `(a + b - 1) / b`.
//!
//! Invariant: an operation that overflows or divides by zero returns `None`.

use crate::{
    ops::Op,
    scalar_op::{InfixOp, PrefixOp},
};

/// A constant scalar: its value depends on neither the rank nor the loop iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// A 64-bit integer.
    Int(i64),
    /// A Boolean.
    Bool(bool),
}

impl Constant {
    /// Returns the value as an integer; a Boolean becomes 0 or 1.
    pub fn as_int(self) -> i64 {
        match self {
            Self::Int(value) => value,
            Self::Bool(value) => i64::from(value),
        }
    }
}

/// Folds a prefix operator. Returns `None` if the operator does not accept the operand, or overflows.
pub fn fold_prefix(op: PrefixOp, operand: Constant) -> Option<Constant> {
    match (op, operand) {
        (PrefixOp::Neg, Constant::Int(it)) => it.checked_neg().map(Constant::Int),
        (PrefixOp::BitNot, Constant::Int(it)) => Some(Constant::Int(!it)),
        (PrefixOp::Not, it) => Some(Constant::Bool(it.as_int() == 0)),
        (PrefixOp::Neg | PrefixOp::BitNot, Constant::Bool(_))
        | (PrefixOp::Deref | PrefixOp::AddressOf, _) => None,
    }
}

/// Folds an infix operator. Returns `None` if it overflows or divides by zero.
pub fn fold_infix(op: InfixOp, lhs: Constant, rhs: Constant) -> Option<Constant> {
    if let (Constant::Bool(a), Constant::Bool(b)) = (lhs, rhs) {
        match op {
            InfixOp::BitAnd => return Some(Constant::Bool(a && b)),
            InfixOp::BitOr => return Some(Constant::Bool(a || b)),
            InfixOp::BitXor => return Some(Constant::Bool(a != b)),
            _ => (),
        }
    }
    let (a, b) = (lhs.as_int(), rhs.as_int());
    let shift = u32::try_from(b).ok();
    let value = match op {
        InfixOp::Add => a.checked_add(b),
        InfixOp::Sub => a.checked_sub(b),
        InfixOp::Mul => a.checked_mul(b),
        InfixOp::Div => a.checked_div(b),
        InfixOp::Rem => a.checked_rem(b),
        InfixOp::Shl => shift.and_then(|it| a.checked_shl(it)),
        InfixOp::Shr => shift.and_then(|it| a.checked_shr(it)),
        InfixOp::BitAnd => Some(a & b),
        InfixOp::BitOr => Some(a | b),
        InfixOp::BitXor => Some(a ^ b),
        InfixOp::Eq => return Some(Constant::Bool(a == b)),
        InfixOp::Ne => return Some(Constant::Bool(a != b)),
        InfixOp::Lt => return Some(Constant::Bool(a < b)),
        InfixOp::Le => return Some(Constant::Bool(a <= b)),
        InfixOp::Gt => return Some(Constant::Bool(a > b)),
        InfixOp::Ge => return Some(Constant::Bool(a >= b)),
        InfixOp::And => return Some(Constant::Bool(a != 0 && b != 0)),
        InfixOp::Or => return Some(Constant::Bool(a != 0 || b != 0)),
    };
    value.map(Constant::Int)
}

/// Folds an integer function. Returns `None` if the operator is not one, overflows, or divides by zero.
pub fn fold_call(op: Op, args: &[Constant]) -> Option<Constant> {
    let value = match (op, args) {
        (Op::CeilDiv, [Constant::Int(a), Constant::Int(b)]) => {
            b.checked_sub(1).and_then(|up| a.checked_add(up)).and_then(|sum| sum.checked_div(*b))
        }
        (Op::Max, [Constant::Int(a), Constant::Int(b)]) => Some(*a.max(b)),
        (Op::Min, [Constant::Int(a), Constant::Int(b)]) => Some(*a.min(b)),
        (Op::Abs, [Constant::Int(a)]) => a.checked_abs(),
        _ => None,
    };
    value.map(Constant::Int)
}

#[cfg(test)]
mod tests;
