//! Operators that are several instructions, or a `Routine`: indexing, sorting, scans, padding, statistics, random numbers and
//! grouped products. Both planners lower them with this, on the views of a rank or on whole tensors.

mod attention;
mod attention_gradient;
mod complex;
mod complex_functions;
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

use grammar::{AxisKind, DType, ExprId, Op, OpStmt, Operand, Program, TensorId, attr};

pub use attention::{AttentionComposition, AttentionOptions, dropout};
use dropout::kept_weights;
use heads::{batch_of_keys, repeat_heads, shared_heads, split_heads};

use super::{
    Buffer, Number, ShardLayout, View, complex::ComplexForm, inst::InstKind, inst_builder::InstBuilder,
    scalar::Value,
};

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

/// Returns whether `lower` has the instructions of a statement.
pub fn is_lowered(program: &Program, stmt: &OpStmt) -> bool {
    matches!(ComplexForm::of(program, stmt), ComplexForm::Composed | ComplexForm::Refused)
        || has_instructions(stmt.op)
}

fn has_instructions(op: Op) -> bool {
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
            | Op::CutlassGroupedMma
            | Op::BlockQuantize
            | Op::GroupedBlockQuantize
            | Op::PreprocessGroupedScales
    )
}

/// Returns the instructions of a statement for which `is_lowered` is true, and their temporary buffers, whose numbers begin
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
    match ComplexForm::of(call.program, call.stmt) {
        ComplexForm::None | ComplexForm::ByPart => call.instructions(&mut code)?,
        ComplexForm::Composed => call.complex(&mut code)?,
        ComplexForm::Refused => {
            let why = "it has no form for complex numbers";
            return Err(call.unsupported(why));
        }
    }
    Ok((code.code, code.buffers))
}

impl OperatorCall<'_> {
    fn instructions(&self, code: &mut InstBuilder) -> Result<()> {
        match self.stmt.op {
            Op::Repeat => self.repeat(code),
            Op::Pad => self.pad(code),
            Op::Mma => self.mma(code),
            Op::Welford => self.welford(code),
            Op::Scan => self.scan(code),
            Op::RngUniform | Op::RngUniformRange | Op::RngNormal | Op::RngNormalGeneral => self.random(code),
            Op::IndexSelect => self.index_select(code),
            Op::TakeAlongAxis | Op::TorchGather => self.take(code),
            Op::Scatter => self.scatter(code),
            Op::IndexPutAccumulate => self.index_put(code),
            Op::Embedding => self.embedding(code),
            Op::TopK | Op::ArgSort => self.sort(code),
            Op::SdpaBwd => self.attention_gradient(code),
            Op::GroupedMma => self.grouped_mma(code),
            Op::ScaledMma => self.scaled_mma(code),
            Op::CutlassGroupedMma => self.scaled_grouped_mma(code),
            Op::BlockQuantize | Op::GroupedBlockQuantize => self.block_quantize(code),
            Op::PreprocessGroupedScales => self.preprocess_scales(code),
            _ => Err(self.unsupported("it has no instructions")),
        }
    }

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
        Ok(self.scalar(expr)?.into())
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

/// Returns an error if a view does not have a shape.
fn expect_shape(view: &View, wanted: &[usize]) -> Result<()> {
    if view.shape == wanted { Ok(()) } else { Err(misfit(view, wanted)) }
}

/// Returns the type in which sums of elements of a type are computed.
fn sum_dtype(dtype: DType) -> DType {
    if matches!(dtype, DType::Half | DType::BFloat) { DType::Float } else { dtype }
}
