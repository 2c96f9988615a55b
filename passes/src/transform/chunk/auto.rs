//! Which statements exchange data, and which axes can be cut into chunks so that the exchange overlaps with what comes
//! before or behind.

use grammar::{
    DimMap,
    ir::{OpStmt, Program, Stmt, StmtId, TensorId},
    ops::Rule,
};

use super::{obstacle, obstacle_to};
use crate::{
    analysis::{
        component::{Component, Shared, computes},
        dims,
        reshard::{self, Step},
        sharding::Sharding,
    },
    transform::decompose_resharding::is_copy,
};

/// What a resharding statement becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Allgather,
    ReduceScatter,
    Allreduce,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    Broadcast,
    SendRecv,
}

impl Kind {
    /// What users call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allgather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Allreduce => "all-reduce",
            Self::Reduce => "reduction to other devices",
            Self::AllToAll => "all-to-all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Broadcast => "broadcast",
            Self::SendRecv => "transfer to another mesh",
        }
    }
}

/// A statement that exchanges data between devices.
pub(crate) struct Exchange {
    pub(crate) kind: Kind,
    /// Whether the result is on other devices than the operand.
    pub(crate) leaves_mesh: bool,
    /// The operand, or the result of a reduction: what reports name.
    pub(crate) subject: TensorId,
    /// The tensor that is cut.
    pub(crate) tensor: TensorId,
    /// Its dimensions that can be cut, the preferred one first.
    pub(crate) dims: Vec<usize>,
    /// The number of chunks, where the devices decide it.
    pub(crate) count: Option<i64>,
}

/// A dimension to cut, and into how many chunks.
pub(crate) struct Cut {
    /// The tensors that share the dimension.
    pub(crate) component: Component,
    pub(crate) count: i64,
}

/// How the exchanges of a program are cut: an all-gather into one chunk a device, and so is what a reduce-scatter takes;
/// an all-reduce into `most` chunks, or as many fewer as divide it.
pub(super) fn cuts(program: &Program, most: i64) -> Vec<Cut> {
    let shared = Shared::of(program);
    let exchanges = program.body().iter().filter_map(|stmt| exchange(program, *stmt));
    let overlaps = |it: &Exchange| matches!(it.kind, Kind::Allgather | Kind::ReduceScatter | Kind::Allreduce);
    exchanges.filter(overlaps).filter_map(|it| choose(program, &shared, &it, most).ok()).collect()
}

/// The largest number of chunks that is tried.
const MOST: i64 = 1024;

/// What a statement exchanges; `None`: nothing.
pub(crate) fn exchange(program: &Program, stmt: StmtId) -> Option<Exchange> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    let ([arg], Some(out), true) = (&it.tensor_operands()[..], it.out_tensor(), computes(it)) else {
        return None;
    };
    let (from, to) = (Sharding::of(program, *arg)?, Sharding::of(program, out)?);
    match it.op.row().rule {
        Rule::Same if is_copy(it) => copied(program, *arg, &from, out, &to),
        Rule::Reduce => summed(program, it, *arg, &from, out, &to),
        _ => None,
    }
}

fn copied(
    program: &Program,
    arg: TensorId,
    from: &Sharding,
    out: TensorId,
    to: &Sharding,
) -> Option<Exchange> {
    let free = || {
        let is_free = |at: &usize| is_wide(program, from, *at) && is_wide(program, to, *at);
        (0..to.dims.len().min(from.dims.len())).filter(is_free).collect()
    };
    let (kind, dims, count) = match reshard::step(program, from, to)? {
        Step::Local | Step::Slice => return None,
        Step::Allgather { dim, device } => {
            let dims = if from.dims[dim].devices().count() == 1 { vec![dim] } else { Vec::new() };
            (Kind::Allgather, dims, Some(to.mesh.extent(device) as i64))
        }
        Step::AllToAll { .. } => (Kind::AllToAll, Vec::new(), None),
        Step::Gather { .. } => (Kind::Gather, free(), None),
        Step::Scatter { .. } => (Kind::Scatter, free(), None),
        Step::Broadcast => (Kind::Broadcast, free(), None),
        Step::SendRecv => (Kind::SendRecv, free(), None),
    };
    let leaves_mesh = from.mesh != to.mesh;
    Some(Exchange { kind, leaves_mesh, subject: arg, tensor: out, dims, count })
}

fn summed(
    program: &Program,
    it: &OpStmt,
    arg: TensorId,
    from: &Sharding,
    out: TensorId,
    to: &Sharding,
) -> Option<Exchange> {
    let maps = dims::dim_map(program, it, 0)?;
    let spread = |at: &usize| maps[*at] == DimMap::Reduction && from.dims[*at].devices().next().is_some();
    let at = (0..maps.len()).find(spread)?;
    let device = from.dims[at].devices().next()?;
    let mut kept = from.clone();
    kept.dims.remove(at);
    let all = |kind, tensor, dims, count| {
        Some(Exchange { kind, leaves_mesh: from.mesh != to.mesh, subject: out, tensor, dims, count })
    };
    if from.mesh != to.mesh {
        return all(Kind::Reduce, out, Vec::new(), None);
    }
    if let Some((dim, _)) = reshard::scattered(program, &kept, to) {
        let dim = maps.iter().position(|map| *map == DimMap::Parallel(dim))?;
        return all(Kind::ReduceScatter, arg, vec![dim], Some(to.mesh.extent(device) as i64));
    }
    match reshard::step(program, &kept, to) {
        Some(Step::Local) => {
            let dims = (0..to.dims.len()).filter(|at| is_wide(program, to, *at)).collect();
            all(Kind::Allreduce, out, dims, None)
        }
        Some(
            Step::Slice
            | Step::Broadcast
            | Step::Allgather { .. }
            | Step::Gather { .. }
            | Step::Scatter { .. }
            | Step::AllToAll { .. }
            | Step::SendRecv,
        )
        | None => all(Kind::Reduce, out, Vec::new(), None),
    }
}

/// Whether a dimension is whole on every device, and more than one element.
fn is_wide(program: &Program, sharding: &Sharding, at: usize) -> bool {
    sharding.dims[at].pieces.is_empty() && program.constant(sharding.dims[at].extent) != Some(1)
}

/// The first dimension that can be cut through all tensors that share it, into `most` chunks or as many fewer as divide
/// all of them.
///
/// # Errors
/// Why none can be cut.
pub(crate) fn choose(program: &Program, shared: &Shared, it: &Exchange, most: i64) -> Result<Cut, String> {
    let mut reason = None;
    for dim in &it.dims {
        let component = match shared.component(it.tensor, *dim) {
            Ok(component) => component,
            Err(twice) => {
                let name = program.tensor_name(twice);
                reason.get_or_insert_with(|| format!("`{name}` has the axis to cut twice"));
                continue;
            }
        };
        let counts = it.count.map_or(2..=most.min(MOST), |count| count..=count);
        let divides = |count: &i64| {
            let mut dims = component.dims.iter();
            *count > 1 && dims.all(|(tensor, dim)| obstacle(program, *tensor, *dim, *count).is_none())
        };
        match counts.clone().rev().find(divides) {
            Some(count) => return Ok(Cut { component, count }),
            None => {
                let dims = component.dims.iter();
                let mut why =
                    dims.filter_map(|(tensor, dim)| obstacle_to(program, *tensor, *dim, counts.clone()));
                reason = reason.or_else(|| why.next());
            }
        }
    }
    let none = || match it.kind {
        Kind::Allgather => "the gathered dimension is spread over several axes of devices",
        _ => "it has no dimension that can be cut into chunks",
    };
    Err(reason.unwrap_or_else(|| none().to_owned()))
}
