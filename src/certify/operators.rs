//! What operators compute, on elements of the field.
//!
//! Copies, sums, products, quotients and selections are exact. Conversions between floating-point types change nothing, since rounding
//! is not part of the model. Integers are integers of 64 bits. Every other elementwise operator is an unknown function of its
//! operands, and so is the exponential of an attention.

use std::iter;

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
    tape::Compute,
    tensor::{Array, Values, array},
    unroll::is_integral,
};

mod mapped;
mod moved;

pub(crate) use moved::rearranged;

/// A statement with its operands.
pub(crate) struct Call<'a> {
    pub(crate) program: &'a Program,
    pub(crate) stmt: &'a OpStmt,
    pub(crate) compute: &'a Compute,
    pub(crate) args: &'a [Values],
    pub(crate) algebra: &'a Algebra,
}

type Tensor = Array<Element>;

/// A result, or the reason why the statement is not certified.
type Computed<T> = Result<T, String>;

fn misfit<T>() -> Computed<T> {
    Err("the shapes of its operands do not match".to_owned())
}

/// Returns a tensor that is there if the shapes of operands match.
fn fit<T>(it: Option<T>) -> Computed<T> {
    it.map_or_else(misfit, Ok)
}

impl Call<'_> {
    /// Returns the results.
    pub(crate) fn results(&self) -> Computed<Vec<Values>> {
        let (found, degree) = (self.tensors()?, self.degree());
        let shapes = &self.compute.shapes;
        if found.len() < shapes.len() || found.iter().zip(shapes).any(|(it, shape)| it.shape() != *shape) {
            return misfit();
        }
        Ok(found.into_iter().map(|data| Values { data, degree }).collect())
    }

    fn tensors(&self) -> Computed<Vec<Tensor>> {
        let op = self.stmt.op;
        let one = |it: Computed<Tensor>| it.map(|it| vec![it]);
        if op.def().class == OpClass::Elementwise {
            return one(self.elementwise());
        }
        match (op.def().type_rule, op) {
            (TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding, _) => one(self.product()),
            (TypeRule::Reduce, _) => one(self.reduce()),
            (TypeRule::Generate, _) => one(self.generate()),
            (_, Op::TensorConstruct) => match self.stmt.args[..] {
                [Operand::Scalar(it)] => one(Ok(array(self.shape(), vec![self.element(it)?]))),
                _ => misfit(),
            },
            (_, Op::Cat) => one(self.cat()),
            (_, Op::Pad) => one(self.pad()),
            (_, Op::IndexPutAccumulate) => one(self.add_rows()),
            (_, Op::Welford) => self.statistics(),
            (TypeRule::AlongAxis | TypeRule::Sdpa | TypeRule::SdpaBwd, _) => self.unknown(),
            _ if matches!(self.stmt.rule().aliasing(), Aliasing::View(_)) => one(self.rearrange()),
            _ => Err(format!("hir-certify does not know what `{}` computes", op.name())),
        }
    }

    /// Returns a bound for the degree of the results.
    fn degree(&self) -> u64 {
        let all = self.args.iter().map(|it| it.degree);
        let (highest, product) = (all.clone().fold(1, u64::max), all.fold(2, u64::saturating_add));
        let terms = self.args.first().map_or(1, |it| it.data.len() as u64);
        match (self.stmt.op, self.stmt.op.def().class) {
            (Op::Reduction, _) if self.stmt.get(attr::OP) == Some(ReductionOp::Mul) => {
                product.saturating_mul(terms)
            }
            (Op::Reduction | Op::Cat | Op::Pad | Op::Embedding, _) => highest,
            (Op::Welford, _) => highest.saturating_mul(2),
            (Op::Add | Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot, _) => highest,
            (Op::LogicalAnd | Op::LogicalOr | Op::Max | Op::Min | Op::FMax | Op::FMin, _) => highest,
            // The reciprocal and the weights of an attention are values of unknown functions.
            (Op::Mul | Op::Div | Op::Lerp | Op::Where, _) => product,
            (_, OpClass::Elementwise) => 1,
            _ if matches!(self.stmt.rule().aliasing(), Aliasing::View(_)) => highest,
            _ => product,
        }
    }

    // ---- operands

    fn arg(&self, at: usize) -> Computed<&Tensor> {
        self.args.get(at).map(|it| &it.data).ok_or_else(|| "an operand is missing".to_owned())
    }

    /// Returns the shape of the first result.
    fn shape(&self) -> &[usize] {
        &self.compute.shapes[0]
    }

    fn scalar(&self, expr: ExprId) -> Computed<Value> {
        let value = self.compute.values.get(&expr).copied();
        value.ok_or_else(|| "a scalar has no value that hir-certify can compute".to_owned())
    }

    fn integer(&self, expr: ExprId) -> Computed<i64> {
        match self.scalar(expr)? {
            Value::Int(it) => Ok(it),
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

    fn result_dtype(&self) -> DType {
        self.dtype(self.compute.outs[0].0)
    }

    // ---- elementwise operators

    fn elementwise(&self) -> Computed<Tensor> {
        let (shape, mut tensors) = (self.shape(), self.args.iter());
        let mut columns: Vec<Box<dyn Iterator<Item = Element>>> = Vec::new();
        let mut integral = true;
        for operand in &self.stmt.args {
            match operand {
                Operand::Tensor(tensor) => {
                    integral &= is_integral(self.program, *tensor);
                    let it = tensors.next().and_then(|it| it.data.broadcast(shape));
                    columns.push(Box::new(fit(it)?.into_iter().copied()));
                }
                Operand::Scalar(it) => {
                    integral &= !matches!(self.scalar(*it)?, Value::Float(_));
                    columns.push(Box::new(iter::repeat(self.element(*it)?)));
                }
                Operand::Stream(_) => return misfit(),
            }
        }
        let types = [
            self.compute.args.first().map_or(self.result_dtype(), |it| self.dtype(it.0)),
            self.result_dtype(),
        ];
        let mut operands = Vec::new();
        let each = |_| {
            operands.clear();
            operands.extend(columns.iter_mut().filter_map(Iterator::next));
            self.function(integral, types, &operands)
        };
        Ok(array(shape, (0..shape.iter().product()).map(each).collect()))
    }

    fn function(&self, integral: bool, types: [DType; 2], operands: &[Element]) -> Element {
        let (op, algebra) = (self.stmt.op, self.algebra);
        let unknown = || algebra.apply(op, operands.iter().copied());
        let combine =
            |name| algebra.combine(Combine::lattice(name, types[1] == DType::Bool), integral, operands);
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
            (Op::Cast, [a]) => self.cast(types, *a),
            (_, [a, b]) if integral => {
                let known = a.integer().zip(b.integer()).zip(InfixOp::from_text(op.def().mnemonic));
                let folded =
                    known.and_then(|((a, b), op)| fold_infix(op, Constant::Int(a), Constant::Int(b)));
                folded.map_or_else(unknown, |it| Element::of_integer(it.as_int()))
            }
            _ => unknown(),
        }
    }

    fn cast(&self, [from, to]: [DType; 2], value: Element) -> Element {
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
