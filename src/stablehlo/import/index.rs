//! Slices whose place is computed.

use super::{Imported, Importer};
use crate::{
    tree::Operation,
    value::{AxisSet, Scalar, Tensor, Value},
};

/// Where a slice begins in each dimension, as text, with the devices between which it differs.
struct Starts {
    text: Vec<String>,
    constant: Option<Vec<i64>>,
    axes: AxisSet,
}

impl<'m, 's> Importer<'m, 's> {
    /// Returns where a slice of these sizes begins. StableHLO moves a start that is out of range.
    fn starts(
        &mut self,
        op: &Operation<'_>,
        starts: &[Value],
        shape: &[i64],
        sizes: &[i64],
    ) -> Imported<Starts> {
        if starts.len() != shape.len()
            || sizes.len() != shape.len()
            || sizes.iter().zip(shape).any(|(size, extent)| size > extent || *size < 0)
        {
            return Err(self.bad_module(
                "the slice is larger than the operand",
                "expected a start and a size for each dimension",
            ));
        }
        let mut found = Starts { text: Vec::new(), constant: Some(Vec::new()), axes: 0 };
        for ((start, extent), size) in starts.iter().zip(shape).zip(sizes) {
            let last = extent - size;
            let Value::Splat(it) = start else {
                return Err(self.unsupported_form(op, "a start that is computed from data"));
            };
            match &it.scalar {
                Scalar::Int(value) => {
                    let value = (*value).clamp(0, last);
                    found.text.push(value.to_string());
                    found.constant = found.constant.map(|it| it.into_iter().chain([value]).collect());
                }
                Scalar::Named(name, axes) => {
                    found.axes |= axes;
                    found.text.push(self.out.define(false, &format!("max(0, min({name}, {last}))")));
                    found.constant = None;
                }
                Scalar::Bool(_) | Scalar::Float(_) => {
                    return Err(self.bad_module("a start is not an integer", "expected integers"));
                }
            }
        }
        Ok(found)
    }

    /// Returns the ranges of a slice of these sizes.
    fn ranges(&mut self, starts: &Starts, sizes: &[i64]) -> Vec<[String; 3]> {
        let ranges = starts.text.iter().zip(sizes).map(|(start, size)| {
            let end = match start.parse::<i64>() {
                Ok(start) => (start + size).to_string(),
                Err(_) => self.out.define(false, &format!("{start} + {size}")),
            };
            [start.clone(), end, "1".to_owned()]
        });
        ranges.collect()
    }

    pub(crate) fn dynamic_slice(
        &mut self,
        op: &'m Operation<'s>,
        operands: Vec<Value>,
    ) -> Imported<Vec<Value>> {
        let Some((value, starts)) = operands.split_first() else { return Err(self.missing(op, "operand")) };
        let sizes = op.ints(&["sizes", "slice_sizes"]).ok_or_else(|| self.missing(op, "sizes"))?;
        let starts = self.starts(op, starts, value.shape(), &sizes)?;
        if let Some(starts) = &starts.constant {
            let ranges: Vec<[i64; 3]> =
                starts.iter().zip(&sizes).map(|(start, size)| [*start, start + size, 1]).collect();
            return Ok(vec![self.sliced(value.clone(), &ranges)]);
        }
        let ranges = self.ranges(&starts, &sizes);
        let tensor = self.materialized(value.clone());
        Ok(vec![Value::Tensor(self.slice_of(tensor, &ranges, starts.axes, &sizes))])
    }

    pub(crate) fn dynamic_update_slice(
        &mut self,
        op: &'m Operation<'s>,
        operands: Vec<Value>,
    ) -> Imported<Vec<Value>> {
        let [value, update, starts @ ..] = &operands[..] else { return Err(self.missing(op, "operands")) };
        let (shape, sizes) = (value.shape().to_vec(), update.shape().to_vec());
        let starts = self.starts(op, starts, &shape, &sizes)?;
        match &starts.constant {
            Some(starts) => Ok(vec![self.replaced(value.clone(), update.clone(), starts, 0)]),
            None => {
                let ranges = self.ranges(&starts, &sizes);
                let (value, update) = (self.materialized(value.clone()), self.materialized(update.clone()));
                let axes = value.axes | update.axes | starts.axes;
                let (value, update) = (self.on_axes(value, axes), self.on_axes(update, axes));
                Ok(vec![Value::Tensor(self.updated_copy(&value, &update, &ranges))])
            }
        }
    }

    /// Returns a value with an update at constant indices: what is before it, the update, and what is behind it, dimension by
    /// dimension.
    fn replaced(&mut self, value: Value, update: Value, starts: &[i64], dim: usize) -> Value {
        let shape = value.shape().to_vec();
        let Some(dim) = (dim..shape.len()).find(|it| update.shape()[*it] != shape[*it]) else {
            return update;
        };
        let (start, end) = (starts[dim], starts[dim] + update.shape()[dim]);
        let part = |from: i64, to: i64| {
            let ranges = shape
                .iter()
                .enumerate()
                .map(|(at, extent)| if at == dim { [from, to, 1] } else { [0, *extent, 1] });
            ranges.collect::<Vec<_>>()
        };
        let mut parts = Vec::new();
        if start > 0 {
            let before = self.sliced(value.clone(), &part(0, start));
            parts.push(before);
        }
        let middle = self.sliced(value.clone(), &part(start, end));
        let middle = self.replaced(middle, update, starts, dim + 1);
        parts.push(middle);
        if end < shape[dim] {
            let behind = self.sliced(value.clone(), &part(end, shape[dim]));
            parts.push(behind);
        }
        self.joined(parts, dim)
    }

    /// Returns a copy of a tensor, in which an update is written to ranges.
    fn updated_copy(&mut self, value: &Tensor, update: &Tensor, ranges: &[[String; 3]]) -> Tensor {
        let copy = self.tensor(value.axes, &value.shape, value.dtype);
        self.out.statement(format!("T{} = ALLOCATE(mem_type=global, zero_init=false)", copy.number));
        self.out.statement(format!("T{} = Set( T{} )", copy.number, value.number));
        let view = self.slice_of(copy.clone(), ranges, copy.axes, &update.shape);
        self.out.statement(format!("T{} = Set( T{} )", view.number, update.number));
        copy
    }
}
