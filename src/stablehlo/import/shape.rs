//! Operators that rearrange elements.

use std::sync::Arc;

use grammar::{DType, ExprId, Mesh, Op, TensorId, attr};
use hir_ir::build::{Dim, apply};

use super::{Imported, Importer, Results};
use crate::{
    tree::{Attribute, Operation},
    value::{Splat, Tensor, Value},
};

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn broadcast_in_dim(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let ty = self.result_type(op, 0)?;
        let dims = op.ints(&["dims", "broadcast_dimensions"]).ok_or_else(|| self.missing(op, "dims"))?;
        let fits = |at: usize, dim: &i64| {
            let to = usize::try_from(*dim).ok().and_then(|it| ty.shape.get(it));
            to.is_some_and(|it| *it == value.shape()[at] || value.shape()[at] == 1)
        };
        let mut sorted = dims.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != dims.len()
            || dims.len() != value.shape().len()
            || !dims.iter().enumerate().all(|(at, it)| fits(at, it))
        {
            return Err(self.bad_module(
                "`dims` does not match the operand and the result",
                "expected a dimension of the result for each one of the operand",
            ));
        }
        let counted = match &value {
            Value::Tensor(it) => self.iotas.get(&it.id).map(|at| (it.shape.get(*at).copied(), dims.get(*at))),
            Value::Splat(_) => None,
        };
        let result = self.broadcast_value(value, &dims, &ty.shape)?;
        if let (Value::Tensor(it), Some((extent, Some(dim)))) = (&result, counted)
            && let Ok(dim) = usize::try_from(*dim)
            && ty.shape.get(dim).copied() == extent
        {
            self.iotas.insert(it.id, dim);
        }
        Ok(vec![result])
    }

    /// Repeats a value. `dims` has the dimension of the result for each one of the operand.
    pub(super) fn broadcast_value(&mut self, value: Value, dims: &[i64], shape: &[i64]) -> Imported<Value> {
        match value {
            Value::Splat(it) => Ok(Value::Splat(Splat { shape: shape.to_vec(), ..it })),
            Value::Tensor(it) => {
                let mut order: Vec<usize> = (0..dims.len()).collect();
                order.sort_by_key(|at| dims[*at]);
                let mut sorted = dims.to_vec();
                sorted.sort_unstable();
                let it = self.permuted(it, &order);
                Ok(self.broadcast_tensor(it, &sorted, shape))
            }
        }
    }

    /// Repeats a tensor whose dimensions are those of the result in `dims`, which ascend.
    pub(super) fn broadcast_tensor(&mut self, tensor: Tensor, dims: &[i64], shape: &[i64]) -> Value {
        let mut it = tensor;
        if dims.len() < shape.len() {
            let is_new: Vec<bool> = (0..shape.len()).map(|at| !dims.contains(&(at as i64))).collect();
            let mut extents = it.shape.iter();
            let inner: Vec<i64> = is_new
                .iter()
                .map(|new| if *new { 1 } else { extents.next().copied().unwrap_or(1) })
                .collect();
            let devices = std::iter::repeat_n(false, Self::device_count(it.axes));
            let flags = devices.chain(is_new).collect();
            let stmt = apply(Op::Broadcast, [it.id]).with(attr::FLAGS, flags);
            it = self.emit(it.axes, &inner, it.dtype, stmt);
        }
        if it.shape != shape {
            it = self.emit(it.axes, shape, it.dtype, apply(Op::Expand, [it.id]));
        }
        Value::Tensor(it)
    }

    pub(crate) fn reshape(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let shape = self.result_type(op, 0)?.shape.clone();
        if value.shape().iter().product::<i64>() != shape.iter().product::<i64>() {
            return Err(self.bad_module(
                "the operand and the result have different numbers of elements",
                "expected equal numbers",
            ));
        }
        Ok(vec![match value {
            Value::Splat(it) => Value::Splat(Splat { shape, ..it }),
            Value::Tensor(it) => Value::Tensor(self.reshaped(it, &shape)),
        }])
    }

    /// Returns a tensor with another shape.
    pub(super) fn reshaped(&mut self, tensor: Tensor, shape: &[i64]) -> Tensor {
        if tensor.shape == shape {
            return tensor;
        }
        self.emit(tensor.axes, shape, tensor.dtype, apply(Op::Reshape, [tensor.id]))
    }

    pub(crate) fn transpose(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let dims = op.ints(&["dims", "permutation"]).ok_or_else(|| self.missing(op, "dims"))?;
        let order: Vec<usize> = dims.iter().map(|it| usize::try_from(*it).unwrap_or(usize::MAX)).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted.len() != value.shape().len() || sorted.iter().enumerate().any(|(at, it)| at != *it) {
            return Err(
                self.bad_module("`dims` is not an order of the dimensions", "expected each dimension once")
            );
        }
        Ok(vec![match value {
            Value::Splat(it) => {
                let shape = order.iter().map(|at| it.shape[*at]).collect();
                Value::Splat(Splat { shape, ..it })
            }
            Value::Tensor(it) => Value::Tensor(self.permuted(it, &order)),
        }])
    }

    /// Returns a tensor whose dimension `at` is the dimension `order[at]` of the operand.
    pub(super) fn permuted(&mut self, tensor: Tensor, order: &[usize]) -> Tensor {
        if order.iter().enumerate().all(|(at, it)| at == *it) {
            return tensor;
        }
        let devices = Self::device_count(tensor.axes);
        let mut dims = self.device_dims(tensor.axes);
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        let all: Vec<usize> = (0..devices).chain(order.iter().map(|at| devices + at)).collect();
        let mesh = self.region_grid();
        let id = self.reordered(tensor.id, &dims, &all, mesh);
        let shape = order.iter().map(|at| tensor.shape[*at]).collect();
        Tensor { id, shape, ..tensor }
    }

    /// Returns a tensor, which has these dimensions, with them in this order.
    pub(super) fn reordered(
        &mut self,
        tensor: TensorId,
        dims: &[Dim],
        order: &[usize],
        mesh: Arc<Mesh>,
    ) -> TensorId {
        if order.iter().enumerate().all(|(at, it)| at == *it) {
            return tensor;
        }
        self.out.permuted(tensor, dims, order.to_vec(), mesh)
    }

    pub(crate) fn slice(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [value] = self.operands(op, operands)?;
        let ranges = match op.positional.first() {
            Some(Attribute::Array(ranges)) => ranges.iter().map(range).collect::<Option<Vec<_>>>(),
            _ => op.ints(&["start_indices"]).zip(op.ints(&["limit_indices"])).map(|(starts, limits)| {
                let strides = op.ints(&["strides"]).unwrap_or_else(|| vec![1; starts.len()]);
                starts
                    .into_iter()
                    .zip(limits)
                    .zip(strides)
                    .map(|((start, limit), stride)| [start, limit, stride])
                    .collect()
            }),
        };
        let ranges = ranges.ok_or_else(|| self.missing(op, "ranges"))?;
        let is_valid = |(extent, [start, limit, stride]): (&i64, &[i64; 3])| {
            0 <= *start && start <= limit && limit <= extent && *stride > 0
        };
        if ranges.len() != value.shape().len() || !value.shape().iter().zip(&ranges).all(is_valid) {
            return Err(self
                .bad_module("the ranges are not in the operand", "expected a range within each dimension"));
        }
        Ok(vec![self.sliced(value, &ranges)])
    }

    /// Returns ranges of a value: start, limit and stride of each dimension.
    pub(super) fn sliced(&mut self, value: Value, ranges: &[[i64; 3]]) -> Value {
        let shape: Vec<i64> = ranges
            .iter()
            .map(|[start, limit, stride]| if start < limit { (limit - start - 1) / stride + 1 } else { 0 })
            .collect();
        match value {
            Value::Splat(it) => Value::Splat(Splat { shape, ..it }),
            Value::Tensor(it) if it.shape == shape => Value::Tensor(it),
            Value::Tensor(it) => {
                if let Some(found) = self.range_of_pieces(&it, ranges) {
                    return found;
                }
                self.store_pieces(&it);
                let ranges: Vec<[ExprId; 3]> =
                    ranges.iter().map(|it| it.map(|it| self.out.int(it))).collect();
                Value::Tensor(self.slice_of(it, &ranges, 0, &shape))
            }
        }
    }

    /// Adds a slice of a tensor whose bounds differ between these devices.
    pub(super) fn slice_of(
        &mut self,
        tensor: Tensor,
        ranges: &[[ExprId; 3]],
        axes: u8,
        shape: &[i64],
    ) -> Tensor {
        let tensor = self.on_axes(tensor, axes);
        let devices = self.device_dims(tensor.axes).into_iter();
        let whole = devices.map(|it| [0, it.extent, 1].map(|it| self.out.int(it)));
        let ranges = whole.chain(ranges.iter().copied()).collect();
        self.emit(tensor.axes, shape, tensor.dtype, apply(Op::Slice, [tensor.id]).with(attr::RANGES, ranges))
    }

    pub(crate) fn concatenate(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let shape = self.result_type(op, 0)?.shape.clone();
        let dim = self.dimension(op, &["dim", "dimension"], shape.len())?;
        let matches = |it: &Value| {
            it.shape().len() == shape.len()
                && it.shape().iter().zip(&shape).enumerate().all(|(at, (a, b))| at == dim || a == b)
        };
        if !operands.iter().all(matches)
            || operands.iter().fold(0i64, |sum, it| sum.saturating_add(it.shape()[dim])) != shape[dim]
        {
            return Err(self.bad_module(
                "the operands do not fit together",
                "expected equal extents in all other dimensions",
            ));
        }
        Ok(vec![self.joined(operands, dim)])
    }

    /// Returns values behind one another along a dimension.
    pub(super) fn joined(&mut self, values: Vec<Value>, dim: usize) -> Value {
        let mut parts: Vec<Value> = values.iter().filter(|it| it.shape()[dim] > 0).cloned().collect();
        if parts.is_empty() {
            // All are empty.
            parts = values.into_iter().take(1).collect();
        }
        if parts.len() == 1 {
            return parts.remove(0);
        }
        let axes = parts.iter().fold(0, |axes, it| axes | it.axes());
        let mut shape = parts.first().map(|it| it.shape().to_vec()).unwrap_or_default();
        let dtype = parts.first().map_or(DType::Float, Value::dtype);
        shape[dim] = parts.iter().fold(0i64, |sum, it| sum.saturating_add(it.shape()[dim]));
        let stmt = self.cat(parts, dim, axes);
        Value::Tensor(self.emit(axes, &shape, dtype, stmt))
    }
}

/// Returns the start, the limit and the stride of a range.
fn range(it: &Attribute<'_>) -> Option<[i64; 3]> {
    match it {
        Attribute::Range(parts) => match parts[..] {
            [start, limit] => Some([start, limit, 1]),
            [start, limit, stride] => Some([start, limit, stride]),
            _ => None,
        },
        _ => None,
    }
}
