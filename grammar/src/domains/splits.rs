//! Finds the axes of a tensor that result from one split, by their numbers and extents.

use super::DomainFacts;
use crate::{
    ir::{Axis, Expr, ExprId, Function, InfixOp, ParallelType, Program, TensorId},
    ops::Op,
};

impl DomainFacts {
    /// Returns the splits that the tensor's own text proves.
    pub(super) fn proven_splits(&self, program: &Program, tensor: TensorId) -> Vec<(usize, usize, bool)> {
        // Only a tensor with a device or stream axis was split for one.
        if !program.tensors[tensor].loop_domain.iter().any(|id| is_spread(&program.axes[*id])) {
            return Vec::new();
        }
        let axes: Vec<&Axis> =
            program.tensors[tensor].loop_domain.iter().map(|id| &program.axes[*id]).collect();
        let pairs = split_candidates(program, tensor, &[]);
        let proven = |(outer, inner, _): &(usize, usize, bool)| {
            ceil_div_operands(program, axes[*inner].extent).is_some_and(|(_, by)| by == axes[*outer].extent)
        };
        let rf = |axis: &&Axis| axis.is_rfactor();
        let mut plain: Vec<u32> = axes.iter().filter(|it| !rf(it)).map(|it| it.number).collect();
        let serial = axes.iter().filter(|it| it.parallel == ParallelType::Serial && !rf(it));
        let out_of_order = serial.clone().zip(serial.skip(1)).filter(|(a, b)| a.number > b.number);
        let mut first_result = out_of_order.map(|(a, _)| a.number - 1).min();
        plain.sort_unstable();
        let gap = plain.windows(2).find(|pair| pair[1] != pair[0] + 1).map(|pair| pair[1]);
        let sure = pairs.iter().filter(|it| proven(it)).map(|(outer, ..)| axes[*outer].number).min();
        first_result = [first_result, gap, sure].into_iter().flatten().min();
        let swizzled = self.permuted.contains(&tensor);
        let mut splits: Vec<_> = pairs
            .into_iter()
            .filter(|(outer, ..)| first_result.is_some_and(|it| axes[*outer].number >= it))
            .collect();
        if swizzled {
            let free = |it: &(usize, usize, bool)| splits.iter().all(|one| one.0 != it.0 && one.1 != it.1);
            let swizzle = swizzled_split(&axes).filter(free);
            splits.extend(swizzle);
        }
        splits
    }
}

/// Returns whether an axis is distributed over devices or streams.
pub(super) fn is_spread(axis: &Axis) -> bool {
    matches!(axis.parallel, ParallelType::Device(_) | ParallelType::Stream)
}

/// Returns the pairs of a parallel axis and the serial axis with the next number, as an outer split leaves
/// them. Skips axes that are in `taken`.
pub(super) fn split_candidates(
    program: &Program,
    tensor: TensorId,
    taken: &[(usize, usize, bool)],
) -> Vec<(usize, usize, bool)> {
    let axes: Vec<&Axis> = program.tensors[tensor].loop_domain.iter().map(|id| &program.axes[*id]).collect();
    let mut pairs = Vec::new();
    for (outer, axis) in axes.iter().enumerate() {
        if !is_spread(axis) || axis.is_rfactor() || taken.iter().any(|it| it.0 == outer) {
            continue;
        }
        let inner =
            axes.iter().position(|it| it.number == axis.number + 1 && it.parallel == ParallelType::Serial);
        // If numbers are used twice, the first of two outer axes gets the inner axis.
        let free = |at: &usize| pairs.iter().chain(taken).all(|it| it.1 != *at);
        let inner = inner.filter(|at| free(at) && !axes[*at].is_rfactor());
        pairs.extend(inner.map(|inner| (outer, inner, false)));
    }
    pairs
}

/// Returns the stream axis that a swizzle of a split's outer result produced: its number follows that of the
/// inner result.
fn swizzled_split(axes: &[&Axis]) -> Option<(usize, usize, bool)> {
    let stream = axes.iter().position(|it| it.parallel == ParallelType::Stream)?;
    let inner = axes
        .iter()
        .position(|it| it.number + 1 == axes[stream].number && it.parallel == ParallelType::Serial)?;
    Some((stream, inner, true))
}

/// Returns `x` and `d` of `ceilDiv(x, d)`.
pub(super) fn ceil_div_operands(program: &Program, expr: ExprId) -> Option<(ExprId, ExprId)> {
    match &program.exprs[expr] {
        Expr::Call(Function::Op(Op::CeilDiv), args) => args.first().copied().zip(args.get(1).copied()),
        _ => None,
    }
}

/// Returns the constant factor of a product, and its other factors, sorted.
pub(super) fn sorted_product(program: &Program, factors: impl Iterator<Item = ExprId>) -> (i64, Vec<ExprId>) {
    let mut stack: Vec<ExprId> = factors.collect();
    let (mut constant, mut others) = (1i64, Vec::new());
    while let Some(factor) = stack.pop() {
        match &program.exprs[factor] {
            Expr::Int(value) => constant = constant.wrapping_mul(*value),
            Expr::Infix(InfixOp::Mul, lhs, rhs) => stack.extend([*lhs, *rhs]),
            Expr::Infix(..)
            | Expr::Bool(_)
            | Expr::Float(..)
            | Expr::Symbol(_)
            | Expr::Prefix(..)
            | Expr::Call(..) => others.push(factor),
        }
    }
    others.sort();
    (constant, others)
}
