//! Finds the statements that communicate, and the axes that can be split into chunks so that the
//! communication overlaps with the computation before or after it.

use std::{ops::RangeInclusive, rc::Rc};

use crate::{
    analysis::{
        dim_equivalence::{Count, DimEquivalence, EquivalentDims, Reach},
        dim_map,
        reshard::{self, ReshardStep},
        sharding::{Sharding, local_bytes},
    },
    pass::Obstacle,
    transform::decompose_resharding::is_copy,
};
use grammar::{CommunicationType, DimMap, OpStmt, Program, Stmt, StmtId, TensorId, TypeRule};

use super::{DividedExtent, divided_extent};

/// A statement that moves data between devices, and how it can be split into chunks.
pub(crate) struct CommCandidate {
    /// The communication to which the statement is lowered.
    pub(crate) kind: CommunicationType,
    /// Whether the result is on another mesh than the operand.
    pub(crate) changes_mesh: bool,
    /// The number of devices of each team that communicates.
    pub(crate) devices: usize,
    /// The tensor that remarks name: the operand, or the result of a reduction.
    pub(crate) subject: TensorId,
    /// The tensor to split.
    pub(crate) tensor: TensorId,
    /// The dimensions of `tensor` that can be split, in order of preference.
    pub(crate) dims: Vec<usize>,
    /// The number of chunks, if the number of devices determines it.
    pub(crate) count: Option<i64>,
    /// The dimensions of `tensor` that can be split otherwise if the number of devices determines `count`: the communication
    /// leaves them alone.
    pub(crate) free_dims: Vec<usize>,
}

impl CommCandidate {
    /// Returns the size of the communication: the bytes of the tensor to split on a rank, which is the result of an all-gather and the
    /// operand of a reduction. It is 0 if an extent is no constant.
    pub(crate) fn bytes(&self, program: &Program) -> usize {
        local_bytes(program, self.tensor).unwrap_or(0)
    }

    /// Returns the bytes that each device sends if the communication moves as little as possible, as in the table of
    /// communications.
    pub(crate) fn sent_bytes(&self, program: &Program) -> usize {
        let bytes = self.bytes(program);
        if self.kind == CommunicationType::Gather {
            // It is lowered to messages: each device sends its part to each device of the result.
            let receivers = program.tensors[self.tensor].mesh.devices.len();
            return (bytes / self.devices.max(1)).saturating_mul(receivers);
        }
        let (sent, all) = self.kind.sent_part(self.devices);
        bytes.saturating_mul(sent).div_ceil(all)
    }
}

/// A dimension to split, and the number of chunks.
pub(crate) struct Chunking {
    /// The tensors that share the dimension, with its position in each.
    pub(crate) component: Rc<EquivalentDims>,
    pub(crate) count: i64,
}

/// Returns how to split the all-gathers, reduce-scatters and all-reduces of a program. An all-gather, and the
/// operand of a reduce-scatter, is split into one chunk per device. An all-reduce is split into `most`
/// chunks, or the largest smaller number that divides the dimension.
pub(super) fn auto_chunkings(program: &Program, most: i64) -> Vec<Chunking> {
    let shared = DimEquivalence::of(program);
    let exchanges = program.body().iter().flat_map(|stmt| comm_candidates(program, *stmt));
    let overlaps = |it: &CommCandidate| {
        matches!(
            it.kind,
            CommunicationType::Allgather | CommunicationType::ReduceScatter | CommunicationType::Allreduce
        )
    };
    exchanges
        .filter(overlaps)
        .filter_map(|it| choose_chunking(program, &shared, &it, most, Reach::Everywhere).ok())
        .collect()
}

/// The largest number of chunks that `choose_chunking` tries.
pub(crate) const MAX_COUNT: i64 = 1024;

/// Returns the communication of a statement, once for each way to split it in order of preference; nothing if the statement
/// does not communicate.
pub(crate) fn comm_candidates(program: &Program, stmt: StmtId) -> Vec<CommCandidate> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Vec::new() };
    let ([arg], Some(out), true) = (&it.tensor_operands()[..], it.out_tensor(), it.computes()) else {
        return Vec::new();
    };
    let (Some(from), Some(to)) = (Sharding::of(program, *arg), Sharding::of(program, out)) else {
        return Vec::new();
    };
    match it.op.def().type_rule {
        TypeRule::Same if is_copy(it) => copied(program, *arg, &from, out, &to),
        TypeRule::Reduce => summed(program, it, *arg, &from, out, &to).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn copied(
    program: &Program,
    arg: TensorId,
    from: &Sharding,
    out: TensorId,
    to: &Sharding,
) -> Vec<CommCandidate> {
    let is_free = |at: usize| is_splittable(program, from, at) && is_splittable(program, to, at);
    let free = || (0..to.dims.len().min(from.dims.len())).filter(|at| is_free(*at)).collect();
    let candidate = |kind, tensor, dims: Vec<usize>, devices, count: Option<i64>| {
        let changes_mesh = from.mesh != to.mesh;
        let mut free_dims: Vec<usize> = if count.is_some() { free() } else { Vec::new() };
        free_dims.retain(|at| !dims.contains(at));
        CommCandidate { kind, changes_mesh, devices, subject: arg, tensor, dims, count, free_dims }
    };
    let (kind, dims, devices, count) = match reshard::step(program, from, to) {
        None | Some(ReshardStep::Local | ReshardStep::Slice) => return Vec::new(),
        Some(ReshardStep::Allgather { dim, device }) => {
            let devices = to.mesh.extent(device);
            (CommunicationType::Allgather, vec![dim], devices, Some(devices as i64))
        }
        Some(ReshardStep::AllToAll { from: gone, to: new, device }) => {
            // Outer dimensions first, whose chunks are contiguous. Of the dimension that was sharded, a chunk is a part of what
            // each device has of the operand, and of the one that will be sharded, of what it has of the result.
            let (kind, devices) = (CommunicationType::AllToAll, to.mesh.extent(device));
            let ways = (0..to.dims.len()).filter_map(|at| match at {
                _ if at == gone => Some(candidate(kind, arg, vec![at], devices, None)),
                _ if at == new || is_free(at) => Some(candidate(kind, out, vec![at], devices, None)),
                _ => None,
            });
            return ways.collect();
        }
        Some(ReshardStep::AllToAllOfMeshes { .. }) => {
            (CommunicationType::AllToAll, free(), to.mesh.devices.len(), None)
        }
        Some(ReshardStep::Gather { .. }) => {
            (CommunicationType::Gather, free(), from.mesh.devices.len(), None)
        }
        Some(ReshardStep::Scatter { .. }) => {
            (CommunicationType::Scatter, free(), to.mesh.devices.len(), None)
        }
        Some(ReshardStep::Broadcast) => (CommunicationType::Broadcast, free(), to.mesh.devices.len(), None),
        Some(ReshardStep::SendRecv) => (CommunicationType::SendRecv, free(), 2, None),
    };
    vec![candidate(kind, out, dims, devices, count)]
}

fn summed(
    program: &Program,
    it: &OpStmt,
    arg: TensorId,
    from: &Sharding,
    out: TensorId,
    to: &Sharding,
) -> Option<CommCandidate> {
    let maps = dim_map::dim_map(program, it, 0)?;
    let spread = |at: &usize| maps[*at] == DimMap::Reduction && from.dims[*at].devices().next().is_some();
    let summed: Vec<usize> = (0..maps.len()).filter(spread).collect();
    if summed.is_empty() {
        return None;
    }
    let kept = from.without_dims(&summed);
    let devices =
        summed.iter().flat_map(|at| from.dims[*at].devices()).map(|it| from.mesh.extent(it)).product();
    let all = |kind, tensor, dims, count| {
        let changes_mesh = from.mesh != to.mesh;
        Some(CommCandidate {
            kind,
            changes_mesh,
            devices,
            subject: out,
            tensor,
            dims,
            count,
            free_dims: Vec::new(),
        })
    };
    if from.mesh != to.mesh {
        return all(CommunicationType::Reduce, out, Vec::new(), None);
    }
    if let Some((dim, device)) = reshard::scattered_piece(program, &kept, to) {
        let dim = maps.iter().position(|map| *map == DimMap::Parallel(dim))?;
        let is_free = |at: &usize| {
            matches!(maps[*at], DimMap::Parallel(dim) if is_splittable(program, to, dim))
                && is_splittable(program, from, *at)
        };
        let free_dims = (0..maps.len()).filter(|at| *at != dim && is_free(at)).collect();
        let count = Some(to.mesh.extent(device) as i64);
        return all(CommunicationType::ReduceScatter, arg, vec![dim], count)
            .map(|it| CommCandidate { free_dims, ..it });
    }
    match reshard::step(program, &kept, to) {
        Some(ReshardStep::Local) => {
            let dims = (0..to.dims.len()).filter(|at| is_splittable(program, to, *at)).collect();
            all(CommunicationType::Allreduce, out, dims, None)
        }
        Some(
            ReshardStep::Slice
            | ReshardStep::Broadcast
            | ReshardStep::Allgather { .. }
            | ReshardStep::Gather { .. }
            | ReshardStep::Scatter { .. }
            | ReshardStep::AllToAll { .. }
            | ReshardStep::AllToAllOfMeshes { .. }
            | ReshardStep::SendRecv,
        )
        | None => all(CommunicationType::Reduce, out, Vec::new(), None),
    }
}

/// Returns whether a dimension has no stream pieces and has more than one element.
fn is_splittable(program: &Program, sharding: &Sharding, at: usize) -> bool {
    sharding.dims[at].stream().is_none() && program.constant(sharding.dims[at].extent) != Some(1)
}

/// Chooses the first dimension that can be split in all tensors within `reach` that share it, into `most` chunks or the
/// largest smaller number that divides it in all of them.
///
/// # Errors
/// Returns the reason why no dimension can be split.
pub(crate) fn choose_chunking(
    program: &Program,
    shared: &DimEquivalence,
    it: &CommCandidate,
    most: i64,
    reach: Reach,
) -> Result<Chunking, Obstacle> {
    let mut reason = None;
    for dim in &it.dims {
        let component = match shared.dims_within(reach, it.tensor, *dim) {
            Ok(component) => component,
            Err(twice) => {
                let name = program.tensor_name(twice);
                reason.get_or_insert_with(|| Obstacle::from(format!("`{name}` has the axis to split twice")));
                continue;
            }
        };
        let counts = it.count.map_or(2..=most.min(MAX_COUNT), |count| count..=count);
        let key = (*counts.start(), *counts.end());
        let known = component.counts.borrow().get(&key).cloned();
        let found = known.unwrap_or_else(|| {
            let found = count_of_chunks(program, shared, &component, counts);
            component.counts.borrow_mut().insert(key, found.clone());
            found
        });
        match found {
            Ok(count) => return Ok(Chunking { component, count }),
            Err(why) => reason = reason.or(why),
        }
    }
    Err(reason.unwrap_or_else(|| Obstacle::from("it has no dimension that can be split into chunks")))
}

/// Returns the largest of these numbers of chunks into which all dimensions can be split, or why there is none.
fn count_of_chunks(
    program: &Program,
    shared: &DimEquivalence,
    component: &EquivalentDims,
    counts: RangeInclusive<i64>,
) -> Count {
    let mut possible: Vec<i64> = counts.clone().filter(|count| *count > 1).collect();
    for at in &component.dims {
        let Some(extent) = shared.extent(*at, || divided_extent(program, at.0, at.1)).map_err(Some)? else {
            continue;
        };
        let extent = DividedExtent::of(*at, extent);
        if let Some(reason) = extent.obstacle_to_all(program, counts.clone()) {
            return Err(Some(reason));
        }
        possible.retain(|count| extent.is_divided_by(*count));
    }
    possible.pop().ok_or(None)
}
