//! Tensors as collectives want them: the axis that is cut up or put together outermost, in dense memory.
//!
//! A tensor is looked at as its leaves, the pieces of its dimensions in memory order, each a dimension of its own. A
//! collective along devices `x` moves equal parts, one after the other; where leaves stand before `x` in memory, the
//! parts are permuted to the front before, or to their place behind.

use grammar::{
    ir::{DeviceDim, Domains, ExprId, Memory, OpStmt, Operand, Parallel, Program, TensorId},
    ops::Op,
};

use crate::{
    analysis::sharding::{Dim, Piece, Sharding, same},
    rewrite::{
        create::{self, Fresh},
        sharded::{divide, split_by_stream},
    },
};

/// A piece of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leaf {
    /// The dimension.
    pub(crate) dim: usize,
    /// How many parts, or elements.
    pub(crate) extent: ExprId,
    /// What it is spread over.
    pub(crate) parallel: Parallel,
}

impl Leaf {
    /// The same, on every rank.
    pub(crate) fn serial(self) -> Self {
        Self { parallel: Parallel::Serial, ..self }
    }

    /// Whether a rank holds more than one of it.
    pub(crate) fn is_wide(self, program: &Program) -> bool {
        self.parallel == Parallel::Serial && program.constant(self.extent) != Some(1)
    }
}

/// The leaves of a tensor with this sharding. Streams count where a rank holds one slice (`split`), or where they decide
/// which elements a device has.
pub(crate) fn leaves(program: &mut Program, sharding: &Sharding, split: bool) -> Vec<Leaf> {
    let mut all = Vec::new();
    for (number, dim) in sharding.dims.iter().enumerate() {
        let mut rest = Some(dim.extent);
        for (at, piece) in dim.pieces.iter().enumerate() {
            let decides = dim.pieces[at + 1..].iter().any(|it| it.device().is_some());
            let parallel = match piece.parallel {
                Parallel::Stream if split => Parallel::Stream,
                Parallel::Stream if decides => Parallel::Serial,
                Parallel::Stream => continue,
                other => other,
            };
            all.push(Leaf { dim: number, extent: piece.count, parallel });
            rest = match rest {
                Some(rest) if !same(program, rest, piece.count) => Some(divide(program, rest, piece.count)),
                Some(_) | None => None,
            };
        }
        all.extend(rest.map(|extent| Leaf { dim: number, extent, parallel: Parallel::Serial }));
    }
    all
}

/// Where the leaf of a dimension that is on these devices is.
pub(crate) fn position(leaves: &[Leaf], dim: usize, device: DeviceDim) -> Option<usize> {
    leaves.iter().position(|leaf| leaf.dim == dim && leaf.parallel == Parallel::Device(device))
}

/// Whether the leaf at `at` is the slowest in memory, as far as a rank can tell.
pub(crate) fn is_outermost(program: &Program, leaves: &[Leaf], at: usize) -> bool {
    leaves[..at].iter().all(|leaf| !leaf.is_wide(program))
}

/// A leaf moved to another place.
pub(crate) fn moved(leaves: &[Leaf], from: usize, to: usize) -> Vec<Leaf> {
    let mut leaves = leaves.to_vec();
    let leaf = leaves.remove(from);
    leaves.insert(to, leaf);
    leaves
}

/// A new tensor with a dimension for each leaf, on the mesh and of the type of `like`.
pub(crate) fn tensor(program: &mut Program, fresh: &mut Fresh, like: TensorId, leaves: &[Leaf]) -> TensorId {
    let dim = |leaf: &Leaf| {
        let piece = Piece { parallel: leaf.parallel, count: leaf.extent, swizzled: false };
        let pieces = if leaf.parallel == Parallel::Serial { Vec::new() } else { vec![piece] };
        Dim { pieces, ..Dim::whole(leaf.extent) }
    };
    let mesh = program.tensors[like].mesh.clone();
    let tensor = Sharding { mesh, dims: leaves.iter().map(dim).collect() }.tensor(
        program,
        fresh,
        like,
        Memory::Global,
    );
    split_by_stream(program, tensor);
    tensor
}

/// `out = Set.Permute( input )`, where the dimension at `from` of the input, a tensor of `leaves`, is the one at `to` of
/// the result.
pub(crate) fn permuted(
    program: &mut Program,
    fresh: &mut Fresh,
    input: TensorId,
    leaves: &[Leaf],
    (from, to): (usize, usize),
) -> (TensorId, OpStmt) {
    // The result's axes are numbered in the operand's order: made there, and moved then.
    let out = tensor(program, fresh, input, leaves);
    let move_axis = |axes: &mut Vec<_>| {
        let axis = axes.remove(from);
        axes.insert(to, axis);
    };
    let it = &mut program.tensors[out];
    move_axis(&mut it.loops);
    let Domains { logical, allocation, .. } = &mut it.domains;
    move_axis(logical);
    allocation.iter_mut().for_each(move_axis);
    (out, copying(Op::Permute, input, out))
}

/// `out = op( input )`.
pub(crate) fn copying(op: Op, input: TensorId, out: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(out)], args: vec![Operand::Tensor(input)], ..create::op(op) }
}
