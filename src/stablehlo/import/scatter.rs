//! Writes at computed indices.

use grammar::{
    attr::{self, TensorOrScalar},
    dtype::DType,
    ir::OpStmt,
    ops::Op,
    words::ReductionOp,
};
use hir_ir::build::{self, apply};

use super::{Importer, Results, gather::Numbers, reduce::Reducer};
use crate::{
    tree::Operation,
    value::{Scalar, Splat, Tensor, Value},
};

impl<'m, 's> Importer<'m, 's> {
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
            Some(it) if Reducer::of_region(it, base.dtype()) == Some(Reducer::Add) => true,
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
        let order = numbers.row_order(shape.len());
        let split: Vec<i64> = order.iter().map(|it| shape[*it]).collect();
        let it = self.reshaped(written, &split);
        let back: Option<Vec<usize>> =
            (0..shape.len()).map(|dim| order.iter().position(|it| *it == dim)).collect();
        let Some(back) = back else { return Err(self.missing(op, "scatter_dimension_numbers")) };
        Ok(vec![Value::Tensor(self.permuted(it, &back))])
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
}
