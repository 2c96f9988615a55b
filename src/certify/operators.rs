//! What operators compute, on elements of the field.
//!
//! Copies, sums, products, quotients and selections are exact. Conversions between floating-point types change nothing, since rounding
//! is not part of the model. Integers are integers of 64 bits. Every other elementwise operator is an unknown function of its
//! operands, and so is the exponential of an attention.

use grammar::{
    DimMap, OperandMap,
    arithmetic::{Constant, fold_infix},
    attr, dims_of_first_result,
    dtype::{Class, DType},
    ir::{Attr, ExprId, InfixOp, OpStmt, Operand, Program, TensorId},
    operand_map,
    ops::{Op, OpClass, TypeRule},
    rules::{Aliasing, OperandView},
    scalars::Value,
    selected_dim, slice_takes_all,
    words::ReductionOp,
};
use ndarray::{ArrayView1, Axis, Dimension, IxDyn, Slice, concatenate};
use rustc_hash::FxHashMap;

use crate::{
    field::{Algebra, Combine, Element},
    part::Part,
    tensor::{Array, Values, array, reshape},
};

mod mapped;
mod moved;

pub(crate) use moved::rearranged;

/// A statement with the tensors that it reads and writes on a rank.
pub(crate) struct Compute<'p> {
    pub(crate) program: &'p Program,
    pub(crate) stmt: &'p OpStmt,
    pub(crate) args: Vec<(TensorId, Part)>,
    pub(crate) outs: Vec<(TensorId, Part)>,
    /// The shapes of the results.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// The values of the scalars that the statement states, and of the extents of its tensors.
    pub(crate) values: FxHashMap<ExprId, Value>,
}

/// A statement with its operands.
struct Call<'a> {
    of: &'a Compute<'a>,
    args: &'a [Values],
    algebra: &'a Algebra,
}

type Tensor = Array<Element>;

/// A result, or the reason why the statement is not certified.
type Computed<T> = Result<T, String>;

const MISFIT: &str = "the shapes of its operands do not match";

impl Compute<'_> {
    /// Returns the results.
    pub(crate) fn results(&self, algebra: &Algebra, args: &[Values]) -> Computed<Vec<Values>> {
        let name = self.stmt.op.name();
        let (found, degree) = (Call { of: self, args, algebra }.results())
            .map_err(|why| format!("`{name}` is not certified: {why}"))?;
        if found.len() < self.shapes.len()
            || found.iter().zip(&self.shapes).any(|(it, shape)| it.shape() != *shape)
        {
            return Err(format!("`{name}` is not certified: {MISFIT}"));
        }
        Ok(found.into_iter().map(|data| Values { data, degree }).collect())
    }
}

/// Returns the values of a function of corresponding elements of operands, which are repeated to a shape.
pub(crate) fn map(
    shape: &[usize],
    operands: &[Tensor],
    mut function: impl FnMut(&[Element]) -> Element,
) -> Computed<Tensor> {
    let wide = operands.iter().map(|it| it.broadcast(shape)).collect::<Option<Vec<_>>>().ok_or(MISFIT)?;
    let mut columns: Vec<_> = wide.iter().map(|it| it.iter().copied()).collect();
    let mut row = Vec::new();
    let each = |_| {
        row.clear();
        row.extend(columns.iter_mut().filter_map(Iterator::next));
        function(&row)
    };
    Ok(array(shape, (0..shape.iter().product()).map(each).collect()))
}

/// Returns whether the elements of a tensor are integers or truth values.
pub(crate) fn is_integral(program: &Program, tensor: TensorId) -> bool {
    program.tensors[tensor].dtype.is_some_and(|it| matches!(it.class(), Class::Int | Class::Bool))
}

impl Call<'_> {
    /// Returns the results, and a bound for their degree.
    fn results(&self) -> Computed<(Vec<Tensor>, u64)> {
        let Compute { stmt, .. } = self.of;
        let (op, def) = (stmt.op, stmt.op.def());
        let degrees = || self.args.iter().map(|it| it.degree);
        let (highest, product) = (degrees().fold(1, u64::max), degrees().fold(2, u64::saturating_add));
        let is_view = matches!(stmt.rule().aliasing(), Aliasing::View(_));
        let (tensor, degree) = match (def.type_rule, op) {
            _ if def.class == OpClass::Elementwise => {
                let degree = match op {
                    Op::Add
                    | Op::Sub
                    | Op::Neg
                    | Op::Cast
                    | Op::LogicalNot
                    | Op::LogicalAnd
                    | Op::LogicalOr => highest,
                    Op::Max | Op::Min | Op::FMax | Op::FMin => highest,
                    // The reciprocal is the value of an unknown function.
                    Op::Mul | Op::Div | Op::Lerp | Op::Where => product,
                    _ => 1,
                };
                (self.elementwise()?, degree)
            }
            (TypeRule::Linear | TypeRule::Matmul, _) => (self.product()?, product),
            (TypeRule::Embedding, _) => (self.product()?, highest.saturating_add(1)),
            (TypeRule::Reduce, _) if stmt.get(attr::OP) == Some(ReductionOp::Mul) => {
                (self.reduce()?, product.saturating_mul(self.arg(0)?.len() as u64))
            }
            (TypeRule::Reduce, _) => (self.reduce()?, highest),
            (TypeRule::Generate, _) => (self.generate()?, highest),
            (_, Op::TensorConstruct) => (array(self.shape(), vec![self.operand(0)?]), 1),
            (_, Op::Cat) => (self.cat()?, highest),
            (_, Op::Pad) => (self.pad()?, highest),
            (_, Op::IndexPutAccumulate) => (self.add_rows()?, product),
            (_, Op::Welford) => return Ok((self.statistics()?, highest.saturating_mul(2))),
            (TypeRule::AlongAxis | TypeRule::Sdpa | TypeRule::SdpaBwd, _) => return Ok((self.unknown()?, 1)),
            _ if is_view => (self.rearrange()?, highest),
            _ => return Err(format!("hir-certify does not know what `{}` computes", op.name())),
        };
        Ok((vec![tensor], degree))
    }

    // ---- operands

    fn arg(&self, at: usize) -> Computed<&Tensor> {
        Ok(&self.args.get(at).ok_or("an operand is missing")?.data)
    }

    /// Returns the shape of the first result.
    fn shape(&self) -> &[usize] {
        &self.of.shapes[0]
    }

    fn scalar(&self, expr: ExprId) -> Computed<Value> {
        Ok(*self.of.values.get(&expr).ok_or("a scalar has no value that hir-certify can compute")?)
    }

    fn integer(&self, expr: ExprId) -> Option<i64> {
        if let Value::Int(it) = self.of.values.get(&expr)? { Some(*it) } else { None }
    }

    fn element(&self, expr: ExprId) -> Computed<Element> {
        Ok(match self.scalar(expr)? {
            Value::Int(it) => Element::of_integer(it),
            it @ (Value::Bool(_) | Value::Float(_)) => self.algebra.real(it.real()),
        })
    }

    /// Returns a scalar operand.
    fn operand(&self, at: usize) -> Computed<Element> {
        let Some(Operand::Scalar(it)) = self.of.stmt.args.get(at) else { return Err(MISFIT.to_owned()) };
        self.element(*it)
    }

    fn dtype(&self, tensor: TensorId) -> DType {
        self.of.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    // ---- elementwise operators

    fn elementwise(&self) -> Computed<Tensor> {
        let (mut tensors, mut operands, mut integral) = (self.args.iter(), Vec::new(), true);
        for (at, operand) in self.of.stmt.args.iter().enumerate() {
            operands.push(match operand {
                Operand::Tensor(tensor) => {
                    integral &= is_integral(self.of.program, *tensor);
                    tensors.next().ok_or(MISFIT)?.data.clone()
                }
                Operand::Scalar(it) => {
                    integral &= !matches!(self.scalar(*it)?, Value::Float(_));
                    array(&[], vec![self.operand(at)?])
                }
                Operand::Stream(_) => return Err(MISFIT.to_owned()),
            });
        }
        let to = self.dtype(self.of.outs[0].0);
        let types = [self.of.args.first().map_or(to, |it| self.dtype(it.0)), to];
        map(self.shape(), &operands, |operands| self.function(integral, types, operands))
    }

    fn function(&self, integral: bool, types: [DType; 2], operands: &[Element]) -> Element {
        let (op, algebra) = (self.of.stmt.op, self.algebra);
        let unknown = || algebra.apply(op, operands.iter().copied());
        let combine = |name| {
            let how = Combine::named(name, types[1] == DType::Bool);
            how.map_or_else(unknown, |it| algebra.combine(it, integral, operands))
        };
        match (op, operands) {
            (Op::Add, [a, b]) => *a + *b,
            (Op::Sub, [a, b]) => *a - *b,
            (Op::Mul, [a, b]) => *a * *b,
            (Op::Neg, [a]) => Element::default() - *a,
            (Op::Div, [a, b]) if !integral => {
                let known = b.reciprocal().filter(|_| matches!(self.of.stmt.args[1], Operand::Scalar(_)));
                *a * known.unwrap_or_else(|| algebra.apply(Op::Reciprocal, [*b]))
            }
            (Op::Lerp, [a, b, c]) => *a + *c * (*b - *a),
            // Truth values are 0 and 1.
            (Op::Where, [condition, a, b]) => *condition * *a + (Element::ONE - *condition) * *b,
            (Op::LogicalNot, [a]) => Element::ONE - *a,
            (Op::LogicalAnd, _) => combine("logical_and"),
            (Op::LogicalOr, _) => combine("logical_or"),
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
