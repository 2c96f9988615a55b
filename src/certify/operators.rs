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
use ndarray::{ArrayD, ArrayView1, Axis, Dimension, IxDyn, Slice, concatenate};
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
type Computed<T> = Result<T, &'static str>;

const MISFIT: &str = "the shapes of its operands do not match";

impl Compute<'_> {
    /// Returns the results.
    pub(crate) fn results(&self, algebra: &Algebra, args: &[Values]) -> Result<Vec<Values>, String> {
        let fits = |found: &[Tensor]| {
            let mut both = found.iter().zip(&self.shapes);
            found.len() >= self.shapes.len() && both.all(|(it, shape)| it.shape() == *shape)
        };
        match (Call { of: self, args, algebra }.results()) {
            Ok((found, degree)) if fits(&found) => {
                Ok(found.into_iter().map(|data| Values { data, degree }).collect())
            }
            it => Err(format!("`{}` is not certified: {}", self.stmt.op.name(), it.err().unwrap_or(MISFIT))),
        }
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

/// Returns how an elementwise operator combines its operands, if it does so as a reduction does.
fn combination(op: Op, is_bool: bool) -> Option<Combine> {
    Some(Combine::Lattice(match op {
        Op::LogicalAnd => "and",
        Op::LogicalOr => "or",
        Op::BitAnd | Op::Min | Op::FMin if is_bool => "and",
        Op::BitOr | Op::Max | Op::FMax if is_bool => "or",
        Op::BitAnd => "and of bits",
        Op::BitOr => "or of bits",
        Op::BitXor => "xor",
        Op::Max | Op::FMax => "max",
        Op::Min | Op::FMin => "min",
        _ => return None,
    }))
}

impl Call<'_> {
    /// Returns the results, and a bound for their degree.
    fn results(&self) -> Computed<(Vec<Tensor>, u64)> {
        let Compute { stmt, .. } = self.of;
        let (op, def) = (stmt.op, stmt.op.def());
        let degrees = || self.args.iter().map(|it| it.degree);
        let (highest, product) = (degrees().fold(1, u64::max), degrees().fold(2, u64::saturating_add));
        let is_linear = combination(op, false).is_some()
            || matches!(op, Op::Add | Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot);
        let (tensor, degree) = match (def.type_rule, op) {
            (_, Op::Mul | Op::Div | Op::Lerp | Op::Where) => (self.elementwise()?, product),
            _ if def.class == OpClass::Elementwise => {
                (self.elementwise()?, if is_linear { highest } else { 1 })
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
            (TypeRule::AlongAxis | TypeRule::Sdpa | TypeRule::SdpaBwd, _) => return Ok((self.unknown()?, 1)),
            _ if matches!(stmt.rule().aliasing(), Aliasing::View(_)) => (self.rearrange()?, highest),
            _ => return Err("hir-certify does not know what it computes"),
        };
        Ok((vec![tensor], degree))
    }

    // ---- operands

    fn arg(&self, at: usize) -> Computed<&Tensor> {
        self.args.get(at).map(|it| &it.data).ok_or("an operand is missing")
    }

    /// Returns the shape of the first result.
    fn shape(&self) -> &[usize] {
        &self.of.shapes[0]
    }

    fn scalar(&self, expr: ExprId) -> Computed<Value> {
        self.of.values.get(&expr).copied().ok_or("a scalar has no value that hir-certify can compute")
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
        if let Some(Operand::Scalar(it)) = self.of.stmt.args.get(at) {
            self.element(*it)
        } else {
            Err(MISFIT)
        }
    }

    fn dtype(&self, tensor: TensorId) -> DType {
        self.of.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    // ---- elementwise operators

    fn elementwise(&self) -> Computed<Tensor> {
        let Compute { program, stmt, args, outs, .. } = self.of;
        let (mut tensors, mut integral) = (self.args.iter(), true);
        let operand = |operand: &Operand| match operand {
            Operand::Tensor(tensor) => {
                integral &= is_integral(program, *tensor);
                tensors.next().map(|it| it.data.clone()).ok_or(MISFIT)
            }
            Operand::Scalar(it) => {
                integral &= !matches!(self.scalar(*it)?, Value::Float(_));
                Ok(array(&[], vec![self.element(*it)?]))
            }
            Operand::Stream(_) => Err(MISFIT),
        };
        let operands = stmt.args.iter().map(operand).collect::<Computed<Vec<_>>>()?;
        let to = self.dtype(outs[0].0);
        let types = [args.first().map_or(to, |it| self.dtype(it.0)), to];
        let how = combination(stmt.op, to == DType::Bool);
        map(self.shape(), &operands, |row| match how {
            Some(how) => self.algebra.combine(how, integral, row),
            None => self.function(integral, types, row),
        })
    }

    fn function(&self, integral: bool, types: [DType; 2], operands: &[Element]) -> Element {
        let (op, algebra) = (self.of.stmt.op, self.algebra);
        let unknown = || algebra.apply(op, operands.iter().copied());
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
