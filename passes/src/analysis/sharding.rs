//! How tensors are spread over devices and streams, dimension by dimension.
//!
//! A dimension (a logical axis that is no reduction) is cut into pieces, outermost first: `iS0{24}` that was split by
//! `ideviceIdx.x2{4}` has one device piece of 4, and what is left inside, 6, is serial. A dimension that *is* the device
//! axis has that piece and nothing inside.
//!
//! Invariant: a `Sharding` and the tensor that `Sharding::tensor` makes of it say the same.

use std::sync::Arc;

use grammar::ir::{
    Axis, AxisId, AxisKind, DeviceDim, Domains, Expr, ExprId, Memory, Mesh, Parallel, Program, TensorId,
    Transform,
};

use crate::rewrite::create::Fresh;

/// A tensor's dimensions and where they are.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sharding {
    /// Empty: every rank.
    pub(crate) mesh: Arc<Mesh>,
    /// The dimensions in memory order.
    pub(crate) dims: Vec<Dim>,
}

/// A dimension.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Dim {
    /// Extent of the whole.
    pub(crate) extent: ExprId,
    /// Iteration or broadcast.
    pub(crate) kind: AxisKind,
    /// Whether it counts partial sums over devices (`ideviceIdx.x22{2}rf`).
    pub(crate) partial: bool,
    /// The devices that it counts partial sums over where there is one only: they do not spread it.
    pub(crate) lone: Option<DeviceDim>,
    /// What it is cut into, outermost first; the rest inside is serial.
    pub(crate) pieces: Vec<Piece>,
}

/// One cut of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Devices or streams.
    pub(crate) parallel: Parallel,
    /// How many.
    pub(crate) count: ExprId,
    /// Whether it counts from the rank's own coordinate on.
    pub(crate) swizzled: bool,
}

impl Dim {
    /// A dimension that every rank has whole.
    pub(crate) fn whole(extent: ExprId) -> Self {
        Self { extent, kind: AxisKind::Iteration, partial: false, lone: None, pieces: Vec::new() }
    }

    /// The device pieces, outermost first.
    pub(crate) fn devices(&self) -> impl DoubleEndedIterator<Item = DeviceDim> {
        self.pieces.iter().filter_map(|piece| piece.device())
    }

    /// The stream piece.
    pub(crate) fn stream(&self) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.parallel == Parallel::Stream)
    }

    /// The first piece that is no device's.
    pub(crate) fn within_devices(&self) -> Option<&Piece> {
        self.pieces.iter().find(|piece| piece.device().is_none())
    }

    /// The same dimension, whole on every device.
    pub(crate) fn without_devices(&self) -> Self {
        let pieces = self.pieces.iter().copied().filter(|piece| piece.device().is_none());
        Self { pieces: pieces.collect(), partial: false, ..self.clone() }
    }

    /// The same dimension without its streams, but for one outside a device axis: that decides which elements a device
    /// has.
    pub(crate) fn without_streams(&self) -> Self {
        let last = self.pieces.iter().rposition(|piece| piece.device().is_some());
        Self { pieces: self.pieces[..last.map_or(0, |at| at + 1)].to_vec(), ..self.clone() }
    }

    /// The pieces as far as the device axis of this number, counted from 1; none for 0.
    pub(crate) fn pieces_to(&self, number: usize) -> Vec<Piece> {
        let mut devices = 0;
        let mut pieces = self.pieces.clone();
        pieces.retain(|piece| {
            let is_kept = devices < number;
            devices += usize::from(piece.device().is_some());
            is_kept
        });
        pieces
    }

    /// The device axes, outermost first, each with the number of parts that it and all outside it make.
    pub(crate) fn steps(&self, program: &Program) -> Vec<(DeviceDim, Product)> {
        let mut outer = Vec::new();
        let mut steps = Vec::new();
        for piece in &self.pieces {
            outer.push(piece.count);
            steps.extend(piece.device().map(|device| (device, Product::of(program, &outer))));
        }
        steps
    }
}

impl Piece {
    /// The devices that it is spread over.
    pub(crate) fn device(&self) -> Option<DeviceDim> {
        match self.parallel {
            Parallel::Device(dim) => Some(dim),
            Parallel::Serial | Parallel::Stream | Parallel::Kernel(_) => None,
        }
    }
}

impl Sharding {
    /// How a tensor is spread; `None` where a dimension is cut in another way than outermost first, or merged.
    pub(crate) fn of(program: &Program, tensor: TensorId) -> Option<Self> {
        let mesh = program.tensors[tensor].mesh.clone();
        let spread =
            |axis: &AxisId| matches!(program.axes[*axis].parallel, Parallel::Device(_) | Parallel::Stream);
        let is_spread = program.tensors[tensor].loops.iter().any(spread);
        let dims = program.dimensions(tensor).map(|axis| {
            let Axis { kind, extent, expanded, suffix, .. } = &program.axes[axis];
            let mut pieces = Vec::new();
            if is_spread {
                cut(program, tensor, axis, &mut pieces)?;
            }
            // A mesh of one device along an axis does not spread it.
            let spreads =
                |piece: &Piece| piece.device().is_none_or(|dim| mesh.is_empty() || mesh.extent(dim) > 1);
            let serial = pieces.iter().position(|it| it.parallel == Parallel::Serial);
            if serial.is_some_and(|at| at + 1 != pieces.len()) {
                return None;
            }
            let partial = (suffix.contains("rf") || program.is_partial(tensor, axis))
                && pieces.iter().any(|it| it.device().is_some());
            let is_alone = |piece: &Piece| !spreads(piece) && suffix.contains("rf");
            let lone = pieces.iter().copied().find(is_alone).and_then(|piece| piece.device());
            pieces.retain(|piece| piece.parallel != Parallel::Serial && spreads(piece));
            let (extent, kind) = match expanded {
                Some(expanded) => (*expanded, AxisKind::Iteration),
                None => (*extent, *kind),
            };
            Some(Dim { extent, kind, partial, lone, pieces })
        });
        Some(Self { mesh: mesh.clone(), dims: dims.collect::<Option<_>>()? })
    }

    /// Every rank of `mesh` has everything.
    pub(crate) fn replicated(mesh: Arc<Mesh>, extents: impl IntoIterator<Item = ExprId>) -> Self {
        Self { mesh, dims: extents.into_iter().map(Dim::whole).collect() }
    }

    /// Whether no device has less than all.
    pub(crate) fn is_replicated(&self) -> bool {
        self.dims.iter().all(|dim| dim.devices().next().is_none())
    }

    /// The same without streams.
    pub(crate) fn without_streams(&self) -> Self {
        Self { mesh: self.mesh.clone(), dims: self.dims.iter().map(Dim::without_streams).collect() }
    }

    /// The same on other devices.
    pub(crate) fn on(self, mesh: Arc<Mesh>) -> Self {
        Self { mesh, ..self }
    }

    /// Whether each device has the same elements of both dimensions.
    pub(crate) fn aligned(program: &Program, a: &Dim, b: &Dim) -> bool {
        a.steps(program) == b.steps(program)
    }

    /// A new name for what `tensor` has, spread this way; without dimension `gone` if that is given. Reductions stay, and
    /// logical axes are numbered in the order of the original's: that order tells permutations.
    pub(crate) fn renamed(
        &self,
        program: &mut Program,
        fresh: &mut Fresh,
        tensor: TensorId,
        memory: Memory,
        gone: Option<usize>,
    ) -> TensorId {
        let mut dims = self.dims.iter().enumerate();
        // Each logical axis that stays, with its dimension; reductions have none.
        let mut axes: Vec<(AxisId, Option<&Dim>)> = Vec::new();
        for axis in &program.tensors[tensor].domains.logical {
            let dim = match program.axes[*axis].kind {
                AxisKind::Reduction => None,
                _ => dims.next(),
            };
            if dim.is_none_or(|(at, _)| Some(at) != gone) {
                axes.push((*axis, dim.map(|(_, dim)| dim)));
            }
        }
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|at| program.axes[axes[*at].0].number);
        let mut built: Vec<(Vec<AxisId>, Domains)> = vec![Default::default(); axes.len()];
        for at in order {
            let (loops, domains) = &mut built[at];
            match axes[at] {
                (_, Some(dim)) => dim.build(program, fresh, loops, domains),
                (axis, None) => {
                    let axis = fresh.axis_like(program, axis);
                    loops.push(axis);
                    domains.logical.push(axis);
                }
            }
        }
        let (mut loops, mut domains) = (Vec::new(), Domains::default());
        for (mut its_loops, mut its_domains) in built {
            loops.append(&mut its_loops);
            domains.logical.append(&mut its_domains.logical);
            domains.transforms.append(&mut its_domains.transforms);
        }
        let new = fresh.tensor_like(program, tensor, memory, loops, domains);
        program.tensors[new].mesh = self.mesh.clone();
        new
    }

    /// A new tensor that is spread this way, with the element type of `like`.
    pub(crate) fn tensor(
        &self,
        program: &mut Program,
        fresh: &mut Fresh,
        like: TensorId,
        memory: Memory,
    ) -> TensorId {
        let mut loops = Vec::new();
        let mut domains = Domains::default();
        for dim in &self.dims {
            dim.build(program, fresh, &mut loops, &mut domains);
        }
        let tensor = fresh.tensor_like(program, like, memory, loops, domains);
        program.tensors[tensor].mesh = self.mesh.clone();
        tensor
    }
}

impl Dim {
    /// Adds the axes of this dimension to a tensor's domains.
    pub(crate) fn build(
        &self,
        program: &mut Program,
        fresh: &mut Fresh,
        loops: &mut Vec<AxisId>,
        domains: &mut Domains,
    ) {
        let mut axis =
            |program: &mut Program, extent| fresh.axis_of(program, self.kind, Parallel::Serial, extent);
        let whole = axis(program, self.extent);
        domains.logical.push(whole);
        // What is not cut up yet.
        let mut rest = Some(whole);
        for Piece { parallel, count, swizzled } in self.pieces.iter().copied() {
            let Some(input) = rest else { break };
            let extent = program.axes[input].extent;
            let mut cut = input;
            rest = None;
            if !same(program, extent, count) {
                let within = divide(program, extent, count);
                let (outer, inner) = (axis(program, count), axis(program, within));
                let split = Transform::Split { input, factor: count, outer_split: true, outer, inner };
                domains.transforms.push(split);
                (cut, rest) = (outer, Some(inner));
            }
            if swizzled {
                let output = axis(program, count);
                domains.transforms.push(Transform::Swizzle1D { input: cut, output });
                cut = output;
            }
            program.axes[cut].parallel = parallel;
            if self.partial && matches!(parallel, Parallel::Device(_)) {
                program.axes[cut].suffix = "rf";
            }
            loops.push(cut);
        }
        if let (Some(device), Some(axis)) = (self.lone, rest) {
            program.axes[axis].parallel = Parallel::Device(device);
            program.axes[axis].suffix = "rf";
        }
        loops.extend(rest);
    }
}

/// The leaves that an axis became, slowest first.
fn cut(program: &Program, tensor: TensorId, axis: AxisId, acc: &mut Vec<Piece>) -> Option<()> {
    let mut swizzled = false;
    let mut axis = axis;
    for transform in &program.tensors[tensor].domains.transforms {
        match transform {
            Transform::Split { input, outer, inner, .. } if *input == axis => {
                cut(program, tensor, *outer, acc)?;
                return cut(program, tensor, *inner, acc);
            }
            Transform::Swizzle1D { input, output } if *input == axis => (swizzled, axis) = (true, *output),
            Transform::Merge { outer, inner, .. } if [*outer, *inner].contains(&axis) => return None,
            Transform::Split { .. } | Transform::Swizzle1D { .. } | Transform::Merge { .. } => (),
        }
    }
    let Axis { parallel, extent, .. } = program.axes[axis];
    acc.push(Piece { parallel, count: extent, swizzled });
    Some(())
}

/// Says of a tensor with a stream axis that a rank holds one stream's slice of it at a time.
pub(crate) fn split_by_stream(program: &mut Program, tensor: TensorId) {
    let it = &program.tensors[tensor];
    if it.loops.iter().any(|axis| program.axes[*axis].parallel == Parallel::Stream) {
        let loops = it.loops.clone();
        program.tensors[tensor].domains.allocation = Some(loops);
    }
}

// ---- extents

/// Whether two extents are certainly the same.
pub(crate) fn same(program: &Program, a: ExprId, b: ExprId) -> bool {
    a == b || matches!((program.constant(a), program.constant(b)), (Some(a), Some(b)) if a == b)
}

/// The extent of one of `count` equal parts.
pub(crate) fn divide(program: &mut Program, extent: ExprId, count: ExprId) -> ExprId {
    match (program.constant(extent), program.constant(count)) {
        (Some(extent), Some(count)) if count > 0 && extent % count == 0 => program.int(extent / count),
        (_, Some(1)) => extent,
        _ => program.expr(Expr::Call("ceilDiv".to_owned(), vec![extent, count])),
    }
}

/// A product of extents, in one form for all orders.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Product {
    constant: i64,
    others: Vec<ExprId>,
}

impl Product {
    fn of(program: &Program, factors: &[ExprId]) -> Self {
        let constants = factors.iter().filter_map(|it| program.constant(*it));
        let constant = constants.fold(1i64, i64::saturating_mul);
        let mut others: Vec<ExprId> =
            factors.iter().copied().filter(|it| program.constant(*it).is_none()).collect();
        others.sort_unstable();
        Self { constant, others }
    }
}
