//! Sorting: the order of the keys is computed by `argsort`, and every operand is rearranged.

use grammar::{DType, Op, Span, attr, words::PyBool};
use hir_ir::build::apply;

use super::{Imported, Importer, Results, elementwise::comparison};
use crate::{
    tree::{Attribute, Block, Operation, Use},
    value::{Scalar, Tensor, Value},
};

/// A key of an order.
#[derive(Clone, Copy)]
struct Key<'s> {
    operand: usize,
    /// The value that the region computes of an element, and of the other one; `None` for the element itself.
    computed: Option<[&'s str; 2]>,
    /// Whether the greatest element is the first one.
    is_descending: bool,
    /// Whether the order distinguishes zeros and NaNs by their signs.
    is_total: bool,
}

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn sort(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let rank = operands.first().map_or(0, |it| it.shape().len());
        let dim = op.int(&["dimension"]).unwrap_or(-1);
        let dim = usize::try_from(if dim < 0 { dim.saturating_add(rank as i64) } else { dim });
        let Some(dim) = dim.ok().filter(|it| *it < rank) else { return Err(self.missing(op, "dimension")) };
        let Some(region) = op.regions.first() else { return Err(self.missing(op, "region")) };
        let keys = Comparator { region, importer: self }.keys();
        let keys = keys.filter(|it| it.iter().all(|key| key.operand < operands.len()));
        let Some(keys) = keys.filter(|_| region.arguments.len() == 2 * operands.len()) else {
            return Err(self.unsupported_form(op, "expected a region that compares what it computes of each operand, one after the other, by `LT` or `GT`"));
        };
        if operands.iter().any(|it| it.shape() != operands[0].shape()) {
            return Err(self.bad_module("the operands have different shapes", "expected equal shapes"));
        }
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            let mut own = operands[key.operand].clone();
            if let Some([name, _]) = key.computed {
                let arguments = operands.iter().flat_map(|it| [it.clone(), it.clone()]).collect();
                let found = self.lifted(region, arguments, &[Use { name, index: 0, span: op.span }])?;
                [own] = self.operands(op, found)?;
            }
            if key.is_total {
                own = self.total_order(own)?;
            }
            values.push((own, key.is_descending));
        }
        let Some(order) = self.order(values, dim)? else { return Ok(operands) };
        let mut results = Vec::with_capacity(operands.len());
        for it in operands {
            results.push(self.each_part(it, |it, part| {
                Ok(match part {
                    Value::Tensor(part) => Value::Tensor(it.taken(part, order.clone(), dim)),
                    part @ Value::Splat(_) => part,
                })
            })?);
        }
        Ok(results)
    }

    /// Returns the indices that sort by keys, the most significant one first, each with whether its greatest element is in front.
    fn order(&mut self, keys: Vec<(Value, bool)>, dim: usize) -> Imported<Option<Tensor>> {
        // A stable sort by the last key first leaves equal elements of a key in the order of those behind it.
        let mut order: Option<Tensor> = None;
        for (mut key, is_descending) in keys.into_iter().rev() {
            if key.dtype() == DType::Bool {
                key = self.converted(key, DType::Int32)?;
            }
            let key = self.materialized(key);
            let key = order.as_ref().map_or(key.clone(), |order| self.taken(key, order.clone(), dim));
            let place = self.sorted_places(&key, dim, is_descending);
            order = Some(match order {
                Some(order) => self.taken(order, place, dim),
                None => place,
            });
        }
        Ok(order)
    }

    /// Returns the indices that sort a tensor along a dimension.
    fn sorted_places(&mut self, key: &Tensor, dim: usize, is_descending: bool) -> Tensor {
        let at = self.dim_of(key.axes, dim);
        let is_descending = if is_descending { PyBool::True } else { PyBool::False };
        let stmt = apply(Op::ArgSort, [key.id])
            .with(attr::DIM, at)
            .with(attr::DESCENDING, is_descending)
            .with(attr::STABLE, PyBool::True);
        self.emit(key.axes, &key.shape, DType::Int64, stmt)
    }

    /// Imports the greatest elements of the last dimension and their indices as the first ones of the total order, in which a NaN with
    /// a sign is the least element.
    pub(crate) fn top_k(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let indices = self.result_type(op, 1)?.dtype;
        let Some(count) = op.int(&["k"]) else { return Err(self.missing(op, "k")) };
        let Some(dim) =
            value.shape().len().checked_sub(1).filter(|it| (0..=value.shape()[*it]).contains(&count))
        else {
            return Err(self.bad_module(
                "`k` is not between 0 and the extent of the last dimension",
                "expected at most all elements",
            ));
        };
        let mut keys = vec![(value.clone(), true)];
        if !value.dtype().is_integral() {
            // A zero with a sign is behind others, and a NaN with a sign behind infinity.
            let like = |number: f64| Self::splat_like(&value, number);
            let is_negative = self.map(Op::Lt, vec![value.clone(), like(0.0)], DType::Bool)?;
            let has_sign = self.map(Op::SignBit, vec![value.clone()], DType::Bool)?;
            let is_behind = self.map(Op::Ne, vec![has_sign, is_negative], DType::Bool)?;
            let is_nan = self.map(Op::IsNan, vec![value.clone()], DType::Bool)?;
            let is_least = self.map(Op::LogicalAnd, vec![is_nan, is_behind.clone()], DType::Bool)?;
            let own = self.select_values(is_least, like(f64::NEG_INFINITY), value.clone())?;
            keys = vec![(own, true), (is_behind, false)];
        }
        let it = self.materialized(value);
        let Some(order) = self.order(keys, dim)? else { return Err(self.missing(op, "operand")) };
        let order = Value::Tensor(order);
        let mut ranges: Vec<[i64; 3]> = it.shape.iter().map(|extent| [0, *extent, 1]).collect();
        ranges[dim][1] = count;
        let places = self.sliced(order, &ranges);
        let places = self.materialized(places);
        let found = self.taken(it, places.clone(), dim);
        let places = self.converted(Value::Tensor(places), indices)?;
        Ok(vec![Value::Tensor(found), places])
    }
}

/// The region of a sort. Its arguments are two elements of each operand, and it returns whether the first ones are in front.
struct Comparator<'a, 'i, 'm, 's> {
    region: &'a Block<'s>,
    /// Knows the constants outside of the region.
    importer: &'i Importer<'m, 's>,
}

/// The bits of the NaN that JAX writes, of each float type.
const QUIET_NANS: [&str; 4] = ["0x7E00", "0x7FC0", "0x7FC00000", "0x7FF8000000000000"];

/// The greatest depth of what is computed of a key.
const MAX_DEPTH: usize = 32;

impl<'a, 's> Comparator<'a, '_, '_, 's> {
    /// Returns the keys, the most significant one first; `None` for an order that `argsort` does not have.
    fn keys(&self) -> Option<Vec<Key<'s>>> {
        let end = self.region.ops.last()?;
        let [result] = end.operands[..] else { return None };
        let mut keys = Vec::new();
        let mut rest = result.name;
        // `a < b`, or `a < b or (a == b and …)`.
        loop {
            let op = self.definition(rest)?;
            if op.name == "stablehlo.compare" {
                keys.push(self.compared(op, &["LT", "GT"])?);
                return Some(keys);
            }
            let [less, further] = operands_of(op, "stablehlo.or")?;
            let key = self.compared(self.definition(less)?, &["LT", "GT"])?;
            let [equal, behind] = operands_of(self.definition(further)?, "stablehlo.and")?;
            let same = self.compared(self.definition(equal)?, &["EQ"])?;
            let is_same = match (same.computed, key.computed) {
                (Some([a, _]), Some([b, _])) => self.is_same(a, b, None, MAX_DEPTH),
                (None, None) => true,
                _ => false,
            };
            if (same.operand, same.is_total) != (key.operand, key.is_total) || !is_same {
                return None;
            }
            keys.push(key);
            // A damaged region may refer to itself.
            if keys.len() > self.region.ops.len() {
                return None;
            }
            rest = behind;
        }
    }

    fn definition(&self, name: &str) -> Option<&'a Operation<'s>> {
        self.region.ops.iter().find(|op| op.results.first().is_some_and(|it| it.0 == name))
    }

    /// Returns the operand whose two elements, or what is computed of them, an operation compares in one of these directions.
    fn compared(&self, op: &Operation<'s>, directions: &[&str]) -> Option<Key<'s>> {
        let [x, y] = operands_of(op, "stablehlo.compare")?;
        let (direction, is_total) = comparison(op).filter(|it| directions.contains(&it.0))?;
        let elements =
            self.element(x, 0).zip(self.element(y, 0)).filter(|((_, x), (_, y))| x == y && x % 2 == 0);
        let (a, b, has_equal_zeros, computed) = match elements {
            Some(((a, steps), (b, _))) => (a, b, steps == 2, None),
            None => {
                let (a, b) = (self.argument_of(x, MAX_DEPTH)?, self.argument_of(y, MAX_DEPTH)?);
                (a, b, false, Some([x, y]).filter(|_| self.is_same(x, y, Some((a, b)), MAX_DEPTH)))
            }
        };
        let is_pair = a / 2 == b / 2 && a != b && (elements.is_some() || computed.is_some());
        // `b > a` is `a < b`.
        let is_descending = (direction == "GT") == (a < b);
        is_pair.then_some(Key {
            operand: a / 2,
            computed,
            is_descending,
            is_total: is_total && !has_equal_zeros,
        })
    }

    /// Returns the only argument of which a value is computed.
    fn argument_of(&self, name: &str, depth: usize) -> Option<usize> {
        if let Some(at) = self.region.arguments.iter().position(|it| it.name == name) {
            return Some(at);
        }
        let op = self.definition(name).filter(|_| depth > 0)?;
        let mut found = op.operands.iter().filter_map(|it| self.argument_of(it.name, depth - 1));
        let first = found.next()?;
        found.all(|it| it == first).then_some(first)
    }

    /// Returns whether two names are computed alike, of the same argument or of these two.
    fn is_same(&self, x: &str, y: &str, arguments: Option<(usize, usize)>, depth: usize) -> bool {
        let argument = |name: &str| self.region.arguments.iter().position(|it| it.name == name);
        match (argument(x), argument(y), self.definition(x), self.definition(y)) {
            (Some(x), Some(y), ..) => arguments.map_or(x == y, |it| it == (x, y)),
            (None, None, Some(a), Some(b)) => {
                let operands = a.operands.len() == b.operands.len();
                let mut pairs = a.operands.iter().zip(&b.operands);
                a.name == b.name
                    && a.regions.is_empty()
                    && (&a.attributes, &a.positional) == (&b.attributes, &b.positional)
                    && (&a.result_types, operands, depth > 0) == (&b.result_types, true, true)
                    && pairs.all(|(x, y)| self.is_same(x.name, y.name, arguments, depth - 1))
            }
            // Names outside of the region.
            (None, None, None, None) => x == y,
            _ => false,
        }
    }

    /// Returns the number of the argument that a name is, after how many of two steps: JAX compares floats by the total order, after
    /// it made zeros and NaNs equal, `select(x == 0, 0, x)` and `select(x != x, nan, …)`. That is the order of `argsort`.
    fn element(&self, name: &'s str, steps: usize) -> Option<(usize, usize)> {
        if let Some(at) = self.region.arguments.iter().position(|it| it.name == name) {
            return Some((at, steps));
        }
        if steps == 2 {
            return None;
        }
        let [condition, constant, value] = operands_of(self.definition(name)?, "stablehlo.select")?;
        let (at, steps) = self.element(value, steps + 1)?;
        let condition = self.definition(condition)?;
        let [x, y] = operands_of(condition, "stablehlo.compare")?;
        let is_argument = |name: &str| self.region.arguments[at].name == name;
        let is_known = match comparison(condition)?.0 {
            "EQ" => is_argument(x) && self.is_zero(y) && self.is_zero(constant),
            "NE" => is_argument(x) && is_argument(y) && self.is_nan(constant),
            _ => false,
        };
        is_known.then_some((at, steps))
    }

    fn is_zero(&self, name: &str) -> bool {
        self.constant(name) == Some(0.0)
    }

    /// Returns whether a name is the NaN of JAX: of positive sign, so that the total order puts it last.
    fn is_nan(&self, name: &str) -> bool {
        self.constant(name).is_some_and(|it| it.is_nan() && it.is_sign_positive())
    }

    fn constant(&self, name: &'s str) -> Option<f64> {
        let Some(op) = self.definition(name) else {
            let outside = self.importer.value(&Use { name, index: 0, span: Span::default() }).ok()?;
            return match outside.constant()? {
                Scalar::Float(it) => Some(*it),
                Scalar::Bool(_) | Scalar::Int(_) | Scalar::Named(..) => None,
            };
        };
        match op.attribute(&["value"]).into_iter().chain(&op.positional).next()? {
            Attribute::Dense(items, _) if op.name == "stablehlo.constant" => match items[..] {
                [Attribute::Number(text)] if QUIET_NANS.contains(&text) => Some(f64::NAN),
                [Attribute::Number(text)] => text.parse().ok(),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns the names of the operands of an operation of this name.
fn operands_of<'s, const N: usize>(op: &Operation<'s>, name: &str) -> Option<[&'s str; N]> {
    let names: Vec<&str> = op.operands.iter().filter(|_| op.name == name).map(|it| it.name).collect();
    names.try_into().ok()
}
