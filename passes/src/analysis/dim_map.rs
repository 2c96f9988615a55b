//! Which dimension of an operand is which dimension of the result, as passes ask for it.

use std::ops::Range;

use grammar::{
    DimGroup, DimMap, OperandMap,
    ir::{ExprId, OpStmt, Program, TensorId},
    operand_map,
};

use crate::analysis::sharding::{Dim, Sharding};

/// What the dimensions of the operand at `position` among `tensor_operands` are for the result; `None` where the operator moves
/// elements in a way that is not told by dimensions.
pub(crate) fn dim_map(program: &Program, stmt: &OpStmt, position: usize) -> Option<Vec<DimMap>> {
    match operand_map(program, stmt, position, &|it| program.constant(it))? {
        OperandMap::Dims(dims) => Some(dims),
        OperandMap::Groups(groups) => {
            reshape_dim_map(program, *stmt.tensor_operands().get(position)?, stmt.out_tensor()?, &groups)
        }
    }
}

/// As `dim_map`, of all operands.
pub(crate) fn dim_maps(program: &Program, stmt: &OpStmt) -> Option<Vec<Vec<DimMap>>> {
    (0..stmt.tensor_operands().len()).map(|at| dim_map(program, stmt, at)).collect()
}

/// What cuts the first dimension of a group cuts the first one of its counterpart, if it divides both; the others are needed
/// whole.
fn reshape_dim_map(
    program: &Program,
    arg: TensorId,
    out: TensorId,
    groups: &[DimGroup],
) -> Option<Vec<DimMap>> {
    let (arg, out) = (Sharding::of(program, arg)?, Sharding::of(program, out)?);
    let parts = |dim: &Dim| -> Option<i64> {
        dim.pieces.iter().try_fold(1i64, |parts, piece| parts.checked_mul(program.constant(piece.count)?))
    };
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
        let (of_a, of_b) = (parts(from)?, parts(to)?);
        if [of_a, of_b].iter().all(|it| divides(*it, from) && divides(*it, to)) {
            maps[a] = DimMap::Parallel(b);
        }
    }
    Some(maps)
}

/// The extent of a dimension.
pub(crate) fn extent(program: &Program, tensor: TensorId, dim: usize) -> Option<ExprId> {
    let axis = program.dimensions(tensor).nth(dim)?;
    Some(program.axes[axis].expanded.unwrap_or(program.axes[axis].extent))
}

/// Whether a dimension counts partial sums over devices.
pub(crate) fn is_partial(program: &Program, tensor: TensorId, dim: usize) -> bool {
    program.dimensions(tensor).nth(dim).is_some_and(|axis| program.is_partial(tensor, axis))
}
