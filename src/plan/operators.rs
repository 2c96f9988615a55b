//! Operators that are several instructions, or a `Routine`: indexing, sorting, scans, padding, statistics, random numbers and
//! grouped products. Both planners lower them with this, on the views of a rank or on whole tensors.

mod attention_gradient;
mod dropout;
mod grouped;
mod heads;
mod indexing;
mod padding;
mod random;
mod scaled;
mod scan;
mod sorting;
mod statistics;

use grammar::{
    attr,
    dtype::DType,
    ir::{AxisKind, ExprId, OpStmt, Operand, Program, TensorId},
    ops::Op,
};

pub(super) use dropout::kept_weights;
pub(super) use heads::{batch_of_keys, repeat_heads, shared_heads, split_heads};

use super::{Buffer, Number, ShardLayout, View, inst::InstKind, inst_builder::InstBuilder, scalar::Value};

/// A statement with the views of its tensors.
#[derive(Clone, Copy)]
pub struct OperatorCall<'c> {
    /// The program.
    pub program: &'c Program,
    /// The statement.
    pub stmt: &'c OpStmt,
    /// The views of `OpStmt::tensor_operands`.
    pub operands: &'c [View],
    /// The views of the results.
    pub results: &'c [View],
    /// The part of the first result that is computed.
    pub layout: &'c ShardLayout,
    /// Evaluates a scalar.
    pub value: &'c dyn Fn(ExprId) -> Option<Value>,
}

/// Why an operator has no instructions.
pub enum OperatorFault {
    /// A shape, and one that it does not match.
    Shape(Vec<usize>, Vec<usize>),
    /// What hir does not run.
    Unsupported(String),
    /// A scalar has no value.
    Scalar(ExprId),
}

type Result<T> = std::result::Result<T, OperatorFault>;

/// Returns whether `lower` has the instructions of an operator.
pub fn is_lowered(op: Op) -> bool {
    matches!(
        op,
        Op::Repeat
            | Op::Pad
            | Op::Mma
            | Op::Welford
            | Op::Scan
            | Op::RngUniform
            | Op::RngUniformRange
            | Op::RngNormal
            | Op::RngNormalGeneral
            | Op::IndexSelect
            | Op::TakeAlongAxis
            | Op::TorchGather
            | Op::Scatter
            | Op::IndexPutAccumulate
            | Op::Embedding
            | Op::TopK
            | Op::ArgSort
            | Op::SdpaBwd
            | Op::GroupedMma
            | Op::ScaledMma
            | Op::BlockQuantize
    )
}

/// Returns the instructions of an operator for which `is_lowered` is true, and their temporary buffers, whose numbers begin
/// with `first_buffer`. `rank` is that of both sides of copies.
///
/// # Errors
/// Returns why hir does not run the statement.
pub fn lower(
    call: &OperatorCall<'_>,
    rank: usize,
    first_buffer: u32,
) -> Result<(Vec<InstKind>, Vec<Buffer>)> {
    let mut code = InstBuilder::new(rank, first_buffer);
    match call.stmt.op {
        Op::Repeat => call.repeat(&mut code)?,
        Op::Pad => call.pad(&mut code)?,
        Op::Mma => call.mma(&mut code)?,
        Op::Welford => call.welford(&mut code)?,
        Op::Scan => call.scan(&mut code)?,
        Op::RngUniform | Op::RngUniformRange | Op::RngNormal | Op::RngNormalGeneral => {
            call.random(&mut code)?;
        }
        Op::IndexSelect => call.index_select(&mut code)?,
        Op::TakeAlongAxis | Op::TorchGather => call.take(&mut code)?,
        Op::Scatter => call.scatter(&mut code)?,
        Op::IndexPutAccumulate => call.index_put(&mut code)?,
        Op::Embedding => call.embedding(&mut code)?,
        Op::TopK | Op::ArgSort => call.sort(&mut code)?,
        Op::SdpaBwd => call.attention_gradient(&mut code)?,
        Op::GroupedMma => call.grouped_mma(&mut code)?,
        Op::ScaledMma => call.scaled_mma(&mut code)?,
        Op::BlockQuantize => call.block_quantize(&mut code)?,
        _ => return Err(call.unsupported("it has no instructions")),
    }
    Ok((code.code, code.buffers))
}

impl OperatorCall<'_> {
    fn unsupported(&self, why: &str) -> OperatorFault {
        OperatorFault::Unsupported(why.to_owned())
    }

    fn operand(&self, at: usize) -> Result<&View> {
        self.operands.get(at).ok_or_else(|| self.unsupported("it needs more operands"))
    }

    fn result(&self, at: usize) -> Result<&View> {
        self.results.get(at).ok_or_else(|| self.unsupported("it needs more results"))
    }

    /// Returns the view of a keyed operand.
    fn keyed(&self, tensor: Option<TensorId>) -> Option<&View> {
        let tensor = tensor?;
        let at = self.stmt.tensor_operands().iter().position(|it| *it == tensor)?;
        self.operands.get(at)
    }

    fn operand_dtype(&self, at: usize) -> DType {
        self.dtype(self.stmt.tensor_operands().get(at).copied())
    }

    fn result_dtype(&self, at: usize) -> DType {
        self.dtype(Program::tensors_of(&self.stmt.outs).nth(at))
    }

    fn dtype(&self, tensor: Option<TensorId>) -> DType {
        tensor.and_then(|it| self.program.tensors[it].dtype).unwrap_or(DType::Float)
    }

    fn scalar(&self, expr: ExprId) -> Result<Value> {
        (self.value)(expr).ok_or(OperatorFault::Scalar(expr))
    }

    fn number(&self, expr: ExprId) -> Result<Number> {
        Ok(match self.scalar(expr)? {
            Value::Int(value) => Number::Int(value),
            Value::Bool(value) => Number::Bool(value),
            Value::Float(value) => Number::Float(value),
        })
    }

    fn integer(&self, expr: ExprId) -> Result<i64> {
        match self.scalar(expr)? {
            Value::Int(value) => Ok(value),
            Value::Bool(_) | Value::Float(_) => Err(self.unsupported("it needs an integer operand")),
        }
    }

    /// Returns the scalar among the positional operands at `at`.
    fn scalar_arg(&self, at: usize) -> Result<ExprId> {
        match self.stmt.args.get(at) {
            Some(Operand::Scalar(it)) => Ok(*it),
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => {
                Err(self.unsupported("it needs a scalar operand"))
            }
        }
    }

    /// Returns the dimension that `dim=` names, of a tensor with `rank` dimensions.
    fn dim(&self, rank: usize) -> Result<usize> {
        let Some(expr) = self.stmt.get(attr::DIM) else { return Err(self.unsupported("it needs `dim=`")) };
        let value = self.integer(expr)?;
        let at = if value < 0 { value + rank as i64 } else { value };
        usize::try_from(at).ok().filter(|it| *it < rank).ok_or_else(|| {
            OperatorFault::Unsupported(format!("its `dim` is {value}, and its operand has {rank} dimensions"))
        })
    }

    /// Returns the dimensions of the operand that are reduction axes of the first result.
    fn reduced_dims(&self) -> Vec<usize> {
        let Some(out) = self.stmt.out_tensor() else { return Vec::new() };
        let logical = &self.program.tensors[out].domains.logical;
        let is_reduced = |at: &usize| self.program.axes[logical[*at]].kind == AxisKind::Reduction;
        (0..logical.len()).filter(is_reduced).collect()
    }
}

/// Returns the fault of a view that does not have a shape.
fn misfit(view: &View, wanted: &[usize]) -> OperatorFault {
    OperatorFault::Shape(view.shape.clone(), wanted.to_vec())
}

/// Returns the type in which sums of elements of a type are computed.
fn sum_dtype(dtype: DType) -> DType {
    if matches!(dtype, DType::Half | DType::BFloat) { DType::Float } else { dtype }
}
