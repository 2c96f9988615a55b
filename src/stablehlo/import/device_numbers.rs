//! Integers that the host computes on each device: its number, and what follows from it. They are known for all devices, so along which
//! axes they differ is exact.

use std::sync::Arc;

use grammar::{DType, Expr, ExprId, Function, InfixOp, Op};

use super::{Importer, numbers::fits};
use crate::value::{AxisSet, Scalar, Splat};

impl Importer<'_, '_> {
    /// Returns a number that the host computes and that has these values, one for each device: the number itself if all are equal.
    pub(super) fn number(&mut self, is_bool: bool, expr: ExprId, values: Vec<i64>) -> Scalar {
        match values.split_first() {
            Some((first, rest)) if rest.iter().all(|it| it == first) => {
                if is_bool {
                    Scalar::Bool(*first != 0)
                } else {
                    Scalar::Int(*first)
                }
            }
            _ => {
                let it = self.out.define(is_bool, expr);
                Scalar::Named(it, self.valued(it, values))
            }
        }
    }

    /// Records the values of a number of the host, one for each device, and returns the axes along which they differ.
    pub(super) fn valued(&mut self, it: ExprId, values: Vec<i64>) -> AxisSet {
        let axes = self.region.as_ref().map_or(0, |region| {
            let mesh = &self.meshes[region.mesh];
            mesh.axes_between(|a, b| values.get(a) != values.get(b)) & region.manual
        });
        self.device_values.insert(it, values.into());
        axes
    }

    /// Returns the values of an integer or boolean on each device, of which there is one value if all devices have it.
    pub(super) fn values_of(&self, it: &Splat) -> Option<Arc<[i64]>> {
        match &it.scalar {
            // The bits of an unsigned number of 64 bits.
            Scalar::Int(..0) if it.dtype == DType::UInt64 => None,
            Scalar::Int(value) => Some([*value].into()),
            Scalar::Bool(value) => Some([i64::from(*value)].into()),
            Scalar::Named(it, _) => self.device_values.get(it).cloned(),
            Scalar::Float(_) => None,
        }
    }

    /// Returns the least and the largest value of an integer that the host computes or the module states.
    pub(super) fn range(&self, it: &Splat) -> Option<(i64, i64)> {
        let values = self.values_of(it).filter(|_| it.dtype != DType::Bool)?;
        Some((*values.iter().min()?, *values.iter().max()?))
    }

    /// Returns the result of an operator on two numbers of which the host computes at least one; `None` if a statement has to.
    pub(super) fn computed(&mut self, op: Op, a: &Splat, b: &Splat, result: DType) -> Option<Scalar> {
        let is_call = matches!(op, Op::Max | Op::Min);
        let infix = InfixOp::from_text(op.name())
            .filter(|it| !it.is_bitwise() && !matches!(it, InfixOp::Shl | InfixOp::Shr));
        let (x, y) = (self.values_of(a)?, self.values_of(b)?);
        let count = x.len().max(y.len());
        let is_bool = result == DType::Bool;
        let mut values = Vec::with_capacity(count);
        for (x, y) in x.iter().cycle().zip(y.iter().cycle()).take(count) {
            if matches!(op, Op::Div | Op::Mod) && *y <= 0 {
                return None;
            }
            // The host computes with signed numbers of 64 bits, which do not wrap as those of other types.
            let value = combined(op, i128::from(*x), i128::from(*y))?;
            if !is_bool && !fits(value, result) {
                return None;
            }
            values.push(i64::try_from(value).ok()?);
        }
        let (x, y) = (a.scalar.expr(a.dtype, &mut self.out), b.scalar.expr(b.dtype, &mut self.out));
        let expr = match infix {
            Some(it) => Expr::Infix(it, x, y),
            None if is_call => Expr::Call(Function::Op(op), vec![x, y]),
            None => return None,
        };
        let expr = self.out.expr(expr);
        Some(self.number(is_bool, expr, values))
    }

    /// Returns the second number where the first one is true, else the third one; `None` if a statement has to select.
    pub(super) fn chosen(&mut self, [pred, a, b]: [&Splat; 3]) -> Option<Scalar> {
        let (is, x, y) = (self.values_of(pred)?, self.values_of(a)?, self.values_of(b)?);
        let count = is.len().max(x.len()).max(y.len());
        let each = is.iter().cycle().zip(x.iter().cycle().zip(y.iter().cycle())).take(count);
        let values = each.map(|(is, (x, y))| if *is != 0 { *x } else { *y }).collect();
        let args = [pred, a, b].map(|it| it.scalar.expr(it.dtype, &mut self.out)).to_vec();
        let expr = self.out.expr(Expr::Call(Function::Op(Op::Where), args));
        Some(self.number(a.dtype == DType::Bool, expr, values))
    }
}

/// Returns the result of an operator on integers, 0 or 1 for booleans; `None` for operators on which hir does not fold.
pub(super) fn combined(op: Op, x: i128, y: i128) -> Option<i128> {
    Some(match op {
        Op::Add => x + y,
        Op::Sub => x - y,
        Op::Mul => x.wrapping_mul(y),
        Op::Div => x.checked_div(y)?,
        Op::Mod => x.checked_rem(y)?,
        Op::Max => x.max(y),
        Op::Min => x.min(y),
        Op::LogicalAnd => x & y,
        Op::LogicalOr => x | y,
        Op::Eq => i128::from(x == y),
        Op::Ne => i128::from(x != y),
        Op::Lt => i128::from(x < y),
        Op::Le => i128::from(x <= y),
        Op::Gt => i128::from(x > y),
        Op::Ge => i128::from(x >= y),
        _ => return None,
    })
}
