//! Products of tensors.

use grammar::{DType, Op};
use hir_ir::build::apply;

use super::{Importer, Results};
use crate::{
    tree::{Attribute, Operation},
    value::{Tensor, Value},
};

/// The dimensions of one operand of a product, by their roles.
pub(super) struct Roles {
    pub(super) batch: Vec<usize>,
    pub(super) contracted: Vec<usize>,
    pub(super) free: Vec<usize>,
}

impl Roles {
    fn of(rank: usize, batch: &[i64], contracted: &[i64]) -> Option<Self> {
        let index =
            |list: &[i64]| list.iter().map(|it| usize::try_from(*it).ok()).collect::<Option<Vec<_>>>();
        let (batch, contracted) = (index(batch)?, index(contracted)?);
        let mut all: Vec<usize> = batch.iter().chain(&contracted).copied().collect();
        all.sort_unstable();
        let is_valid = all.windows(2).all(|it| it[0] != it[1]) && all.last().is_none_or(|it| *it < rank);
        let free = (0..rank).filter(|it| !all.contains(it)).collect();
        is_valid.then_some(Self { batch, contracted, free })
    }
}

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn dot_general(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [a, b] = self.operands(op, operands)?;
        let ty = self.result_type(op, 0)?;
        let (batch, contracted) = dimension_numbers(op);
        let roles = Roles::of(a.shape().len(), &batch.0, &contracted.0).zip(Roles::of(
            b.shape().len(),
            &batch.1,
            &contracted.1,
        ));
        let Some((left, right)) = roles else {
            return Err(self.bad_module(
                "the dimension numbers do not match the operands",
                "expected each dimension at most once",
            ));
        };
        let extents =
            |value: &Value, dims: &[usize]| dims.iter().map(|it| value.shape()[*it]).collect::<Vec<_>>();
        if extents(&a, &left.batch) != extents(&b, &right.batch)
            || extents(&a, &left.contracted) != extents(&b, &right.contracted)
        {
            return Err(self.bad_module(
                "the operands have different extents in a shared dimension",
                "expected equal extents",
            ));
        }
        // A product has one element type: that of the result, unless an operand has a larger one. Operands of two bytes give sums of
        // binary32.
        let wide = [a.dtype(), b.dtype()]
            .into_iter()
            .fold(ty.dtype, |wide, it| if it.size() > wide.size() { it } else { wide });
        let is_narrow = matches!(a.dtype(), DType::BFloat | DType::Half) && a.dtype() == b.dtype();
        let of_operands = if is_narrow && wide == DType::Float { a.dtype() } else { wide };
        let (a, b) = (self.converted(a, of_operands)?, self.converted(b, of_operands)?);
        let (a, b) = (self.materialized(a), self.materialized(b));
        let product = Value::Tensor(self.product(a, b, [&left, &right], wide, &ty.shape));
        Ok(vec![self.converted(product, ty.dtype)?])
    }

    /// Multiplies two tensors of one type whose dimensions have these roles; `dtype` is the type of the result.
    pub(super) fn product(
        &mut self,
        a: Tensor,
        b: Tensor,
        [left, right]: [&Roles; 2],
        dtype: DType,
        shape: &[i64],
    ) -> Tensor {
        let is_of_rows = left.batch.is_empty()
            && left.contracted.len() == 1
            && right.free.len() == 1
            && !left.free.is_empty()
            && b.axes == 0;
        if is_of_rows {
            self.product_of_rows(a, b, [left, right], dtype, shape)
        } else {
            self.general_product(a, b, [left, right], dtype, shape)
        }
    }

    /// Multiplies by one matrix: the dimensions of the left operand stay as they are, so that passes can split them.
    fn product_of_rows(
        &mut self,
        a: Tensor,
        b: Tensor,
        [left, right]: [&Roles; 2],
        dtype: DType,
        shape: &[i64],
    ) -> Tensor {
        let order: Vec<usize> = left.free.iter().chain(&left.contracted).copied().collect();
        let a = self.permuted(a, &order);
        // A weight that is contracted in its last dimension is that of a linear layer.
        let op = if right.contracted[0] == 1 { Op::Linear } else { Op::Matmul };
        let result = self.emit(a.axes, shape, dtype, apply(op, [a.id, b.id]));
        self.unsharded_sum(&result);
        result
    }

    fn general_product(
        &mut self,
        a: Tensor,
        b: Tensor,
        [left, right]: [&Roles; 2],
        dtype: DType,
        shape: &[i64],
    ) -> Tensor {
        let axes = a.axes | b.axes;
        let batch: Vec<i64> = left.batch.iter().map(|it| a.shape[*it]).collect();
        let count =
            |tensor: &Tensor, dims: &[usize]| dims.iter().map(|it| tensor.shape[*it]).product::<i64>();
        let (m, k, n) = (count(&a, &left.free), count(&a, &left.contracted), count(&b, &right.free));
        let matrices =
            |rows: i64, columns: i64| batch.iter().copied().chain([rows, columns]).collect::<Vec<_>>();
        let order: Vec<usize> =
            left.batch.iter().chain(&left.free).chain(&left.contracted).copied().collect();
        let a = self.permuted(a, &order);
        let a = self.reshaped(a, &matrices(m, k));
        let order: Vec<usize> =
            right.batch.iter().chain(&right.contracted).chain(&right.free).copied().collect();
        let b = self.permuted(b, &order);
        let b = self.reshaped(b, &matrices(k, n));
        let (a, b) = (self.with_axes(a, axes), self.with_axes(b, axes));
        let result = self.emit(axes, &matrices(m, n), dtype, apply(Op::Matmul, [a.id, b.id]));
        if result.shape == shape {
            self.unsharded_sum(&result);
        }
        self.reshaped(result, shape)
    }

    /// Remembers a sum, whose sharding a constraint behind it may state.
    pub(super) fn unsharded_sum(&mut self, tensor: &Tensor) {
        if self.region.is_none() {
            self.unsharded_sums.insert(tensor.id);
        }
    }
}

/// Returns the batch dimensions and the contracted dimensions of both operands.
#[expect(clippy::type_complexity, reason = "two pairs of lists, which the caller takes apart")]
fn dimension_numbers(op: &Operation<'_>) -> ((Vec<i64>, Vec<i64>), (Vec<i64>, Vec<i64>)) {
    let pair = |name: &str| match op.attribute(&[name]) {
        Some(Attribute::Pair(it)) => (it.0.ints().unwrap_or_default(), it.1.ints().unwrap_or_default()),
        _ => (Vec::new(), Vec::new()),
    };
    match op.attribute(&["dot_dimension_numbers"]) {
        Some(Attribute::Named(_, entries, _)) => {
            let list =
                |name: &str| Attribute::find(entries, name).and_then(Attribute::ints).unwrap_or_default();
            (
                (list("lhs_batching_dimensions"), list("rhs_batching_dimensions")),
                (list("lhs_contracting_dimensions"), list("rhs_contracting_dimensions")),
            )
        }
        _ => (pair("batching_dims"), pair("contracting_dims")),
    }
}
