//! Reductions over devices for decompose-resharding: `reduction` statements.
//!
//! A reduction over a sharded dimension, `T1[rS2{8}] = reduction( T0[ideviceIdx.x0{2}, iS1{4}] )`, becomes:
//! ```text
//! T2[ideviceIdx.x4{2}, iS5{4}] = reshape( T0[ideviceIdx.x0{2}, iS1{4}] )
//! T3[ideviceIdx.x6{2}, rS7{4}] = reduction( T2[ideviceIdx.x4{2}, iS5{4}] )
//! T1[rdeviceIdx.x8{2}] = reduction( T3[ideviceIdx.x6{2}] )
//! ```
//! The device axes of T0 and T3 were split off an axis of extent 8; in T2 they are dimensions. Every device
//! reduces its own part, and only the results are sent.

use grammar::{
    AxisId, AxisKind, DType, DeviceDim, Diagnostic, DimMap, Domains, Expr, Op, OpStmt, Operand, ParallelType,
    Program, ReductionOp, TensorId, Transform, attr,
};
use hir_ir::build::{self, IrBuilder};

use super::{Decomposer, copies::copy_stmt, red_op::Steps};
use crate::{
    analysis::{
        propagation,
        reshard::{self, ReshardStep},
        sharding::{Dim, Sharding, same_extent},
    },
    rewrite::{contiguity, sharded_tensors::part_extent},
};

impl Decomposer<'_> {
    /// Of several dimensions, each of which is a device axis, reduces those whose devices shard the goal, and removes them
    /// from `parts`, until one is left: each device then has a part of the sums, and the reduction over the others sends less.
    pub(super) fn reduce_scattered_axes(
        &mut self,
        it: &OpStmt,
        mut arg: TensorId,
        mut from: Sharding,
        parts: &mut Vec<usize>,
        goal: &Sharding,
    ) -> (TensorId, Sharding) {
        while parts.len() > 1
            && from.mesh == goal.mesh
            && let Some((at, dim, part)) = self.scattered_part(&from, parts, goal)
        {
            let at = parts.remove(at);
            parts.iter_mut().for_each(|part| *part -= usize::from(*part > at));
            let mut sharding = from.clone();
            sharding.dims[dim] = part;
            sharding.dims.remove(at);
            let sum = self.new_tensor(&sharding, arg);
            self.set_reduction_axes(sum, &from, &[at]);
            self.emit_reduction(it, arg, sum);
            (arg, from) = (sum, sharding);
        }
        (arg, from)
    }

    /// Returns the first of `parts` whose device axis is the next one that shards a dimension of the goal, with this dimension
    /// among those of the operand, and its pieces.
    fn scattered_part(
        &self,
        from: &Sharding,
        parts: &[usize],
        goal: &Sharding,
    ) -> Option<(usize, usize, Dim)> {
        parts.iter().enumerate().find_map(|(at, part)| {
            let device = from.dims[*part].devices().next()?;
            let kept = (0..from.dims.len()).filter(|dim| !parts.contains(dim));
            let (dim, want) = kept.zip(&goal.dims).find(|(dim, want)| {
                let (have, want) =
                    (from.dims[*dim].device_splits(self.program), want.device_splits(self.program));
                want.starts_with(&have) && want.get(have.len()).is_some_and(|(it, _)| *it == device)
            })?;
            let number = from.dims[dim].devices().count() + 1;
            Some((at, dim, Dim { pieces: want.pieces_through_device(number), ..want.clone() }))
        })
    }

    /// Decomposes a reduction over dimensions if some of them are sharded over devices.
    pub(super) fn decompose_reduction(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        maps: &[DimMap],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let summed: Vec<usize> = (0..maps.len()).filter(|at| maps[*at] == DimMap::Reduction).collect();
        let steps = Steps::of(self.program, it, arg);
        if let Steps::Whole = steps {
            // The operator has one step only: gather the operand and reduce it locally.
            let needs = propagation::operand_shardings(self.program, &[arg], &[maps.to_vec()], goal);
            self.emit_on_resharded(it, &[arg], std::slice::from_ref(from), &needs, out)?;
            return Ok(true);
        }
        let (mut arg, mut from, summed) = self.split_reduced_dims(arg, from, &summed);
        let is_spread = |from: &Sharding, at: usize| from.dims[at].devices().next().is_some();
        let (mut spread, local): (Vec<usize>, Vec<usize>) =
            summed.into_iter().partition(|at| is_spread(&from, *at));
        if !local.is_empty() {
            // Each device first reduces its own part, so that less is sent.
            (arg, from) = self.emit_reduce_dims(it, arg, &from, &local);
            spread.iter_mut().for_each(|at| *at -= local.iter().filter(|it| *it < at).count());
        }
        let it = match steps {
            Steps::Collective => it.clone(),
            Steps::LocalThenCollective(step) if !local.is_empty() => step,
            Steps::LocalThenCollective(_) | Steps::LocalThenGather | Steps::Whole => {
                self.gather_and_reduce(it, arg, &from, &spread, out, goal)?;
                return Ok(true);
            }
        };
        let it = &it;
        (arg, from) = self.reduce_scattered_axes(it, arg, from, &mut spread, goal);
        if !reduces_in_one_step(self.program, &from, &spread, goal) {
            let (sum, sharding) = self.emit_reduce_dims(it, arg, &from, &spread);
            self.reshard(sum, &sharding, goal, Some(out))?;
        } else if self.stmts.is_empty() {
            return Ok(false);
        } else if self.is_written_once(out) {
            self.set_reduction_axes(out, &from, &spread);
            self.emit_reduction(it, arg, out);
        } else {
            let sum = self.new_tensor(goal, out);
            self.set_reduction_axes(sum, &from, &spread);
            self.emit_reduction(it, arg, sum);
            self.emit(copy_stmt(sum, out));
        }
        Ok(true)
    }

    /// Gathers the dimensions `spread`, of one element for each device, and reduces them locally.
    fn gather_and_reduce(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        spread: &[usize],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<(), Diagnostic> {
        let mut wanted = goal.dims.iter();
        let dims = from.dims.iter().enumerate().map(|(at, dim)| {
            let whole = Dim { pieces: Vec::new(), ..dim.clone() };
            if spread.contains(&at) { whole } else { wanted.next().map_or(whole, Dim::without_streams) }
        });
        let need = Sharding { mesh: goal.mesh.clone(), dims: dims.collect() };
        let whole = self.reshard(arg, from, &need, None)?;
        let in_place = self.is_written_once(out);
        let sum = if in_place { out } else { self.new_tensor(goal, out) };
        self.set_reduction_axes(sum, &need, spread);
        self.emit_reduction(it, whole, sum);
        if !in_place {
            self.emit(copy_stmt(sum, out));
        }
        Ok(())
    }

    /// Reshapes the tensor so that each piece of a reduced dimension is a dimension, if a reduced dimension
    /// has more than one device axis. Returns the tensor, its sharding and the reduced dimensions.
    pub(super) fn split_reduced_dims(
        &mut self,
        arg: TensorId,
        from: &Sharding,
        summed: &[usize],
    ) -> (TensorId, Sharding, Vec<usize>) {
        let (mut dims, mut parts) = (Vec::new(), Vec::new());
        for (at, dim) in from.dims.iter().enumerate() {
            let first = dims.len();
            let is_spread = dim.devices().next().is_some();
            if summed.contains(&at) && is_spread {
                let mut rest = Some(dim.extent);
                for piece in &dim.pieces {
                    let pieces = if piece.device().is_some() { vec![*piece] } else { Vec::new() };
                    dims.push(Dim { pieces, ..Dim::whole(piece.count) });
                    let is_all = rest.is_none_or(|rest| same_extent(self.program, rest, piece.count));
                    rest = rest.filter(|_| !is_all).map(|rest| part_extent(self.program, rest, piece.count));
                }
                dims.extend(rest.map(Dim::whole));
            } else {
                dims.push(dim.clone());
            }
            if summed.contains(&at) {
                parts.extend(first..dims.len());
            }
        }
        if dims.len() == from.dims.len() {
            return (arg, from.clone(), summed.to_vec());
        }
        let sharding = Sharding { mesh: from.mesh.clone(), dims };
        let cut = self.new_tensor(&sharding, arg);
        self.emit(contiguity::unary_op(Op::Reshape, arg, cut));
        (cut, sharding, parts)
    }

    /// Emits a reduction over `dims` that leaves the other dimensions unchanged. Returns the result and its
    /// sharding.
    fn emit_reduce_dims(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        dims: &[usize],
    ) -> (TensorId, Sharding) {
        let sharding = from.without_dims(dims);
        let sum = self.new_tensor(&sharding, arg);
        self.set_reduction_axes(sum, from, dims);
        self.emit_reduction(it, arg, sum);
        (sum, sharding)
    }

    pub(super) fn set_reduction_axes(&mut self, out: TensorId, from: &Sharding, dims: &[usize]) {
        set_reduction_axes(self.program, self.fresh, out, from, dims);
    }

    pub(super) fn emit_reduction(&mut self, like: &OpStmt, from: TensorId, to: TensorId) {
        let stmt = reduction_stmt(self.program, like, from, to);
        self.emit(stmt);
    }

    /// Returns whether at most one statement writes the tensor.
    pub(super) fn is_written_once(&self, tensor: TensorId) -> bool {
        self.write_counts.get(&tensor).is_none_or(|count| *count <= 1)
    }
}

/// Replaces the reduction axes of a reduction's result by those for `dims` of the operand, at their
/// positions among the operand's dimensions.
pub(crate) fn set_reduction_axes(
    program: &mut Program,
    fresh: &mut IrBuilder,
    out: TensorId,
    from: &Sharding,
    dims: &[usize],
) {
    let mut kept = program.dimensions(out).collect::<Vec<_>>().into_iter();
    let is_reduction = |program: &Program, axis: &AxisId| program.axes[*axis].kind == AxisKind::Reduction;
    let mut loops = program.tensors[out].loop_domain.clone();
    loops.retain(|axis| !is_reduction(program, axis));
    let axes = &program.axes;
    program.tensors[out].domains.transforms.retain(|it| match it {
        Transform::Split { input, .. } | Transform::Swizzle1D { input, .. } => {
            axes[*input].kind != AxisKind::Reduction
        }
        Transform::Merge { outer, .. } => axes[*outer].kind != AxisKind::Reduction,
    });
    let is_here = program.tensors[out].mesh == from.mesh;
    // If the result is scattered, its own axis is on the devices.
    let taken: Vec<ParallelType> = loops.iter().map(|axis| program.axes[*axis].parallel).collect();
    let mut logical = Vec::new();
    for (at, dim) in from.dims.iter().enumerate() {
        if !dims.contains(&at) {
            logical.extend(kept.next());
            continue;
        }
        let mut domains = Domains::default();
        let mut gone =
            Dim { kind: AxisKind::Reduction, partial: false, unit_device_axis: None, ..dim.clone() };
        // The device pieces belong to the operand's mesh. If the result is on another mesh, they are
        // meaningless.
        gone.pieces.retain(|piece| is_here && !taken.contains(&piece.parallel));
        gone.append_axes(program, fresh, &mut loops, &mut domains);
        logical.append(&mut domains.logical);
        program.tensors[out].domains.transforms.append(&mut domains.transforms);
    }
    let it = &mut program.tensors[out];
    (it.loop_domain, it.domains.logical) = (loops, logical);
}

pub(super) fn reduces_over_devices(maps: &[DimMap], sharding: &Sharding) -> bool {
    let spread = |(map, dim): (&DimMap, &Dim)| *map == DimMap::Reduction && dim.devices().next().is_some();
    maps.iter().zip(&sharding.dims).any(spread)
}

/// Returns whether a reduction over the devices of `dims` is a single collective: an all-reduce over the product of their
/// axes, a reduce-scatter along one axis, or a reduction to other devices.
pub(crate) fn reduces_in_one_step(
    program: &Program,
    from: &Sharding,
    dims: &[usize],
    goal: &Sharding,
) -> bool {
    // No part of the dimensions is left to reduce locally.
    let device = |dim: &usize| match from.dims[*dim].pieces[..] {
        [piece] if same_extent(program, from.dims[*dim].extent, piece.count) => piece.device(),
        _ => None,
    };
    let Some(devices) = dims.iter().map(device).collect::<Option<Vec<DeviceDim>>>() else { return false };
    let kept = from.without_dims(dims);
    if from.mesh != goal.mesh {
        let count: usize = devices.iter().map(|device| from.mesh.extent(*device)).product();
        return kept.is_replicated()
            && goal.is_replicated()
            && !goal.mesh.is_empty()
            && goal.mesh.devices.iter().all(|rank| from.mesh.contains(*rank))
            && from.mesh.devices.len() == count;
    }
    match reshard::scattered_piece(program, &kept, goal) {
        Some((_, to)) => devices == [to],
        None => reshard::step(program, &kept, goal) == Some(ReshardStep::Local),
    }
}

/// Returns a reduction with the attributes of `like` if `like` is a reduction, and a sum otherwise.
pub(crate) fn reduction_stmt(program: &mut Program, like: &OpStmt, from: TensorId, to: TensorId) -> OpStmt {
    let attrs = match like.op {
        Op::Reduction => like.attrs.clone(),
        _ => vec![
            attr::OP.with(ReductionOp::Add),
            attr::INITIAL_VALUE.with(program.intern_expr(Expr::Float(DType::Float, "0".to_owned()))),
            attr::ALLREDUCE.with(false),
        ],
    };
    OpStmt {
        outs: vec![Operand::Tensor(to)],
        args: vec![Operand::Tensor(from)],
        attrs,
        ..build::op(Op::Reduction)
    }
}
