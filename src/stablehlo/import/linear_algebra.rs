//! Cholesky factors and solutions of triangular systems: a row or a column after the other, which Host IR has no operator for.

use grammar::{DType, Op};

use super::{Imported, Importer, Results, constant::zero, reduce::Reducer};
use crate::{
    tree::{Attribute, Operation},
    value::{Splat, Value},
};

/// The greatest number of rows of a matrix: each one is a few statements.
const MAX_ROWS: i64 = 1024;

/// A system `op(A) X = B`, or `X op(A) = B`, of a triangular matrix.
struct Triangular {
    is_left: bool,
    is_lower: bool,
    is_transposed: bool,
    has_unit_diagonal: bool,
}

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn cholesky(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let [matrix] = self.operands(op, operands)?;
        Ok(vec![self.factor(op, matrix, is_true(op, "lower"))?])
    }

    pub(crate) fn triangular_solve(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let system = Triangular {
            is_left: is_true(op, "left_side"),
            is_lower: is_true(op, "lower"),
            is_transposed: op.keyword(&["transpose_a"]).is_some_and(|it| it != "NO_TRANSPOSE"),
            has_unit_diagonal: is_true(op, "unit_diagonal"),
        };
        self.solved(op, operands, &system)
    }

    /// Imports a call of LAPACK for which hir has statements: JAX writes it on the CPU. `None` for any other call.
    pub(super) fn lapack(
        &mut self,
        op: &'m Operation<'s>,
        target: &str,
        operands: &[Value],
    ) -> Imported<Option<Vec<Value>>> {
        let stated = match op.attribute(&["mhlo.backend_config"]) {
            Some(Attribute::Dictionary(entries)) => entries,
            _ => return Ok(None),
        };
        // Letters, as LAPACK takes them.
        let is =
            |name: &str, letter: u8| Attribute::find(stated, name) == Some(&Attribute::Int(letter.into()));
        match target {
            "lapack_spotrf_ffi" | "lapack_dpotrf_ffi" => {
                let [matrix] = self.operands(op, operands.to_vec())?;
                let factor = self.factor(op, matrix, is("uplo", b'L'))?;
                // The number of the first row that is not positive definite: here that of a NaN.
                let ty = self.result_type(op, 1)?;
                let last = factor.shape().len() - 1;
                let is_nan = self.map(Op::Ne, vec![factor.clone(), factor.clone()], DType::Bool)?;
                let any = self.reduced(is_nan, Reducer::Or, &[last - 1, last]);
                let info = self.converted(Value::Tensor(any), ty.dtype)?;
                Ok(Some(vec![factor, info]))
            }
            "lapack_strsm_ffi" | "lapack_dtrsm_ffi" => {
                let system = Triangular {
                    is_left: is("side", b'L'),
                    is_lower: is("uplo", b'L'),
                    is_transposed: !is("trans_x", b'N'),
                    has_unit_diagonal: is("diag", b'U'),
                };
                self.solved(op, operands.to_vec(), &system).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the number of rows of square matrices in the last two dimensions.
    fn row_count(&self, op: &Operation<'_>, matrix: &Value) -> Imported<i64> {
        match matrix.shape() {
            [.., a, b] if a != b => {
                Err(self.bad_module("the matrices are not square", "expected equal extents"))
            }
            [.., rows, _]
                if (1..=MAX_ROWS).contains(rows)
                    && !matrix.dtype().is_integral()
                    && matrix.dtype().part().is_none() =>
            {
                Ok(*rows)
            }
            _ => {
                let form = format!("expected real matrices of 1 to {MAX_ROWS} rows");
                Err(self.unsupported_form(op, &form))
            }
        }
    }

    /// Returns the Cholesky factor, zero in the other triangle.
    fn factor(&mut self, op: &Operation<'_>, matrix: Value, is_lower: bool) -> Imported<Value> {
        let rows = self.row_count(op, &matrix)?;
        let mut rest = if is_lower { matrix } else { self.transposed(matrix) };
        let mut columns = Vec::new();
        for at in 0..rows {
            let left = rows - at;
            // The first column of what is left, divided by the root of its first element.
            let column = self.block_of(&rest, [0, left], [0, 1]);
            let first = self.block_of(&column, [0, 1], [0, 1]);
            let root = self.map(Op::Sqrt, vec![first], column.dtype())?;
            let column = self.of_matrix(Op::Div, column, root)?;
            if left > 1 {
                let below = self.block_of(&column, [1, left], [0, 1]);
                let across = self.transposed(below.clone());
                let product = self.outer(below, across)?;
                let inner = self.block_of(&rest, [1, left], [1, left]);
                rest = self.binary_values("subtract", inner, product)?;
            }
            columns.push(self.below_zeros(column, at));
        }
        let dim = columns[0].shape().len() - 1;
        let factor = self.joined(columns, dim);
        Ok(if is_lower { factor } else { self.transposed(factor) })
    }

    /// Returns the solution of a system of a triangular matrix and right sides.
    fn solved(&mut self, op: &Operation<'_>, operands: Vec<Value>, system: &Triangular) -> Results {
        let [mut matrix, mut right] = self.operands(op, operands)?;
        let rows = self.row_count(op, &matrix)?;
        let [batch @ .., m, n] = right.shape() else { return Err(self.missing(op, "right side")) };
        let extent = if system.is_left { *m } else { *n };
        if matrix.shape() != [batch, &[extent, extent]].concat() {
            return Err(self
                .bad_module("the operands do not fit together", "expected as many rows as the matrix has"));
        }
        // `X op(A) = B` is `op(A)ᵀ Xᵀ = Bᵀ`.
        let is_turned = system.is_transposed == system.is_left;
        if is_turned {
            matrix = self.transposed(matrix);
        }
        if !system.is_left {
            right = self.transposed(right);
        }
        let is_lower = system.is_lower != is_turned;
        let mut solution = Vec::new();
        for step in 0..rows {
            // The rows that are left, of which this one is the first or the last.
            let (first, others) =
                if is_lower { (step, [step + 1, rows]) } else { (rows - 1 - step, [0, rows - 1 - step]) };
            let own = first - if is_lower { step } else { 0 };
            let mut row = self.block_of(&right, [own, own + 1], [0, i64::MAX]);
            if !system.has_unit_diagonal {
                let diagonal = self.block_of(&matrix, [first, first + 1], [first, first + 1]);
                row = self.of_matrix(Op::Div, row, diagonal)?;
            }
            if step + 1 < rows {
                let column = self.block_of(&matrix, others, [first, first + 1]);
                let product = self.outer(column, row.clone())?;
                let from = i64::from(is_lower);
                let rest = self.block_of(&right, [from, from + rows - 1 - step], [0, i64::MAX]);
                right = self.binary_values("subtract", rest, product)?;
            }
            solution.push(row);
        }
        if !is_lower {
            solution.reverse();
        }
        let dim = solution[0].shape().len() - 2;
        let found = self.joined(solution, dim);
        Ok(vec![if system.is_left { found } else { self.transposed(found) }])
    }

    /// Returns the transposed matrices.
    fn transposed(&mut self, value: Value) -> Value {
        let rank = value.shape().len();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        let it = self.materialized(value);
        Value::Tensor(self.permuted(it, &order))
    }

    /// Returns these rows and columns of matrices.
    fn block_of(&mut self, value: &Value, rows: [i64; 2], columns: [i64; 2]) -> Value {
        let mut ranges: Vec<[i64; 3]> = value.shape().iter().map(|extent| [0, *extent, 1]).collect();
        for (range, [from, to]) in ranges.iter_mut().rev().zip([columns, rows]) {
            *range = [from, to.min(range[1]), 1];
        }
        self.sliced(value.clone(), &ranges)
    }

    /// Returns the result of an operator on matrices and one element each.
    fn of_matrix(&mut self, op: Op, value: Value, element: Value) -> Imported<Value> {
        let element = self.repeated(element, value.shape())?;
        self.map(op, vec![value.clone(), element], value.dtype())
    }

    /// Returns the products of columns and rows.
    fn outer(&mut self, column: Value, row: Value) -> Imported<Value> {
        let mut shape = column.shape().to_vec();
        if let (Some(to), Some(extent)) = (shape.last_mut(), row.shape().last()) {
            *to = *extent;
        }
        let (column, row) = (self.repeated(column, &shape)?, self.repeated(row, &shape)?);
        self.binary_values("multiply", column, row)
    }

    /// Repeats a value along its dimensions of extent 1.
    fn repeated(&mut self, value: Value, shape: &[i64]) -> Imported<Value> {
        let all: Vec<i64> = (0..shape.len() as i64).collect();
        self.broadcast_value(value, &all, shape)
    }

    /// Returns a column below so many zeros.
    fn below_zeros(&mut self, column: Value, count: i64) -> Value {
        let dim = column.shape().len() - 2;
        let mut shape = column.shape().to_vec();
        shape[dim] = count;
        let zeros = Value::Splat(Splat { scalar: zero(column.dtype()), shape, dtype: column.dtype() });
        self.joined(vec![zeros, column], dim)
    }
}

fn is_true(op: &Operation<'_>, name: &str) -> bool {
    op.attribute(&[name]) == Some(&Attribute::Word("true"))
}
