//! How the dimensions of an operator's operands and result correspond: one arm for each type rule. Verifier, passes and
//! planner read it; none of them looks at a rule for it.

use std::ops::Range;

use crate::{
    attr,
    ir::{AxisId, AxisKind, ExprId, OpStmt, Operand, Program, TensorId},
    ops::{Op, TypeRule},
};

/// What a dimension of an operand is for the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimMap {
    /// It is this dimension of the result, index by index.
    Parallel(usize),
    /// It has one index, which stands for every index of this dimension of the result.
    Broadcast(usize),
    /// The operator combines its elements; a squeeze its only one.
    Reduction,
    /// The operator needs all of it.
    RequiresWhole,
}

/// What an operand is for the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperandMap {
    /// One entry for each dimension of the operand.
    Dims(Vec<DimMap>),
    /// The same elements in row-major order: groups of dimensions that hold the same number of them on both sides.
    Groups(Vec<DimGroup>),
}

/// Dimensions of an operand that become dimensions of the result, in row-major order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimGroup {
    /// Those of the operand.
    pub operand: Range<usize>,
    /// Those of the result.
    pub result: Range<usize>,
}

/// What the elements along a dimension of a result depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultDim {
    /// It is `Parallel` to a dimension of an operand.
    Mapped,
    /// The operands' elements are repeated along it: a part is made as the whole is.
    Broadcast,
    /// Counts partial sums: each of its indices combines a part of the operands' reductions.
    Partial,
    /// An element depends on its index in the whole dimension, and on no operand.
    IndexDependent,
    /// No part of it follows from parts of the operands.
    RequiresWhole,
}

/// Tells the value of a scalar expression, where it is known.
pub type ScalarEvaluator<'v> = &'v dyn Fn(ExprId) -> Option<i64>;

/// What the operand at `position` among `OpStmt::tensor_operands` is for the result; `None` where the operator moves elements
/// in a way that is not told by dimensions.
pub fn operand_map(
    program: &Program,
    stmt: &OpStmt,
    position: usize,
    value: ScalarEvaluator<'_>,
) -> Option<OperandMap> {
    let out = stmt.out_tensor()?;
    let args = stmt.tensor_operands();
    let arg = *args.get(position)?;
    let (mine, theirs) = (extents(program, arg), extents(program, out));
    let ctx =
        OperandContext { program, stmt, value, position, out, operand_extents: mine, result_extents: theirs };
    let dims = match stmt.op.def().type_rule {
        TypeRule::Same | TypeRule::Cast | TypeRule::Pointwise => {
            (0..ctx.operand_extents.len()).map(DimMap::Parallel).collect()
        }
        TypeRule::Linear => ctx.linear(),
        TypeRule::Matmul => {
            let other = program.dimensions(*args.get(1 - position.min(1))?).count();
            ctx.matmul(other)
        }
        TypeRule::Reduce => ctx.reduce(),
        TypeRule::Broadcast => {
            let new = flagged_dims(program, stmt, out);
            (0..new.len()).filter(|at| !new[*at]).map(DimMap::Parallel).collect()
        }
        TypeRule::Squeeze => number_unmapped(
            flagged_dims(program, stmt, arg).into_iter().map(|gone| gone.then_some(DimMap::Reduction)),
        ),
        TypeRule::Permute => {
            let order = permutation(program, out);
            (0..order.len()).map(|at| parallel_or_whole(order.iter().position(|from| *from == at))).collect()
        }
        TypeRule::Select => {
            let gone = selected_dim(program, stmt, arg);
            number_unmapped(
                (0..ctx.operand_extents.len()).map(|at| (Some(at) == gone).then_some(DimMap::RequiresWhole)),
            )
        }
        TypeRule::Slice => {
            let ranges = stmt.get(attr::RANGES)?.len();
            let takes_all = |at| slice_takes_all(program, stmt, arg, at, value);
            (0..ranges).map(|at| parallel_or_whole(takes_all(at).then_some(at))).collect()
        }
        TypeRule::Reshape => return Some(OperandMap::Groups(ctx.groups()?)),
        TypeRule::Unchecked => ctx.along_one_axis()?.into_iter().map(parallel_or_whole).collect(),
        TypeRule::Generate | TypeRule::Shard | TypeRule::Communicate => return None,
    };
    let count = ctx.operand_extents.len();
    let repeated = dims.into_iter().enumerate().map(|(at, map)| match map {
        DimMap::Parallel(to) if ctx.is_repeated(at, to) => DimMap::Broadcast(to),
        map => map,
    });
    let dims: Vec<DimMap> = repeated.collect();
    (dims.len() == count).then_some(OperandMap::Dims(dims))
}

/// For each dimension of the result what it depends on, where the operands' dimensions are what `maps` says.
pub fn result_dims(program: &Program, stmt: &OpStmt, maps: &[Vec<DimMap>]) -> Vec<ResultDim> {
    let Some(out) = stmt.out_tensor() else { return Vec::new() };
    let uncovered = |axis: AxisId| match stmt.op.def().type_rule {
        TypeRule::Linear | TypeRule::Matmul if program.is_partial(out, axis) => ResultDim::Partial,
        TypeRule::Same
        | TypeRule::Cast
        | TypeRule::Pointwise
        | TypeRule::Linear
        | TypeRule::Matmul
        | TypeRule::Reduce
        | TypeRule::Broadcast
        | TypeRule::Squeeze
        | TypeRule::Permute
        | TypeRule::Select => ResultDim::Broadcast,
        TypeRule::Generate if stmt.op == Op::Full => ResultDim::Broadcast,
        TypeRule::Generate => ResultDim::IndexDependent,
        TypeRule::Unchecked if maps.is_empty() => ResultDim::IndexDependent,
        TypeRule::Slice
        | TypeRule::Reshape
        | TypeRule::Unchecked
        | TypeRule::Shard
        | TypeRule::Communicate => ResultDim::RequiresWhole,
    };
    let is_mapped = |at: usize| maps.iter().flatten().any(|it| *it == DimMap::Parallel(at));
    let dims = program.dimensions(out).enumerate();
    dims.map(|(at, axis)| if is_mapped(at) { ResultDim::Mapped } else { uncovered(axis) }).collect()
}

/// Whether a slice takes every index of a dimension of its operand.
pub fn slice_takes_all(
    program: &Program,
    stmt: &OpStmt,
    arg: TensorId,
    dim: usize,
    value: ScalarEvaluator<'_>,
) -> bool {
    let Some([start, stop, step]) = stmt.get(attr::RANGES).and_then(|it| it.get(dim)) else { return true };
    let extent = extents(program, arg).get(dim).copied();
    value(*start) == Some(0)
        && value(*step) == Some(1)
        && extent.is_some_and(|it| are_equal(value, it, *stop))
}

/// For each dimension of `wide`, whether a broadcast adds it or a squeeze drops it: `flags =`. Older dialects leave that
/// out, and the broadcast axes tell.
pub fn flagged_dims(program: &Program, stmt: &OpStmt, wide: TensorId) -> Vec<bool> {
    match stmt.get(attr::FLAGS) {
        Some(flags) => flags.to_vec(),
        None => program.dimensions(wide).map(|axis| program.axes[axis].kind == AxisKind::Broadcast).collect(),
    }
}

/// For each dimension of a permutation's result that of the operand: the result's axes are numbered in the operand's order and
/// stand in their own.
pub fn permutation(program: &Program, out: TensorId) -> Vec<usize> {
    let numbers: Vec<u32> = program.dimensions(out).map(|axis| program.axes[axis].number).collect();
    let rank = |number: &u32| numbers.iter().filter(|it| *it < number).count();
    numbers.iter().map(rank).collect()
}

/// The dimension of the operand that `axis =` of a select names; `None`: a reduction axis.
pub fn selected_dim(program: &Program, stmt: &OpStmt, arg: TensorId) -> Option<usize> {
    let axis = stmt.get(attr::AXIS)?;
    program.dimensions(arg).position(|it| it == axis)
}

/// An operand of a statement.
struct OperandContext<'c> {
    program: &'c Program,
    stmt: &'c OpStmt,
    value: ScalarEvaluator<'c>,
    position: usize,
    out: TensorId,
    /// Extents of the operand.
    operand_extents: Vec<ExprId>,
    /// Extents of the result.
    result_extents: Vec<ExprId>,
}

impl OperandContext<'_> {
    fn is_one(&self, extents: &[ExprId], at: usize) -> bool {
        extents.get(at).and_then(|it| (self.value)(*it)) == Some(1)
    }

    fn is_repeated(&self, at: usize, to: usize) -> bool {
        self.is_one(&self.operand_extents, at) && !self.is_one(&self.result_extents, to)
    }

    fn is_same(&self, mine: usize, theirs: usize) -> bool {
        let extents = self.operand_extents.get(mine).zip(self.result_extents.get(theirs));
        extents.is_some_and(|(a, b)| are_equal(self.value, *a, *b))
    }

    /// The result's own dimensions: those that count partial sums have no counterpart.
    fn own_dims(&self) -> Vec<usize> {
        let dims = self.program.dimensions(self.out).enumerate();
        dims.filter(|(_, axis)| !self.program.is_partial(self.out, *axis)).map(|(at, _)| at).collect()
    }

    /// `x[…, k] · w[n, k]ᵀ + b[n]`.
    fn linear(&self) -> Vec<DimMap> {
        let (own, count) = (self.own_dims(), self.operand_extents.len());
        let columns = parallel_or_whole(own.last().copied());
        let rows = |at: usize| {
            if at + 1 == count { DimMap::Reduction } else { parallel_or_whole(own.get(at).copied()) }
        };
        match self.position {
            0 => (0..count).map(rows).collect(),
            1 => vec![columns, DimMap::Reduction],
            _ => vec![columns],
        }
    }

    /// `a[…, m, k] · b[…, k, n]`; `other` is the number of dimensions of the other operand.
    fn matmul(&self, other: usize) -> Vec<DimMap> {
        let (own, count, is_left) = (self.own_dims(), self.operand_extents.len(), self.position == 0);
        // A vector has no dimension of its own in the result.
        let (left, right) = if is_left { (count, other) } else { (other, count) };
        let (rows, columns) = (usize::from(left > 1), usize::from(right > 1));
        // Counted from the last dimension, as batches are.
        let from_end =
            |back: usize| parallel_or_whole(own.len().checked_sub(back).and_then(|at| own.get(at).copied()));
        let dim = |at: usize| match (count - at, is_left) {
            _ if count == 1 => DimMap::Reduction,
            (1, true) | (2, false) => DimMap::Reduction,
            (2, true) => from_end(1 + columns),
            (1, false) => from_end(1),
            (back, _) => from_end(back - 2 + rows + columns),
        };
        (0..count).map(dim).collect()
    }

    /// The result has the operand's axes, some of them reductions.
    fn reduce(&self) -> Vec<DimMap> {
        let logical = &self.program.tensors[self.out].domains.logical;
        let is_reduction = |axis: &AxisId| self.program.axes[*axis].kind == AxisKind::Reduction;
        number_unmapped(logical.iter().map(|axis| is_reduction(axis).then_some(DimMap::Reduction)))
    }

    /// The smallest groups of dimensions that hold as many elements on both sides; `None` where extents are not known or do
    /// not fit.
    fn groups(&self) -> Option<Vec<DimGroup>> {
        let values =
            |extents: &[ExprId]| extents.iter().map(|it| (self.value)(*it)).collect::<Option<Vec<_>>>();
        let (from, to) = (values(&self.operand_extents)?, values(&self.result_extents)?);
        let mut groups = Vec::new();
        let (mut a, mut b) = (0, 0);
        while a < from.len() || b < to.len() {
            let (first_a, first_b) = (a, b);
            let (mut size_a, mut size_b) = (1i64, 1i64);
            loop {
                match size_a <= size_b && a < from.len() {
                    true => (size_a, a) = (size_a.checked_mul(from[a])?, a + 1),
                    false if b < to.len() => (size_b, b) = (size_b.checked_mul(to[b])?, b + 1),
                    false => return None,
                }
                if size_a == size_b {
                    break;
                }
            }
            groups.push(DimGroup { operand: first_a..a, result: first_b..b });
        }
        Some(groups)
    }

    /// Operators of `Rule::Free` that work along one axis: cat, pad, scan, sorting and indexing. For each dimension of the
    /// operand the one of the result that it is; `None` inside where the operator needs all of it.
    fn along_one_axis(&self) -> Option<Vec<Option<usize>>> {
        // All dimensions but one, where both sides have the same extent.
        let others = |dim: usize| -> Vec<Option<usize>> {
            (0..self.operand_extents.len())
                .map(|at| (at != dim && self.is_same(at, at)).then_some(at))
                .collect()
        };
        let all = self.operand_extents.len();
        // As `others`, of operators that begin at index 0 of a longer operand: then no dimension is the same as another one.
        let all_others = |dim: usize| {
            (0..all)
                .all(|at| at == dim || self.is_same(at, at) || self.is_one(&self.operand_extents, at))
                .then(|| others(dim))
        };
        let along = |value: ExprId| {
            let (dim, rank) = ((self.value)(value)?, self.result_extents.len() as i64);
            usize::try_from(if dim < 0 { dim + rank } else { dim }).ok()
        };
        let dim = || along(self.stmt.get(attr::DIM)?);
        match self.stmt.op {
            Op::Cat => match self.stmt.args.last() {
                Some(Operand::Scalar(dim)) => Some(others(along(*dim)?)),
                _ => None,
            },
            Op::Pad => {
                let widths = self.stmt.get(attr::WIDTHS)?;
                let is_zero = |at: usize| widths.get(at).is_some_and(|it| (self.value)(*it) == Some(0));
                let stays = |at: usize| self.is_same(at, at) && is_zero(2 * at) && is_zero(2 * at + 1);
                Some((0..self.operand_extents.len()).map(|at| stays(at).then_some(at)).collect())
            }
            Op::Scan | Op::ArgSort | Op::TopK => Some(others(dim()?)),
            Op::Scatter => all_others(dim()?),
            Op::IndexSelect if self.position == 0 => Some(others(dim()?)),
            Op::IndexSelect => {
                let dim = dim()?;
                Some(
                    (0..self.operand_extents.len())
                        .map(|_| (self.operand_extents.len() == 1 && self.is_same(0, dim)).then_some(dim))
                        .collect(),
                )
            }
            Op::TakeAlongAxis | Op::TorchGather if self.position == 0 => all_others(dim()?),
            Op::TakeAlongAxis | Op::TorchGather => Some(others(all)),
            Op::Embedding if self.stmt.args.len() > 2 => None,
            Op::Embedding if self.position == 0 => Some(others(all)),
            Op::Embedding => {
                // A maximal norm is one of whole rows.
                let last = self.result_extents.len().checked_sub(1)?;
                let is_plain = self.stmt.get(attr::MAX_NORM).is_none() && self.is_same(1, last);
                Some(
                    (0..self.operand_extents.len()).map(|at| (at == 1 && is_plain).then_some(last)).collect(),
                )
            }
            _ => None,
        }
    }
}

fn parallel_or_whole(to: Option<usize>) -> DimMap {
    to.map_or(DimMap::RequiresWhole, DimMap::Parallel)
}

/// The result's dimensions in order for those that have no map yet.
fn number_unmapped(maps: impl Iterator<Item = Option<DimMap>>) -> Vec<DimMap> {
    let mut next = 0..;
    maps.map(|it| it.unwrap_or_else(|| parallel_or_whole(next.next()))).collect()
}

fn are_equal(value: ScalarEvaluator<'_>, a: ExprId, b: ExprId) -> bool {
    a == b || matches!((value(a), value(b)), (Some(a), Some(b)) if a == b)
}

fn extents(program: &Program, tensor: TensorId) -> Vec<ExprId> {
    let axes = program.dimensions(tensor).map(|axis| &program.axes[axis]);
    axes.map(|axis| axis.expanded.unwrap_or(axis.extent)).collect()
}
