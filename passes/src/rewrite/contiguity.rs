//! Brings tensors into the layout that collectives need: dense, with the split or gathered axis outermost.
//!
//! A tensor is viewed as a list of sub-axes, the pieces of its dimensions in memory order. A collective along
//! device axis `x` moves equal contiguous parts. If other sub-axes precede `x` in memory, the parts are
//! permuted to the front before the collective, or back to their position after it.

use grammar::{
    DeviceDim, Domains, ExprId, Memory, Op, OpStmt, Operand, ParallelType, Program, TensorId, attr,
};
use hir_ir::build::{self, IrBuilder};

use crate::{
    analysis::sharding::{Dim, DimPiece, Sharding, same_extent},
    rewrite::sharded_tensors::{allocate_per_stream, part_extent},
};

/// A piece of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubAxis {
    /// Index of the dimension.
    pub dim: usize,
    /// The number of parts or elements.
    pub extent: ExprId,
    /// What the sub-axis is parallelized over.
    pub parallel: ParallelType,
}

impl SubAxis {
    /// Returns the same sub-axis, serial on every rank.
    pub fn serial(self) -> Self {
        Self { parallel: ParallelType::Serial, ..self }
    }

    /// Returns true if a rank holds more than one index of the sub-axis.
    pub fn has_local_extent(self, program: &Program) -> bool {
        self.parallel == ParallelType::Serial && program.constant(self.extent) != Some(1)
    }
}

/// Returns the sub-axes of a tensor with this sharding. Stream pieces count if a rank holds one slice
/// (`split`), or if they decide which elements a device holds.
pub fn sub_axes(program: &mut Program, sharding: &Sharding, split: bool) -> Vec<SubAxis> {
    let mut all = Vec::new();
    for (number, dim) in sharding.dims.iter().enumerate() {
        let mut rest = Some(dim.extent);
        for (at, piece) in dim.pieces.iter().enumerate() {
            let decides = dim.pieces[at + 1..].iter().any(|it| it.device().is_some());
            let parallel = match piece.parallel {
                ParallelType::Stream if split => ParallelType::Stream,
                ParallelType::Stream if decides => ParallelType::Serial,
                ParallelType::Stream => continue,
                other => other,
            };
            all.push(SubAxis { dim: number, extent: piece.count, parallel });
            rest = match rest {
                Some(rest) if !same_extent(program, rest, piece.count) => {
                    Some(part_extent(program, rest, piece.count))
                }
                Some(_) | None => None,
            };
        }
        all.extend(rest.map(|extent| SubAxis { dim: number, extent, parallel: ParallelType::Serial }));
    }
    all
}

/// Returns the index of the sub-axis of dimension `dim` that is parallelized over `device`.
pub fn device_axis_position(axes: &[SubAxis], dim: usize, device: DeviceDim) -> Option<usize> {
    axes.iter().position(|axis| axis.dim == dim && axis.parallel == ParallelType::Device(device))
}

/// Returns true if the sub-axis at `at` is the slowest in a rank's memory.
pub fn is_outermost(program: &Program, axes: &[SubAxis], at: usize) -> bool {
    axes[..at].iter().all(|axis| !axis.has_local_extent(program))
}

/// Returns the sub-axes with one moved to another position.
pub fn with_axis_moved(axes: &[SubAxis], from: usize, to: usize) -> Vec<SubAxis> {
    let mut axes = axes.to_vec();
    let axis = axes.remove(from);
    axes.insert(to, axis);
    axes
}

/// Creates a tensor with one dimension for each sub-axis, with the mesh and the element type of `like`.
pub fn tensor(program: &mut Program, builder: &mut IrBuilder, like: TensorId, axes: &[SubAxis]) -> TensorId {
    let dim = |axis: &SubAxis| {
        let piece = DimPiece { parallel: axis.parallel, count: axis.extent, swizzled: false };
        let pieces = if axis.parallel == ParallelType::Serial { Vec::new() } else { vec![piece] };
        Dim { pieces, ..Dim::whole(axis.extent) }
    };
    let mesh = program.tensors[like].mesh.clone();
    let tensor = Sharding { mesh, dims: axes.iter().map(dim).collect() }.new_tensor(
        program,
        builder,
        like,
        Memory::Global,
    );
    allocate_per_stream(program, tensor);
    tensor
}

/// Returns `out = Set.Permute( input )` and its result. The dimension `from` of the input, a tensor of
/// `axes`, becomes dimension `to` of the result.
pub fn permute_axis(
    program: &mut Program,
    builder: &mut IrBuilder,
    input: TensorId,
    axes: &[SubAxis],
    (from, to): (usize, usize),
) -> (TensorId, OpStmt) {
    // The result's axes are numbered in the operand's order. They are created in that order and then moved.
    let out = tensor(program, builder, input, axes);
    let move_axis = |axes: &mut Vec<_>| {
        let axis = axes.remove(from);
        axes.insert(to, axis);
    };
    let it = &mut program.tensors[out];
    move_axis(&mut it.loop_domain);
    let Domains { logical, allocation, .. } = &mut it.domains;
    move_axis(logical);
    allocation.iter_mut().for_each(move_axis);
    let mut order: Vec<usize> = (0..axes.len()).collect();
    let dim = order.remove(from);
    order.insert(to, dim);
    let stmt = permute_op(program, input, out, &order);
    (out, stmt)
}

/// Returns `out = Set.Permute( input )`, where dimension `i` of the result is dimension `order[i]` of the operand.
pub fn permute_op(program: &mut Program, input: TensorId, out: TensorId, order: &[usize]) -> OpStmt {
    let dims = order.iter().map(|dim| program.intern_int(*dim as i64)).collect();
    OpStmt { attrs: vec![attr::DIMS.with(dims)], ..unary_op(Op::Permute, input, out) }
}

/// Returns `out = op( input )`.
pub fn unary_op(op: Op, input: TensorId, out: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(out)], args: vec![Operand::Tensor(input)], ..build::op(op) }
}
