//! Maps between the dimensions of an operator's operands and of its result, with one case for each type rule.
//!
//! The verifier, the passes and the planner use these maps instead of matching on type rules.

use std::ops::Range;

use crate::{
    attr,
    ir::{AxisId, AxisKind, ExprId, OpStmt, Operand, Program, TensorId},
    ops::{Op, TypeRule},
};

/// The relation of an operand's dimension to the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimMap {
    /// The dimension corresponds to this dimension of the result, index by index.
    Parallel(usize),
    /// The dimension has extent 1 and is broadcast along this dimension of the result.
    Broadcast(usize),
    /// The operator reduces the dimension, or squeezes it (extent 1).
    Reduction,
    /// Each result element may depend on the whole dimension.
    RequiresWhole,
}

/// The relation of an operand to the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperandMap {
    /// One entry for each dimension of the operand.
    Dims(Vec<DimMap>),
    /// A reshape: the same elements in row-major order, as groups of dimensions with equal numbers of
    /// elements on both sides.
    Groups(Vec<DimGroup>),
}

/// Consecutive dimensions of an operand that are reshaped into consecutive dimensions of the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimGroup {
    /// Dimensions of the operand.
    pub operand: Range<usize>,
    /// Dimensions of the result.
    pub result: Range<usize>,
}

/// The relation of a result's dimension to the operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultDim {
    /// Some operand has a dimension that is `Parallel` to it.
    Mapped,
    /// The operands are broadcast along the dimension: any part of it can be computed from the same operands.
    Broadcast,
    /// The dimension counts partial sums: each index combines a part of the operands' reduction dimensions.
    Partial,
    /// Each element depends on its index in the whole dimension and on no operand.
    IndexDependent,
    /// No part of the dimension can be computed from parts of the operands.
    RequiresWhole,
}

/// A function that evaluates a scalar expression; `None` if its value is not known.
pub type ScalarEvaluator<'v> = &'v dyn Fn(ExprId) -> Option<i64>;

/// Returns the map of the operand at `position` in `OpStmt::tensor_operands` to the result, or `None` if the
/// operator moves elements in a way that a map of dimensions cannot describe.
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
        TypeRule::Attention => ctx.attention(),
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

/// Returns for each dimension of the result its relation to the operands, given the operands' maps.
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
        | TypeRule::Attention
        | TypeRule::Shard
        | TypeRule::Communicate => ResultDim::RequiresWhole,
    };
    let is_mapped = |at: usize| maps.iter().flatten().any(|it| *it == DimMap::Parallel(at));
    let dims = program.dimensions(out).enumerate();
    dims.map(|(at, axis)| if is_mapped(at) { ResultDim::Mapped } else { uncovered(axis) }).collect()
}

/// Returns for each dimension of the result at `position` the dimension of the first result that corresponds to it, index
/// by index. The maps of operands are those to the first result.
pub fn dims_of_first_result(program: &Program, stmt: &OpStmt, position: usize) -> Vec<Option<usize>> {
    let mut outs = Program::tensors_of(&stmt.outs);
    let (Some(first), Some(out)) = (stmt.out_tensor(), outs.nth(position)) else { return Vec::new() };
    let (first, own) = (extents(program, first), extents(program, out));
    let value = |it| program.constant(it);
    let is_same = own.len() == first.len() && own.iter().zip(&first).all(|(a, b)| are_equal(&value, *a, *b));
    let corresponds = match (stmt.op, position) {
        // `out[…, l, e]`, `logsumexp[…, l]`, and the state of random numbers.
        (Op::Sdpa, 0 | 1) => true,
        (Op::Sdpa, _) => false,
        _ => is_same,
    };
    (0..own.len()).map(|at| (corresponds && at < first.len()).then_some(at)).collect()
}

/// Returns whether a slice selects every index of a dimension of its operand.
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

/// Returns for each dimension of `wide` whether a broadcast adds it or a squeeze removes it.
///
/// This is the attribute `flags =`. Older dialects omit the attribute; then the broadcast axes of `wide` are
/// used.
pub fn flagged_dims(program: &Program, stmt: &OpStmt, wide: TensorId) -> Vec<bool> {
    match stmt.get(attr::FLAGS) {
        Some(flags) => flags.to_vec(),
        None => program.dimensions(wide).map(|axis| program.axes[axis].kind == AxisKind::Broadcast).collect(),
    }
}

/// Returns for each dimension of a permutation's result the corresponding dimension of the operand.
///
/// The axes of the result are numbered in the order of the operand and listed in the order of the result.
pub fn permutation(program: &Program, out: TensorId) -> Vec<usize> {
    let numbers: Vec<u32> = program.dimensions(out).map(|axis| program.axes[axis].number).collect();
    let rank = |number: &u32| numbers.iter().filter(|it| *it < number).count();
    numbers.iter().map(rank).collect()
}

/// Returns the dimension of the operand that `axis =` of a select names, or `None` for a reduction axis.
pub fn selected_dim(program: &Program, stmt: &OpStmt, arg: TensorId) -> Option<usize> {
    let axis = stmt.get(attr::AXIS)?;
    program.dimensions(arg).position(|it| it == axis)
}

/// A statement and one of its operands.
struct OperandContext<'c> {
    program: &'c Program,
    stmt: &'c OpStmt,
    value: ScalarEvaluator<'c>,
    position: usize,
    out: TensorId,
    /// Extents of the operand's dimensions.
    operand_extents: Vec<ExprId>,
    /// Extents of the result's dimensions.
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

    /// Returns the result's dimensions except those that count partial sums, which have no counterpart in the
    /// operands.
    fn own_dims(&self) -> Vec<usize> {
        let dims = self.program.dimensions(self.out).enumerate();
        dims.filter(|(_, axis)| !self.program.is_partial(self.out, *axis)).map(|(at, _)| at).collect()
    }

    /// Maps an operand of `x[…, k] · w[n, k]ᵀ + b[n]`.
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

    /// Maps an operand of `a[…, m, k] · b[…, k, n]`; `other` is the number of dimensions of the other
    /// operand.
    fn matmul(&self, other: usize) -> Vec<DimMap> {
        let (own, count, is_left) = (self.own_dims(), self.operand_extents.len(), self.position == 0);
        // A vector operand contributes no dimension to the result.
        let (left, right) = if is_left { (count, other) } else { (other, count) };
        let (rows, columns) = (usize::from(left > 1), usize::from(right > 1));
        // Dimensions are counted from the last one, because batch dimensions are aligned at the end.
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

    /// Maps an operand of `sdpa`, whose result is `out[…, l, e]`. Each batch element is independent of the others, and
    /// without a causal mask, which depends on the index of the row, so is each row of the query. In `sdpa_bwd`, the
    /// gradients of keys and values depend on all rows.
    fn attention(&self) -> Vec<DimMap> {
        let (count, dims) = (self.operand_extents.len(), self.result_extents.len());
        let Some(rows) = dims.checked_sub(2) else { return vec![DimMap::RequiresWhole; count] };
        let has_free_rows = self.stmt.op == Op::Sdpa && !self.stmt.may_be_causal(self.program);
        // A bias or mask `[…, l, s]` has the dimensions of the scores, aligned at the end.
        let is_score = self.position >= 3 && self.stmt.op == Op::Sdpa;
        let has_rows = has_free_rows && (self.position == 0 || is_score);
        // `logsum_exp` has no columns; the state of random numbers has fewer dimensions.
        let skipped = if is_score { dims.saturating_sub(count) } else { 0 };
        (0..count)
            .map(|at| match at + skipped {
                to if to < rows && count + skipped > rows => DimMap::Parallel(to),
                to if to == rows && has_rows => DimMap::Parallel(to),
                _ => DimMap::RequiresWhole,
            })
            .collect()
    }

    /// Maps the operand of a reduction: the result has the operand's axes, some of them as reduction axes.
    fn reduce(&self) -> Vec<DimMap> {
        let logical = &self.program.tensors[self.out].domains.logical;
        let is_reduction = |axis: &AxisId| self.program.axes[*axis].kind == AxisKind::Reduction;
        number_unmapped(logical.iter().map(|axis| is_reduction(axis).then_some(DimMap::Reduction)))
    }

    /// Returns the smallest groups of dimensions that have equal numbers of elements on both sides, or `None`
    /// if extents are not known or the groups do not match.
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

    /// Maps an operand of an operator with `TypeRule::Unchecked` that works along one axis: cat, pad, scan,
    /// sorting and indexing.
    ///
    /// Returns for each dimension of the operand the corresponding dimension of the result; `None` inside the
    /// vector if the operator needs the whole dimension.
    fn along_one_axis(&self) -> Option<Vec<Option<usize>>> {
        // Maps all dimensions except `dim` whose extents are equal on both sides.
        let others = |dim: usize| -> Vec<Option<usize>> {
            (0..self.operand_extents.len())
                .map(|at| (at != dim && self.is_same(at, at)).then_some(at))
                .collect()
        };
        let all = self.operand_extents.len();
        // As `others`, for operators that may use only a prefix of a longer operand, from index 0. Returns
        // `None` if an extent other than that of `dim` differs and is not 1.
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
                // With a maximum norm, each element depends on its whole row.
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

/// Assigns the result's dimensions in order to the dimensions that have no map yet.
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
