//! The steps of a reduction over devices, by its operator and its initial value.

use grammar::{DType, Expr, ExprId, OpStmt, Program, RedOp, ReductionOp, TensorId, attr};

/// The steps in which a reduction can be computed.
pub(super) enum Steps {
    /// Locally and by a collective, in any order.
    Collective,
    /// Locally, and then by a collective that does this reduction of the local results.
    LocalThenCollective(OpStmt),
    /// Locally, on each device's part, and then again on the gathered local results.
    LocalThenGather,
    /// In one step, because the initial value counts once.
    Whole,
}

impl Steps {
    pub(super) fn of(program: &mut Program, it: &OpStmt, arg: TensorId) -> Self {
        if collective_red_op(program, it).is_some() {
            return Self::Collective;
        }
        let dtype = program.tensors[arg].dtype.unwrap_or(DType::Float);
        let is_same_type =
            it.out_tensor().is_some_and(|out| program.tensors[out].dtype == program.tensors[arg].dtype);
        let initial = it.get(attr::INITIAL_VALUE).and_then(|value| number(program, value));
        let Some(op) = it.get(attr::OP).filter(|_| is_same_type) else { return Self::Whole };
        let truth = dtype == DType::Bool;
        let collective = match op {
            // The initial value is in each local result, so that the collective needs none, and no local result is a NaN that
            // `fmax` and `fmin` would ignore.
            ReductionOp::Max => Some(ReductionOp::Max),
            ReductionOp::Min => Some(ReductionOp::Min),
            ReductionOp::FMax if initial.is_some_and(|it| !it.is_nan()) => Some(ReductionOp::Max),
            ReductionOp::FMin if initial.is_some_and(|it| !it.is_nan()) => Some(ReductionOp::Min),
            ReductionOp::BitOr | ReductionOp::LogicalOr if truth => Some(ReductionOp::Max),
            ReductionOp::BitAnd | ReductionOp::LogicalAnd if truth => Some(ReductionOp::Min),
            ReductionOp::BitXor if initial == Some(0.0) => None,
            ReductionOp::FMax
            | ReductionOp::FMin
            | ReductionOp::BitAnd
            | ReductionOp::BitOr
            | ReductionOp::LogicalAnd
            | ReductionOp::LogicalOr => None,
            ReductionOp::Add | ReductionOp::Mul | ReductionOp::BitXor => return Self::Whole,
        };
        let Some((op, value)) = collective.and_then(|op| Some((op, neutral_element(op, dtype)?))) else {
            return Self::LocalThenGather;
        };
        let value = program.intern_expr(value);
        let mut step = it.clone();
        step.set(attr::OP, op);
        step.set(attr::INITIAL_VALUE, value);
        Self::LocalThenCollective(step)
    }
}

/// Returns the neutral element of a maximum or minimum.
fn neutral_element(op: ReductionOp, dtype: DType) -> Option<Expr> {
    let is_max = op == ReductionOp::Max;
    Some(match dtype {
        DType::Bool => Expr::Bool(!is_max),
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::Index => {
            Expr::Int(if is_max { i64::MIN } else { i64::MAX })
        }
        DType::UInt8 | DType::UInt16 | DType::UInt32 if is_max => Expr::Int(0),
        DType::Half | DType::BFloat | DType::Float | DType::Double => {
            Expr::Float(dtype, if is_max { "-inf" } else { "inf" }.to_owned())
        }
        _ => return None,
    })
}

/// Returns the reduction operator of a collective for a `reduction` statement. Collectives support no initial
/// value other than the neutral element.
pub(crate) fn collective_red_op(program: &Program, it: &OpStmt) -> Option<RedOp> {
    let dtype = it.out_tensor().and_then(|out| program.tensors[out].dtype).unwrap_or(DType::Float);
    let (least, greatest) = range(dtype);
    let neutral = |is_neutral: &dyn Fn(f64) -> bool| match it.get(attr::INITIAL_VALUE) {
        Some(value) => number(program, value).is_some_and(is_neutral),
        None => true,
    };
    let (op, is_neutral) = match it.get(attr::OP)? {
        ReductionOp::Add => (RedOp::Sum, dtype.has_zero() && neutral(&|it| it == 0.0)),
        ReductionOp::Mul => (RedOp::Product, neutral(&|it| it == 1.0)),
        ReductionOp::Max => (RedOp::Max, neutral(&|it| it <= least)),
        ReductionOp::Min => (RedOp::Min, neutral(&|it| it >= greatest)),
        ReductionOp::FMax
        | ReductionOp::FMin
        | ReductionOp::BitAnd
        | ReductionOp::BitOr
        | ReductionOp::BitXor
        | ReductionOp::LogicalAnd
        | ReductionOp::LogicalOr => return None,
    };
    is_neutral.then_some(op)
}

/// Returns the least and the greatest value of an element type.
fn range(dtype: DType) -> (f64, f64) {
    match (dtype, dtype.integer_range()) {
        (DType::Bool, _) => (0.0, 1.0),
        (DType::UInt64, _) => (0.0, f64::INFINITY),
        (_, Some((least, greatest))) if dtype.size() < 8 => (least as f64, greatest as f64),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

/// Returns the value of a literal. The minimum and maximum integers stand for the infinities.
fn number(program: &Program, value: ExprId) -> Option<f64> {
    match &program.exprs[value] {
        Expr::Int(i64::MIN) => Some(f64::NEG_INFINITY),
        Expr::Int(i64::MAX) => Some(f64::INFINITY),
        Expr::Int(value) => Some(*value as f64),
        Expr::Float(_, text) => text.parse().ok(),
        Expr::Bool(value) => Some(f64::from(u8::from(*value))),
        _ => None,
    }
}
