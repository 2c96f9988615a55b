//! Reads and writes of one element of each line, such as the probability of a label: the element is selected by comparing places.
//!
//! Every device selects among its own places, so a sharded line is not gathered.

use grammar::{DType, Op};

use super::{Imported, Importer, constant::zero, gather::Numbers, reduce::Reducer};
use crate::value::{Scalar, Splat, Tensor, Value};

/// The places of all elements along the lines, compared with those of the indices.
pub(super) struct Selection {
    /// The dimension of the lines.
    dim: usize,
    /// Whether each element of the operand is selected.
    is_selected: Value,
    /// The dimensions of the operand that number the lines, and their extents.
    lines: (Vec<i64>, Vec<i64>),
}

impl Importer<'_, '_> {
    /// Returns the selection of a gather or a scatter, if devices may hold parts of lines, and each line has one index and one of the
    /// `elements` that are read or written. A gather moves an index into the range; a scatter ignores one that is outside.
    pub(super) fn selection(
        &mut self,
        operand: &[i64],
        indices: &Value,
        numbers: &Numbers,
        (elements, is_moved): (i64, bool),
    ) -> Imported<Option<Selection>> {
        let (dims, own) = numbers.shared();
        let ([dim], true) = (numbers.indexed(), numbers.kept(operand.len()).is_empty()) else {
            return Ok(None);
        };
        let lines: Vec<i64> = dims.iter().map(|it| operand[*it]).collect();
        let stated: Option<Vec<i64>> = own.iter().map(|it| indices.shape().get(*it).copied()).collect();
        let is_ascending = dims.is_sorted() && own.is_sorted();
        let count = lines.iter().product::<i64>();
        let is_one_each = count == elements && count == indices.shape().iter().product::<i64>();
        let is_sharded = self.region.is_none() && self.replicated(operand).is_some();
        if !(is_sharded
            && is_ascending
            && is_one_each
            && !lines.is_empty()
            && stated.as_ref() == Some(&lines))
        {
            return Ok(None);
        }
        let dtype = DType::Int64;
        let index = self.as_indices(indices.clone())?;
        let index = self.materialized(index);
        let mut index = Value::Tensor(self.reshaped(index, &lines));
        if is_moved {
            let last = Self::splat_like(&index, (operand[*dim] - 1) as f64);
            let first = Self::splat_like(&index, 0.0);
            index = self.binary_values("maximum", index, first)?;
            index = self.binary_values("minimum", index, last)?;
        }
        let dims: Vec<i64> = dims.iter().map(|it| *it as i64).collect();
        let index = self.broadcast_value(index, &dims, operand)?;
        let places = self.iota_along(*dim, operand[*dim], operand, dtype)?;
        let is_selected = self.folded_or_mapped(Op::Eq, places, index, DType::Bool)?;
        Ok(Some(Selection { dim: *dim, is_selected, lines: (dims, lines) }))
    }

    /// Returns the selected element of each line: the sum of all elements of which the others are zero.
    pub(super) fn selected(&mut self, operand: Value, it: Selection, shape: &[i64]) -> Imported<Tensor> {
        let dtype = operand.dtype();
        let none = Value::Splat(Splat { scalar: zero(dtype), shape: operand.shape().to_vec(), dtype });
        let alone = self.select_values(it.is_selected, operand, none)?;
        let reducer = if dtype == DType::Bool { Reducer::Or } else { Reducer::Add };
        let found = self.reduced(alone, reducer, &[it.dim]);
        Ok(self.reshaped(found, shape))
    }

    /// Returns an operand to whose selected elements the updates are added, or that has the updates there.
    pub(super) fn with_selected(
        &mut self,
        base: Value,
        it: Selection,
        updates: Value,
        is_add: bool,
    ) -> Imported<Value> {
        let (shape, dtype) = (base.shape().to_vec(), base.dtype());
        let updates = match updates {
            Value::Splat(own) => Value::Splat(Splat { shape: it.lines.1, ..own }),
            Value::Tensor(own) => Value::Tensor(self.reshaped(own, &it.lines.1)),
        };
        let updates = self.broadcast_value(updates, &it.lines.0, &shape)?;
        if !is_add {
            return self.select_values(it.is_selected, updates, base);
        }
        let none = Value::Splat(Splat { scalar: zero(dtype), shape, dtype });
        let added = self.select_values(it.is_selected, updates, none)?;
        match base.constant() {
            Some(Scalar::Int(0)) => Ok(added),
            Some(Scalar::Float(number)) if *number == 0.0 => Ok(added),
            _ => self.binary_values("add", base, added),
        }
    }
}
