//! swizzle-stream: rotates stream axes, so that each rank begins with its own chunk.
//!
//! Before:
//! ```text
//! T1[istreamIdx6{4}, iS5{6}] = Set( T0[ideviceIdx.x2{4}, iS3{6}] )
//!
//! T1: logical(iS1{24}), outer_split(iS1{24}, 4) -> (istreamIdx6{4}, iS5{6})
//! ```
//! After:
//! ```text
//! T1[istreamIdx6{4}, iS5{6}] = Set( T0[ideviceIdx.x2{4}, iS3{6}] )
//!
//! T1: logical(iS1{24}), outer_split(iS1{24}, 4) -> (iS4{4}, iS5{6}), swizzle1d(iS4{4}) -> (istreamIdx6{4})
//! ```
//!
//! Index `i` of the axis on rank `r` is then chunk `(i + r) % 4`, so in every iteration each rank receives
//! another rank's shard. The pass rotates an axis only if each chunk comes from one device, in all tensors
//! that share the axis. If ranks have to work on the same chunk at a time, as in an all-reduce of each chunk,
//! it changes nothing.

use grammar::{Diagnostic, Program, Stmt, TensorId};
use hir_ir::{blocks::nested_blocks, build::IrBuilder};

use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, EquivalentDims},
        reshard::{self, ReshardStep},
        sharding::{Sharding, same_extent},
    },
    pass::{Arguments, Change, Pass, Remarks},
    transform::{
        chunk::{AxisUsers, replace_dim},
        decompose_resharding::is_copy,
    },
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("swizzle-stream", include_str!("swizzle_stream.rs"), run)
    .about("rotate stream axes of gathered tensors, so that each rank begins with its own chunk");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    Ok(Change::from_flag(rotate(program, None)))
}

/// Rotates every stream axis that can be rotated, or only the axis that `only` contains. Returns whether it
/// rotated any.
pub(crate) fn rotate(program: &mut Program, only: Option<&EquivalentDims>) -> bool {
    let (mut fresh, mut users) = (IrBuilder::of(program), AxisUsers::of(program));
    let mut changed = false;
    let shared = DimEquivalence::of(program);
    for (tensor, dim) in gathered(program) {
        let Ok(component) = shared.dims_equivalent_to(tensor, dim) else { continue };
        let is_asked = only.is_none_or(|only| only.dim(tensor) == Some(dim));
        if !is_asked || !can_rotate(program, &component, tensor) || is_in_loop(program, &component) {
            continue;
        }
        for (tensor, dim) in component.dims.iter().copied() {
            let Some(sharding) = Sharding::of(program, tensor) else { continue };
            let mut cut = sharding.dims[dim].clone();
            for piece in &mut cut.pieces {
                piece.swizzled = piece.device().is_none();
            }
            if cut != sharding.dims[dim] {
                replace_dim(program, (&mut fresh, &mut users), tensor, dim, &cut);
                changed = true;
            }
        }
    }
    changed
}

/// Returns whether a loop or branch takes chunks of a tensor already, counting from 0.
fn is_in_loop(program: &Program, component: &EquivalentDims) -> bool {
    let Some(body) = program.body else { return false };
    nested_blocks(program, body)
        .into_iter()
        .filter(|block| *block != body)
        .any(|block| program.block(block).iter().any(|stmt| component.is_mentioned_by(program, *stmt)))
}

/// Returns the results of all-gathers in which each chunk is one device's shard, with the gathered dimension.
fn gathered(program: &Program) -> Vec<(TensorId, usize)> {
    let mut found = Vec::new();
    for stmt in program.body() {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        let ([arg], Some(out), true) = (&it.tensor_operands()[..], it.out_tensor(), is_copy(it)) else {
            continue;
        };
        let (Some(from), Some(to)) = (Sharding::of(program, *arg), Sharding::of(program, out)) else {
            continue;
        };
        let Some(ReshardStep::Allgather { dim, .. }) = reshard::step(program, &from, &to) else { continue };
        if let ([shard], [stream]) = (&from.dims[dim].pieces[..], &to.dims[dim].pieces[..])
            && same_extent(program, shard.count, stream.count)
            && to.mesh.shape.len() == 1
        {
            found.push((out, dim));
        }
    }
    found
}

/// Returns whether ranks can work on different chunks: apart from the all-gather itself, no statement on the
/// axis reshards.
fn can_rotate(program: &Program, component: &EquivalentDims, gathered: TensorId) -> bool {
    let inputs: Vec<TensorId> = Program::tensors_of(&program.inputs).collect();
    let streamed = component.dims.iter().all(|(tensor, dim)| {
        !inputs.contains(tensor)
            && Sharding::of(program, *tensor).is_some_and(|it| it.dims[*dim].pieces.len() == 1)
    });
    let local = program.body().iter().all(|stmt| {
        let Stmt::Op(it) = &program.stmts[*stmt] else { return true };
        let Some(out) = it.out_tensor().filter(|_| it.computes()) else { return true };
        let args = it.tensor_operands();
        if out == gathered || !args.iter().any(|arg| component.dim(*arg).is_some()) {
            return true;
        }
        let devices =
            |tensor: TensorId| Sharding::of(program, tensor).map(|it| (it.mesh.clone(), it.is_replicated()));
        args.iter().all(|arg| component.dim(*arg).is_none() || devices(*arg) == devices(out))
    });
    streamed && local
}
