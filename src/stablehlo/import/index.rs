//! Slices whose place is computed.

use grammar::{DType, Expr, ExprId, InfixOp, Op, attr};
use hir_ir::build::apply;

use super::{Imported, Importer, Results};
use crate::{
    tree::Operation,
    value::{AxisSet, Scalar, Splat, Tensor, Value},
};

/// Where a slice begins in a dimension, within its range.
enum Start {
    Constant(i64),
    /// A scalar of the host, which differs between these devices.
    Host(ExprId, AxisSet),
    /// A tensor without dimensions.
    Computed(Value),
}

impl<'m, 's> Importer<'m, 's> {
    /// Returns where a slice of these sizes begins. StableHLO moves a start that is out of range.
    fn starts(&mut self, starts: &[Value], shape: &[i64], sizes: &[i64]) -> Imported<Vec<Start>> {
        if starts.len() != shape.len()
            || sizes.len() != shape.len()
            || sizes.iter().zip(shape).any(|(size, extent)| size > extent || *size < 0)
        {
            return Err(self.bad_module(
                "the slice is larger than the operand",
                "expected a start and a size for each dimension",
            ));
        }
        let mut found = Vec::with_capacity(starts.len());
        for ((start, extent), size) in starts.iter().zip(shape).zip(sizes) {
            let last = extent - size;
            if !start.shape().is_empty() || !start.dtype().is_integral() || start.dtype() == DType::Bool {
                return Err(
                    self.bad_module("a start is not one integer", "expected integers without dimensions")
                );
            }
            if last == 0 {
                found.push(Start::Constant(0));
                continue;
            }
            found.push(match self.as_indices(start.clone())? {
                Value::Splat(Splat { scalar: Scalar::Int(value), .. }) => {
                    Start::Constant(value.clamp(0, last))
                }
                Value::Splat(own @ Splat { scalar: Scalar::Named(..), .. }) => {
                    let bound = |it: i64| Splat { scalar: Scalar::Int(it), ..own.clone() };
                    let raised = self.computed(Op::Max, &own, &bound(0), own.dtype);
                    let raised = Splat { scalar: raised.unwrap_or(own.scalar), ..own.clone() };
                    match self.computed(Op::Min, &raised, &bound(last), own.dtype).unwrap_or(raised.scalar) {
                        Scalar::Named(it, axes) => Start::Host(it, axes),
                        Scalar::Int(it) => Start::Constant(it),
                        Scalar::Bool(_) | Scalar::Float(_) => Start::Constant(0),
                    }
                }
                it => {
                    let zero = Self::splat_like(&it, 0.0);
                    let it = self.binary_values("maximum", it, zero)?;
                    let last = Self::splat_like(&it, last as f64);
                    Start::Computed(self.binary_values("minimum", it, last)?)
                }
            });
        }
        Ok(found)
    }

    /// Returns integers as indices, which are signed: an unsigned one that is greater than all of them becomes the greatest.
    pub(super) fn as_indices(&mut self, value: Value) -> Imported<Value> {
        let dtype = value.dtype();
        let is_host = matches!(&value, Value::Splat(Splat { scalar: Scalar::Named(..), .. }));
        let value = if dtype == DType::UInt64 && !is_host {
            let scalar = Scalar::Int(i64::MAX);
            let last = Value::Splat(Splat { scalar, shape: value.shape().to_vec(), dtype });
            self.binary_values("minimum", value, last)?
        } else {
            value
        };
        self.converted(value, DType::Int64)
    }

    /// Returns the ranges of a slice of these sizes, whole ones where the start is computed, and the devices between which they differ.
    fn ranges(&mut self, starts: &[Start], sizes: &[i64], shape: &[i64]) -> (Vec<[ExprId; 3]>, AxisSet) {
        let (mut ranges, mut all) = (Vec::with_capacity(starts.len()), 0);
        for ((start, size), extent) in starts.iter().zip(sizes).zip(shape) {
            let (start, end) = match start {
                Start::Constant(it) => (self.out.int(*it), self.out.int(it + size)),
                Start::Host(start, axes) => {
                    all |= axes;
                    let size = self.out.int(*size);
                    let end = self.out.expr(Expr::Infix(InfixOp::Add, *start, size));
                    (*start, self.out.define(false, end))
                }
                Start::Computed(_) => (self.out.int(0), self.out.int(*extent)),
            };
            ranges.push([start, end, self.out.int(1)]);
        }
        (ranges, all)
    }

    pub(crate) fn dynamic_slice(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let Some((value, starts)) = operands.split_first() else { return Err(self.missing(op, "operand")) };
        let sizes = op.ints(&["sizes", "slice_sizes"]).ok_or_else(|| self.missing(op, "sizes"))?;
        let shape = value.shape().to_vec();
        let starts = self.starts(starts, &shape, &sizes)?;
        let tensor = match value {
            Value::Splat(it) => return Ok(vec![Value::Splat(Splat { shape: sizes, ..it.clone() })]),
            Value::Tensor(it) => it.clone(),
        };
        let constant = |it: (&Start, &i64)| match it {
            (Start::Constant(start), size) => Some([*start, start + size, 1]),
            _ => None,
        };
        if let Some(ranges) = starts.iter().zip(&sizes).map(constant).collect::<Option<Vec<_>>>()
            && let Some(found) = self.range_of_pieces(&tensor, &ranges)
        {
            return Ok(vec![found]);
        }
        self.store_pieces(&tensor);
        let (ranges, axes) = self.ranges(&starts, &sizes, &shape);
        let is_computed = |at: usize| matches!(starts[at], Start::Computed(_));
        let own: Vec<i64> =
            (0..shape.len()).map(|at| if is_computed(at) { shape[at] } else { sizes[at] }).collect();
        let mut found = if own == shape { tensor } else { self.slice_of(tensor, &ranges, axes, &own) };
        for (dim, start) in starts.iter().enumerate() {
            if let Start::Computed(start) = start {
                let mut line = vec![1; shape.len()];
                line[dim] = sizes[dim];
                let places = self.iota_along(dim, sizes[dim], &line, DType::Int64)?;
                let start = self.broadcast_value(start.clone(), &[], &line)?;
                let places = self.binary_values("add", places, start)?;
                let places = self.materialized(places);
                found = self.taken(found, places, dim);
            }
        }
        Ok(vec![Value::Tensor(found)])
    }

    /// Returns the elements at these places along a dimension. Each other dimension of `places` has the extent of `tensor`, or 1.
    pub(super) fn taken(&mut self, tensor: Tensor, places: Tensor, dim: usize) -> Tensor {
        let axes = tensor.axes | places.axes;
        let mut shape = tensor.shape.clone();
        shape[dim] = places.shape[dim];
        let (tensor, places) = (self.on_axes(tensor, axes), self.on_axes(places, axes));
        let at = self.dim_of(axes, dim);
        let stmt = apply(Op::TakeAlongAxis, [tensor.id, places.id]).with(attr::DIM, at);
        self.emit(axes, &shape, tensor.dtype, stmt)
    }

    pub(crate) fn dynamic_update_slice(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value, update, starts @ ..] = &operands[..] else { return Err(self.missing(op, "operands")) };
        let (shape, sizes) = (value.shape().to_vec(), update.shape().to_vec());
        let starts = self.starts(starts, &shape, &sizes)?;
        let constant = |it: &Start| match it {
            Start::Constant(it) => Some(*it),
            _ => None,
        };
        if let Some(starts) = starts.iter().map(constant).collect::<Option<Vec<_>>>() {
            return Ok(vec![self.replaced(value.clone(), update.clone(), &starts, 0)]);
        }
        if starts.iter().any(|it| matches!(it, Start::Computed(_))) {
            return Ok(vec![self.selected_update(value.clone(), update.clone(), starts)?]);
        }
        let (ranges, axes) = self.ranges(&starts, &sizes, &shape);
        let (value, update) = (self.materialized(value.clone()), self.materialized(update.clone()));
        let axes = value.axes | update.axes | axes;
        let (value, update) = (self.on_axes(value, axes), self.on_axes(update, axes));
        Ok(vec![Value::Tensor(self.updated_copy(&value, &update, &ranges))])
    }

    /// Returns a value with an update at computed indices: each element is one of the update if its place is among those of the update.
    fn selected_update(&mut self, value: Value, update: Value, starts: Vec<Start>) -> Imported<Value> {
        let (shape, mut update) = (value.shape().to_vec(), update);
        let mut is_updated: Option<Value> = None;
        for (dim, start) in starts.into_iter().enumerate() {
            let (extent, size) = (shape[dim], update.shape()[dim]);
            if extent == size {
                continue;
            }
            if size == 0 {
                return Ok(value);
            }
            let mut line = vec![1; shape.len()];
            line[dim] = extent;
            let dtype = DType::Int64;
            let splat = |scalar| Value::Splat(Splat { scalar, shape: line.clone(), dtype });
            let start = match start {
                Start::Constant(it) => splat(Scalar::Int(it)),
                Start::Host(it, axes) => splat(Scalar::Named(it, axes)),
                Start::Computed(it) => self.broadcast_value(it, &[], &line)?,
            };
            let places = self.iota_along(dim, extent, &line, dtype)?;
            let places = self.binary_values("subtract", places, start)?;
            let is_behind =
                self.folded_or_mapped(Op::Ge, places.clone(), splat(Scalar::Int(0)), DType::Bool)?;
            let is_before =
                self.folded_or_mapped(Op::Lt, places.clone(), splat(Scalar::Int(size)), DType::Bool)?;
            let own = self.binary_values("and", is_behind, is_before)?;
            let all: Vec<i64> = (0..shape.len() as i64).collect();
            let own = self.broadcast_value(own, &all, &shape)?;
            is_updated = Some(match is_updated {
                Some(it) => self.binary_values("and", it, own)?,
                None => own,
            });
            let places = self.binary_values("maximum", places, splat(Scalar::Int(0)))?;
            let places = self.binary_values("minimum", places, splat(Scalar::Int(size - 1)))?;
            let own = self.materialized(update);
            let places = self.materialized(places);
            update = Value::Tensor(self.taken(own, places, dim));
        }
        match is_updated {
            Some(it) => self.select_values(it, update, value),
            None => Ok(update),
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
        let is_alone = shape.iter().zip(update.shape()).skip(dim + 1).all(|(all, own)| all == own);
        if is_alone && let Some(found) = self.with_piece(&value, &update, dim, start) {
            return found;
        }
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
        self.joined_later(parts, dim)
    }

    /// Returns a copy of a tensor, in which an update is written to ranges.
    fn updated_copy(&mut self, value: &Tensor, update: &Tensor, ranges: &[[ExprId; 3]]) -> Tensor {
        let copy = self.tensor(value.axes, &value.shape, value.dtype);
        self.out.allocate(copy.id);
        self.out.assign(copy.id, apply(Op::Set, [value.id]));
        let view = self.slice_of(copy.clone(), ranges, copy.axes, &update.shape);
        self.out.assign(view.id, apply(Op::Set, [update.id]));
        copy
    }
}
