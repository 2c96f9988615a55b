//! Decomposes resharding into steps, each of which is one kind of communication.
//!
//! | step | from | to |
//! |---|---|---|
//! | Local | any | the same devices hold the same elements, or more |
//! | Slice | any | more pieces inside the existing ones, same devices: each takes a part of what it holds |
//! | Broadcast | replicated | replicated on other devices |
//! | Allgather | a sharded dimension | that piece removed, same mesh |
//! | Gather | a sharded dimension | replicated on other devices |
//! | Scatter | replicated | a dimension sharded over other devices |
//! | AllToAll | a sharded dimension | another dimension sharded over the same devices, same mesh |
//! | AllToAllOfMeshes | a dimension sharded over all axes of the mesh | another dimension sharded over all axes of a mesh of these devices |
//! | SendRecv | any | the same sharding on a mesh of the same shape, or over all axes of both meshes |

use std::sync::Arc;

use grammar::{DeviceDim, Mesh, Program};

use crate::analysis::sharding::{Dim, Sharding};

/// A resharding step that is one kind of communication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReshardStep {
    /// Every device of the result already holds what it needs.
    Local,
    /// Every device of the result holds what it needs and more. It takes its part without communication.
    Slice,
    /// One device holds the whole tensor and sends it to all devices of the result.
    Broadcast,
    /// The innermost piece of dimension `dim` is removed.
    Allgather {
        /// The dimension.
        dim: usize,
        /// The device axis that it was sharded over.
        device: DeviceDim,
    },
    /// Each device of the result receives all pieces.
    Gather {
        /// The dimension.
        dim: usize,
        /// The device axis that it is sharded over.
        device: DeviceDim,
    },
    /// A new innermost piece of dimension `dim` is added.
    Scatter {
        /// The dimension.
        dim: usize,
        /// The device axis that it will be sharded over.
        device: DeviceDim,
    },
    /// The innermost piece of `from` becomes the innermost piece of `to`.
    AllToAll {
        /// The dimension that was sharded.
        from: usize,
        /// The dimension that will be sharded.
        to: usize,
        /// The device axis.
        device: DeviceDim,
    },
    /// All devices, in the order of both meshes, shard dimension `from` before and dimension `to` behind. The meshes may have
    /// different shapes.
    AllToAllOfMeshes {
        /// The dimension that was sharded.
        from: usize,
        /// The dimension that will be sharded.
        to: usize,
    },
    /// Each device sends its part to the device at the same position of another mesh.
    SendRecv,
}

/// Returns the step from one sharding to the other, if a single step suffices. Streams are ignored.
pub fn step(program: &Program, from: &Sharding, to: &Sharding) -> Option<ReshardStep> {
    let (from, to) = (from.without_streams(), to.without_streams());
    let aligned = from.dims.len() == to.dims.len()
        && from.dims.iter().zip(&to.dims).all(|(a, b)| Sharding::are_aligned(program, a, b));
    let everywhere = from.mesh.is_empty()
        || !to.mesh.is_empty() && to.mesh.devices.iter().all(|rank| from.mesh.contains(*rank));
    if aligned && (from.mesh == to.mesh || everywhere && to.is_replicated()) {
        return Some(ReshardStep::Local);
    }
    if to.mesh.is_empty() {
        return None;
    }
    let on_its_devices = from.mesh == to.mesh || from.is_replicated() && everywhere;
    if on_its_devices && is_slice(program, &from, &to) {
        return Some(ReshardStep::Slice);
    }
    let of_meshes = || {
        let has_same_devices = from.mesh.devices == to.mesh.devices;
        let (from, to) = has_same_devices.then(|| whole_mesh_dim(&from).zip(whole_mesh_dim(&to)))??;
        Some(if from == to { ReshardStep::SendRecv } else { ReshardStep::AllToAllOfMeshes { from, to } })
    };
    if on_its_devices {
        return step_within_mesh(program, &from, &to).or_else(of_meshes);
    }
    if from.mesh.is_empty() {
        return None;
    }
    match (from.is_replicated(), to.is_replicated()) {
        (true, true) => Some(ReshardStep::Broadcast),
        (true, false) => match only_piece(&to) {
            Some((dim, device)) if is_one_dimensional(&to.mesh) => Some(ReshardStep::Scatter { dim, device }),
            _ => None,
        },
        (false, true) => match only_piece(&from) {
            Some((dim, device)) if is_one_dimensional(&from.mesh) => {
                Some(ReshardStep::Gather { dim, device })
            }
            _ => None,
        },
        (false, false) => {
            (aligned && from.mesh.shape == to.mesh.shape).then_some(ReshardStep::SendRecv).or_else(of_meshes)
        }
    }
}

/// Returns the shardings after each step, `to` included.
pub fn intermediate_shardings(program: &Program, from: &Sharding, to: &Sharding) -> Vec<Sharding> {
    let mut path = Vec::new();
    let mut now = from.without_streams();
    let goal = to.without_streams();
    if now.mesh != goal.mesh && step(program, &now, &goal).is_none() {
        if let Some(same_parts) = on_axes_of(&goal, &now) {
            append_steps_within_mesh(program, &mut now, &same_parts, &mut path);
            now = goal.clone();
        } else if let Some(same_parts) = on_axes_of(&now, &goal) {
            now = same_parts;
        } else if !now.mesh.is_empty() && now.mesh.shape == goal.mesh.shape && !now.is_replicated() {
            now = now.on_mesh(goal.mesh.clone());
        } else {
            let whole = Sharding { mesh: now.mesh.clone(), dims: now.dims.iter().map(unsharded).collect() };
            append_steps_within_mesh(program, &mut now, &whole, &mut path);
            // Goes directly to the goal if one step suffices, else first to the goal's devices.
            now = match step(program, &whole, &goal) {
                Some(_) => goal.clone(),
                None => whole.on_mesh(goal.mesh.clone()),
            };
        }
        path.push(now.clone());
    }
    if now.mesh == goal.mesh {
        append_steps_within_mesh(program, &mut now, &goal, &mut path);
    }
    // The last sharding carries the streams of the goal. If the path was empty, there is only this step.
    path.pop();
    path.push(to.clone());
    path
}

/// Returns the dimension without any pieces.
fn unsharded(dim: &Dim) -> Dim {
    Dim { pieces: Vec::new(), partial: false, unit_device_axis: None, ..dim.clone() }
}

/// Returns true if each device's part of `to` is one contiguous range of its part of `from`.
fn is_slice(program: &Program, from: &Sharding, to: &Sharding) -> bool {
    let takes = |(a, b): (&Dim, &Dim)| {
        let (have, want) = (a.device_splits(program), b.device_splits(program));
        have == want || want.starts_with(&have) && is_range(a) && is_range(b)
    };
    from.dims.len() == to.dims.len() && from.dims.iter().zip(&to.dims).all(takes)
}

/// Returns true if each device holds one contiguous range of a dimension, which requires that no stream piece
/// is outside a device piece.
fn is_range(dim: &Dim) -> bool {
    dim.without_streams().pieces.iter().all(|piece| piece.device().is_some())
}

/// Returns the dimension and the device axis of the innermost piece that `to` has and `from` lacks, if they
/// differ in nothing else. This is the piece that a reduce-scatter adds to an all-reduce.
pub fn scattered_piece(program: &Program, from: &Sharding, to: &Sharding) -> Option<(usize, DeviceDim)> {
    let (from, to) = (from.without_streams(), to.without_streams());
    match difference(program, &from, &to)? {
        (None, new) if from.mesh == to.mesh => new,
        (Some(_), _) | (None, _) => None,
    }
}

/// Appends the steps within a mesh. Each step moves one device piece, or takes slices.
fn append_steps_within_mesh(
    program: &Program,
    now: &mut Sharding,
    goal: &Sharding,
    path: &mut Vec<Sharding>,
) {
    while let Some(next) = move_piece(program, now, goal) {
        *now = next;
        path.push(now.clone());
    }
}

fn move_piece(program: &Program, now: &Sharding, goal: &Sharding) -> Option<Sharding> {
    let pairs =
        || now.dims.iter().zip(&goal.dims).map(|(a, b)| (a.device_splits(program), b.device_splits(program)));
    let mut next = now.clone();
    // Slices come first. They need no communication, and reduce the amount that later steps send: each device
    // takes a part of what all devices hold.
    let is_free = |device: &DeviceDim| now.dims.iter().all(|dim| dim.devices().all(|it| it != *device));
    for (dim, (have, want)) in pairs().enumerate().filter(|(_, (have, want))| want.starts_with(have)) {
        let free = want[have.len()..].iter().take_while(|(device, _)| is_free(device)).count();
        let parts =
            Dim { pieces: goal.dims[dim].pieces_through_device(have.len() + free), ..goal.dims[dim].clone() };
        if free > 0 && is_range(&now.dims[dim]) && is_range(&parts) {
            next.dims[dim].pieces = parts.pieces;
        }
    }
    if next != *now {
        return Some(next);
    }
    // Only the innermost piece of a dimension can be removed.
    if let Some((dim, (have, _))) = pairs().enumerate().find(|(_, (have, want))| !want.starts_with(have)) {
        let (device, _) = have.last()?;
        next.dims[dim].pieces = now.dims[dim].pieces_through_device(have.len() - 1);
        next.dims[dim].partial &= !next.dims[dim].pieces.is_empty();
        let wanted = |(_, (have, want)): &(usize, (Vec<_>, Vec<_>))| {
            want.starts_with(have) && want.get(have.len()).is_some_and(|(other, _)| other == device)
        };
        if let Some((to, (have, _))) = pairs().enumerate().find(wanted) {
            next.dims[to].pieces = goal.dims[to].pieces_through_device(have.len() + 1);
        }
        return Some(next);
    }
    let (dim, (have, _)) = pairs().enumerate().find(|(_, (have, want))| have.len() < want.len())?;
    next.dims[dim].pieces = goal.dims[dim].pieces_through_device(have.len() + 1);
    Some(next)
}

/// Returns the step between two shardings on one mesh.
fn step_within_mesh(program: &Program, from: &Sharding, to: &Sharding) -> Option<ReshardStep> {
    match difference(program, from, to)? {
        (Some((dim, device)), None) => Some(ReshardStep::Allgather { dim, device }),
        (None, Some((dim, device))) => Some(ReshardStep::Scatter { dim, device }),
        (Some((from, device)), Some((to, other))) if device == other => {
            Some(ReshardStep::AllToAll { from, to, device })
        }
        (Some(_), Some(_)) | (None, None) => None,
    }
}

/// A dimension and the device axis of one of its pieces.
type DimOnDevice = (usize, DeviceDim);

/// Returns the innermost piece that only `from` has and the innermost piece that only `to` has, or `None` if
/// the shardings differ in more.
fn difference(
    program: &Program,
    from: &Sharding,
    to: &Sharding,
) -> Option<(Option<DimOnDevice>, Option<DimOnDevice>)> {
    let mut gone = None;
    let mut new = None;
    for (dim, (a, b)) in from.dims.iter().zip(&to.dims).enumerate() {
        let (a, b) = (a.device_splits(program), b.device_splits(program));
        match () {
            () if a == b => (),
            () if a.len() == b.len() + 1 && a.starts_with(&b) && gone.is_none() => {
                gone = Some((dim, a[b.len()].0));
            }
            () if b.len() == a.len() + 1 && b.starts_with(&a) && new.is_none() => {
                new = Some((dim, b[a.len()].0));
            }
            () => return None,
        }
    }
    Some((gone, new))
}

fn only_piece(sharding: &Sharding) -> Option<(usize, DeviceDim)> {
    let mut pieces =
        sharding.dims.iter().enumerate().flat_map(|(at, dim)| dim.devices().map(move |device| (at, device)));
    pieces.next().filter(|_| pieces.next().is_none())
}

/// Returns the only sharded dimension if the devices of all axes of the mesh shard it, in the order of the mesh.
fn whole_mesh_dim(sharding: &Sharding) -> Option<usize> {
    let mut spread = (0..sharding.dims.len()).filter(|at| sharding.dims[*at].devices().next().is_some());
    let dim = spread.next().filter(|_| spread.next().is_none())?;
    (is_range(&sharding.dims[dim]) && sharding.dims[dim].devices().eq(axes_of(&sharding.mesh))).then_some(dim)
}

/// Returns the sharding that gives each device the same part as `whole`, which shards one dimension over all devices, on the axes of the mesh
/// of `other`, which has the same devices and shards over all of its axes.
fn on_axes_of(whole: &Sharding, other: &Sharding) -> Option<Sharding> {
    let dim = whole_mesh_dim(whole).filter(|_| whole.mesh.devices == other.mesh.devices)?;
    let pieces = || other.dims.iter().flat_map(|it| &it.pieces);
    let of_axis = |axis: DeviceDim| pieces().find(|it| it.device() == Some(axis)).cloned();
    let mut found = whole.clone().on_mesh(other.mesh.clone());
    found.dims[dim].pieces = axes_of(&other.mesh).map(of_axis).collect::<Option<_>>()?;
    Some(found)
}

/// Returns the axes of a mesh, outermost first, without those of extent 1.
fn axes_of(mesh: &Mesh) -> impl Iterator<Item = DeviceDim> {
    [DeviceDim::Z, DeviceDim::Y, DeviceDim::X].into_iter().filter(|axis| mesh.extent(*axis) > 1)
}

/// Returns true if at most one dimension of the mesh has an extent above 1.
fn is_one_dimensional(mesh: &Arc<Mesh>) -> bool {
    mesh.shape.iter().filter(|extent| **extent > 1).count() <= 1
}
