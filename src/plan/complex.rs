//! Complex numbers. In storage, the two parts of an element are neighbours of a real type, the real one first, so that no executor knows
//! complex numbers. A view of complex elements shows their real parts; each imaginary part is behind its real part. Inputs and outputs
//! have a last dimension of both parts, as `torch.view_as_real` returns it.

use grammar::{DType, Expr, ExprId, Op, OpStmt, Operand, Program, ReductionOp, TensorId, TypeRule, attr};

use super::{AxisPiece, Buffer, BufferNo, IoBinding, PrintedAxis, ShardLayout, View};

impl Buffer {
    /// Returns storage for elements of a shape, and the view of all of them. `number` is that of the buffer.
    pub fn of_elements(name: String, dtype: DType, number: BufferNo, shape: Vec<usize>) -> (Self, View) {
        let (len, mut view) = (shape.iter().product::<usize>(), View::contiguous(number, shape));
        let Some(part) = dtype.part() else { return (Self::new(name, dtype, len), view) };
        view.strides.iter_mut().for_each(|it| *it *= 2);
        (Self::new(name, part, 2 * len), view)
    }
}

impl View {
    /// Returns the imaginary parts of complex elements.
    pub(crate) fn imaginary(&self) -> Self {
        Self { offset: self.offset + 1, ..self.clone() }
    }

    /// Returns the elements of a type with both parts of complex ones, as a last dimension.
    pub fn with_parts(mut self, dtype: DType) -> Self {
        if dtype.part().is_some() {
            self.shape.push(2);
            self.strides.push(1);
        }
        self
    }
}

impl ShardLayout {
    /// Returns the layout of `View::with_parts`.
    pub(crate) fn with_parts(mut self, dtype: DType) -> Self {
        if dtype.part().is_some() {
            self.shape.push(2);
            self.pieces.push(vec![AxisPiece { extent: 2, coordinate: None }]);
        }
        self
    }
}

impl IoBinding {
    /// Returns the binding with both parts of complex elements, as real numbers.
    pub fn with_parts(mut self) -> Self {
        let Some(part) = self.dtype.part() else { return self };
        if let Some(axes) = &mut self.printed_axes {
            axes.push(PrintedAxis { dim: self.broadcast.len(), piece: 0 });
        }
        self.broadcast.push(false);
        self.shard.view = self.shard.view.map(|it| it.with_parts(self.dtype));
        self.shard.layout = self.shard.layout.with_parts(self.dtype);
        Self { dtype: part, ..self }
    }
}

/// How a statement computes complex numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComplexForm {
    /// It has none.
    None,
    /// Each part of the result from the same parts of the operands, and from real operands.
    ByPart,
    /// `operators::complex` has its instructions.
    Composed,
    /// hir does not run it.
    Refused,
}

impl ComplexForm {
    pub fn of(program: &Program, stmt: &OpStmt) -> Self {
        let is_complex = |it: TensorId| program.tensors[it].dtype.is_some_and(|it| it.part().is_some());
        let operands: Vec<bool> = stmt.tensor_operands().into_iter().map(is_complex).collect();
        let is_result = stmt.out_tensor().is_some_and(is_complex);
        if !is_result && !operands.contains(&true) {
            return Self::None;
        }
        let all = !operands.contains(&false) && stmt.args.iter().all(|it| matches!(it, Operand::Tensor(_)));
        let one = operands.iter().filter(|it| **it).count() == 1;
        match (stmt.op, stmt.op.def().type_rule) {
            (Op::Complex | Op::Real | Op::Imag | Op::IsReal | Op::ViewAsScalar | Op::Abs, _) => {
                Self::Composed
            }
            (Op::Cast, _) if !(is_result && all) => Self::Composed,
            (Op::Cast | Op::Neg | Op::Cat | Op::Pad | Op::Repeat, _) => Self::ByPart,
            (Op::Add | Op::Sub, _) if all => Self::ByPart,
            (Op::Mul, _) if one => Self::ByPart,
            (Op::Mul, _) if all => Self::Composed,
            // The divisor is real.
            (Op::Div, _)
                if one && matches!(stmt.args.first(), Some(Operand::Tensor(it)) if is_complex(*it)) =>
            {
                Self::ByPart
            }
            (Op::Where, _) if operands[..] == [false, true, true] => Self::ByPart,
            (
                Op::Add
                | Op::Sub
                | Op::Mul
                | Op::Div
                | Op::Eq
                | Op::Ne
                | Op::Pow
                | Op::Reciprocal
                | Op::Exp
                | Op::Log
                | Op::Log2
                | Op::Log10
                | Op::Sqrt
                | Op::Rsqrt
                | Op::Sin
                | Op::Cos
                | Op::Tan
                | Op::Sinh
                | Op::Cosh
                | Op::Tanh
                | Op::Sigmoid
                | Op::Silu
                | Op::IsNan
                | Op::IsInf
                | Op::IsFinite,
                _,
            ) => Self::Composed,
            // An initial value would be added to both parts.
            (Op::Reduction, _)
                if stmt.get(attr::OP) == Some(ReductionOp::Add)
                    && stmt.get(attr::INITIAL_VALUE).is_none_or(|it| is_zero(program, it)) =>
            {
                Self::ByPart
            }
            (
                _,
                TypeRule::Same
                | TypeRule::Permute
                | TypeRule::Broadcast
                | TypeRule::Squeeze
                | TypeRule::Expand
                | TypeRule::Reshape
                | TypeRule::Slice
                | TypeRule::Select,
            ) => Self::ByPart,
            _ => Self::Refused,
        }
    }
}

fn is_zero(program: &Program, value: ExprId) -> bool {
    match &program.exprs[value] {
        Expr::Int(value) => *value == 0,
        Expr::Float(_, text) => text.parse() == Ok(0.0),
        _ => false,
    }
}

/// Returns the operands and results of a statement for each time that its instructions are executed: once, or, of complex numbers whose
/// parts are computed alike, once for each part.
pub fn parts(
    program: &Program,
    stmt: &OpStmt,
    operands: &[View],
    results: &[View],
) -> Vec<(Vec<View>, Vec<View>)> {
    let real = (operands.to_vec(), results.to_vec());
    if ComplexForm::of(program, stmt) != ComplexForm::ByPart {
        return vec![real];
    }
    let shifted = |views: &[View], tensors: &[TensorId]| -> Vec<View> {
        let is_complex = |it: &TensorId| program.tensors[*it].dtype.is_some_and(|it| it.part().is_some());
        let views = views.iter().zip(tensors);
        views.map(|(view, it)| if is_complex(it) { view.imaginary() } else { view.clone() }).collect()
    };
    let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
    let imaginary = (shifted(operands, &stmt.tensor_operands()), shifted(results, &outs));
    vec![real, imaginary]
}
