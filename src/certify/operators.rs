//! What operators compute, on elements of the field.
//!
//! Copies, sums, products, quotients and selections are exact. Conversions between floating-point types change nothing, since rounding
//! is not part of the model. Integers are integers of 64 bits. Every other elementwise operator is an unknown function of its
//! operands, and so is the exponential of an attention.

use grammar::{
    arithmetic::{Constant, fold_infix},
    attr,
    dtype::{Class, DType},
    ir::{ExprId, InfixOp, OpStmt, Operand, Program, TensorId},
    ops::{Op, OpClass, TypeRule},
    rules::Aliasing,
    scalars::Value,
    words::ReductionOp,
};

use crate::{
    field::{Algebra, Combine, Element},
    part::Part,
    unroll::is_integral,
    view::Values,
};

mod attention;
mod indices;
mod rearrangements;
mod sums;

pub(crate) use rearrangements::rearranged;

/// A statement with its operands and the parts of its results that it computes.
pub(crate) struct Call<'a> {
    pub(crate) program: &'a Program,
    pub(crate) stmt: &'a OpStmt,
    pub(crate) args: &'a [Values],
    /// Where the operands are in whole tensors.
    pub(crate) arg_parts: &'a [Part],
    pub(crate) outs: &'a [(TensorId, Part)],
    pub(crate) shapes: &'a [Vec<usize>],
    pub(crate) value: &'a dyn Fn(ExprId) -> Option<Value>,
    pub(crate) algebra: &'a Algebra,
}

/// The reason why a statement is not certified.
pub(crate) type Computed<T> = Result<T, String>;

fn misfit<T>() -> Computed<T> {
    Err("the shapes of its operands do not match".to_owned())
}

impl Call<'_> {
    /// Returns the elements of each result.
    pub(crate) fn compute(&self) -> Computed<Vec<Vec<Element>>> {
        let (op, rule) = (self.stmt.op, self.stmt.op.def().type_rule);
        let one = |it: Computed<Vec<Element>>| it.map(|it| vec![it]);
        if op.def().class == OpClass::Elementwise {
            return one(self.elementwise());
        }
        match (rule, op) {
            (TypeRule::Linear | TypeRule::Matmul, _) => one(self.product()),
            (TypeRule::Reduce, _) => one(self.reduce()),
            (TypeRule::Generate, _) => one(self.generate()),
            (_, Op::TensorConstruct) => match self.stmt.args[..] {
                [Operand::Scalar(it)] if self.shapes[0].iter().product::<usize>() == 1 => {
                    one(Ok(vec![self.element(it)?]))
                }
                _ => Err("hir-certify does not know arrays of scalars".to_owned()),
            },
            (_, Op::Cat) => one(self.cat()),
            (_, Op::Pad) => one(self.pad()),
            (_, Op::Embedding) => one(self.embedding()),
            (_, Op::IndexPutAccumulate) => one(self.add_rows()),
            (_, Op::IndexSelect | Op::TakeAlongAxis | Op::TorchGather) => one(self.take()),
            (_, Op::Welford) => self.statistics(),
            (_, Op::TopK | Op::ArgSort | Op::Scan) => self.of_rows(),
            (_, Op::Sdpa) => self.attention(),
            (_, Op::SdpaBwd) => self.attention_gradient(),
            _ if matches!(self.stmt.rule().aliasing(), Aliasing::View(_)) => one(self.rearrange()),
            _ => Err(format!("hir-certify does not know what `{}` computes", op.name())),
        }
    }

    /// Returns a bound for the degree of the results.
    pub(crate) fn degree(&self) -> u64 {
        let degrees = || self.args.iter().map(|it| it.degree);
        let (op, rule) = (self.stmt.op, self.stmt.op.def().type_rule);
        let is_product = op.def().class != OpClass::Elementwise
            || matches!(op, Op::Mul | Op::Div | Op::Reciprocal | Op::Lerp | Op::Where);
        let is_sum = matches!(
            op,
            Op::Add | Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot | Op::Cat | Op::Pad | Op::Embedding
        ) || matches!(self.stmt.rule().aliasing(), Aliasing::View(_))
            || rule == TypeRule::Reduce && self.stmt.get(attr::OP) != Some(ReductionOp::Mul);
        let terms = self.args.first().map_or(1, |it| it.data.len() as u64);
        match (op, is_sum, is_product) {
            (_, true, _) => degrees().max().unwrap_or(0).max(1),
            (Op::Reduction, ..) => degrees().sum::<u64>().saturating_mul(terms),
            // The reciprocal and the weights of an attention are values of unknown functions.
            (_, false, true) => degrees().fold(2, u64::saturating_add),
            (_, false, false) => 1,
        }
    }

    fn arg(&self, at: usize) -> Computed<&Values> {
        self.args.get(at).ok_or_else(|| "an operand is missing".to_owned())
    }

    fn scalar(&self, expr: ExprId) -> Computed<Value> {
        (self.value)(expr).ok_or_else(|| "a scalar has no value that hir-certify can compute".to_owned())
    }

    fn size(&self, expr: ExprId) -> Computed<usize> {
        match self.scalar(expr)? {
            Value::Int(it) => usize::try_from(it).map_err(|_| "an index is negative".to_owned()),
            Value::Bool(_) | Value::Float(_) => Err("an index is no integer".to_owned()),
        }
    }

    fn element(&self, expr: ExprId) -> Computed<Element> {
        Ok(match self.scalar(expr)? {
            Value::Int(it) => Element::of_integer(it),
            it @ (Value::Bool(_) | Value::Float(_)) => self.algebra.real(it.real()),
        })
    }

    fn dtype(&self, tensor: TensorId) -> DType {
        self.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    /// Returns the elements of an operand, repeated to a shape.
    fn repeated(&self, from: &Values, shape: &[usize]) -> Computed<Values> {
        from.view().broadcast(shape).map_or_else(misfit, |it| Ok(from.gather(&it)))
    }

    fn elementwise(&self) -> Computed<Vec<Element>> {
        let (shape, mut tensors) = (&self.shapes[0], self.args.iter());
        let mut columns = Vec::new();
        let mut integral = true;
        for operand in &self.stmt.args {
            match operand {
                Operand::Tensor(tensor) => {
                    integral &= is_integral(self.program, *tensor);
                    columns.push(Ok(self.repeated(tensors.next().ok_or("an operand is missing")?, shape)?));
                }
                Operand::Scalar(it) => {
                    integral &= !matches!(self.scalar(*it)?, Value::Float(_));
                    columns.push(Err(self.element(*it)?));
                }
                Operand::Stream(_) => return misfit(),
            }
        }
        let row =
            |at: usize| columns.iter().map(move |it| it.as_ref().map_or_else(|it| *it, |it| it.data[at]));
        let mut operands = Vec::new();
        let each = |at| {
            operands.clear();
            operands.extend(row(at));
            self.function(integral, &operands)
        };
        Ok((0..shape.iter().product()).map(each).collect())
    }

    fn function(&self, integral: bool, operands: &[Element]) -> Element {
        let (op, algebra) = (self.stmt.op, self.algebra);
        let unknown = || algebra.apply(op, operands.iter().copied());
        let is_bool = self.dtype(self.outs[0].0) == DType::Bool;
        let combine = |name| algebra.combine(Combine::lattice(name, is_bool), integral, operands);
        match (op, operands) {
            (Op::Add, [a, b]) => *a + *b,
            (Op::Sub, [a, b]) => *a - *b,
            (Op::Mul, [a, b]) => *a * *b,
            (Op::Neg, [a]) => -*a,
            (Op::Div, [a, b]) if !integral => match self.stmt.args[1] {
                Operand::Scalar(_) => *a * b.reciprocal().unwrap_or_else(|| algebra.reciprocal(*b)),
                Operand::Tensor(_) | Operand::Stream(_) => *a * algebra.reciprocal(*b),
            },
            (Op::Reciprocal, [a]) => algebra.reciprocal(*a),
            (Op::Lerp, [a, b, c]) => *a + *c * (*b - *a),
            // Truth values are 0 and 1.
            (Op::Where, [condition, a, b]) => *condition * *a + (Element::ONE - *condition) * *b,
            (Op::LogicalNot, [a]) => Element::ONE - *a,
            (Op::LogicalAnd, _) => combine("and"),
            (Op::LogicalOr, _) => combine("or"),
            (Op::Max | Op::FMax, _) => combine("max"),
            (Op::Min | Op::FMin, _) => combine("min"),
            (Op::Cast, [a]) => self.cast(*a),
            (_, [a, b]) if integral => {
                let known = a.integer().zip(b.integer()).zip(infix(op));
                let folded =
                    known.and_then(|((a, b), op)| fold_infix(op, Constant::Int(a), Constant::Int(b)));
                folded.map_or_else(unknown, |it| Element::of_integer(it.as_int()))
            }
            _ => unknown(),
        }
    }

    fn cast(&self, value: Element) -> Element {
        let to = self.dtype(self.outs[0].0);
        let from = self.stmt.tensor_operands().first().map_or(to, |it| self.dtype(*it));
        let is_float = |it: DType| matches!(it.class(), Class::Float | Class::SmallFloat);
        match (from.class(), to.class(), value.integer()) {
            (Class::Int | Class::Bool, Class::Int, Some(it)) => {
                let lost = 64 - 8 * to.size().clamp(1, 8);
                Element::of_integer(it << lost >> lost)
            }
            (Class::Int, Class::Bool, Some(it)) => Element::of_integer(i64::from(it != 0)),
            (Class::Bool, Class::Int | Class::Bool, _) => value,
            (Class::Int | Class::Bool | Class::Float | Class::SmallFloat, ..) if is_float(to) => value,
            _ => self.algebra.apply(("cast", from.name(), to.name()), [value]),
        }
    }
}

fn infix(op: Op) -> Option<InfixOp> {
    Some(match op {
        Op::Div => InfixOp::Div,
        Op::Mod => InfixOp::Rem,
        Op::Shl => InfixOp::Shl,
        Op::Shr => InfixOp::Shr,
        Op::BitAnd => InfixOp::BitAnd,
        Op::BitOr => InfixOp::BitOr,
        Op::BitXor => InfixOp::BitXor,
        Op::Eq => InfixOp::Eq,
        Op::Ne => InfixOp::Ne,
        Op::Lt => InfixOp::Lt,
        Op::Le => InfixOp::Le,
        Op::Gt => InfixOp::Gt,
        Op::Ge => InfixOp::Ge,
        _ => return None,
    })
}
