//! Describes how tensors are sharded over devices and streams, dimension by dimension.
//!
//! A dimension is a logical axis that is not a reduction. It is split into pieces, outermost first. `iS0{24}`
//! that is split by `ideviceIdx.x2{4}` has one device piece of 4; the remaining inner extent of 6 is serial.
//! A dimension that *is* the device axis has that piece and no inner extent.

use std::sync::Arc;

use grammar::{Axis, AxisId, AxisKind, DeviceDim, ExprId, Mesh, ParallelType, Program, TensorId, Transform};

/// The dimensions of a tensor and how they are sharded.
#[derive(Clone, PartialEq, Debug)]
pub struct Sharding {
    /// The devices; an empty mesh means every rank.
    pub mesh: Arc<Mesh>,
    /// The dimensions in memory order.
    pub dims: Vec<Dim>,
}

/// A dimension of a sharded tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Dim {
    /// Extent of the whole dimension.
    pub extent: ExprId,
    /// Iteration or broadcast.
    pub kind: AxisKind,
    /// True if the dimension enumerates partial sums over devices (`ideviceIdx.x22{2}rf`).
    pub partial: bool,
    /// The device axis over which the dimension enumerates partial sums, if the mesh has one device along it.
    /// Such an axis does not shard the dimension.
    pub unit_device_axis: Option<DeviceDim>,
    /// The pieces of the dimension, outermost first. The remaining inner extent is serial.
    pub pieces: Vec<DimPiece>,
}

/// One outer split of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DimPiece {
    /// The device axis or the stream that the piece is parallelized over.
    pub parallel: ParallelType,
    /// The number of parts.
    pub count: ExprId,
    /// True if the index is counted from the rank's own coordinate.
    pub swizzled: bool,
}

impl Dim {
    /// Returns a dimension that every rank holds whole.
    pub fn whole(extent: ExprId) -> Self {
        Self { extent, kind: AxisKind::Iteration, partial: false, unit_device_axis: None, pieces: Vec::new() }
    }

    /// Returns the device axes of the pieces, outermost first.
    pub fn devices(&self) -> impl DoubleEndedIterator<Item = DeviceDim> {
        self.pieces.iter().filter_map(|piece| piece.device())
    }

    /// Returns the stream piece.
    pub fn stream(&self) -> Option<&DimPiece> {
        self.pieces.iter().find(|piece| piece.parallel == ParallelType::Stream)
    }

    /// Returns the first piece that is not a device piece.
    pub fn first_non_device_piece(&self) -> Option<&DimPiece> {
        self.pieces.iter().find(|piece| piece.device().is_none())
    }

    /// Returns the same dimension, whole on every device.
    pub fn without_devices(&self) -> Self {
        let pieces = self.pieces.iter().copied().filter(|piece| piece.device().is_none());
        Self { pieces: pieces.collect(), partial: false, ..self.clone() }
    }

    /// Returns the same dimension without stream pieces, except those outside a device piece, because they
    /// decide which elements a device holds.
    pub fn without_streams(&self) -> Self {
        let last = self.pieces.iter().rposition(|piece| piece.device().is_some());
        Self { pieces: self.pieces[..last.map_or(0, |at| at + 1)].to_vec(), ..self.clone() }
    }

    /// Returns the pieces up to and including the device piece with this number, counted from 1. Returns no
    /// pieces for 0.
    pub fn pieces_through_device(&self, number: usize) -> Vec<DimPiece> {
        let mut devices = 0;
        let mut pieces = self.pieces.clone();
        pieces.retain(|piece| {
            let is_kept = devices < number;
            devices += usize::from(piece.device().is_some());
            is_kept
        });
        pieces
    }

    /// Returns the device axes, outermost first, each with the number of parts that it and all pieces outside
    /// it make.
    pub fn device_splits(&self, program: &Program) -> Vec<(DeviceDim, ExtentProduct)> {
        let mut outer = Vec::new();
        let mut steps = Vec::new();
        for piece in &self.pieces {
            outer.push(piece.count);
            steps.extend(piece.device().map(|device| (device, ExtentProduct::of(program, &outer))));
        }
        steps
    }
}

impl DimPiece {
    /// Returns the device axis that the piece is parallelized over.
    pub fn device(&self) -> Option<DeviceDim> {
        match self.parallel {
            ParallelType::Device(dim) => Some(dim),
            ParallelType::Serial | ParallelType::Stream | ParallelType::Kernel(_) => None,
        }
    }
}

impl Sharding {
    /// Returns how a tensor is sharded, or `None` if a dimension is merged or has a serial piece outside
    /// another piece.
    pub fn of(program: &Program, tensor: TensorId) -> Option<Self> {
        let mesh = program.tensors[tensor].mesh.clone();
        let spread = |axis: &AxisId| {
            matches!(program.axes[*axis].parallel, ParallelType::Device(_) | ParallelType::Stream)
        };
        let is_spread = program.tensors[tensor].loop_domain.iter().any(spread);
        let dims = program.dimensions(tensor).map(|axis| {
            let Axis { kind, extent, expanded, suffix, .. } = &program.axes[axis];
            let mut pieces = Vec::new();
            if is_spread {
                collect_axis_pieces(program, tensor, axis, &mut pieces)?;
            }
            // A mesh with one device along an axis does not shard the axis.
            let spreads =
                |piece: &DimPiece| piece.device().is_none_or(|dim| mesh.is_empty() || mesh.extent(dim) > 1);
            let serial = pieces.iter().position(|it| it.parallel == ParallelType::Serial);
            if serial.is_some_and(|at| at + 1 != pieces.len()) {
                return None;
            }
            let partial = pieces.iter().any(|it| it.device().is_some())
                && (suffix.is_rfactor || program.is_partial(tensor, axis));
            let is_alone = |piece: &DimPiece| !spreads(piece) && suffix.is_rfactor;
            let lone = pieces.iter().copied().find(is_alone).and_then(|piece| piece.device());
            pieces.retain(|piece| piece.parallel != ParallelType::Serial && spreads(piece));
            let (extent, kind) = match expanded {
                Some(expanded) => (*expanded, AxisKind::Iteration),
                None => (*extent, *kind),
            };
            Some(Dim { extent, kind, partial, unit_device_axis: lone, pieces })
        });
        Some(Self { mesh: mesh.clone(), dims: dims.collect::<Option<_>>()? })
    }

    /// Returns a sharding under which every rank of `mesh` holds the whole tensor.
    pub fn replicated(mesh: Arc<Mesh>, extents: impl IntoIterator<Item = ExprId>) -> Self {
        Self { mesh, dims: extents.into_iter().map(Dim::whole).collect() }
    }

    /// Returns true if every device holds the whole tensor.
    pub fn is_replicated(&self) -> bool {
        self.dims.iter().all(|dim| dim.devices().next().is_none())
    }

    /// Returns the same sharding without streams.
    pub fn without_streams(&self) -> Self {
        Self { mesh: self.mesh.clone(), dims: self.dims.iter().map(Dim::without_streams).collect() }
    }

    /// Returns the sharding of the other dimensions.
    pub fn without_dims(&self, dims: &[usize]) -> Self {
        let kept = self.dims.iter().enumerate().filter(|(at, _)| !dims.contains(at));
        Self { mesh: self.mesh.clone(), dims: kept.map(|(_, dim)| dim.clone()).collect() }
    }

    /// Returns the same sharding on another mesh.
    pub fn on_mesh(self, mesh: Arc<Mesh>) -> Self {
        Self { mesh, ..self }
    }

    /// Returns true if each device holds the same elements of both dimensions.
    pub fn are_aligned(program: &Program, a: &Dim, b: &Dim) -> bool {
        a.device_splits(program) == b.device_splits(program)
    }
}

/// Collects the leaf axes that an axis was split into, slowest first.
fn collect_axis_pieces(
    program: &Program,
    tensor: TensorId,
    axis: AxisId,
    acc: &mut Vec<DimPiece>,
) -> Option<()> {
    let mut swizzled = false;
    let mut axis = axis;
    for transform in &program.tensors[tensor].domains.transforms {
        match transform {
            Transform::Split { input, outer, inner, .. } if *input == axis => {
                collect_axis_pieces(program, tensor, *outer, acc)?;
                return collect_axis_pieces(program, tensor, *inner, acc);
            }
            Transform::Swizzle1D { input, output } if *input == axis => (swizzled, axis) = (true, *output),
            Transform::Merge { outer, inner, .. } if [*outer, *inner].contains(&axis) => return None,
            Transform::Split { .. } | Transform::Swizzle1D { .. } | Transform::Merge { .. } => (),
        }
    }
    let Axis { parallel, extent, .. } = program.axes[axis];
    acc.push(DimPiece { parallel, count: extent, swizzled });
    Some(())
}

// ---- bytes

/// Returns the number of bytes that each rank receives if a tensor is gathered, or sent to other devices if it is not sharded;
/// `None` if an extent is no constant.
pub fn gathered_bytes(program: &Program, tensor: TensorId) -> Option<usize> {
    let bytes = bytes(program, tensor)?;
    match device_count(program, tensor, &program.tensors[tensor].mesh) {
        // It goes to other devices as a whole.
        0 | 1 => Some(bytes),
        parts => bytes.checked_sub(bytes / parts),
    }
}

/// Returns the number of bytes that each rank holds of a tensor; `None` if an extent is no constant.
pub fn local_bytes(program: &Program, tensor: TensorId) -> Option<usize> {
    bytes(program, tensor)?.checked_div(device_count(program, tensor, &program.tensors[tensor].mesh))
}

/// Returns the number of bytes of a tensor; `None` if an extent is no constant.
fn bytes(program: &Program, tensor: TensorId) -> Option<usize> {
    let mut elements = 1_usize;
    for axis in program.dimensions(tensor) {
        let extent = usize::try_from(program.constant(program.axes[axis].extent)?).ok()?;
        elements = elements.checked_mul(extent)?;
    }
    elements.checked_mul(program.tensors[tensor].dtype.map_or(4, |it| it.size()))
}

/// Returns the number of parts into which devices split a tensor.
fn device_count(program: &Program, tensor: TensorId, mesh: &Mesh) -> usize {
    let Some(sharding) = Sharding::of(program, tensor) else { return 1 };
    sharding.dims.iter().flat_map(Dim::devices).map(|device| mesh.extent(device)).product()
}

// ---- extents

/// Returns true if two extents are certainly equal.
pub fn same_extent(program: &Program, a: ExprId, b: ExprId) -> bool {
    a == b || matches!((program.constant(a), program.constant(b)), (Some(a), Some(b)) if a == b)
}

/// A product of extents, normalized so that the order of factors does not matter.
#[derive(Clone, PartialEq, Eq)]
pub struct ExtentProduct {
    constant: i64,
    others: Vec<ExprId>,
}

impl ExtentProduct {
    fn of(program: &Program, factors: &[ExprId]) -> Self {
        let constants = factors.iter().filter_map(|it| program.constant(*it));
        let constant = constants.fold(1i64, i64::saturating_mul);
        let mut others: Vec<ExprId> =
            factors.iter().copied().filter(|it| program.constant(*it).is_none()).collect();
        others.sort_unstable();
        Self { constant, others }
    }
}
