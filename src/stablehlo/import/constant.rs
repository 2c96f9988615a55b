//! Constants.

use grammar::dtype::DType;
use half::f16;

use super::{Imported, Importer};
use crate::{
    tree::{Attribute, Operation},
    value::{Scalar, Splat, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn constant(&mut self, op: &'m Operation<'s>, _: Vec<Value>) -> Imported<Vec<Value>> {
        let ty = self.result_type(op, 0)?.clone();
        let mut stated = op.attribute(&["value"]).into_iter().chain(&op.positional);
        let Some(stated @ Attribute::Dense(_)) = stated.next() else {
            return Err(self.unsupported_form(op, "its value is not `dense<…>`"));
        };
        let mut values = Vec::new();
        stated.flatten(&mut values);
        let numbers = values.into_iter().map(|it| number(it, ty.dtype)).collect::<Option<Vec<_>>>();
        let Some(numbers) = numbers else {
            return Err(self.unsupported_form(op, "its value is not a list of numbers"));
        };
        let count: i64 = ty.shape.iter().product();
        match &numbers[..] {
            [scalar] => {
                Ok(vec![Value::Splat(Splat { scalar: scalar.clone(), shape: ty.shape, dtype: ty.dtype })])
            }
            all if all.len() as i64 == count && count > 0 => {
                let items = all.iter().map(|it| it.text(ty.dtype)).collect::<Vec<_>>().join(", ");
                let list = self.emit(0, &[count], ty.dtype, format!("TensorConstruct({{{items}}})"));
                Ok(vec![Value::Tensor(self.reshaped(list, &ty.shape))])
            }
            all => Err(self.bad_module(
                format!("a constant of {count} elements has {} values", all.len()),
                "expected a value for each element",
            )),
        }
    }

    pub(crate) fn iota(&mut self, op: &'m Operation<'s>, _: Vec<Value>) -> Imported<Vec<Value>> {
        let ty = self.result_type(op, 0)?.clone();
        let dim = op.int(&["dim", "iota_dimension"]).and_then(|it| usize::try_from(it).ok());
        let Some((dim, extent)) = dim.and_then(|it| Some((it, *ty.shape.get(it)?))) else {
            return Err(self.missing(op, "dim"));
        };
        Ok(vec![self.iota_along(dim, extent, &ty.shape, ty.dtype)?])
    }

    /// Returns the index of each element along a dimension.
    pub(super) fn iota_along(
        &mut self,
        dim: usize,
        extent: i64,
        shape: &[i64],
        dtype: DType,
    ) -> Imported<Value> {
        let own = if dtype.is_integral() { dtype } else { DType::Int64 };
        let list = self.emit(0, &[extent], own, format!("iota({extent}, 0, 1, {})", own.name()));
        let list = self.converted(Value::Tensor(list), dtype)?;
        self.broadcast_value(list, &[dim as i64], shape)
    }
}

/// Returns a number of a constant. A number in hexadecimal digits has the bits of the element.
fn number(it: &Attribute<'_>, dtype: DType) -> Option<Scalar> {
    Some(match it {
        Attribute::Int(value) if dtype.is_integral() => Scalar::Int(*value),
        Attribute::Int(value) => Scalar::Float(*value as f64),
        Attribute::Word("true") => Scalar::Bool(true),
        Attribute::Word("false") => Scalar::Bool(false),
        Attribute::Number(text) => match text.strip_prefix("0x") {
            Some(digits) => {
                let bits = u64::from_str_radix(digits, 16).ok()?;
                Scalar::Float(match dtype {
                    DType::Double => f64::from_bits(bits),
                    DType::Float => f64::from(f32::from_bits(u32::try_from(bits).ok()?)),
                    DType::BFloat => f64::from(f32::from_bits(u32::from(u16::try_from(bits).ok()?) << 16)),
                    DType::Half => f16::from_bits(u16::try_from(bits).ok()?).to_f64(),
                    _ => return None,
                })
            }
            None if dtype == DType::Float => Scalar::Float(f64::from(text.parse::<f32>().ok()?)),
            None if !dtype.is_integral() => Scalar::Float(text.parse().ok()?),
            None => return None,
        },
        _ => return None,
    })
}
