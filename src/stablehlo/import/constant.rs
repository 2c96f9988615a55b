//! Constants.

use std::sync::Arc;

use grammar::{DType, Expr, Function, Op, attr, bytes_of};
use half::{bf16, f16};
use hir_ir::build::{apply, op};

use super::{
    Imported, Importer, Results,
    numbers::{integer, rounded},
    types::pairs_of,
};
use crate::{
    tree::{Attribute, Operation, TensorType},
    value::{Scalar, Splat, Tensor, Value},
};

/// The elements up to which a constant is a list of numbers, which people can read, and not bytes.
const MAX_LISTED: usize = 64;

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn constant(&mut self, op: &'m Operation<'s>, _: Vec<Value>) -> Results {
        let ty = self.result_type(op, 0)?;
        let mut stated = op.attribute(&["value"]).into_iter().chain(&op.positional);
        let Some(stated @ Attribute::Dense(items, own)) = stated.next() else {
            return Err(self.unsupported_form(op, "its value is not `dense<…>`"));
        };
        if let Some(own) = own.as_ref().filter(|it| **it != ty) {
            let message = format!("the value of a constant of type `{ty}` has the type `{own}`");
            return Err(self.bad_module(message, "expected one type"));
        }
        let is_complex = ty.dtype.part().is_some();
        // Complex numbers are pairs.
        let ty = match ty.dtype.part() {
            Some(dtype) => TensorType { shape: pairs_of(&ty.shape), dtype, bits: 0 },
            None => ty,
        };
        let count: i64 = ty.shape.iter().product();
        let mut values = Vec::new();
        stated.flatten(&mut values);
        // Numbers without brackets are all elements, or one for all of them.
        let is_list = matches!(items[..], [Attribute::Array(_)]);
        let numbers = match values[..] {
            [Attribute::String(digits)] => match stated_bytes(digits, ty.dtype, count) {
                Some(Stated::Elements(bytes)) => {
                    return Ok(vec![Value::Tensor(self.of_bytes(&ty.shape, ty.dtype, bytes))]);
                }
                Some(Stated::Listed(numbers)) => Some(numbers),
                None => None,
            },
            _ => {
                if let Some(text) = values.iter().find_map(|it| out_of_range(it, ty.dtype)) {
                    return Err(self.bad_module(
                        format!("{text} is no element of `{ty}`"),
                        "expected elements of the stated type",
                    ));
                }
                values.into_iter().map(|it| number(it, ty.dtype)).collect::<Option<Vec<_>>>()
            }
        };
        let Some(numbers) = numbers else {
            return Err(self.unsupported_form(
                op,
                &format!("its value is not a list of numbers of {}", ty.dtype.name()),
            ));
        };
        match &numbers[..] {
            // One complex number for all elements.
            pair @ [_, _] if is_complex && count != 2 => {
                Ok(vec![Value::Tensor(self.listed(pair, 2, ty.dtype))])
            }
            [] if count == 0 => {
                Ok(vec![Value::Splat(Splat { scalar: zero(ty.dtype), shape: ty.shape, dtype: ty.dtype })])
            }
            [scalar] if count == 1 || !is_list => {
                Ok(vec![Value::Splat(Splat { scalar: *scalar, shape: ty.shape, dtype: ty.dtype })])
            }
            all if all.len() as i64 == count && count > 0 => {
                let bytes = if all.len() > MAX_LISTED { element_bytes(all, ty.dtype) } else { None };
                if let Some(bytes) = bytes {
                    return Ok(vec![Value::Tensor(self.of_bytes(&ty.shape, ty.dtype, bytes))]);
                }
                let list = self.listed(all, count, ty.dtype);
                Ok(vec![Value::Tensor(self.reshaped(list, &ty.shape))])
            }
            all => Err(self.bad_module(
                format!("a constant of {count} elements has {} values", all.len()),
                "expected a value for each element",
            )),
        }
    }

    /// Adds the statement that makes a tensor of the bytes of its elements.
    pub(super) fn of_bytes(&mut self, shape: &[i64], dtype: DType, bytes: Arc<[u8]>) -> Tensor {
        self.emit(0, shape, dtype, op(Op::Constant).with(attr::BYTES, bytes))
    }

    /// Returns a tensor of one dimension with these elements, one after the other.
    fn listed(&mut self, elements: &[Scalar], count: i64, dtype: DType) -> Tensor {
        let items = elements.iter().map(|it| it.expr(dtype, &mut self.out)).collect();
        let array = self.out.expr(Expr::Call(Function::Array, items));
        self.emit(0, &[count], dtype, apply(Op::TensorConstruct, [array]))
    }

    pub(crate) fn iota(&mut self, op: &'m Operation<'s>, _: Vec<Value>) -> Results {
        let ty = self.result_type(op, 0)?;
        let dim = self.dimension(op, &["dim", "iota_dimension"], ty.shape.len())?;
        let extent = ty.shape[dim];
        let it = self.iota_along(dim, extent, &ty.shape, ty.dtype)?;
        if let Value::Tensor(it) = &it {
            self.iotas.insert(it.id, dim);
        }
        Ok(vec![it])
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
        let list = self.progression(extent, 0, 1, own);
        let list = self.converted(Value::Tensor(list), dtype)?;
        self.broadcast_value(list, &[dim as i64], shape)
    }

    /// Returns so many integers from `start` on, each `step` greater than the one before it.
    pub(super) fn progression(&mut self, count: i64, start: i64, step: i64, dtype: DType) -> Tensor {
        let operands = self.ints([count, start, step]);
        self.emit(0, &[count], dtype, apply(Op::Iota, operands).with(attr::DTYPE, dtype))
    }
}

/// Returns the zero of a type.
pub(super) fn zero(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(false),
        _ if dtype.is_integral() => Scalar::Int(0),
        _ => Scalar::Float(0.0),
    }
}

/// What `dense<"0x…">` states.
enum Stated {
    /// The bytes of all elements.
    Elements(Arc<[u8]>),
    /// The numbers of a few elements, or one for all elements.
    Listed(Vec<Scalar>),
}

/// Returns what the digits of `dense<"0x…">` state: the bytes of the elements, or of one for all of them. Booleans are bytes, or bits of
/// bytes.
fn stated_bytes(digits: &str, dtype: DType, count: i64) -> Option<Stated> {
    let (mut bytes, count) = (bytes_of(digits)?, usize::try_from(count).ok()?);
    if dtype == DType::Bool {
        bytes = match bytes.len() {
            len if len == count => bytes.iter().map(|it| u8::from(*it != 0)).collect(),
            1 if matches!(bytes[0], 0 | 0xFF) => [u8::from(bytes[0] != 0)].into(),
            len if len == count.div_ceil(8) => (0..count).map(|at| bytes[at / 8] >> (at % 8) & 1).collect(),
            _ => return None,
        };
    }
    let size = dtype.size();
    if size == 0 || bytes.len() % size != 0 {
        return None;
    }
    if bytes.len() / size == count && count > MAX_LISTED {
        return Some(Stated::Elements(bytes));
    }
    bytes.chunks(size).map(|it| of_bytes(it, dtype)).collect::<Option<_>>().map(Stated::Listed)
}

/// Returns the number with these bytes, from the lowest to the highest.
fn of_bytes(bytes: &[u8], dtype: DType) -> Option<Scalar> {
    let size = u32::try_from(bytes.len()).ok().filter(|it| (1..=8).contains(it))?;
    let bits = bytes.iter().rev().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    if dtype == DType::Bool {
        return Some(Scalar::Bool(bits != 0));
    }
    if !dtype.is_integral() {
        return of_bits(bits, dtype).map(Scalar::Float);
    }
    // Signed elements are extended by their sign.
    let unused = 64 - 8 * size;
    let is_signed = matches!(dtype, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64);
    Some(Scalar::Int(if is_signed { ((bits << unused) as i64) >> unused } else { bits as i64 }))
}

/// Returns the bytes of numbers, each from the lowest to the highest; `None` for types of which numbers have no bytes here.
fn element_bytes(numbers: &[Scalar], dtype: DType) -> Option<Arc<[u8]>> {
    let mut bytes = Vec::with_capacity(numbers.len() * dtype.size());
    for it in numbers {
        let bits = match (it, dtype) {
            (Scalar::Bool(it), _) => u64::from(*it),
            (Scalar::Int(it), _) => *it as u64,
            (Scalar::Float(it), DType::Double) => it.to_bits(),
            (Scalar::Float(it), DType::Float) => (*it as f32).to_bits().into(),
            (Scalar::Float(it), DType::Half) => f16::from_f64(*it).to_bits().into(),
            (Scalar::Float(it), DType::BFloat) => bf16::from_f64(*it).to_bits().into(),
            (Scalar::Float(_) | Scalar::Named(..), _) => return None,
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
    }
    Some(bytes.into())
}

/// Returns the float that has these bits.
fn of_bits(bits: u64, dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::Double => f64::from_bits(bits),
        DType::Float => f64::from(f32::from_bits(u32::try_from(bits).ok()?)),
        DType::BFloat => f64::from(f32::from_bits(u32::from(u16::try_from(bits).ok()?) << 16)),
        DType::Half => f16::from_bits(u16::try_from(bits).ok()?).to_f64(),
        // The upper half of a binary16.
        DType::E5M2 => f16::from_bits(u16::from(u8::try_from(bits).ok()?) << 8).to_f64(),
        DType::E4M3 => {
            let bits = u8::try_from(bits).ok()?;
            let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
            let size = match (exponent, fraction) {
                (15, 7.0) => f64::NAN,
                (0, it) => it * 2f64.powi(-9),
                (exponent, it) => (8.0 + it) * 2f64.powi(exponent - 10),
            };
            if bits >> 7 == 1 { -size } else { size }
        }
        _ => return None,
    })
}

/// Returns the integer that a text states, if it states one.
fn stated_integer(it: &Attribute<'_>) -> Option<i128> {
    match it {
        Attribute::Int(value) => Some(i128::from(*value)),
        Attribute::Number(text) => match text.strip_prefix('-').unwrap_or(text).strip_prefix("0x") {
            Some(digits) => {
                let size = i128::from_str_radix(digits, 16).ok()?;
                Some(if text.starts_with('-') { -size } else { size })
            }
            None => text.parse().ok(),
        },
        _ => None,
    }
}

/// Returns the text of an integer that a type does not have.
fn out_of_range(it: &Attribute<'_>, dtype: DType) -> Option<String> {
    let value = stated_integer(it).filter(|_| dtype.is_integral())?;
    integer(value, dtype).is_none().then(|| format!("{value}"))
}

/// Returns a number of a constant. A float in hexadecimal digits has the bits of the element.
fn number(it: &Attribute<'_>, dtype: DType) -> Option<Scalar> {
    if dtype.is_integral() {
        return match it {
            Attribute::Word("true") if dtype == DType::Bool => Some(Scalar::Bool(true)),
            Attribute::Word("false") if dtype == DType::Bool => Some(Scalar::Bool(false)),
            it => integer(stated_integer(it)?, dtype),
        };
    }
    Some(Scalar::Float(match it {
        Attribute::Int(value) => rounded(*value as f64, dtype),
        Attribute::Number(text) => match text.strip_prefix("0x") {
            Some(digits) => of_bits(u64::from_str_radix(digits, 16).ok()?, dtype)?,
            None => rounded(text.parse().ok()?, dtype),
        },
        _ => return None,
    }))
}
