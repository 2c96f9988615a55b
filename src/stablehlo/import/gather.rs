//! Reads at computed indices, and what `scatter` shares with them.
//!
//! The dimensions of the operand are indexed (a slice has one index of them), shared with the indices (batching), or whole. Where
//! every slice is one row of a tensor `[shared and indexed, whole]`, there is one number of a row for each slice. Any other form has
//! one number for each element (`points`).

use grammar::{DType, Expr, Op, attr};
use hir_ir::build::apply;

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
    pub(super) fn read(attribute: &Attribute<'_>, rank: usize, names: [&str; 5]) -> Option<Self> {
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
    pub(super) fn is_row(&self, rank: usize) -> bool {
        self.kept(rank) == self.whole(rank)
    }

    /// Returns the dimensions of the operand in the order of a tensor of rows: those that select one, and the whole ones.
    pub(super) fn row_order(&self, rank: usize) -> Vec<usize> {
        self.shared.0.iter().chain(&self.indexed).copied().chain(self.whole(rank)).collect()
    }

    /// Returns the dimensions of the operand that are whole.
    pub(super) fn whole(&self, rank: usize) -> Vec<usize> {
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
    pub(super) fn row_extents(numbers: &Numbers, shape: &[i64]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = shape.iter().map(|it| Extent { last: it - 1, stride: 0 }).collect();
        let mut stride = 1i64;
        for dim in numbers.shared.0.iter().chain(&numbers.indexed).rev() {
            extents[*dim].stride = stride;
            stride = stride.saturating_mul(shape[*dim]);
        }
        extents
    }

    /// Returns a tensor as rows: the dimensions that select one, as one dimension, and the whole ones, as another.
    pub(super) fn as_rows(&mut self, tensor: Tensor, numbers: &Numbers) -> Tensor {
        let whole = numbers.whole(tensor.shape.len());
        let count =
            |dims: &mut dyn Iterator<Item = &usize>| dims.map(|it| tensor.shape[*it]).product::<i64>();
        let shape = [count(&mut numbers.shared.0.iter().chain(&numbers.indexed)), count(&mut whole.iter())];
        let order = numbers.row_order(tensor.shape.len());
        let it = self.permuted(tensor, &order);
        self.reshaped(it, &shape)
    }

    pub(crate) fn gather(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [operand, indices] = self.operands(op, operands)?;
        let ty = self.result_type(op, 0)?;
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

    /// Returns the index of a row for each of its elements.
    pub(super) fn row_index(&mut self, number: Tensor, columns: i64) -> Imported<Tensor> {
        let count = number.shape.iter().product();
        let flat = self.reshaped(number, &[count]);
        let wide = self.broadcast_tensor(flat, &[0], &[count, columns]);
        Ok(self.materialized(wide))
    }
}
