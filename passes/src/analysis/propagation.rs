//! Propagates shardings through an operator, from the result to the operands and back.

use grammar::{DimMap, OpStmt, ParallelType, Program, ResultDim, TensorId, result_dims};

use crate::analysis::{
    dim_map,
    reshard::{self, ReshardStep},
    sharding::{Dim, DimPiece, Sharding},
};

/// Returns the sharding that an operator needs of each operand to produce a result sharded as `goal`.
pub fn operand_shardings(
    program: &Program,
    args: &[TensorId],
    maps: &[Vec<DimMap>],
    goal: &Sharding,
) -> Vec<Sharding> {
    // If a matmul's result enumerates partial sums, its reduction axis is sharded over the same devices.
    // Partial sums that an operand already enumerates are an ordinary dimension.
    let is_mapped = |at: usize| maps.iter().flatten().any(|map| *map == DimMap::Parallel(at));
    let mut dims = goal.dims.iter().enumerate();
    let partial = dims.find(|(at, dim)| dim.partial && !is_mapped(*at));
    operand_shardings_with_reduction(
        program,
        args,
        maps,
        goal,
        partial.map_or(&[][..], |(_, dim)| &dim.pieces),
    )
}

/// Like `operand_shardings`, with the reduction axes of the operator split into the pieces `summed`.
pub fn operand_shardings_with_reduction(
    program: &Program,
    args: &[TensorId],
    maps: &[Vec<DimMap>],
    goal: &Sharding,
    summed: &[DimPiece],
) -> Vec<Sharding> {
    let need = |arg: &TensorId, maps: &Vec<DimMap>| {
        let dims = maps.iter().enumerate().filter_map(|(at, map)| {
            let extent = dim_map::extent(program, *arg, at)?;
            let pieces = match map {
                DimMap::Parallel(to) => goal.dims[*to].pieces.clone(),
                DimMap::Reduction => summed.to_vec(),
                DimMap::InGroups { .. } | DimMap::Broadcast(_) | DimMap::RequiresWhole => Vec::new(),
            };
            Some(Dim { pieces, ..Dim::whole(extent) })
        });
        Sharding { mesh: goal.mesh.clone(), dims: dims.collect() }
    };
    args.iter().zip(maps).map(|(arg, maps)| need(arg, maps)).collect()
}

/// Returns true if every device already holds what the operator needs of each operand.
pub fn is_local(program: &Program, from: &[Sharding], needs: &[Sharding]) -> bool {
    from.iter().zip(needs).all(|(from, need)| reshard::step(program, from, need) == Some(ReshardStep::Local))
}

/// Returns the sharding of the result if no operand is resharded, or `None` if the operands' shardings are
/// incompatible.
pub fn local_result_sharding(from: &[Sharding], maps: &[Vec<DimMap>], goal: &Sharding) -> Option<Sharding> {
    let mut spread = from.iter().filter(|it| !it.is_replicated()).map(|it| &it.mesh);
    let mesh = spread.next()?;
    // The result alone decides where partial sums are enumerated.
    if spread.any(|it| it != mesh) || goal.dims.iter().any(|dim| dim.partial) {
        return None;
    }
    let mut result = goal.without_streams().on_mesh(mesh.clone());
    result.dims.iter_mut().for_each(|dim| dim.pieces.clear());
    for (sharding, maps) in from.iter().zip(maps) {
        for (dim, map) in sharding.dims.iter().zip(maps) {
            match map {
                DimMap::Parallel(to) if dim.devices().next().is_some() => {
                    result.dims[*to].pieces = dim.without_streams().pieces;
                }
                DimMap::Reduction if dim.devices().next().is_some() => return None,
                DimMap::Parallel(_)
                | DimMap::InGroups { .. }
                | DimMap::Broadcast(_)
                | DimMap::Reduction
                | DimMap::RequiresWhole => (),
            }
        }
    }
    // A device axis can shard only one dimension, and there is only one stream axis.
    let all: Vec<ParallelType> =
        result.dims.iter().flat_map(|dim| &dim.pieces).map(|it| it.parallel).collect();
    let is_twice = |at: usize| all[..at].contains(&all[at]);
    (!(0..all.len()).any(is_twice)).then_some(result)
}

/// Returns `goal` without device pieces in the dimensions that the operator cannot compute piecewise, such as
/// those of a slice, a reshape, a cat or a scan.
pub fn computable_sharding(
    program: &Program,
    it: &OpStmt,
    maps: &[Vec<DimMap>],
    goal: &Sharding,
) -> Sharding {
    let mut own = goal.clone();
    for (dim, result) in own.dims.iter_mut().zip(result_dims(program, it, maps)) {
        if result == ResultDim::RequiresWhole {
            *dim = dim.without_devices();
        }
    }
    own
}
