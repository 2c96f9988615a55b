//! Numbers that the module states or the host computes: operators on them need no statement.

use grammar::{
    dtype::DType,
    ir::{Expr, ExprId, Function, InfixOp},
    ops::Op,
};

use super::{
    Imported, Importer,
    numbers::{fits, interval, wrapped},
};
use crate::value::{Scalar, Splat, Value};

impl Importer<'_, '_> {
    /// Returns a number as one of another type; `None` if a statement has to convert it.
    pub(super) fn converted_scalar(&mut self, scalar: Scalar, from: DType, to: DType) -> Option<Scalar> {
        Some(match scalar {
            Scalar::Bool(value) if to.is_integral() => Scalar::Int(i64::from(value)),
            Scalar::Int(value) if to == DType::Bool => Scalar::Bool(value != 0),
            Scalar::Int(value) if to.is_integral() => Scalar::Int(wrapped(value, to)?),
            Scalar::Int(value) if from == DType::UInt64 && value < 0 => return None,
            Scalar::Int(value) if value.unsigned_abs() <= exact_integers(to) => Scalar::Float(value as f64),
            Scalar::Named(_, axes) if from == DType::Bool && to.is_integral() => {
                let number = self.where_of([(scalar, from), (Scalar::Int(1), to), (Scalar::Int(0), to)]);
                let it = self.out.define(false, number);
                self.ranges.insert(it, (0, 1));
                Scalar::Named(it, axes)
            }
            Scalar::Named(it, axes) if to == DType::Bool => {
                let zero = self.out.int(0);
                let is_other = self.out.expr(Expr::Infix(InfixOp::Ne, it, zero));
                Scalar::Named(self.out.define(true, is_other), axes)
            }
            Scalar::Named(it, _) if self.ranges.get(&it).is_some_and(|it| fits(*it, to)) => scalar,
            Scalar::Bool(_) | Scalar::Int(_) | Scalar::Float(_) | Scalar::Named(..) => return None,
        })
    }

    /// Returns the result of an operator of Host IR, as a number if both operands are.
    pub(super) fn folded_or_mapped(&mut self, op: Op, a: Value, b: Value, result: DType) -> Imported<Value> {
        if let (Value::Splat(x), Value::Splat(y)) = (&a, &b)
            && let Some(scalar) = self.folded(op, x, y, result)
        {
            return Ok(Value::Splat(Splat { scalar, shape: x.shape.clone(), dtype: result }));
        }
        self.map(op, vec![a, b], result)
    }

    /// Returns the second number where the first one is true, else the third one.
    pub(super) fn where_of(&mut self, numbers: [(Scalar, DType); 3]) -> ExprId {
        let args = numbers.map(|(it, dtype)| it.expr(dtype, &mut self.out)).to_vec();
        self.out.expr(Expr::Call(Function::Op(Op::Where), args))
    }

    /// Returns the least and the largest value of an integer that the host computes or the module states.
    pub(super) fn range(&self, it: &Splat) -> Option<(i128, i128)> {
        match &it.scalar {
            // The bits of an unsigned number of 64 bits.
            Scalar::Int(..0) if it.dtype == DType::UInt64 => None,
            Scalar::Int(value) => Some((i128::from(*value), i128::from(*value))),
            Scalar::Named(it, _) => self.ranges.get(it).copied(),
            Scalar::Bool(_) | Scalar::Float(_) => None,
        }
    }

    /// Returns the result of an operator on two integers or booleans; `None` for other numbers.
    fn folded(&mut self, op: Op, a: &Splat, b: &Splat, result: DType) -> Option<Scalar> {
        if !a.dtype.is_integral() {
            return None;
        }
        let is_bool = result == DType::Bool;
        let (x, y) = match (&a.scalar, &b.scalar) {
            (Scalar::Int(x), Scalar::Int(y)) => (*x, *y),
            (Scalar::Bool(x), Scalar::Bool(y)) => (i64::from(*x), i64::from(*y)),
            (Scalar::Named(_, axes), other) | (other, Scalar::Named(_, axes)) => {
                // The host computes with signed numbers of 64 bits, which do not wrap as those of other types.
                let range = match a.dtype {
                    DType::Bool => None,
                    _ => Some(interval(op, self.range(a)?, self.range(b)?)?),
                };
                if range.is_some_and(|it| !is_bool && !fits(it, result)) {
                    return None;
                }
                let is_call = matches!(op, Op::Max | Op::Min);
                let infix = InfixOp::from_text(op.name())
                    .filter(|it| !it.is_bitwise() && !matches!(it, InfixOp::Shl | InfixOp::Shr));
                if !is_call && infix.is_none() {
                    return None;
                }
                let (x, y) = (a.scalar.expr(a.dtype, &mut self.out), b.scalar.expr(b.dtype, &mut self.out));
                let value = infix
                    .map_or_else(|| Expr::Call(Function::Op(op), vec![x, y]), |it| Expr::Infix(it, x, y));
                let value = self.out.expr(value);
                let it = self.out.define(is_bool, value);
                if let Some(range) = range {
                    self.ranges.insert(it, range);
                }
                return Some(Scalar::Named(it, axes | other.axes()));
            }
            (Scalar::Bool(_) | Scalar::Int(_) | Scalar::Float(_), _) => return None,
        };
        let is_unsigned = a.dtype == DType::UInt64;
        let order = if is_unsigned { (x as u64).cmp(&(y as u64)) } else { x.cmp(&y) };
        let value = match op {
            Op::Add => x.wrapping_add(y),
            Op::Sub => x.wrapping_sub(y),
            Op::Mul => x.wrapping_mul(y),
            Op::Div if is_unsigned => (x as u64).checked_div(y as u64)? as i64,
            Op::Div => x.checked_div(y)?,
            Op::Mod if is_unsigned => (x as u64).checked_rem(y as u64)? as i64,
            Op::Mod => x.checked_rem(y)?,
            Op::Max => {
                if order.is_ge() {
                    x
                } else {
                    y
                }
            }
            Op::Min => {
                if order.is_le() {
                    x
                } else {
                    y
                }
            }
            Op::LogicalAnd => x & y,
            Op::LogicalOr => x | y,
            Op::Eq => i64::from(order.is_eq()),
            Op::Ne => i64::from(order.is_ne()),
            Op::Lt => i64::from(order.is_lt()),
            Op::Le => i64::from(order.is_le()),
            Op::Gt => i64::from(order.is_gt()),
            Op::Ge => i64::from(order.is_ge()),
            _ => return None,
        };
        if is_bool { Some(Scalar::Bool(value != 0)) } else { wrapped(value, result).map(Scalar::Int) }
    }
}

/// Returns up to which number all integers are numbers of a type.
fn exact_integers(dtype: DType) -> u64 {
    match dtype {
        DType::BFloat => 1 << 8,
        DType::Half => 1 << 11,
        DType::Float => 1 << 24,
        DType::Double => 1 << 53,
        _ => 0,
    }
}
