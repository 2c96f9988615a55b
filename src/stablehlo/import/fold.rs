//! Numbers that the module states or the host computes: operators on them need no statement.

use grammar::{DType, Op};

use super::{
    Imported, Importer,
    device_numbers::combined,
    numbers::{fits, wrapped},
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
            Scalar::Named(..) if from == DType::Bool && to.is_integral() => {
                let number = |scalar, dtype| Splat { scalar, shape: Vec::new(), dtype };
                let (pred, one, zero) =
                    (number(scalar, from), number(Scalar::Int(1), to), number(Scalar::Int(0), to));
                self.chosen([&pred, &one, &zero])?
            }
            Scalar::Named(..) => {
                let own = Splat { scalar, shape: Vec::new(), dtype: from };
                if to == DType::Bool {
                    let zero = Splat { scalar: Scalar::Int(0), ..own.clone() };
                    return self.computed(Op::Ne, &own, &zero, to);
                }
                let (least, largest) = self.range(&own)?;
                return [least, largest].iter().all(|it| fits(i128::from(*it), to)).then_some(scalar);
            }
            Scalar::Bool(_) | Scalar::Int(_) | Scalar::Float(_) => return None,
        })
    }

    /// Returns the result of an operator of Host IR, as a number if both operands are.
    pub(super) fn folded_or_mapped(&mut self, op: Op, a: Value, b: Value, result: DType) -> Imported<Value> {
        if let (Value::Splat(x), Value::Splat(y)) = (&a, &b)
            && let Some(scalar) = self.folded(op, x, y, result)
        {
            return Ok(Value::Splat(Splat { scalar, shape: x.shape.clone(), dtype: result }));
        }
        if matches!(op, Op::LogicalAnd | Op::LogicalOr) {
            for (one, other) in [(&a, &b), (&b, &a)] {
                // `false` decides a conjunction, and `true` a disjunction.
                if let Some(Scalar::Bool(it)) = one.constant() {
                    return Ok(if *it == (op == Op::LogicalOr) { one.clone() } else { other.clone() });
                }
            }
        }
        // A loop up to `min(n, 6)` has at most 6 iterations.
        let stated = |it: &Value| match it.constant() {
            Some(Scalar::Int(number)) if it.dtype() != DType::UInt64 => Some(*number),
            _ => None,
        };
        if let (Op::Lt, Some(number), Value::Tensor(other)) = (op, stated(&a), &b)
            && self.at_most.get(&other.id).is_some_and(|most| number >= *most)
        {
            let (scalar, shape) = (Scalar::Bool(false), a.shape().to_vec());
            return Ok(Value::Splat(Splat { scalar, shape, dtype: result }));
        }
        let most = stated(&a).or_else(|| stated(&b)).filter(|_| op == Op::Min);
        let found = self.map(op, vec![a, b], result)?;
        if let (Some(most), Value::Tensor(it)) = (most, &found) {
            self.at_most.insert(it.id, most);
        }
        Ok(found)
    }

    /// Returns the result of an operator on two integers or booleans; `None` for other numbers.
    fn folded(&mut self, op: Op, a: &Splat, b: &Splat, result: DType) -> Option<Scalar> {
        if !a.dtype.is_integral() {
            return None;
        }
        let stated = |it: &Splat| match it.scalar {
            Scalar::Int(value) if it.dtype == DType::UInt64 => Some(i128::from(value as u64)),
            Scalar::Int(value) => Some(i128::from(value)),
            Scalar::Bool(value) => Some(i128::from(value)),
            Scalar::Float(_) | Scalar::Named(..) => None,
        };
        let (Some(x), Some(y)) = (stated(a), stated(b)) else { return self.computed(op, a, b, result) };
        let value = combined(op, x, y)?;
        if result == DType::Bool {
            return Some(Scalar::Bool(value != 0));
        }
        wrapped(value as i64, result).map(Scalar::Int)
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
