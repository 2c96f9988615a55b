//! Regions that combine numbers, applied to all elements of tensors at a time. So regions are evaluated, whatever they compute.

use grammar::{DType, Op};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Imported, Importer, Results, types::initial_values};
use crate::{
    tree::{Block, Operation, Use},
    value::{Tensor, Value},
};

/// The greatest number of updates of a scatter whose region is applied to one after the other.
const MAX_UPDATES: i64 = 256;

/// What combines two elements.
#[derive(Clone, Copy)]
pub(super) enum Combiner<'m, 's> {
    Region(&'m Block<'s>),
    /// The operator of this name.
    Operator(&'s str),
}

impl<'m, 's> Importer<'m, 's> {
    /// Returns the results of a region, for all elements of its arguments, which have one shape.
    pub(super) fn combined(&mut self, region: Combiner<'m, 's>, arguments: Vec<Value>) -> Results {
        let region = match region {
            Combiner::Region(it) => it,
            Combiner::Operator(name) => {
                let [a, b] = arguments.try_into().map_err(|_| self.unsupported(name))?;
                let name = name.rsplit('.').next().unwrap_or_default();
                if name == "multiply" && a.dtype().part().is_some() {
                    return Ok(vec![self.multiplied(&a, &b)?]);
                }
                return Ok(vec![self.binary_values(name, a, b)?]);
            }
        };
        let wanted = region.ops.last().map_or(&[][..], |it| &it.operands);
        self.lifted(region, arguments, wanted)
    }

    /// Returns values of a region, for all elements of its arguments. Operations that these values do not need are left out.
    pub(super) fn lifted(
        &mut self,
        region: &'m Block<'s>,
        arguments: Vec<Value>,
        wanted: &[Use<'s>],
    ) -> Results {
        let shape = arguments.first().map(|it| it.shape().to_vec()).unwrap_or_default();
        let needed = needed(region, wanted.iter().map(|it| it.name));
        let names = region.arguments.iter().map(|it| it.name);
        let scope: FxHashMap<_, _> = names.zip(arguments).map(|(name, it)| (name, vec![it])).collect();
        let span = self.out.span;
        self.scopes.push(scope);
        let results = self.lifted_values(region, &shape, &needed, wanted);
        self.scopes.pop();
        self.out.span = span;
        results
    }

    fn lifted_values(
        &mut self,
        region: &'m Block<'s>,
        shape: &[i64],
        needed: &FxHashSet<&str>,
        wanted: &[Use<'s>],
    ) -> Results {
        for op in region.ops.iter().filter(|op| op.results.iter().any(|it| needed.contains(it.0))) {
            let operands =
                op.operands.iter().map(|it| self.lifted_use(it, shape)).collect::<Imported<Vec<_>>>()?;
            let results = self.elementwise(op, operands)?;
            if let (Some(scope), [(name, _)]) = (self.scopes.last_mut(), &op.results[..]) {
                scope.insert(name, results);
            }
        }
        wanted.iter().map(|it| self.lifted_use(it, shape)).collect()
    }

    /// Returns the value of a name for all elements: numbers are those of each.
    fn lifted_use(&mut self, it: &Use<'s>, shape: &[i64]) -> Imported<Value> {
        let value = self.value(it)?;
        if value.shape().is_empty() {
            self.each_part(value, |it, part| it.broadcast_value(part, &[], shape))
        } else {
            Ok(value)
        }
    }

    /// Returns the reduction of values by a region: neighbours are combined until one element is left, as the specification allows.
    pub(super) fn reduced_by(
        &mut self,
        region: Combiner<'m, 's>,
        values: Vec<Value>,
        initial: Vec<Value>,
        dims: &[usize],
    ) -> Results {
        let shape = values.first().map(|it| it.shape().to_vec()).unwrap_or_default();
        let kept: Vec<usize> = (0..shape.len()).filter(|it| !dims.contains(it)).collect();
        let rest: Vec<i64> = kept.iter().map(|it| shape[*it]).collect();
        let order: Vec<usize> = dims.iter().copied().chain(kept).collect();
        let mut count = dims.iter().map(|it| shape[*it]).product::<i64>();
        let start: Imported<Vec<_>> = initial
            .into_iter()
            .map(|it| self.each_part(it, |it, part| it.broadcast_value(part, &[], &rest)))
            .collect();
        let start = start?;
        if count == 0 {
            return Ok(start);
        }
        let mut parts = Vec::with_capacity(values.len());
        for it in values {
            let line: Vec<i64> = [count].into_iter().chain(rest.iter().copied()).collect();
            parts.push(self.each_part(it, |importer, it| {
                let it = importer.materialized(it);
                let it = importer.permuted(it, &order);
                Ok(Value::Tensor(importer.reshaped(it, &line)))
            })?);
        }
        while count > 1 {
            let pairs = count / 2;
            let mut every_second = |first: i64| -> Results {
                let part = |it: &Value| self.rows_of(it, [first, 2 * pairs, 2]);
                parts.iter().map(part).collect()
            };
            let (mut all, right) = (every_second(0)?, every_second(1)?);
            all.extend(right);
            let mut joined = self.combined(region, all)?;
            if count % 2 == 1 {
                for (it, all) in joined.iter_mut().zip(&parts) {
                    let last = self.rows_of(all, [2 * pairs, count, 1])?;
                    *it = self.joined_rows(it.clone(), last)?;
                }
            }
            parts = joined;
            count = pairs + count % 2;
        }
        let found = parts.into_iter().map(|it| {
            self.each_part(it, |importer, it| {
                let it = importer.materialized(it);
                Ok(Value::Tensor(importer.reshaped(it, &rest)))
            })
        });
        let found = found.collect::<Imported<Vec<_>>>()?;
        self.combined(region, start.into_iter().chain(found).collect())
    }

    /// Returns a range of the first dimension.
    fn rows_of(&mut self, value: &Value, range: [i64; 3]) -> Imported<Value> {
        let mut ranges: Vec<[i64; 3]> = value.shape().iter().map(|extent| [0, *extent, 1]).collect();
        if let Some(first) = ranges.first_mut() {
            *first = range;
        }
        self.each_part(value.clone(), |it, part| Ok(it.sliced(part, &ranges)))
    }

    /// Returns a table to whose rows of these numbers the updates are combined, one after the other.
    pub(super) fn written_by(
        &mut self,
        op: &Operation<'_>,
        region: &'m Block<'s>,
        [table, number, updates]: [Tensor; 3],
    ) -> Imported<Tensor> {
        let (shape, count) = (table.shape.clone(), number.shape.iter().product::<i64>());
        if count > MAX_UPDATES {
            let form = format!(
                "its region is not `add`, `multiply`, `maximum` or `minimum`, for more than {MAX_UPDATES} updates"
            );
            return Err(self.unsupported_form(op, &form));
        }
        let places = self.iota_along(0, shape[0], &shape, number.dtype)?;
        let all: Vec<i64> = (0..shape.len() as i64).collect();
        let (number, updates) = (Value::Tensor(number), Value::Tensor(updates));
        let mut table = Value::Tensor(table);
        for at in 0..count {
            let own = self.rows_of(&number, [at, at + 1, 1])?;
            let own = self.broadcast_value(own, &[0], &shape)?;
            let is_own = self.folded_or_mapped(Op::Eq, places.clone(), own, DType::Bool)?;
            let update = self.rows_of(&updates, [at, at + 1, 1])?;
            let update = self.broadcast_value(update, &all, &shape)?;
            let written = self.combined(Combiner::Region(region), vec![table.clone(), update])?;
            let [written] = self.operands(op, written)?;
            table = self.select_values(is_own, written, table)?;
        }
        Ok(self.materialized(table))
    }
}

/// Returns the names of values, and of those from which a region computes them.
pub(super) fn needed<'s>(
    region: &Block<'s>,
    wanted: impl IntoIterator<Item = &'s str>,
) -> FxHashSet<&'s str> {
    let mut needed: FxHashSet<&str> = wanted.into_iter().collect();
    for op in region.ops.iter().rev() {
        let mut open: Vec<_> = op.results.iter().filter(|it| needed.contains(it.0)).map(|_| op).collect();
        while let Some(op) = open.pop() {
            needed.extend(op.operands.iter().chain(initial_values(op)).map(|it| it.name));
            open.extend(op.regions.iter().flat_map(|it| &it.ops));
        }
    }
    needed
}
