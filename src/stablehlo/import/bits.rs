//! Operators on the bits of numbers, and roundings.

use grammar::{DType, Op};

use super::{Imported, Importer, Results, elementwise::short_name, numbers::wrapped, reduce::Reducer};
use crate::{
    tree::{Operation, Type},
    value::{Scalar, Splat, Value},
};

/// Operations whose results may be integers that a type of fewer than 8 bits does not have.
const GROWING: &[&str] = &[
    "add",
    "subtract",
    "multiply",
    "divide",
    "negate",
    "abs",
    "not",
    "power",
    "shift_left",
    "convert",
    "iota",
    "reduce",
    "reduce_window",
    "scatter",
    "dot_general",
    "convolution",
    "all_reduce",
    "reduce_scatter",
];

/// Operations whose results depend on how many bits an element has.
const UNREAD_OF_FEW_BITS: &[&str] =
    &["popcnt", "count_leading_zeros", "shift_right_logical", "bitcast_convert"];

impl<'m, 's> Importer<'m, 's> {
    /// Returns a number of every element like `like`.
    pub(super) fn splat_like(like: &Value, number: f64) -> Value {
        let dtype = like.dtype();
        let scalar = if dtype.is_integral() { Scalar::Int(number as i64) } else { Scalar::Float(number) };
        Value::Splat(Splat { scalar, shape: like.shape().to_vec(), dtype })
    }

    /// Shifts the bits to the right, and zeros in.
    pub(super) fn shift_right_logical(&mut self, a: Value, b: Value) -> Imported<Value> {
        let unsigned = unsigned(a.dtype()).ok_or_else(|| self.unsupported("a shift of these elements"))?;
        self.shift_right_as(unsigned, a, b)
    }

    /// Shifts the bits to the right, and copies of the highest one in, whatever the sign of the type.
    pub(super) fn shift_right_arithmetic(&mut self, a: Value, b: Value) -> Imported<Value> {
        let signed = signed(a.dtype()).unwrap_or(a.dtype());
        self.shift_right_as(signed, a, b)
    }

    /// Shifts the bits to the right as those of a type of the same size.
    fn shift_right_as(&mut self, shifted: DType, a: Value, b: Value) -> Imported<Value> {
        let dtype = a.dtype();
        let (a, b) = (self.bits(a, shifted)?, self.bits(b, shifted)?);
        let result = self.folded_or_mapped(Op::Shr, a, b, shifted)?;
        self.bits(result, dtype)
    }

    /// Returns the next number of 16 bits towards another one. As integers, the bits of floats of one sign are ordered by their sizes.
    pub(super) fn next_after(&mut self, from: Value, to: Value) -> Imported<Value> {
        let dtype = from.dtype();
        let bits = self.bits(from.clone(), DType::Int16)?;
        let (number, zero) = (|it: f64| Self::splat_like(&bits, it), Self::splat_like(&from, 0.0));
        let is_below = self.map(Op::Lt, vec![from.clone(), to.clone()], DType::Bool)?;
        let is_positive = self.map(Op::Gt, vec![from.clone(), zero.clone()], DType::Bool)?;
        let grows = self.map(Op::Eq, vec![is_below, is_positive], DType::Bool)?;
        let step = self.select_values(grows, number(1.0), number(-1.0))?;
        let moved = self.map(Op::Add, vec![bits.clone(), step], DType::Int16)?;
        // The least numbers of both signs are beside 0.
        let is_negative = self.map(Op::Lt, vec![to.clone(), zero.clone()], DType::Bool)?;
        let least = self.select_values(is_negative, number(f64::from(i16::MIN + 1)), number(1.0))?;
        let is_zero = self.map(Op::Eq, vec![from.clone(), zero], DType::Bool)?;
        let moved = self.select_values(is_zero, least, moved)?;
        let moved = self.bits(moved, dtype)?;
        let is_there = self.map(Op::Eq, vec![from.clone(), to.clone()], DType::Bool)?;
        let mut result = self.select_values(is_there, to.clone(), moved)?;
        for it in [to, from] {
            let is_nan = self.map(Op::IsNan, vec![it.clone()], DType::Bool)?;
            result = self.select_values(is_nan, it, result)?;
        }
        Ok(result)
    }

    /// Returns a value whose bits are read as elements of another type of the same size.
    fn bits(&mut self, value: Value, dtype: DType) -> Imported<Value> {
        if value.dtype() == dtype {
            return Ok(value);
        }
        if let Value::Splat(Splat { scalar: Scalar::Int(number), shape, .. }) = &value
            && let Some(number) = wrapped(*number, dtype)
        {
            let (scalar, shape) = (Scalar::Int(number), shape.clone());
            return Ok(Value::Splat(Splat { scalar, shape, dtype }));
        }
        let it = Value::Tensor(self.materialized(value));
        self.map(Op::BitCast, vec![it], dtype)
    }

    /// Returns a tensor with elements of 8 bits. What is beyond the largest number becomes infinity, or NaN if the type has no infinity;
    /// a conversion of Host IR gives the largest number.
    pub(super) fn narrowed(&mut self, value: Value, dtype: DType) -> Imported<Value> {
        let value = if value.dtype().is_integral() { self.converted(value, DType::Float)? } else { value };
        let like = |number: f64| Self::splat_like(&value, number);
        if dtype == DType::E4M3 {
            // 464 is rounded to 448, the largest number.
            let magnitude = self.map(Op::Abs, vec![value.clone()], value.dtype())?;
            let is_beyond = self.map(Op::Gt, vec![magnitude, like(464.0)], DType::Bool)?;
            let value = self.select_values(is_beyond, like(f64::NAN), value.clone())?;
            return self.map(Op::Cast, vec![value], dtype);
        }
        let narrow = self.map(Op::Cast, vec![value.clone()], dtype)?;
        let mut bits = self.bits(narrow, DType::UInt8)?;
        // 61440 is rounded to infinity.
        for (op, bound, infinity) in [(Op::Ge, 61440.0, 0x7c), (Op::Le, -61440.0, 0xfc)] {
            let is_beyond = self.map(op, vec![value.clone(), like(bound)], DType::Bool)?;
            let infinity = Self::splat_like(&bits, f64::from(infinity));
            bits = self.select_values(is_beyond, infinity, bits)?;
        }
        self.bits(bits, dtype)
    }

    pub(crate) fn population_count(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let (dtype, own) = (value.dtype(), self.unsigned_of(op, &value)?);
        let bits = self.bits(value, own)?;
        let count = self.set_bits(bits)?;
        Ok(vec![self.bits(count, dtype)?])
    }

    /// Counts the bits before the highest one that is set: those that are not set after all below it are.
    pub(crate) fn count_leading_zeros(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let (dtype, own) = (value.dtype(), self.unsigned_of(op, &value)?);
        let mut bits = self.bits(value, own)?;
        let size = own.size() * 8;
        for step in (0..size.ilog2()).map(|it| 1u32 << it) {
            let below = self.shift_right_logical(bits.clone(), Self::splat_like(&bits, f64::from(step)))?;
            bits = self.folded_or_mapped(Op::BitOr, bits, below, own)?;
        }
        let all = Self::splat_like(&bits, size as f64);
        let count = self.set_bits(bits)?;
        let count = self.folded_or_mapped(Op::Sub, all, count, own)?;
        Ok(vec![self.bits(count, dtype)?])
    }

    fn unsigned_of(&self, op: &Operation<'_>, value: &Value) -> Imported<DType> {
        unsigned(value.dtype()).ok_or_else(|| self.unsupported_form(op, "of these elements"))
    }

    /// Counts the bits of unsigned integers that are set: those of pairs, of groups of four, and so on (Warren, Hacker's Delight, 5-1).
    fn set_bits(&mut self, mut sums: Value) -> Imported<Value> {
        let own = sums.dtype();
        for step in (0..(own.size() * 8).ilog2()).map(|it| 1u32 << it) {
            // The lower half of each group of `2 * step` bits.
            let lower = u64::MAX / ((1 << step) + 1);
            let scalar = Scalar::Int(wrapped(lower as i64, own).unwrap_or_default());
            let lower = Value::Splat(Splat { scalar, shape: sums.shape().to_vec(), dtype: own });
            let upper = self.shift_right_logical(sums.clone(), Self::splat_like(&sums, f64::from(step)))?;
            let upper = self.folded_or_mapped(Op::BitAnd, upper, lower.clone(), own)?;
            let rest = self.folded_or_mapped(Op::BitAnd, sums, lower, own)?;
            sums = self.folded_or_mapped(Op::Add, upper, rest, own)?;
        }
        Ok(sums)
    }

    /// Wraps the results of an operation that are integers of fewer than 8 bits: the program has them in 8.
    pub(super) fn in_few_bits(&mut self, op: &Operation<'_>, results: Vec<Value>) -> Results {
        let bits = |it: &Type<'_>| if let Type::Tensor(it) = it { it.bits } else { 0 };
        let name = short_name(op);
        if UNREAD_OF_FEW_BITS.contains(&name)
            && op.operand_types.iter().chain(&op.result_types).any(|it| bits(it) > 0)
        {
            return Err(self.unsupported_form(op, "of integers with fewer than 8 bits"));
        }
        let mut wrapped = Vec::with_capacity(results.len());
        for (at, it) in results.into_iter().enumerate() {
            let bits = op.result_types.get(at).map_or(0, bits);
            wrapped.push(if bits > 0 && GROWING.contains(&name) {
                let (dtype, rest) = (it.dtype(), Self::splat_like(&it, f64::from(8 - bits)));
                let upper = self.map(Op::Shl, vec![it, rest.clone()], dtype)?;
                self.map(Op::Shr, vec![upper, rest], dtype)?
            } else {
                it
            });
        }
        Ok(wrapped)
    }

    pub(crate) fn bitcast_convert(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let ty = self.result_type(op, 0)?;
        if ty.shape == value.shape() {
            return Ok(vec![self.bits(value, ty.dtype)?]);
        }
        // The lowest bits of an element are the first one of several smaller elements, in a last dimension.
        let of_size = |dtype: DType| INTEGERS.get(dtype.size().ilog2() as usize).map(|it| it[1]);
        let types = of_size(value.dtype()).zip(of_size(ty.dtype)).filter(|_| value.dtype() != DType::Bool);
        let Some((from, to)) = types else { return Err(self.unsupported_form(op, "of these elements")) };
        let is_narrowing = to.size() < from.size();
        let (whole, all) =
            if is_narrowing { (value.shape(), &ty.shape[..]) } else { (&ty.shape[..], value.shape()) };
        let (wide, narrow) = if is_narrowing { (from, to) } else { (to, from) };
        let (last, all) = (whole.len(), all.to_vec());
        if all != [whole, &[(wide.size() / narrow.size()) as i64]].concat() {
            return Err(
                self.bad_module("the shapes do not follow from the sizes of elements", "expected equal bits")
            );
        }
        let mut bits = self.bits(value, from)?;
        if is_narrowing {
            bits = self.broadcast_value(bits, &(0..last as i64).collect::<Vec<_>>(), &all)?;
        } else {
            bits = self.converted(bits, wide)?;
        }
        let places = self.iota_along(last, all[last], &all, wide)?;
        let size = Self::splat_like(&places, narrow.size() as f64 * 8.0);
        let shift = self.map(Op::Mul, vec![places, size], wide)?;
        if is_narrowing {
            let parts = self.map(Op::Shr, vec![bits, shift], wide)?;
            bits = self.converted(parts, narrow)?;
        } else {
            let parts = self.map(Op::Shl, vec![bits, shift], wide)?;
            bits = Value::Tensor(self.reduced(parts, Reducer::Add, &[last]));
        }
        Ok(vec![self.bits(bits, ty.dtype)?])
    }

    /// Returns integers that are ordered as the total order of IEEE 754 orders floats: their bits, with those behind the sign inverted
    /// where it is set. Integers stay as they are.
    pub(super) fn total_order(&mut self, value: Value) -> Imported<Value> {
        let (dtype, greatest) = match value.dtype() {
            DType::Half | DType::BFloat => (DType::Int16, i64::from(i16::MAX)),
            DType::Float => (DType::Int32, i64::from(i32::MAX)),
            DType::Double => (DType::Int64, i64::MAX),
            _ => return Ok(value),
        };
        let bits = self.bits(value, dtype)?;
        let splat =
            |number| Value::Splat(Splat { scalar: Scalar::Int(number), shape: bits.shape().to_vec(), dtype });
        let (last, rest) = (splat(63), splat(greatest));
        // All bits are set where the sign is.
        let signs = self.map(Op::Shr, vec![bits.clone(), last], dtype)?;
        let inverted = self.map(Op::BitAnd, vec![signs, rest], dtype)?;
        self.map(Op::BitXor, vec![bits, inverted], dtype)
    }

    /// Rounds to the numbers of another format, as XLA does: what is beyond them becomes infinity or 0.
    pub(crate) fn reduce_precision(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let dtype = value.dtype();
        let stated = match op.keyword(&["format"]).and_then(|it| it.strip_prefix('e')?.split_once('m')) {
            Some((exponent, mantissa)) => exponent.parse().ok().zip(mantissa.parse().ok()),
            None => op.int(&["exponent_bits"]).zip(op.int(&["mantissa_bits"])),
        };
        let stated = stated.filter(|it| it.0 > 0 && it.1 >= 0);
        let (exponent, mantissa) = stated.ok_or_else(|| self.missing(op, "format"))?;
        let (own, exponents, mantissas) = match dtype {
            DType::Half => (DType::Int16, 5, 10),
            DType::BFloat => (DType::Int16, 8, 7),
            DType::Float => (DType::Int32, 8, 23),
            DType::Double => (DType::Int64, 11, 52),
            _ => return Err(self.unsupported_form(op, "of these elements")),
        };
        if exponent >= exponents && mantissa >= mantissas {
            return Ok(vec![value]);
        }
        if (exponent, mantissa, dtype) == (8, 7, DType::Float) {
            let it = self.converted(value, DType::BFloat)?;
            return Ok(vec![self.converted(it, dtype)?]);
        }
        let mut bits = self.bits(value.clone(), own)?;
        let shape = bits.shape().to_vec();
        let number = |it: i64| {
            let scalar = Scalar::Int(wrapped(it, own).unwrap_or_default());
            Value::Splat(Splat { scalar, shape: shape.clone(), dtype: own })
        };
        if mantissa < mantissas {
            // Halves are rounded to even numbers.
            let last = 1 << (mantissas - mantissa);
            let is_odd = self.map(Op::BitAnd, vec![bits.clone(), number(last)], own)?;
            let is_odd = self.map(Op::Shr, vec![is_odd, number(mantissas - mantissa)], own)?;
            let half = self.map(Op::Add, vec![is_odd, number(last / 2 - 1)], own)?;
            let above = self.map(Op::Add, vec![bits, half], own)?;
            bits = self.map(Op::BitAnd, vec![above, number(-last)], own)?;
        }
        if exponent < exponents {
            let bias = |bits: i64| (1 << (bits - 1)) - 1;
            let bound = |it: i64| number(it << mantissas);
            let sign = self.map(Op::BitAnd, vec![bits.clone(), bound(1 << exponents)], own)?;
            let size = self.map(Op::BitAnd, vec![bits.clone(), bound((1 << exponents) - 1)], own)?;
            let infinity = self.map(Op::BitOr, vec![sign.clone(), bound((1 << exponents) - 1)], own)?;
            let (most, least) = (bias(exponents) + bias(exponent), bias(exponents) - bias(exponent));
            let is_above = self.map(Op::Gt, vec![size.clone(), bound(most)], DType::Bool)?;
            bits = self.select_values(is_above, infinity, bits)?;
            let is_below = self.map(Op::Le, vec![size, bound(least)], DType::Bool)?;
            bits = self.select_values(is_below, sign, bits)?;
        }
        let rounded = self.bits(bits, dtype)?;
        let is_nan = self.map(Op::IsNan, vec![value.clone()], DType::Bool)?;
        Ok(vec![self.select_values(is_nan, value, rounded)?])
    }

    /// Returns the cube root: the sign of a number and the power of its magnitude.
    pub(super) fn cube_root(&mut self, value: Value) -> Imported<Value> {
        let dtype = value.dtype();
        let third = Self::splat_like(&value, 1.0 / 3.0);
        let magnitude = self.map(Op::Abs, vec![value.clone()], dtype)?;
        let root = self.map(Op::Pow, vec![magnitude, third], dtype)?;
        let sign = self.sign(value)?;
        self.map(Op::Mul, vec![sign, root], dtype)
    }

    /// Rounds to the nearest integer, halves away from zero.
    pub(super) fn rounded_away(&mut self, value: Value) -> Imported<Value> {
        let dtype = value.dtype();
        let whole = self.map(Op::Trunc, vec![value.clone()], dtype)?;
        let rest = self.map(Op::Sub, vec![value.clone(), whole.clone()], dtype)?;
        let rest = self.map(Op::Abs, vec![rest], dtype)?;
        let half = Self::splat_like(&value, 0.5);
        let is_up = self.map(Op::Ge, vec![rest, half], DType::Bool)?;
        let sign = self.sign(value)?;
        let up = self.map(Op::Add, vec![whole.clone(), sign], dtype)?;
        self.select_values(is_up, up, whole)
    }
}

/// The signed and the unsigned integer type of each size.
const INTEGERS: [[DType; 2]; 4] = [
    [DType::Int8, DType::UInt8],
    [DType::Int16, DType::UInt16],
    [DType::Int32, DType::UInt32],
    [DType::Int64, DType::UInt64],
];

/// Returns the signed type of the size of an integer type.
fn signed(dtype: DType) -> Option<DType> {
    INTEGERS.iter().find(|it| it.contains(&dtype)).map(|it| it[0])
}

/// Returns the unsigned type of the size of an integer type.
fn unsigned(dtype: DType) -> Option<DType> {
    INTEGERS.iter().find(|it| it.contains(&dtype)).map(|it| it[1])
}
