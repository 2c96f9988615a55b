//! Which axes are worth cutting: those along which resharding can overlap with what comes before or behind.

use grammar::{
    ir::{Program, Stmt, TensorId},
    ops::Rule,
};

use crate::{
    component::computes,
    decompose_resharding::is_copy,
    dims::{self, Fate},
    reshard::{self, Step},
    sharding::Sharding,
};

/// A dimension to cut, and into how many chunks.
pub(super) struct Target {
    pub(super) tensor: TensorId,
    pub(super) dim: usize,
    pub(super) count: i64,
}

/// An all-gather is cut into one chunk a device, and so is what a reduce-scatter takes; an all-reduce into `count` chunks
/// of its outermost dimension, or as many fewer as divide it.
pub(super) fn targets(program: &Program, count: i64) -> Vec<Target> {
    let mut found = Vec::new();
    for stmt in program.body() {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        let ([arg], Some(out), true) = (&dims::operands(it)[..], it.out_tensor(), computes(it)) else {
            continue;
        };
        let (Some(from), Some(to)) = (Sharding::of(program, *arg), Sharding::of(program, out)) else {
            continue;
        };
        let target = match it.op.row().rule {
            Rule::Same if is_copy(it) => gathered(program, &from, out, &to),
            Rule::Reduce => {
                let fates = dims::fates(program, it, &[*arg], 0).unwrap_or_default();
                summed(program, *arg, &from, &fates, out, &to, count)
            }
            _ => None,
        };
        found.extend(target.filter(|it| it.count > 1));
    }
    found
}

fn gathered(program: &Program, from: &Sharding, out: TensorId, to: &Sharding) -> Option<Target> {
    let Step::Allgather { dim, device } = reshard::step(program, from, to)? else { return None };
    let alone = from.dims[dim].pieces.len() == 1;
    let count = to.mesh.extent(device) as i64;
    alone.then_some(Target { tensor: out, dim, count })
}

fn summed(
    program: &Program,
    arg: TensorId,
    from: &Sharding,
    fates: &[Fate],
    out: TensorId,
    to: &Sharding,
    count: i64,
) -> Option<Target> {
    let at = fates.iter().position(|fate| *fate == Fate::Summed)?;
    let device = from.dims[at].devices().next()?;
    let mut kept = from.clone();
    kept.dims.remove(at);
    match reshard::step(program, &kept, to)? {
        Step::Scatter { dim, .. } => {
            let dim = fates.iter().position(|fate| *fate == Fate::Kept(dim))?;
            Some(Target { tensor: arg, dim, count: to.mesh.extent(device) as i64 })
        }
        Step::Local => {
            let wide = |dim: &usize| {
                let extent = program.constant(to.dims[*dim].extent);
                to.dims[*dim].pieces.is_empty() && extent != Some(1)
            };
            let dim = (0..to.dims.len()).find(wide)?;
            let extent = program.constant(to.dims[dim].extent);
            let count = (2..=count).rev().find(|count| extent.is_none_or(|extent| extent % count == 0))?;
            Some(Target { tensor: out, dim, count })
        }
        Step::Broadcast
        | Step::Allgather { .. }
        | Step::Gather { .. }
        | Step::AllToAll { .. }
        | Step::SendRecv => None,
    }
}
