//! How shardings go through an operator: from the result to the operands, and back.

use grammar::{
    ir::{OpStmt, Parallel, Program, TensorId},
    ops::Rule,
};

use crate::analysis::{
    dims::{self, Fate},
    reshard::{self, Step},
    sharding::{Dim, Piece, Sharding},
};

/// What an operator needs of each operand for its result to be spread as `goal` says.
pub(crate) fn needs(
    program: &Program,
    args: &[TensorId],
    fates: &[Vec<Fate>],
    goal: &Sharding,
) -> Vec<Sharding> {
    // A product whose result counts partial sums has its summed axis on the devices that they are counted over.
    let partial = goal.dims.iter().find(|dim| dim.partial).map_or(&[][..], |dim| &dim.pieces);
    needs_with(program, args, fates, goal, partial)
}

/// As `needs`, with the axes that the operator sums over cut as `summed` says.
pub(crate) fn needs_with(
    program: &Program,
    args: &[TensorId],
    fates: &[Vec<Fate>],
    goal: &Sharding,
    summed: &[Piece],
) -> Vec<Sharding> {
    let need = |arg: &TensorId, fates: &Vec<Fate>| {
        let dims = fates.iter().enumerate().filter_map(|(at, fate)| {
            let extent = dims::extent(program, *arg, at)?;
            let pieces = match fate {
                Fate::Kept(to) => goal.dims[*to].pieces.clone(),
                Fate::Summed => summed.to_vec(),
                Fate::Whole => Vec::new(),
            };
            Some(Dim { pieces, ..Dim::whole(extent) })
        });
        Sharding { mesh: goal.mesh.clone(), dims: dims.collect() }
    };
    args.iter().zip(fates).map(|(arg, fates)| need(arg, fates)).collect()
}

/// Whether every device has what is needed of each operand.
pub(crate) fn is_local(program: &Program, from: &[Sharding], needs: &[Sharding]) -> bool {
    from.iter().zip(needs).all(|(from, need)| reshard::step(program, from, need) == Some(Step::Local))
}

/// How the result is spread if no operand moves; `None` where they do not agree.
pub(crate) fn result_of(from: &[Sharding], fates: &[Vec<Fate>], goal: &Sharding) -> Option<Sharding> {
    let mut spread = from.iter().filter(|it| !it.is_replicated()).map(|it| &it.mesh);
    let mesh = spread.next()?;
    // Partial sums are counted where the result says.
    if spread.any(|it| it != mesh) || goal.dims.iter().any(|dim| dim.partial) {
        return None;
    }
    let mut result = goal.without_streams().on(mesh.clone());
    result.dims.iter_mut().for_each(|dim| dim.pieces.clear());
    for (sharding, fates) in from.iter().zip(fates) {
        for (dim, fate) in sharding.dims.iter().zip(fates) {
            match fate {
                Fate::Kept(to) if dim.devices().next().is_some() => {
                    result.dims[*to].pieces = dim.without_streams().pieces;
                }
                Fate::Summed if dim.devices().next().is_some() => return None,
                Fate::Kept(_) | Fate::Summed | Fate::Whole => (),
            }
        }
    }
    // One device axis spreads one dimension, and there is one stream.
    let all: Vec<Parallel> = result.dims.iter().flat_map(|dim| &dim.pieces).map(|it| it.parallel).collect();
    let is_twice = |at: usize| all[..at].contains(&all[at]);
    (!(0..all.len()).any(is_twice)).then_some(result)
}

/// The result's sharding without the pieces that an operator cannot compute by themselves: a slice, a reshape, a cat or a
/// scan across them.
pub(crate) fn own_parts(it: &OpStmt, fates: &[Vec<Fate>], goal: &Sharding) -> Sharding {
    let mut own = goal.clone();
    if matches!(it.op.row().rule, Rule::Slice | Rule::Reshape | Rule::Free) && !fates.is_empty() {
        for (at, dim) in own.dims.iter_mut().enumerate() {
            if !fates.iter().any(|fates| fates.contains(&Fate::Kept(at))) {
                *dim = dim.without_devices();
            }
        }
    }
    own
}
