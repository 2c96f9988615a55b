//! Tensors as collectives want them: the axis that is cut up or put together outermost, in dense memory.
//!
//! A tensor is looked at as its leaves, the pieces of its dimensions in memory order, each a dimension of its own. A
//! collective along devices `x` moves equal parts, one after the other; where leaves stand before `x` in memory, the
//! parts are permuted to the front before, or to their place behind.

use grammar::{
    ir::{DeviceDim, Domains, ExprId, Memory, OpStmt, Operand, ParallelType, Program, TensorId},
    ops::Op,
};

use crate::{
    analysis::sharding::{Dim, DimPiece, Sharding, same_extent},
    rewrite::{
        builder::{self, IrBuilder},
        sharded_tensors::{allocate_per_stream, part_extent},
    },
};

/// A piece of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubAxis {
    /// The dimension.
    pub(crate) dim: usize,
    /// How many parts, or elements.
    pub(crate) extent: ExprId,
    /// What it is spread over.
    pub(crate) parallel: ParallelType,
}

impl SubAxis {
    /// The same, on every rank.
    pub(crate) fn serial(self) -> Self {
        Self { parallel: ParallelType::Serial, ..self }
    }

    /// Whether a rank holds more than one of it.
    pub(crate) fn has_local_extent(self, program: &Program) -> bool {
        self.parallel == ParallelType::Serial && program.constant(self.extent) != Some(1)
    }
}

/// The leaves of a tensor with this sharding. Streams count where a rank holds one slice (`split`), or where they decide
/// which elements a device has.
pub(crate) fn sub_axes(program: &mut Program, sharding: &Sharding, split: bool) -> Vec<SubAxis> {
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

/// Where the leaf of a dimension that is on these devices is.
pub(crate) fn device_axis_position(leaves: &[SubAxis], dim: usize, device: DeviceDim) -> Option<usize> {
    leaves.iter().position(|leaf| leaf.dim == dim && leaf.parallel == ParallelType::Device(device))
}

/// Whether the leaf at `at` is the slowest in memory, as far as a rank can tell.
pub(crate) fn is_outermost(program: &Program, leaves: &[SubAxis], at: usize) -> bool {
    leaves[..at].iter().all(|leaf| !leaf.has_local_extent(program))
}

/// A leaf moved to another place.
pub(crate) fn with_axis_moved(leaves: &[SubAxis], from: usize, to: usize) -> Vec<SubAxis> {
    let mut leaves = leaves.to_vec();
    let leaf = leaves.remove(from);
    leaves.insert(to, leaf);
    leaves
}

/// A new tensor with a dimension for each leaf, on the mesh and of the type of `like`.
pub(crate) fn tensor(
    program: &mut Program,
    fresh: &mut IrBuilder,
    like: TensorId,
    leaves: &[SubAxis],
) -> TensorId {
    let dim = |leaf: &SubAxis| {
        let piece = DimPiece { parallel: leaf.parallel, count: leaf.extent, swizzled: false };
        let pieces = if leaf.parallel == ParallelType::Serial { Vec::new() } else { vec![piece] };
        Dim { pieces, ..Dim::whole(leaf.extent) }
    };
    let mesh = program.tensors[like].mesh.clone();
    let tensor = Sharding { mesh, dims: leaves.iter().map(dim).collect() }.new_tensor(
        program,
        fresh,
        like,
        Memory::Global,
    );
    allocate_per_stream(program, tensor);
    tensor
}

/// `out = Set.Permute( input )`, where the dimension at `from` of the input, a tensor of `leaves`, is the one at `to` of
/// the result.
pub(crate) fn permute_axis(
    program: &mut Program,
    fresh: &mut IrBuilder,
    input: TensorId,
    leaves: &[SubAxis],
    (from, to): (usize, usize),
) -> (TensorId, OpStmt) {
    // The result's axes are numbered in the operand's order: made there, and moved then.
    let out = tensor(program, fresh, input, leaves);
    let move_axis = |axes: &mut Vec<_>| {
        let axis = axes.remove(from);
        axes.insert(to, axis);
    };
    let it = &mut program.tensors[out];
    move_axis(&mut it.loop_domain);
    let Domains { logical, allocation, .. } = &mut it.domains;
    move_axis(logical);
    allocation.iter_mut().for_each(move_axis);
    (out, unary_op(Op::Permute, input, out))
}

/// `out = op( input )`.
pub(crate) fn unary_op(op: Op, input: TensorId, out: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(out)], args: vec![Operand::Tensor(input)], ..builder::op(op) }
}
