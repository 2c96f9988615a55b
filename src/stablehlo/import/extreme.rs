//! Reductions of a value and an index: `argmax` and `argmin`.

use grammar::{DType, Op};
use rustc_hash::FxHashMap;

use super::{
    Imported, Importer,
    elementwise::comparison,
    reduce::{Reducer, greatest},
};
use crate::{
    tree::{Block, Operation, TensorType, Type},
    value::{Scalar, Splat, Value},
};

impl Importer<'_, '_> {
    /// Imports the reduction of `argmax` and `argmin`: the extreme value, and the least index at which it is. A NaN is more extreme than
    /// every number. `None` for other reductions.
    pub(super) fn extreme(
        &mut self,
        [value, index]: [&Value; 2],
        initial: &[Value],
        region: &Block<'_>,
        dims: &[usize],
    ) -> Imported<Option<Vec<Value>>> {
        let (shape, dtype) = (value.shape().to_vec(), index.dtype());
        let extreme = [Reducer::Max, Reducer::Min].map(|it| it.on(value.dtype()));
        let is_extreme = |it: &Reducer| selects_first_extreme(region, *it, value.dtype(), dtype);
        let Some(reducer) = extreme.into_iter().find(is_extreme) else { return Ok(None) };
        let neutral = initial.first().and_then(Value::constant);
        let is_neutral = neutral.is_some_and(|it| reducer.is_neutral(it, value.dtype()))
            && initial.get(1).and_then(Value::constant) == Some(&Scalar::Int(0));
        let counts = |dim: usize| {
            let Value::Tensor(it) = index else { return false };
            let last = shape.get(dim).map_or(0, |extent| extent - 1);
            let has_all = dtype == DType::UInt64 || last <= greatest(dtype);
            self.iotas.get(&it.id) == Some(&dim) && dtype.is_integral() && last >= 0 && has_all
        };
        if !is_neutral || !matches!(dims, [dim] if counts(*dim)) {
            return Ok(None);
        }
        let (value, index) = (value.clone(), index.clone());
        let extreme = self.reduced(value.clone(), reducer, dims);
        let kept: Vec<i64> = (0..shape.len()).filter(|it| !dims.contains(it)).map(|it| it as i64).collect();
        let all = self.broadcast_value(Value::Tensor(extreme.clone()), &kept, &shape)?;
        let mut is_extreme = self.map(Op::Eq, vec![value.clone(), all], DType::Bool)?;
        if !value.dtype().is_integral() {
            let is_nan = self.map(Op::IsNan, vec![value], DType::Bool)?;
            is_extreme = self.map(Op::LogicalOr, vec![is_extreme, is_nan], DType::Bool)?;
        }
        let behind = Splat { scalar: Scalar::Int(greatest(dtype)), shape, dtype };
        let index = self.select_values(is_extreme, index, Value::Splat(behind))?;
        let index = self.reduced(index, Reducer::Min, dims);
        Ok(Some(vec![Value::Tensor(extreme), Value::Tensor(index)]))
    }
}

/// What a name of the region is, for one pair of values and indices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A value by its rank among the two; `None` is NaN.
    Value(Option<u8>),
    Index(u8),
    Bool(bool),
}

/// Returns whether a region of two values, each with its index, selects the more extreme value with its index, and of equal values
/// the first one. A NaN is more extreme than every number.
///
/// The region only compares and selects its arguments, so it is evaluated for every order that two values and two indices can have.
/// Elements are combined in the order of their indices, with the initial value and 0 at any place.
fn selects_first_extreme(region: &Block<'_>, reducer: Reducer, value: DType, index: DType) -> bool {
    let ranks = [Some(0), Some(1), None];
    let ranks = if value.is_integral() { &ranks[..2] } else { &ranks[..] };
    let is_first = |x: Option<u8>, y: Option<u8>| match (x, y) {
        (None, _) => true,
        (_, None) => false,
        (Some(x), Some(y)) if matches!(reducer, Reducer::Max | Reducer::Or) => x >= y,
        (Some(x), Some(y)) => x <= y,
    };
    ranks.iter().flat_map(|x| ranks.iter().map(move |y| (*x, *y))).all(|(x, y)| {
        [(0, 1), (0, 0), (1, 0)].into_iter().all(|(i, j)| {
            let found = Evaluation::of(region, [(x, i), (y, j)], value, index);
            let is = |(value, index)| found == Some([Known::Value(value), Known::Index(index)]);
            // Of equal elements, only the initial one can be the second one with a less index.
            if is_first(x, y) { is((x, i)) || i > j && x == y && is((y, j)) } else { is((y, j)) }
        })
    })
}

/// The values of the names of a region.
struct Evaluation<'s> {
    known: FxHashMap<&'s str, Known>,
    value: DType,
    index: DType,
}

impl<'s> Evaluation<'s> {
    /// Returns the two results of a region; `None` if it is not one of comparisons and selections.
    fn of(
        region: &Block<'s>,
        [(x, i), (y, j)]: [(Option<u8>, u8); 2],
        value: DType,
        index: DType,
    ) -> Option<[Known; 2]> {
        let stated = [Known::Value(x), Known::Index(i), Known::Value(y), Known::Index(j)];
        if region.arguments.len() != stated.len() {
            return None;
        }
        let mut it = Self { known: FxHashMap::default(), value, index };
        for (argument, known) in region.arguments.iter().zip(stated) {
            if !it.has_type(known, &argument.ty) {
                return None;
            }
            it.known.insert(argument.name, known);
        }
        let (end, ops) = region.ops.split_last()?;
        for op in ops {
            let [(name, 1)] = op.results[..] else { return None };
            let known = it.result(op)?;
            if !matches!(&op.result_types[..], [ty] if it.has_type(known, ty)) {
                return None;
            }
            it.known.insert(name, known);
        }
        let [value, index] = end.operands[..] else { return None };
        if end.name != "stablehlo.return" {
            return None;
        }
        Some([*it.known.get(value.name)?, *it.known.get(index.name)?])
    }

    /// Returns whether a type is that of a scalar.
    fn has_type(&self, known: Known, ty: &Type<'_>) -> bool {
        let dtype = match known {
            Known::Value(_) => self.value,
            Known::Index(_) => self.index,
            Known::Bool(_) => DType::Bool,
        };
        *ty == Type::Tensor(TensorType { shape: Vec::new(), dtype, bits: 0 })
    }

    fn result(&self, op: &Operation<'s>) -> Option<Known> {
        let operands = op.operands.iter().map(|it| self.known.get(it.name).copied());
        let operands = operands.collect::<Option<Vec<_>>>()?;
        match (op.name.strip_prefix("stablehlo.")?, &operands[..]) {
            ("compare", [a, b]) => self.compared(op, *a, *b).map(Known::Bool),
            ("select", [Known::Bool(it), a, b]) => Some(if *it { *a } else { *b }),
            ("and", [Known::Bool(a), Known::Bool(b)]) => Some(Known::Bool(a & b)),
            ("or", [Known::Bool(a), Known::Bool(b)]) => Some(Known::Bool(a | b)),
            ("xor", [Known::Bool(a), Known::Bool(b)]) => Some(Known::Bool(a ^ b)),
            ("not", [Known::Bool(a)]) => Some(Known::Bool(!a)),
            _ => None,
        }
    }

    /// Returns the result of a comparison. The total order distinguishes zeros and NaNs by their signs, which are not known here.
    fn compared(&self, op: &Operation<'s>, a: Known, b: Known) -> Option<bool> {
        let (direction, is_total) = comparison(op)?;
        let (dtype, a, b) = match (a, b) {
            (Known::Value(a), Known::Value(b)) => (self.value, a, b),
            (Known::Index(a), Known::Index(b)) => (self.index, Some(a), Some(b)),
            _ => return None,
        };
        if is_total && !dtype.is_integral() {
            return None;
        }
        let order = a.zip(b).map(|(a, b)| a.cmp(&b));
        Some(match direction {
            "EQ" => order.is_some_and(|it| it.is_eq()),
            "NE" => order.is_none_or(|it| it.is_ne()),
            "LT" => order.is_some_and(|it| it.is_lt()),
            "LE" => order.is_some_and(|it| it.is_le()),
            "GT" => order.is_some_and(|it| it.is_gt()),
            "GE" => order.is_some_and(|it| it.is_ge()),
            _ => return None,
        })
    }
}
