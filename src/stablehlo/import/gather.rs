//! Reads and writes at computed indices.
//!
//! The dimensions of the operand are indexed (a slice has one index of them), shared with the indices (batching), or whole. Where
//! every slice is one row of a tensor `[shared and indexed, whole]`, there is one number of a row for each slice. Any other form has
//! one number for each element (`points`).

use grammar::{
    attr::{self, TensorOrScalar},
    dtype::DType,
    ir::{Expr, OpStmt},
    ops::Op,
    words::ReductionOp,
};
use hir_ir::build::{self, apply};

use super::{Imported, Importer, Results};
use crate::{
    tree::{Attribute, Operation},
    value::{Scalar, Splat, Tensor, Value},
};

/// The dimension numbers of a gather or a scatter.
pub(super) struct Numbers {
    /// Dimensions of the result (of the updates) that are those of a slice.
    pub(super) window: Vec<usize>,
    /// Dimensions of the operand that a slice does not have.
    removed: Vec<usize>,
    /// Dimensions of the operand that are indexed, in the order of the components of an index.
    indexed: Vec<usize>,
    /// Dimensions of the operand that are shared with the indices, and those of the indices.
    shared: (Vec<usize>, Vec<usize>),
    /// The dimension of the indices that contains the components of an index.
    component_dim: usize,
}

impl Numbers {
    /// Reads the dimension numbers; `None` if they contradict each other.
    fn read(attribute: &Attribute<'_>, rank: usize, names: [&str; 5]) -> Option<Self> {
        let Attribute::Named(_, entries, _) = attribute else { return None };
        let list = |name: &str| -> Option<Vec<usize>> {
            let found = Attribute::find(entries, name).map_or(Some(Vec::new()), Attribute::ints)?;
            found.into_iter().map(|it| usize::try_from(it).ok()).collect()
        };
        let [window, inserted, shared, shared_indices, map] = names;
        let component_dim = match Attribute::find(entries, "index_vector_dim") {
            Some(Attribute::Int(it)) => usize::try_from(*it).ok()?,
            _ => 0,
        };
        let it = Self {
            window: list(window)?,
            removed: list(inserted)?,
            indexed: list(map)?,
            shared: (list(shared)?, list(shared_indices)?),
            component_dim,
        };
        let without: Vec<usize> = it.removed.iter().chain(&it.shared.0).copied().collect();
        let starts: Vec<usize> = it.indexed.iter().chain(&it.shared.0).copied().collect();
        let is_valid = [&without, &starts]
            .iter()
            .all(|list| list.iter().enumerate().all(|(at, dim)| *dim < rank && !list[..at].contains(dim)));
        let is_matched = it.shared.0.len() == it.shared.1.len() && it.window.len() + without.len() == rank;
        (is_valid && is_matched).then_some(it)
    }

    /// Returns the dimensions of the operand that are shared with the indices, and those of the indices.
    pub(super) fn shared(&self) -> (&[usize], &[usize]) {
        (&self.shared.0, &self.shared.1)
    }

    /// Returns the dimensions of the operand that are indexed.
    pub(super) fn indexed(&self) -> &[usize] {
        &self.indexed
    }

    /// Returns the dimensions of the operand that a slice has.
    pub(super) fn kept(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|it| !self.removed.contains(it) && !self.shared.0.contains(it)).collect()
    }

    /// Returns whether a slice has exactly the dimensions that are not indexed.
    fn is_row(&self, rank: usize) -> bool {
        self.kept(rank) == self.whole(rank)
    }

    /// Returns the dimensions of the operand that are whole.
    fn whole(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|it| !self.indexed.contains(it) && !self.shared.0.contains(it)).collect()
    }
}

/// The number of a row for each slice.
pub(super) struct Rows {
    /// One number for each slice.
    pub(super) number: Value,
    /// Whether all components of the index of a slice are in range.
    pub(super) is_valid: Value,
    /// The shape of the indices without their components.
    pub(super) shape: Vec<i64>,
}

/// A dimension of the operand: how far its slices may begin, and the distance of its elements.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) last: i64,
    pub(super) stride: i64,
}

impl<'m, 's> Importer<'m, 's> {
    /// Returns the number of the row of each slice, from components that are in range or were moved there.
    pub(super) fn rows(
        &mut self,
        op: &Operation<'_>,
        indices: &Value,
        numbers: &Numbers,
        operand: &[i64],
        extents: &[Extent],
    ) -> Imported<Rows> {
        let dtype = DType::Int64;
        let mut shape = indices.shape().to_vec();
        let has_dim = numbers.component_dim < shape.len();
        let components = if has_dim { shape.remove(numbers.component_dim) } else { 1 };
        if components != numbers.indexed.len() as i64
            || numbers.shared.1.iter().any(|it| *it >= indices.shape().len())
        {
            return Err(self.bad_module(
                format!("the indices of `{}` do not match its dimension numbers", op.name),
                "expected an index for each indexed dimension",
            ));
        }
        let indices = self.as_indices(indices.clone())?;
        let scalar =
            |value: i64| Value::Splat(Splat { scalar: Scalar::Int(value), shape: shape.clone(), dtype });
        let mut number = scalar(0);
        let mut is_valid =
            Value::Splat(Splat { scalar: Scalar::Bool(true), shape: shape.clone(), dtype: DType::Bool });
        for (dim, own) in numbers.shared.0.iter().zip(&numbers.shared.1) {
            // Where the components stand before it, the dimension is one less here.
            let at = if has_dim && *own > numbers.component_dim { own - 1 } else { *own };
            if shape.get(at) != operand.get(*dim) {
                return Err(
                    self.bad_module("a shared dimension has different extents", "expected equal extents")
                );
            }
            let index = self.iota_along(at, operand[*dim], &shape, dtype)?;
            let index = self.scaled(index, extents[*dim].stride)?;
            number = self.sum_of(number, index)?;
        }
        for (component, dim) in numbers.indexed.iter().enumerate() {
            let own = if has_dim {
                let component = component as i64;
                let ranges: Vec<[i64; 3]> = indices
                    .shape()
                    .iter()
                    .enumerate()
                    .map(|(at, extent)| {
                        if at == numbers.component_dim {
                            [component, component + 1, 1]
                        } else {
                            [0, *extent, 1]
                        }
                    })
                    .collect();
                match self.sliced(indices.clone(), &ranges) {
                    Value::Splat(it) => Value::Splat(Splat { shape: shape.clone(), ..it }),
                    Value::Tensor(it) => Value::Tensor(self.reshaped(it, &shape)),
                }
            } else {
                indices.clone()
            };
            let last = scalar(extents[*dim].last);
            let moved = self.binary_values("maximum", own.clone(), scalar(0))?;
            let moved = self.binary_values("minimum", moved, last)?;
            let is_same = self.map(Op::Eq, vec![own, moved.clone()], DType::Bool)?;
            is_valid = match is_valid {
                Value::Splat(_) => is_same,
                it @ Value::Tensor(_) => self.binary_values("and", it, is_same)?,
            };
            let moved = self.scaled(moved, extents[*dim].stride)?;
            number = self.sum_of(number, moved)?;
        }
        Ok(Rows { number, is_valid, shape })
    }

    /// Returns a value times a number.
    pub(super) fn scaled(&mut self, value: Value, factor: i64) -> Imported<Value> {
        match factor {
            1 => Ok(value),
            _ => {
                let factor = Self::splat_like(&value, factor as f64);
                self.binary_values("multiply", value, factor)
            }
        }
    }

    /// Returns the sum of two values, of which the first one may be zero.
    pub(super) fn sum_of(&mut self, a: Value, b: Value) -> Imported<Value> {
        match a.constant() {
            Some(Scalar::Int(0)) => Ok(b),
            _ => self.binary_values("add", a, b),
        }
    }

    /// Returns the extents of the dimensions of a tensor of rows.
    fn row_extents(numbers: &Numbers, shape: &[i64]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = shape.iter().map(|it| Extent { last: it - 1, stride: 0 }).collect();
        let mut stride = 1i64;
        for dim in numbers.shared.0.iter().chain(&numbers.indexed).rev() {
            extents[*dim].stride = stride;
            stride = stride.saturating_mul(shape[*dim]);
        }
        extents
    }

    /// Returns a tensor as rows: the dimensions that select one, as one dimension, and the whole ones, as another.
    fn as_rows(&mut self, tensor: Tensor, numbers: &Numbers) -> Tensor {
        let whole = numbers.whole(tensor.shape.len());
        let count =
            |dims: &mut dyn Iterator<Item = &usize>| dims.map(|it| tensor.shape[*it]).product::<i64>();
        let shape = [count(&mut numbers.shared.0.iter().chain(&numbers.indexed)), count(&mut whole.iter())];
        let order: Vec<usize> =
            numbers.shared.0.iter().chain(&numbers.indexed).chain(&whole).copied().collect();
        let it = self.permuted(tensor, &order);
        self.reshaped(it, &shape)
    }

    pub(crate) fn gather(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [operand, indices] = self.operands(op, operands)?;
        let ty = self.result_type(op, 0)?.clone();
        let shape = operand.shape().to_vec();
        let names = [
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
        ];
        let numbers =
            op.attribute(&["dimension_numbers"]).and_then(|it| Numbers::read(it, shape.len(), names));
        let sizes = op.ints(&["slice_sizes"]).unwrap_or_default();
        let is_within =
            sizes.len() == shape.len() && sizes.iter().zip(&shape).all(|(a, b)| 0 <= *a && a <= b);
        let Some(numbers) = numbers.filter(|_| is_within) else {
            return Err(self.bad_module(
                "the dimension numbers do not match the operand",
                "expected each dimension once, and slices within the operand",
            ));
        };
        if let Some(it) = self.selection(&shape, &indices, &numbers, (ty.shape.iter().product(), true))? {
            return Ok(vec![Value::Tensor(self.selected(operand, it, &ty.shape)?)]);
        }
        let kept = numbers.kept(shape.len());
        if !numbers.is_row(shape.len()) || kept.iter().any(|dim| sizes[*dim] != shape[*dim]) {
            let sizes: Vec<i64> = kept.iter().map(|dim| sizes[*dim]).collect();
            return Ok(vec![self.gathered_points(op, operand, &indices, &numbers, &sizes, &ty.shape)?]);
        }
        let rows = self.rows(op, &indices, &numbers, &shape, &Self::row_extents(&numbers, &shape))?;
        let whole: Vec<i64> = numbers.whole(shape.len()).iter().map(|it| shape[*it]).collect();
        let operand = self.materialized(operand);
        let number = self.materialized(rows.number);
        let is_table = operand.axes | number.axes == 0 && numbers.indexed == [0] && shape.len() == 2;
        let mut result_shape = rows.shape.clone();
        result_shape.extend(&whole);
        let found = if is_table {
            // As it is, so that passes can keep the sharding of the table.
            let no = self.out.expr(Expr::Bool(false));
            let stmt = apply(Op::Embedding, [number.id, operand.id])
                .with(attr::SCALE_GRAD_BY_FREQ, no)
                .with(attr::SPARSE, no);
            let it = self.emit(0, &result_shape, operand.dtype, stmt);
            self.unsharded_sum(&it);
            it
        } else {
            let table = self.as_rows(operand, &numbers);
            let axes = table.axes | number.axes;
            let (table, number) = (self.on_axes(table, axes), self.on_axes(number, axes));
            let index = self.row_index(number, table.shape[1])?;
            let it = self.taken(table, index, 0);
            self.reshaped(it, &result_shape)
        };
        // The whole dimensions go to their places.
        let (mut slices, mut windows) = (0..rows.shape.len(), rows.shape.len()..result_shape.len());
        let order = (0..result_shape.len())
            .map(|at| if numbers.window.contains(&at) { windows.next() } else { slices.next() });
        let Some(order) = order.collect::<Option<Vec<_>>>() else {
            return Err(self.missing(op, "dimension_numbers"));
        };
        let found = self.permuted(found, &order);
        if found.shape != ty.shape {
            return Err(self
                .bad_module("the result does not have the shape of its slices", "expected the slices here"));
        }
        Ok(vec![Value::Tensor(found)])
    }

    /// Returns the statement that adds updates to elements of a tensor, or writes them there, along the first dimension behind those of
    /// devices.
    pub(super) fn scatter_of(
        &mut self,
        tensor: &Tensor,
        updates: &Tensor,
        index: &Tensor,
        is_add: bool,
    ) -> OpStmt {
        let mut stmt = build::op(Op::Scatter)
            .with(attr::IN, tensor.id)
            .with(attr::DIM, self.dim_of(tensor.axes, 0))
            .with(attr::SRC, TensorOrScalar::Tensor(updates.id))
            .with(attr::IDX, index.id);
        if is_add {
            stmt.set(attr::ACCUMULATE, ReductionOp::Add);
        }
        stmt
    }

    /// Returns the index of a row for each of its elements.
    fn row_index(&mut self, number: Tensor, columns: i64) -> Imported<Tensor> {
        let count = number.shape.iter().product();
        let flat = self.reshaped(number, &[count]);
        let wide = self.broadcast_tensor(flat, &[0], &[count, columns]);
        Ok(self.materialized(wide))
    }

    pub(crate) fn scatter(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [base, indices, updates] = self.operands(op, operands)?;
        let shape = base.shape().to_vec();
        let names = [
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
        ];
        let numbers =
            op.attribute(&["scatter_dimension_numbers"]).and_then(|it| Numbers::read(it, shape.len(), names));
        let window = |it: &Numbers| -> Option<Vec<i64>> {
            it.window.iter().map(|at| updates.shape().get(*at).copied()).collect()
        };
        let numbers = numbers.and_then(|it| window(&it).map(|sizes| (it, sizes)));
        let numbers = numbers.filter(|(it, sizes)| {
            it.kept(shape.len()).iter().zip(sizes).all(|(dim, size)| *size <= shape[*dim])
        });
        let Some((numbers, sizes)) = numbers else {
            return Err(self.bad_module(
                "the dimension numbers do not match the operand and the updates",
                "expected each dimension once, and updates within the operand",
            ));
        };
        let whole = numbers.whole(shape.len());
        let is_row =
            numbers.is_row(shape.len()) && whole.iter().zip(&sizes).all(|(dim, size)| *size == shape[*dim]);
        let is_add = match op.regions.first() {
            Some(it)
                if super::reduce::Reducer::of_region(it, base.dtype())
                    == Some(super::reduce::Reducer::Add) =>
            {
                true
            }
            Some(it)
                if it.ops.len() == 1
                    && it.arguments.len() == 2
                    && it.ops[0].operands.first().is_some_and(|own| own.name == it.arguments[1].name) =>
            {
                false
            }
            _ => return Err(self.unsupported_form(op, "its region neither adds nor replaces")),
        };
        let count = updates.shape().iter().product();
        if let Some(it) = self.selection(&shape, &indices, &numbers, (count, false))? {
            return Ok(vec![self.with_selected(base, it, updates, is_add)?]);
        }
        if !is_row {
            return Ok(vec![self.scattered_points(
                op,
                [base, indices, updates],
                &numbers,
                &sizes,
                is_add,
            )?]);
        }
        let rows = self.rows(op, &indices, &numbers, &shape, &Self::row_extents(&numbers, &shape))?;
        let base = self.materialized(base);
        let updates = self.materialized(updates);
        // The updates as rows.
        let slices: Vec<usize> = (0..updates.shape.len()).filter(|it| !numbers.window.contains(it)).collect();
        let count: i64 = slices.iter().map(|it| updates.shape[*it]).product();
        let columns: i64 = whole.iter().map(|it| shape[*it]).product();
        let order: Vec<usize> = slices.iter().chain(&numbers.window).copied().collect();
        let updates = self.permuted(updates, &order);
        let updates = self.reshaped(updates, &[count, columns]);
        let table = self.as_rows(base, &numbers);
        let rows_of_table = table.shape[0];
        // An update out of range changes nothing: it goes to a row behind the last one.
        let behind = Value::Splat(Splat {
            scalar: Scalar::Int(rows_of_table),
            shape: rows.shape.clone(),
            dtype: DType::Int64,
        });
        let number = self.select_values(rows.is_valid, rows.number, behind)?;
        let number = self.materialized(number);
        let number = self.reshaped(number, &[count]);
        let zero = if table.dtype.is_integral() { Scalar::Int(0) } else { Scalar::Float(0.0) };
        let extra = Value::Splat(Splat { scalar: zero, shape: vec![1, columns], dtype: table.dtype });
        let axes = table.axes | number.axes | updates.axes;
        let table = self.joined(vec![Value::Tensor(table), extra], 0);
        let table = self.materialized(table);
        let (table, number, updates) =
            (self.on_axes(table, axes), self.on_axes(number, axes), self.on_axes(updates, axes));
        let (extents, dtype) = (table.shape.clone(), table.dtype);
        let stmt = if is_add && axes == 0 {
            apply(Op::IndexPutAccumulate, [table.id, number.id, updates.id])
        } else {
            let index = self.row_index(number, columns)?;
            self.scatter_of(&table, &updates, &index, is_add)
        };
        let written = self.emit(axes, &extents, dtype, stmt);
        let written = self.sliced(Value::Tensor(written), &[[0, rows_of_table, 1], [0, columns, 1]]);
        let written = self.materialized(written);
        // Back to the dimensions of the operand.
        let order: Vec<usize> =
            numbers.shared.0.iter().chain(&numbers.indexed).chain(&whole).copied().collect();
        let split: Vec<i64> = order.iter().map(|it| shape[*it]).collect();
        let it = self.reshaped(written, &split);
        let back: Option<Vec<usize>> =
            (0..shape.len()).map(|dim| order.iter().position(|it| *it == dim)).collect();
        let Some(back) = back else { return Err(self.missing(op, "scatter_dimension_numbers")) };
        Ok(vec![Value::Tensor(self.permuted(it, &back))])
    }
}
