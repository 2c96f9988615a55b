//! Describes the operands of a matrix product as cuBLASLt matrices.

use grammar::DType;

use crate::{
    kernels::{self, DeviceView},
    unsupported::Unsupported,
};

/// An operand as a cuBLASLt matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Whether cuBLASLt sees it transposed: the columns of the plan's matrix are the slow dimension.
    pub is_transposed: bool,
    pub rows: u64,
    pub columns: u64,
    pub leading_dimension: i64,
    pub batch: usize,
    pub batch_stride: i64,
}

/// How the bias is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    None,
    /// One value for each column, added by the epilogue.
    Vector,
    /// A matrix, added as operand C.
    Matrix(Matrix),
}

/// A matrix product as cuBLASLt takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatmulDesc {
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) out: Matrix,
    pub(super) bias: Bias,
    /// Whether the epilogue computes the `relu` of the product and the bias.
    pub has_relu: bool,
    pub(super) operand_dtype: DType,
    pub(super) result_dtype: DType,
}

impl MatmulDesc {
    /// Returns the length in bytes of a bias that the epilogue adds.
    pub fn bias_vector_bytes(&self) -> Option<usize> {
        (self.bias == Bias::Vector).then(|| self.out.rows as usize * self.result_dtype.size())
    }

    /// Checks the element types of the operands and the result.
    ///
    /// # Errors
    /// Returns why cuBLASLt does not support them, as a phrase.
    pub fn check_types(a: DType, b: DType, out: DType) -> Result<(), Unsupported> {
        if a != b {
            return Err("its operands have different types".into());
        }
        match (a, out) {
            (DType::BFloat | DType::Half, result) if result == a || result == DType::Float => Ok(()),
            (DType::E4M3, DType::BFloat | DType::Half | DType::Float)
            | (DType::Float, DType::Float)
            | (DType::Double, DType::Double) => Ok(()),
            _ => Err(format!(
                "{} operands with a {} result are not supported",
                a.short_name(),
                out.short_name()
            )
            .into()),
        }
    }

    /// Returns whether the strides of an operand form matrices with one stride between them. Of 8-bit operands, cuBLASLt takes those
    /// whose summed dimension is contiguous: rows of the left one, columns of the right one.
    pub fn is_operand(it: &DeviceView, is_right: bool) -> bool {
        Matrix::of(it).is_some_and(|matrix| it.dtype.size() > 1 || matrix.is_transposed == is_right)
    }

    /// Returns whether the strides of a result form row-major matrices with one stride between them.
    pub fn is_result(it: &DeviceView) -> bool {
        Matrix::of(it).is_some_and(|it| !it.is_transposed)
    }

    /// Describes a matrix product for cuBLASLt, without `relu`.
    ///
    /// # Errors
    /// Returns why cuBLASLt does not support it, as a phrase.
    pub fn of(
        a: &DeviceView,
        b: &DeviceView,
        bias: Option<&DeviceView>,
        out: &DeviceView,
    ) -> Result<Self, Unsupported> {
        Self::check_types(a.dtype, b.dtype, out.dtype)?;
        if a.view.shape.last() == Some(&0) {
            return Err("its sums have no terms".into());
        }
        let strides = "the strides of an operand do not form a matrix".to_owned();
        let matrix = |it: &DeviceView| Matrix::of(it).ok_or_else(|| strides.clone());
        let (a_matrix, b_matrix, out_matrix) = (matrix(a)?, matrix(b)?, matrix(out)?);
        if out_matrix.is_transposed {
            return Err("its result is transposed".into());
        }
        let bias = match bias {
            None => Bias::None,
            Some(it) if it.dtype != out.dtype => return Err("its bias has another type".into()),
            Some(it) => {
                let dims = it.view.strides.len();
                let (outer, column) = it.view.strides.split_at(dims - 1);
                let rows_repeat =
                    outer.iter().zip(&it.view.shape).all(|(stride, extent)| *stride == 0 || *extent == 1);
                match Matrix::of(it) {
                    _ if rows_repeat && column[0] == 1 && out.dtype != DType::Double => Bias::Vector,
                    Some(matrix) if !matrix.is_transposed && column[0] == 1 && outer[dims - 2] > 0 => {
                        Bias::Matrix(matrix)
                    }
                    _ => return Err("its bias is neither a vector nor a matrix".into()),
                }
            }
        };
        Ok(Self {
            a: a_matrix,
            b: b_matrix,
            out: out_matrix,
            bias,
            has_relu: false,
            operand_dtype: a.dtype,
            result_dtype: out.dtype,
        })
    }
}

impl Matrix {
    /// Describes a view `[b…, rows, columns]`; `None` if its batch dimensions have no single stride, or if
    /// neither rows nor columns are contiguous.
    fn of(it: &DeviceView) -> Option<Self> {
        let (shape, strides) = (&it.view.shape, &it.view.strides);
        let dims = shape.len();
        let (rows, columns) = (*shape.get(dims.checked_sub(2)?)?, *shape.last()?);
        let (row, column) = (strides[dims - 2], strides[dims - 1]);
        let batches = kernels::merge_dims(&shape[..dims - 2], &[&strides[..dims - 2]]);
        let ([batch], [batch_stride]) = (batches.extents.as_slice(), batches.strides[0].as_slice()) else {
            return None;
        };
        // The stride of a dimension with one element does not matter.
        let plain = (column == 1 || columns == 1) && (row >= columns || rows == 1);
        let turned = (row == 1 || rows == 1) && (column >= rows || columns == 1);
        let (transposed, fast, slow, leading) = match (plain, turned) {
            (true, _) => (false, columns, rows, if rows == 1 { columns } else { row }),
            (false, true) => (true, rows, columns, if columns == 1 { rows } else { column }),
            (false, false) => return None,
        };
        Some(Self {
            is_transposed: transposed,
            rows: fast as u64,
            columns: slow as u64,
            leading_dimension: leading.max(fast) as i64,
            batch: *batch,
            batch_stride: *batch_stride as i64,
        })
    }
}
