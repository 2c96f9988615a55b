//! Reductions.

use grammar::{DType, Op, ReductionOp, TensorId, attr};
use hir_ir::build::{Dim, apply};

use super::{Importer, Results, lift::Combiner, types::initial_values};
use crate::{
    tree::{Attribute, Block, Operation},
    value::{AxisSet, Scalar, Tensor, Value},
};

/// What a region is in which no `Reducer` is found.
pub(super) const NO_REDUCER: &str = "its region is not `add`, `multiply`, `maximum` or `minimum` of both values, nor `and` or `or` of booleans";

/// An operator of a reduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reducer {
    Add,
    Mul,
    Max,
    Min,
    And,
    Or,
}

impl Reducer {
    /// Returns the operator of an operation.
    fn of(name: &str, dtype: DType) -> Option<Self> {
        let is_bool = dtype == DType::Bool;
        Some(match name.strip_prefix("stablehlo.")? {
            "add" | "maximum" | "or" if is_bool => Self::Or,
            "multiply" | "minimum" | "and" if is_bool => Self::And,
            "add" => Self::Add,
            "multiply" => Self::Mul,
            "maximum" => Self::Max,
            "minimum" => Self::Min,
            _ => return None,
        })
    }

    /// Returns the operator of a region that combines two values with one operation.
    pub(super) fn of_region(block: &Block<'_>, dtype: DType) -> Option<Self> {
        (block.arguments.len() == 2).then(|| Self::of_result(block, 0, dtype))?
    }

    /// Returns the operator that combines two values to one result of a region, whose first arguments are those of the left side.
    fn of_result(block: &Block<'_>, at: usize, dtype: DType) -> Option<Self> {
        let count = block.arguments.len() / 2;
        let (left, right) = (block.arguments.get(at)?.name, block.arguments.get(count + at)?.name);
        let defined =
            |name: &str| block.ops.iter().find(|op| op.results.first().is_some_and(|it| it.0 == name));
        let mut op = defined(block.ops.last()?.operands.get(at)?.name)?;
        // In a region with axes that are not manual, JAX states that a number has no sharding.
        if op.name == "sdy.sharding_constraint" {
            op = defined(op.operands.first()?.name)?;
        }
        let [a, b] = op.operands[..] else { return None };
        let takes_both = [(left, right), (right, left)].contains(&(a.name, b.name));
        Self::of(op.name, dtype).filter(|_| takes_both)
    }

    /// Returns the operator of a type: of bool, the greatest value is the disjunction.
    pub(super) fn on(self, dtype: DType) -> Self {
        match self {
            Self::Max if dtype == DType::Bool => Self::Or,
            Self::Min if dtype == DType::Bool => Self::And,
            it => it,
        }
    }

    /// Returns it in Host IR, with its initial value.
    pub(super) fn with_initial(self, dtype: DType) -> (ReductionOp, Scalar) {
        let number =
            |value: f64, int: i64| if dtype.is_integral() { Scalar::Int(int) } else { Scalar::Float(value) };
        match self {
            Self::Add => (ReductionOp::Add, number(0.0, 0)),
            Self::Mul => (ReductionOp::Mul, number(1.0, 1)),
            Self::Max => (ReductionOp::Max, number(f64::NEG_INFINITY, least(dtype))),
            Self::Min => (ReductionOp::Min, number(f64::INFINITY, greatest(dtype))),
            Self::And => (ReductionOp::LogicalAnd, Scalar::Bool(true)),
            Self::Or => (ReductionOp::LogicalOr, Scalar::Bool(false)),
        }
    }

    /// Returns the operator of two values that combines parts of the reduction.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Mul => "multiply",
            Self::Max => "maximum",
            Self::Min => "minimum",
            Self::And => "and",
            Self::Or => "or",
        }
    }

    /// Returns whether a number changes nothing.
    pub(super) fn is_neutral(self, scalar: &Scalar, dtype: DType) -> bool {
        match (self, scalar) {
            (Self::Add, Scalar::Int(0)) | (Self::Mul, Scalar::Int(1)) => true,
            (Self::Add, Scalar::Float(it)) => *it == 0.0,
            (Self::Mul, Scalar::Float(it)) => *it == 1.0,
            (Self::Max, Scalar::Float(it)) => *it == f64::NEG_INFINITY,
            (Self::Min, Scalar::Float(it)) => *it == f64::INFINITY,
            (Self::Max | Self::Min, Scalar::Int(_)) => self.with_initial(dtype).1 == *scalar,
            (Self::And, Scalar::Bool(it)) => *it,
            (Self::Or, Scalar::Bool(it)) => !it,
            _ => false,
        }
    }
}

impl<'m, 's> Importer<'m, 's> {
    pub(crate) fn reduce(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let mut operands = operands;
        // The parts of complex ones are operands.
        let initial_values = if self.has_parts { Vec::new() } else { self.initial_values(op)? };
        let initial =
            if initial_values.is_empty() { operands.split_off(operands.len() / 2) } else { initial_values };
        let dims = op.ints(&["dimensions"]).ok_or_else(|| self.missing(op, "dimensions"))?;
        let rank = operands.first().map_or(0, |it| it.shape().len());
        let dims: Option<Vec<usize>> =
            dims.iter().map(|it| usize::try_from(*it).ok().filter(|it| *it < rank)).collect();
        let Some(dims) = dims else {
            return Err(
                self.bad_module("`dimensions` are not those of the operand", "expected its dimensions")
            );
        };
        if operands.len() != initial.len() || operands.iter().any(|it| it.shape() != operands[0].shape()) {
            return Err(self.bad_module(
                "the operands do not match each other or the initial values",
                "expected one shape, and an initial value for each operand",
            ));
        }
        let words = op.positional.iter().filter_map(Attribute::word);
        let reducer = |at: usize| {
            let dtype = operands[at].dtype();
            let applied = words.clone().find_map(|it| Reducer::of(it, dtype));
            applied.or_else(|| Reducer::of_result(op.regions.first()?, at, dtype))
        };
        let is_matched = op.regions.first().is_none_or(|it| it.arguments.len() == 2 * operands.len());
        let reducers = (0..operands.len())
            .map(reducer)
            .collect::<Option<Vec<_>>>()
            .filter(|_| is_matched && operands.iter().all(|it| it.dtype().part().is_none()));
        let Some(reducers) = reducers else {
            let region = op.regions.first().filter(|it| it.arguments.len() == 2 * operands.len());
            let operator = words.clone().find(|it| it.starts_with("stablehlo."));
            let Some(combiner) = region.map(Combiner::Region).or_else(|| operator.map(Combiner::Operator))
            else {
                return Err(self.unsupported_form(op, NO_REDUCER));
            };
            if let ([value, index], Some(region)) = (&operands[..], region)
                && let Some(found) = self.extreme([value, index], &initial, region, &dims)?
            {
                return Ok(found);
            }
            return self.reduced_by(combiner, operands, initial, &dims);
        };
        let mut results = Vec::with_capacity(operands.len());
        for ((value, initial), reducer) in operands.into_iter().zip(initial).zip(reducers) {
            let dtype = value.dtype();
            let result = Value::Tensor(self.reduced(value, reducer, &dims));
            let is_neutral = initial.constant().is_some_and(|it| reducer.is_neutral(it, dtype));
            results.push(if is_neutral {
                result
            } else {
                let initial = self.broadcast_value(initial, &[], result.shape())?;
                self.binary_values(reducer.name(), result, initial)?
            });
        }
        Ok(results)
    }

    /// Returns the initial values of the pretty spelling.
    fn initial_values(&self, op: &Operation<'s>) -> Results {
        initial_values(op).map(|it| self.value(it)).collect()
    }

    /// Returns the reduction of a value over dimensions.
    pub(super) fn reduced(&mut self, value: Value, reducer: Reducer, dims: &[usize]) -> Tensor {
        let tensor = self.materialized(value);
        if dims.is_empty() {
            return tensor;
        }
        let mut all = self.device_dims(tensor.axes);
        all.extend(
            tensor.shape.iter().enumerate().map(|(at, extent)| {
                if dims.contains(&at) { Dim::reduced(*extent) } else { Dim::of(*extent) }
            }),
        );
        let result = self.reduction_to(&tensor, reducer, all);
        let kept = (0..tensor.shape.len()).filter(|it| !dims.contains(it));
        let shape = kept.map(|it| tensor.shape[it]).collect();
        let result = Tensor { id: result, shape, ..tensor };
        self.unsharded_sum(&result);
        result
    }

    /// Adds a reduction whose result has these dimensions, those that it sums included.
    pub(super) fn reduction_to(&mut self, tensor: &Tensor, reducer: Reducer, dims: Vec<Dim>) -> TensorId {
        let out = self.declare(dims, tensor.dtype);
        let (reduction, initial) = reducer.with_initial(tensor.dtype);
        let initial = initial.expr(tensor.dtype, &mut self.out);
        let stmt = apply(Op::Reduction, [tensor.id])
            .with(attr::OP, reduction)
            .with(attr::INITIAL_VALUE, initial)
            .with(attr::ALLREDUCE, false);
        self.out.assign(out, stmt);
        out
    }

    /// Returns the reduction over the device axes of a tensor.
    pub(super) fn reduced_over_devices(&mut self, tensor: Tensor, reducer: Reducer, axes: AxisSet) -> Tensor {
        let tensor = self.on_axes(tensor, axes);
        let mut dims = Vec::new();
        for axis in (0..8).filter(|it| tensor.axes & (1 << it) != 0) {
            let own = self.device_dims(1 << axis);
            let is_reduced = axes & (1 << axis) != 0;
            dims.extend(own.into_iter().map(|it| if is_reduced { Dim::reduced(it.extent) } else { it }));
        }
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        let id = self.reduction_to(&tensor, reducer, dims);
        Tensor { id, axes: tensor.axes & !axes, ..tensor }
    }
}

/// Returns the least integer of a type. As everywhere, an unsigned number of 64 bits has the bits of this one.
fn least(dtype: DType) -> i64 {
    dtype.integer_range().map_or(i64::MIN, |it| it.0 as i64)
}

/// Returns the greatest integer of a type.
pub(super) fn greatest(dtype: DType) -> i64 {
    dtype.integer_range().map_or(i64::MAX, |it| it.1 as i64)
}
