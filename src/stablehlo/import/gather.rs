//! Reads and writes at computed indices.
//!
//! The dimensions of the operand are indexed (a slice has one index of them), shared with the indices (batching), or whole. A tensor
//! of rows, `[shared and indexed, whole]`, and one number of a row for each slice express all forms in which every slice is one row.

use grammar::dtype::DType;

use super::{Imported, Importer};
use crate::{
    tree::{Attribute, Operation},
    value::{Scalar, Splat, Tensor, Value},
};

/// The dimension numbers of a gather or a scatter.
struct Numbers {
    /// Dimensions of the result (of the updates) that are whole dimensions of the operand.
    window: Vec<usize>,
    /// Dimensions of the operand that are indexed, in the order of the components of an index.
    indexed: Vec<usize>,
    /// Dimensions of the operand that are shared with the indices, and those of the indices.
    shared: (Vec<usize>, Vec<usize>),
    /// The dimension of the indices that contains the components of an index.
    component_dim: usize,
}

impl Numbers {
    /// Reads the dimension numbers; `None` for forms in which a slice is not one row.
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
            indexed: list(map)?,
            shared: (list(shared)?, list(shared_indices)?),
            component_dim,
        };
        let mut removed = list(inserted)?;
        removed.sort_unstable();
        let mut indexed = it.indexed.clone();
        indexed.sort_unstable();
        let all: Vec<usize> = it.indexed.iter().chain(&it.shared.0).copied().collect();
        let is_row =
            removed == indexed && all.iter().all(|it| *it < rank) && it.shared.0.len() == it.shared.1.len();
        (is_row && it.window.len() + all.len() == rank).then_some(it)
    }

    /// Returns the dimensions of the operand that are whole.
    fn whole(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|it| !self.indexed.contains(it) && !self.shared.0.contains(it)).collect()
    }
}

/// The number of a row for each slice.
struct Rows {
    /// One number for each slice, a tensor with one dimension.
    number: Value,
    /// Whether all components of the index of a slice are in range.
    is_valid: Value,
    /// The shape of the indices without their components.
    shape: Vec<i64>,
}

impl<'m, 's> Importer<'m, 's> {
    /// Returns the number of the row of each slice, from components that are in range or were moved there.
    fn rows(
        &mut self,
        op: &Operation<'_>,
        indices: &Value,
        numbers: &Numbers,
        operand: &[i64],
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
        let indices = self.converted(indices.clone(), dtype)?;
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
            number = self.binary_values("multiply", number, scalar(operand[*dim]))?;
            number = self.binary_values("add", number, index)?;
        }
        for (component, dim) in numbers.indexed.iter().enumerate() {
            let own = match has_dim {
                true => {
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
                }
                false => indices.clone(),
            };
            let last = scalar(operand[*dim] - 1);
            let moved = self.binary_values("maximum", own.clone(), scalar(0))?;
            let moved = self.binary_values("minimum", moved, last)?;
            let is_same = self.map("==", vec![own, moved.clone()], DType::Bool)?;
            is_valid = match is_valid {
                Value::Splat(_) => is_same,
                it @ Value::Tensor(_) => self.binary_values("and", it, is_same)?,
            };
            number = self.binary_values("multiply", number, scalar(operand[*dim]))?;
            number = self.binary_values("add", number, moved)?;
        }
        Ok(Rows { number, is_valid, shape })
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

    pub(crate) fn gather(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Imported<Vec<Value>> {
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
        let numbers = numbers.filter(|it| {
            sizes.len() == shape.len() && it.whole(shape.len()).iter().all(|dim| sizes[*dim] == shape[*dim])
        });
        let Some(numbers) = numbers else {
            return Err(self.unsupported_form(op, "a slice is not one row of the operand"));
        };
        let rows = self.rows(op, &indices, &numbers, &shape)?;
        let whole: Vec<i64> = numbers.whole(shape.len()).iter().map(|it| shape[*it]).collect();
        let operand = self.materialized(operand);
        let number = self.materialized(rows.number);
        let is_table = operand.axes | number.axes == 0 && numbers.indexed == [0] && shape.len() == 2;
        let mut result_shape = rows.shape.clone();
        result_shape.extend(&whole);
        let found = if is_table {
            // As it is, so that passes can keep the sharding of the table.
            let text = format!(
                "embedding(T{}, T{}, scale_grad_by_freq=false, sparse=false)",
                number.number, operand.number
            );
            let it = self.emit(0, &result_shape, operand.dtype, text);
            self.unsharded_sum(&it);
            it
        } else {
            let table = self.as_rows(operand, &numbers);
            let axes = table.axes | number.axes;
            let (table, number) = (self.on_axes(table, axes), self.on_axes(number, axes));
            let index = self.row_index(number, table.shape[1])?;
            let (slices, dtype) = (index.shape.clone(), table.dtype);
            let dim = Self::device_count(axes);
            let it = self.emit(
                axes,
                &slices,
                dtype,
                format!("takeAlongAxis( T{}, T{}, dim = {dim} )", table.number, index.number),
            );
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

    /// Returns the index of a row for each of its elements.
    fn row_index(&mut self, number: Tensor, columns: i64) -> Imported<Tensor> {
        let count = number.shape.iter().product();
        let flat = self.reshaped(number, &[count]);
        let wide = self.broadcast_tensor(flat, &[0], &[count, columns]);
        Ok(self.materialized(wide))
    }

    pub(crate) fn scatter(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Imported<Vec<Value>> {
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
        let Some(numbers) = numbers else {
            return Err(self.unsupported_form(op, "an update is not one row of the operand"));
        };
        let whole = numbers.whole(shape.len());
        let window = |at: &usize| updates.shape().get(*at).copied();
        if numbers.window.iter().map(window).ne(whole.iter().map(|it| Some(shape[*it]))) {
            return Err(self.unsupported_form(op, "an update is not one row of the operand"));
        }
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
        let rows = self.rows(op, &indices, &numbers, &shape)?;
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
        let written = if is_add && axes == 0 {
            self.emit(
                axes,
                &extents,
                dtype,
                format!("indexPutAccumulate( T{}, T{}, T{} )", table.number, number.number, updates.number),
            )
        } else {
            let index = self.row_index(number, columns)?;
            let mode = if is_add { ", accumulate=add" } else { "" };
            let dim = Self::device_count(axes);
            let text = format!(
                "scatter(in=T{}, dim={dim}, src=T{}, idx=T{}{mode})",
                table.number, updates.number, index.number
            );
            self.emit(axes, &extents, dtype, text)
        };
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

    /// Imports a window that ends at each element: a sum of all elements up to it.
    pub(crate) fn reduce_window(
        &mut self,
        op: &'m Operation<'s>,
        operands: Vec<Value>,
    ) -> Imported<Vec<Value>> {
        let [value, initial] = self.operands(op, operands)?;
        let shape = value.shape().to_vec();
        let sizes = op.ints(&["window_dimensions"]).unwrap_or_default();
        let mut long = (0..sizes.len()).filter(|it| sizes[*it] != 1);
        let dim = long.next().filter(|_| long.next().is_none() && sizes.len() == shape.len());
        let ones = |name: &str| op.ints(&[name]).is_none_or(|it| it.iter().all(|it| *it == 1));
        let is_plain = ["base_dilations", "window_dilations", "window_strides"].into_iter().all(ones);
        let padding = op.attribute(&["padding"]).and_then(Attribute::rows);
        let is_sum_before = dim.is_some_and(|dim| {
            let before = |at: usize| if at == dim { vec![shape[dim] - 1, 0] } else { vec![0, 0] };
            sizes[dim] == shape[dim] && padding == Some((0..shape.len()).map(before).collect())
        });
        let is_add = op.regions.first().and_then(|it| super::reduce::Reducer::of_region(it, value.dtype()))
            == Some(super::reduce::Reducer::Add);
        let is_zero = matches!(initial.constant(), Some(Scalar::Int(0)))
            || initial.constant() == Some(&Scalar::Float(0.0));
        let Some(dim) = dim.filter(|_| is_plain && is_sum_before && is_add && is_zero) else {
            return Err(self.unsupported_form(op, "not the sum of all elements up to each one (`cumsum`)"));
        };
        let it = self.materialized(value);
        let at = Self::device_count(it.axes) + dim;
        Ok(vec![Value::Tensor(self.emit(
            it.axes,
            &shape,
            it.dtype,
            format!("scan(T{}, dim={at})", it.number),
        ))])
    }

    pub(crate) fn top_k(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Imported<Vec<Value>> {
        let [value] = self.operands(op, operands)?;
        let (values, indices) = (self.result_type(op, 0)?.clone(), self.result_type(op, 1)?.clone());
        let (Some(count), false) = (op.int(&["k"]), value.shape().is_empty()) else {
            return Err(self.missing(op, "k"));
        };
        let it = self.materialized(value);
        let dim = Self::device_count(it.axes) + it.shape.len() - 1;
        let found = self.tensor(it.axes, &values.shape, values.dtype);
        let places = self.tensor(it.axes, &indices.shape, DType::Int64);
        self.out.statement(format!(
            "T{}, T{} = topk(T{}, {count}, dim={dim}, largest=True, sorted=True)",
            found.number, places.number, it.number
        ));
        let places = self.converted(Value::Tensor(places), indices.dtype)?;
        Ok(vec![Value::Tensor(found), places])
    }
}
