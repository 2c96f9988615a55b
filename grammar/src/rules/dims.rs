//! Maps between the dimensions of an operator's operands and of its result. Its type rule determines them.

use std::ops::Range;

use crate::ir::{AxisId, ExprId, OpStmt, Program, TensorId};

/// The relation of an operand's dimension to the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimMap {
    /// The dimension corresponds to this dimension of the result, index by index.
    Parallel(usize),
    /// The dimension and dimension `to` of the result consist of the same number of groups, whose indices correspond group by
    /// group: as `Parallel` if both are cut between groups, else as `RequiresWhole`.
    InGroups {
        /// The dimension of the result.
        to: usize,
        /// The number of groups.
        count: i64,
    },
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
    let arg = *stmt.tensor_operands().get(position)?;
    let (operand_extents, result_extents) = (extents(program, arg), extents(program, out));
    let operand = MappedOperand { program, stmt, value, position, arg, out, operand_extents, result_extents };
    let dims = match stmt.rule().operand_map(&operand)? {
        OperandMap::Dims(dims) => dims,
        OperandMap::Groups(groups) => return Some(OperandMap::Groups(groups)),
    };
    let count = operand.operand_extents.len();
    let repeated = dims.into_iter().enumerate().map(|(at, map)| match map {
        DimMap::Parallel(to) | DimMap::InGroups { to, .. } if operand.is_repeated(at, to) => {
            DimMap::Broadcast(to)
        }
        map => map,
    });
    let dims: Vec<DimMap> = repeated.collect();
    (dims.len() == count).then_some(OperandMap::Dims(dims))
}

/// Returns for each dimension of the result its relation to the operands, given the operands' maps.
pub fn result_dims(program: &Program, stmt: &OpStmt, maps: &[Vec<DimMap>]) -> Vec<ResultDim> {
    let Some(out) = stmt.out_tensor() else { return Vec::new() };
    let rule = stmt.rule();
    let is_mapped = |at: usize| {
        maps.iter()
            .flatten()
            .any(|it| matches!(it, DimMap::Parallel(to) | DimMap::InGroups { to, .. } if *to == at))
    };
    let dims = program.dimensions(out).enumerate();
    dims.map(
        |(at, axis)| if is_mapped(at) { ResultDim::Mapped } else { rule.unmapped_dim(program, stmt, axis) },
    )
    .collect()
}

/// Returns for each dimension of the result at `position` the dimension of the first result that corresponds to it, index
/// by index. The maps of operands are those to the first result.
pub fn dims_of_first_result(program: &Program, stmt: &OpStmt, position: usize) -> Vec<Option<usize>> {
    let mut outs = Program::tensors_of(&stmt.outs);
    let (Some(first), Some(out)) = (stmt.out_tensor(), outs.nth(position)) else { return Vec::new() };
    let (first, own) = (extents(program, first), extents(program, out));
    let value = |it| program.constant(it);
    let is_same = own.len() == first.len() && own.iter().zip(&first).all(|(a, b)| are_equal(&value, *a, *b));
    let corresponds = stmt.rule().has_dims_of_first_result(position, is_same);
    (0..own.len()).map(|at| (corresponds && at < first.len()).then_some(at)).collect()
}

/// A statement and one of its operands, which a rule maps to the first result.
pub struct MappedOperand<'c> {
    pub(super) program: &'c Program,
    pub(super) stmt: &'c OpStmt,
    pub(super) value: ScalarEvaluator<'c>,
    /// The position of the operand among `OpStmt::tensor_operands`.
    pub(super) position: usize,
    /// The operand.
    pub(super) arg: TensorId,
    /// The first result.
    pub(super) out: TensorId,
    /// Extents of the operand's dimensions.
    pub(super) operand_extents: Vec<ExprId>,
    /// Extents of the result's dimensions.
    pub(super) result_extents: Vec<ExprId>,
}

impl MappedOperand<'_> {
    /// Maps each dimension to the one at the same place.
    pub(super) fn each_dim(&self) -> Vec<DimMap> {
        (0..self.operand_extents.len()).map(DimMap::Parallel).collect()
    }

    pub(super) fn is_one(&self, extents: &[ExprId], at: usize) -> bool {
        extents.get(at).and_then(|it| (self.value)(*it)) == Some(1)
    }

    pub(super) fn is_repeated(&self, at: usize, to: usize) -> bool {
        self.is_one(&self.operand_extents, at) && !self.is_one(&self.result_extents, to)
    }

    pub(super) fn is_same(&self, mine: usize, theirs: usize) -> bool {
        let extents = self.operand_extents.get(mine).zip(self.result_extents.get(theirs));
        extents.is_some_and(|(a, b)| are_equal(self.value, *a, *b))
    }

    /// Returns the result's dimensions except those that count partial sums, which have no counterpart in the
    /// operands.
    pub(super) fn own_dims(&self) -> Vec<usize> {
        let dims = self.program.dimensions(self.out).enumerate();
        dims.filter(|(_, axis)| !self.program.is_partial(self.out, *axis)).map(|(at, _)| at).collect()
    }
}

pub(super) fn parallel_or_whole(to: Option<usize>) -> DimMap {
    to.map_or(DimMap::RequiresWhole, DimMap::Parallel)
}

/// Assigns the result's dimensions in order to the dimensions that have no map yet.
pub(super) fn number_unmapped(maps: impl Iterator<Item = Option<DimMap>>) -> Vec<DimMap> {
    let mut next = 0..;
    maps.map(|it| it.unwrap_or_else(|| parallel_or_whole(next.next()))).collect()
}

/// Returns whether a dimension of a matrix product counts partial sums; no operand has it otherwise.
pub(super) fn partial_or_broadcast(program: &Program, stmt: &OpStmt, axis: AxisId) -> ResultDim {
    let is_partial = stmt.out_tensor().is_some_and(|out| program.is_partial(out, axis));
    if is_partial { ResultDim::Partial } else { ResultDim::Broadcast }
}

pub(super) fn are_equal(value: ScalarEvaluator<'_>, a: ExprId, b: ExprId) -> bool {
    a == b || matches!((value(a), value(b)), (Some(a), Some(b)) if a == b)
}

pub(super) fn extents(program: &Program, tensor: TensorId) -> Vec<ExprId> {
    let axes = program.dimensions(tensor).map(|axis| &program.axes[axis]);
    axes.map(|axis| axis.expanded.unwrap_or(axis.extent)).collect()
}
