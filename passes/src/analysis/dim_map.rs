//! Maps dimensions of operands to dimensions of the result, with reshapes resolved by the tensors' shardings.

use std::ops::Range;

use grammar::{DimGroup, DimMap, ExprId, OpStmt, OperandMap, Program, TensorId, operand_map};

use crate::analysis::sharding::{Dim, Sharding};

/// Returns the role in the result of each dimension of the operand at `position` among `tensor_operands`.
/// Returns `None` if the operator moves elements in a way that a dimension map cannot express.
pub fn dim_map(program: &Program, stmt: &OpStmt, position: usize) -> Option<Vec<DimMap>> {
    match operand_map(program, stmt, position, &|it| program.constant(it))? {
        OperandMap::Dims(dims) => dims
            .into_iter()
            .enumerate()
            .map(|(at, map)| match map {
                DimMap::InGroups { to, count } => dim_in_groups(program, stmt, position, (at, to), count),
                map => Some(map),
            })
            .collect(),
        OperandMap::Groups(groups) => {
            reshape_dim_map(program, *stmt.tensor_operands().get(position)?, stmt.out_tensor()?, &groups)
        }
    }
}

/// Returns `dim_map` of all operands.
pub fn dim_maps(program: &Program, stmt: &OpStmt) -> Option<Vec<Vec<DimMap>>> {
    (0..stmt.tensor_operands().len()).map(|at| dim_map(program, stmt, at)).collect()
}

/// Resolves `DimMap::InGroups`: whether both dimensions are cut between groups.
fn dim_in_groups(
    program: &Program,
    stmt: &OpStmt,
    position: usize,
    (at, to): (usize, usize),
    groups: i64,
) -> Option<DimMap> {
    let arg = Sharding::of(program, *stmt.tensor_operands().get(position)?)?;
    let out = Sharding::of(program, stmt.out_tensor()?)?;
    let is_between = |dim: Option<&Dim>| {
        dim.and_then(|it| parts(program, it)).is_some_and(|it| it > 0 && groups % it == 0)
    };
    let is_parallel = is_between(arg.dims.get(at)) && is_between(out.dims.get(to));
    Some(if is_parallel { DimMap::Parallel(to) } else { DimMap::RequiresWhole })
}

/// Returns the number of parts of a dimension.
fn parts(program: &Program, dim: &Dim) -> Option<i64> {
    dim.pieces.iter().try_fold(1i64, |parts, piece| parts.checked_mul(program.constant(piece.count)?))
}

/// Maps the first dimension of each group whose extent is not 1 to that of its counterpart, if the number of
/// parts of each of the two divides both extents. All other dimensions are required whole.
fn reshape_dim_map(
    program: &Program,
    arg: TensorId,
    out: TensorId,
    groups: &[DimGroup],
) -> Option<Vec<DimMap>> {
    let (arg, out) = (Sharding::of(program, arg)?, Sharding::of(program, out)?);
    let divides =
        |parts: i64, dim: &Dim| parts > 0 && program.constant(dim.extent).is_some_and(|it| it % parts == 0);
    let wide = |sharding: &Sharding, mut dims: Range<usize>| {
        dims.find(|at| program.constant(sharding.dims[*at].extent) != Some(1))
    };
    let mut maps = vec![DimMap::RequiresWhole; arg.dims.len()];
    for group in groups {
        let (Some(a), Some(b)) = (wide(&arg, group.operand.clone()), wide(&out, group.result.clone())) else {
            continue;
        };
        let (from, to) = (&arg.dims[a], &out.dims[b]);
        let (of_a, of_b) = (parts(program, from)?, parts(program, to)?);
        if [of_a, of_b].iter().all(|it| divides(*it, from) && divides(*it, to)) {
            maps[a] = DimMap::Parallel(b);
        }
    }
    Some(maps)
}

/// Returns the extent of a dimension.
pub fn extent(program: &Program, tensor: TensorId, dim: usize) -> Option<ExprId> {
    let axis = program.dimensions(tensor).nth(dim)?;
    Some(program.axes[axis].expanded.unwrap_or(program.axes[axis].extent))
}

/// Returns true if a dimension enumerates partial sums over devices.
pub fn is_partial(program: &Program, tensor: TensorId, dim: usize) -> bool {
    program.dimensions(tensor).nth(dim).is_some_and(|axis| program.is_partial(tensor, axis))
}
