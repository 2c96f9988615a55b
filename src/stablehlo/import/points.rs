//! Reads and writes of slices that are not whole rows: each element has its number in the operand.

use grammar::DType;

use super::{
    Imported, Importer,
    gather::{Extent, Numbers},
    reduce::Reducer,
};
use crate::{
    tree::{Block, Operation},
    value::{Scalar, Splat, Tensor, Value},
};

/// What an update does to its element.
#[derive(Clone, Copy)]
pub(super) enum Write<'m, 's> {
    Replace,
    Add,
    Reduce(Reducer),
    /// What the region computes of both.
    Region(&'m Block<'s>),
}

impl<'m, 's> Write<'m, 's> {
    /// Returns what a region of two arguments, the element and its update, does.
    pub(super) fn of(region: &'m Block<'s>, dtype: DType) -> Self {
        match Reducer::of_region(region, dtype) {
            Some(Reducer::Add) => Self::Add,
            Some(it) => Self::Reduce(it),
            None if region.ops.len() == 1
                && region.ops[0].operands.first().is_some_and(|it| it.name == region.arguments[1].name) =>
            {
                Self::Replace
            }
            None => Self::Region(region),
        }
    }
}

/// The number in the operand of each element of slices.
struct Points {
    number: Value,
    /// Whether the whole slice of the element is in the operand.
    is_valid: Value,
}

impl<'m, 's> Importer<'m, 's> {
    /// Returns the numbers of the elements of slices of these sizes. `shape` is that of all slices together.
    fn points(
        &mut self,
        op: &Operation<'_>,
        indices: &Value,
        numbers: &Numbers,
        sizes: &[i64],
        operand: &[i64],
        shape: &[i64],
    ) -> Imported<Points> {
        let kept = numbers.kept(operand.len());
        let mut extents: Vec<Extent> = operand.iter().map(|it| Extent { last: it - 1, stride: 1 }).collect();
        for at in (1..operand.len()).rev() {
            extents[at - 1].stride = extents[at].stride.saturating_mul(operand[at]);
        }
        for (dim, size) in kept.iter().zip(sizes) {
            extents[*dim].last = operand[*dim] - size;
        }
        let rows = self.rows(op, indices, numbers, operand, &extents)?;
        let slices: Vec<usize> = (0..shape.len()).filter(|it| !numbers.window.contains(it)).collect();
        let own = |dims: &[usize]| dims.iter().map(|it| shape.get(*it).copied()).collect::<Option<Vec<_>>>();
        if own(&slices).as_ref() != Some(&rows.shape) || own(&numbers.window).as_deref() != Some(sizes) {
            return Err(self.bad_module(
                format!("the shapes of `{}` do not match its dimension numbers", op.name),
                "expected the slices here",
            ));
        }
        let slices: Vec<i64> = slices.into_iter().map(|it| it as i64).collect();
        let mut number = self.broadcast_value(rows.number, &slices, shape)?;
        for ((dim, size), at) in kept.iter().zip(sizes).zip(&numbers.window) {
            if *size > 1 {
                let offset = self.iota_along(*at, *size, shape, DType::Int64)?;
                let offset = self.scaled(offset, extents[*dim].stride)?;
                number = self.sum_of(number, offset)?;
            }
        }
        let is_valid = self.broadcast_value(rows.is_valid, &slices, shape)?;
        Ok(Points { number, is_valid })
    }

    pub(super) fn gathered_points(
        &mut self,
        op: &Operation<'_>,
        operand: Value,
        indices: &Value,
        numbers: &Numbers,
        sizes: &[i64],
        shape: &[i64],
    ) -> Imported<Value> {
        let points = self.points(op, indices, numbers, sizes, operand.shape(), shape)?;
        let operand = match operand {
            Value::Splat(it) => return Ok(Value::Splat(Splat { shape: shape.to_vec(), ..it })),
            Value::Tensor(it) => it,
        };
        let number = self.materialized(points.number);
        let axes = operand.axes | number.axes;
        let (operand, number) = (self.line(operand, axes), self.line(number, axes));
        let found = self.taken(operand, number, 0);
        Ok(Value::Tensor(self.reshaped(found, shape)))
    }

    /// Adds updates to, or writes them at, their places. An update that is partly out of range changes nothing: its elements go
    /// to one behind the last one.
    pub(super) fn scattered_points(
        &mut self,
        op: &Operation<'_>,
        [base, indices, updates]: [Value; 3],
        numbers: &Numbers,
        sizes: &[i64],
        write: Write<'m, 's>,
    ) -> Imported<Value> {
        let shape = updates.shape().to_vec();
        let base = self.materialized(base);
        let points = self.points(op, &indices, numbers, sizes, &base.shape, &shape)?;
        let count: i64 = base.shape.iter().product();
        let behind = Value::Splat(Splat { scalar: Scalar::Int(count), shape, dtype: DType::Int64 });
        let number = self.select_values(points.is_valid, points.number, behind)?;
        let (number, updates) = (self.materialized(number), self.materialized(updates));
        let axes = base.axes | number.axes | updates.axes;
        let (number, updates) = (self.line(number, axes), self.line(updates, axes));
        let (own_shape, dtype) = (base.shape.clone(), base.dtype);
        let line = Value::Tensor(self.line(base, axes));
        let one = Value::Splat(Splat { scalar: Scalar::Int(0), shape: vec![1], dtype: DType::Int64 });
        let one = self.converted(one, dtype)?;
        let line = self.joined(vec![line, one], 0);
        let line = self.materialized(line);
        let written = match write {
            Write::Add | Write::Replace => {
                let stmt = self.scatter_of(&line, &updates, &number, matches!(write, Write::Add));
                self.emit(axes, &[count + 1], dtype, stmt)
            }
            Write::Reduce(reducer) => self.written_with(op, reducer, [line, number, updates])?,
            Write::Region(region) => self.written_by(op, region, [line, number, updates])?,
        };
        let kept = self.sliced(Value::Tensor(written), &[[0, count, 1]]);
        let kept = self.materialized(kept);
        Ok(Value::Tensor(self.reshaped(kept, &own_shape)))
    }

    /// Returns a tensor on these devices with its elements in one dimension.
    fn line(&mut self, tensor: Tensor, axes: u8) -> Tensor {
        let count = tensor.shape.iter().product();
        let it = self.reshaped(tensor, &[count]);
        self.on_axes(it, axes)
    }
}
