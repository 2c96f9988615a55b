//! Creates tensors with a given sharding, and changes the shardings of tensors.
//!
//! Invariant: `Sharding::of` returns the given sharding for the tensor.

use grammar::{
    Axis, AxisId, AxisKind, Domains, Expr, ExprId, Function, Memory, Op, ParallelType, Program, TensorId,
    Transform, ir::AxisSuffix,
};
use hir_ir::build::IrBuilder;
use rustc_hash::FxHashMap;

use crate::analysis::sharding::{Dim, DimPiece, Sharding, same_extent};

impl Sharding {
    /// Creates a tensor for the elements of `tensor` with this sharding, without the dimension `gone` if that
    /// is given. Reduction axes are kept. The new logical axes are numbered in the order of the original
    /// ones, because that order encodes permutations.
    pub fn resharded_tensor(
        &self,
        program: &mut Program,
        builder: &mut IrBuilder,
        tensor: TensorId,
        memory: Memory,
        gone: Option<usize>,
    ) -> TensorId {
        let mut dims = self.dims.iter().enumerate();
        // The logical axes that remain, each with its dimension. Reduction axes have no dimension.
        let mut axes: Vec<(AxisId, Option<&Dim>)> = Vec::new();
        for axis in &program.tensors[tensor].domains.logical {
            let dim = match program.axes[*axis].kind {
                AxisKind::Reduction => None,
                AxisKind::Iteration
                | AxisKind::Broadcast
                | AxisKind::Stride
                | AxisKind::Gather
                | AxisKind::Vector
                | AxisKind::Symbolic => dims.next(),
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
                (_, Some(dim)) => dim.append_axes(program, builder, loops, domains),
                (axis, None) => {
                    let axis = builder.axis_like(program, axis);
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
        let new = builder.tensor_like(program, tensor, memory, loops, domains);
        program.tensors[new].mesh = self.mesh.clone();
        new
    }

    /// Creates a tensor with this sharding and the element type of `like`.
    pub fn new_tensor(
        &self,
        program: &mut Program,
        builder: &mut IrBuilder,
        like: TensorId,
        memory: Memory,
    ) -> TensorId {
        let mut loops = Vec::new();
        let mut domains = Domains::default();
        for dim in &self.dims {
            dim.append_axes(program, builder, &mut loops, &mut domains);
        }
        let tensor = builder.tensor_like(program, like, memory, loops, domains);
        program.tensors[tensor].mesh = self.mesh.clone();
        tensor
    }

    /// Gives a tensor this sharding. Its logical axes keep their numbers, whose order encodes permutations.
    /// Returns the new id of each logical axis that is replaced.
    pub fn apply_to(
        &self,
        program: &mut Program,
        builder: &mut IrBuilder,
        tensor: TensorId,
    ) -> FxHashMap<AxisId, AxisId> {
        let axes: Vec<AxisId> = program.dimensions(tensor).collect();
        let mut renamed = FxHashMap::default();
        for (axis, dim) in axes.into_iter().zip(&self.dims) {
            if dim.devices().next().is_none() {
                continue;
            }
            let old = program.loop_axes_of(tensor, axis);
            // Other tensors may share the axis.
            let whole = program.axes[axis].clone();
            let whole = program.axes.push(Axis { parallel: ParallelType::Serial, ..whole });
            let (mut new, mut domains) = (Vec::new(), Domains::default());
            dim.append_split_axes(program, builder, whole, &mut new, &mut domains);
            renamed.insert(axis, whole);
            let it = &mut program.tensors[tensor];
            let is_old = |it: &AxisId| old.contains(it);
            let at = it.loop_domain.iter().position(is_old).unwrap_or(it.loop_domain.len());
            it.loop_domain.retain(|axis| !old.contains(axis));
            it.loop_domain.splice(at..at, new);
            let mut derived = vec![axis];
            it.domains.transforms.retain(|transform| match transform {
                Transform::Split { input, outer, inner, .. } if derived.contains(input) => {
                    derived.extend([*outer, *inner]);
                    false
                }
                Transform::Swizzle1D { input, output } if derived.contains(input) => {
                    derived.push(*output);
                    false
                }
                Transform::Split { .. } | Transform::Swizzle1D { .. } | Transform::Merge { .. } => true,
            });
            it.domains.transforms.append(&mut domains.transforms);
            it.domains.logical.iter_mut().filter(|it| **it == axis).for_each(|it| *it = whole);
        }
        program.tensors[tensor].mesh = self.mesh.clone();
        renamed
    }
}

impl Dim {
    /// Appends the axes of this dimension to a tensor's domains.
    pub fn append_axes(
        &self,
        program: &mut Program,
        builder: &mut IrBuilder,
        loops: &mut Vec<AxisId>,
        domains: &mut Domains,
    ) {
        let whole = builder.axis_of(program, self.kind, ParallelType::Serial, self.extent);
        domains.logical.push(whole);
        self.append_split_axes(program, builder, whole, loops, domains);
    }

    /// Splits the serial axis `whole` as this dimension and appends the loop axes and the transforms.
    fn append_split_axes(
        &self,
        program: &mut Program,
        builder: &mut IrBuilder,
        whole: AxisId,
        loops: &mut Vec<AxisId>,
        domains: &mut Domains,
    ) {
        let mut axis =
            |program: &mut Program, extent| builder.axis_of(program, self.kind, ParallelType::Serial, extent);
        // The axis that is not split yet.
        let mut rest = Some(whole);
        for DimPiece { parallel, count, swizzled } in self.pieces.iter().copied() {
            let Some(input) = rest else { break };
            let extent = program.axes[input].extent;
            let mut cut = input;
            rest = None;
            if !same_extent(program, extent, count) {
                let within = part_extent(program, extent, count);
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
            if self.partial && matches!(parallel, ParallelType::Device(_)) {
                program.axes[cut].suffix = AxisSuffix::RFACTOR;
            }
            loops.push(cut);
        }
        if let (Some(device), Some(axis)) = (self.unit_device_axis, rest) {
            program.axes[axis].parallel = ParallelType::Device(device);
            program.axes[axis].suffix = AxisSuffix::RFACTOR;
        }
        loops.extend(rest);
    }
}

/// Sets the allocation domain of a tensor with a stream axis so that a rank holds one stream's slice at a
/// time.
pub fn allocate_per_stream(program: &mut Program, tensor: TensorId) {
    let it = &program.tensors[tensor];
    if it.loop_domain.iter().any(|axis| program.axes[*axis].parallel == ParallelType::Stream) {
        let loops = it.loop_domain.clone();
        program.tensors[tensor].domains.allocation = Some(loops);
    }
}

/// Returns the extent of one of `count` equal parts.
pub fn part_extent(program: &mut Program, extent: ExprId, count: ExprId) -> ExprId {
    match (program.constant(extent), program.constant(count)) {
        (Some(extent), Some(count)) if count > 0 && extent % count == 0 => program.intern_int(extent / count),
        (_, Some(1)) => extent,
        _ => program.intern_expr(Expr::Call(Function::Op(Op::CeilDiv), vec![extent, count])),
    }
}
