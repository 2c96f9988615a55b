//! Writes at computed indices.

use grammar::{
    DType, Op, OpStmt, ReductionOp,
    attr::{self, TensorOrScalar},
};
use hir_ir::build::{self, apply};

use super::{Imported, Importer, Results, gather::Numbers, points::Write, reduce::Reducer};
use crate::{
    tree::Operation,
    value::{Scalar, Splat, Tensor, Value},
};

/// The greatest number of pairs of an update and an element, of which a scatter by another region than `add` makes a tensor.
const MAX_PAIRS: i64 = 1 << 28;

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
        let Some(region) = op.regions.first().filter(|it| it.arguments.len() == 2) else {
            return Err(self.missing(op, "region"));
        };
        let write = Write::of(region, base.dtype());
        let count = updates.shape().iter().product();
        if matches!(write, Write::Add | Write::Replace)
            && let Some(it) = self.selection(&shape, &indices, &numbers, (count, false))?
        {
            return Ok(vec![self.with_selected(base, it, updates, matches!(write, Write::Add))?]);
        }
        if !is_row {
            return Ok(vec![self.scattered_points(op, [base, indices, updates], &numbers, &sizes, write)?]);
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
        let written = match write {
            Write::Add if axes == 0 => self.emit(
                axes,
                &extents,
                dtype,
                apply(Op::IndexPutAccumulate, [table.id, number.id, updates.id]),
            ),
            Write::Add | Write::Replace => {
                let index = self.row_index(number, columns)?;
                let stmt = self.scatter_of(&table, &updates, &index, matches!(write, Write::Add));
                self.emit(axes, &extents, dtype, stmt)
            }
            Write::Reduce(reducer) => self.written_with(op, reducer, [table, number, updates])?,
            Write::Region(region) => self.written_by(op, region, [table, number, updates])?,
        };
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

    /// Returns a table to whose rows of these numbers the updates are combined: for each row, all updates but its own are neutral.
    pub(super) fn written_with(
        &mut self,
        op: &Operation<'_>,
        reducer: Reducer,
        [table, number, updates]: [Tensor; 3],
    ) -> Imported<Tensor> {
        let all: Vec<i64> = number.shape.iter().chain(&table.shape).copied().collect();
        let pairs = all.iter().fold(1i64, |count, it| count.saturating_mul(*it));
        if pairs > MAX_PAIRS {
            let form = format!(
                "with more than {MAX_PAIRS} pairs of an update and an element, and another region than `add`"
            );
            return Err(self.unsupported_form(op, &form));
        }
        let dtype = table.dtype;
        let dims: Vec<i64> = (0..all.len() as i64).filter(|it| *it != 1).collect();
        let places = self.iota_along(1, all[1], &all, number.dtype)?;
        let own = self.broadcast_value(Value::Tensor(number), &[0], &all)?;
        let is_own = self.folded_or_mapped(Op::Eq, places, own, DType::Bool)?;
        let updates = self.broadcast_value(Value::Tensor(updates), &dims, &all)?;
        let neutral = Value::Splat(Splat { scalar: reducer.with_initial(dtype).1, shape: all, dtype });
        let own = self.select_values(is_own, updates, neutral)?;
        let found = Value::Tensor(self.reduced(own, reducer, &[0]));
        let written = self.binary_values(reducer.name(), Value::Tensor(table), found)?;
        Ok(self.materialized(written))
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
