//! Determines how a statement can be sliced along a stream axis.

use grammar::{
    AxisKind, DeviceDim, DimMap, ExprId, OpStmt, ParallelType, Program, ResultDim, TensorId, TypeRule,
    result_dims, rules::LostDim,
};

use super::options::{Allgather, LoopOptions, ReduceScatter, Style};
use crate::{
    analysis::{
        dim_map, propagation,
        reshard::{self, ReshardStep},
        sharding::{Dim, Sharding, same_extent},
    },
    transform::decompose_resharding::{collective_red_op, is_copy, reduces_in_one_step},
};

/// The operation of an iteration for a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SliceKind {
    /// The operator, applied to slices.
    Local,
    /// The same for a collective: all ranks have to work on the same slice.
    Collective,
    /// Sends one device's shard to all devices.
    Allgather(DeviceDim),
    /// Reduces the partial sums of one device's shard to this device.
    ReduceScatter(DeviceDim),
    /// Exchanges one slice of every device's shard of this dimension, along a device axis, so that another dimension is
    /// sharded by it before or behind the exchange.
    AllToAll(usize, DeviceDim),
}

impl SliceKind {
    /// Returns the device axis along which it exchanges slices.
    pub(super) fn device(self) -> Option<DeviceDim> {
        match self {
            Self::Local | Self::Collective => None,
            Self::Allgather(device) | Self::ReduceScatter(device) | Self::AllToAll(_, device) => Some(device),
        }
    }
}

/// How a statement of a loop is sliced.
pub(super) struct Slicing {
    pub(super) kind: SliceKind,
    pub(super) style: Style,
    /// The number of slices.
    pub(super) count: ExprId,
    pub(super) out: TensorId,
    /// The dimension of the result that is sliced.
    pub(super) out_dim: Option<usize>,
    /// The operands, in the order of `OpStmt::tensor_operands`.
    pub(super) operands: Vec<OperandSlice>,
    /// Whether ranks work on different slices at a time, each starting with its own.
    pub(super) rotated: bool,
    /// Whether the stream axes are swizzled, so that the views rotate.
    pub(super) swizzled: bool,
}

impl Slicing {
    /// Returns the tensor whose slices a ring transfers; `None` if the statement is not a ring.
    pub(super) fn ring_buffer(&self, settings: LoopOptions) -> Option<TensorId> {
        match self.kind {
            SliceKind::Allgather(_) if settings.allgather == Allgather::Ring => Some(self.out),
            SliceKind::ReduceScatter(_) if settings.reduce_scatter == ReduceScatter::Ring => {
                self.operands.first().map(|it| it.tensor)
            }
            SliceKind::Allgather(_)
            | SliceKind::ReduceScatter(_)
            | SliceKind::AllToAll(..)
            | SliceKind::Local
            | SliceKind::Collective => None,
        }
    }

    /// Returns whether it is a ring in which all ranks work on the same slice at a time.
    pub(super) fn is_ring_without_offset(&self, settings: LoopOptions) -> bool {
        self.ring_buffer(settings).is_some() && !self.rotated && !self.swizzled
    }
}

/// The part of an operand that an iteration reads.
#[derive(Clone, Copy)]
pub(super) struct OperandSlice {
    pub(super) tensor: TensorId,
    /// The dimension that is sliced; `None`: the iteration reads the whole tensor.
    pub(super) dim: Option<usize>,
    /// Whether the dimension has extent 1 and is broadcast to all slices.
    pub(super) repeated: bool,
}

/// Returns how a statement can be sliced; `None` if it cannot, or has no stream axis.
pub(super) fn slicing(program: &Program, settings: LoopOptions, it: &OpStmt) -> Option<Slicing> {
    if !it.computes() {
        return None;
    }
    let [out] = it.outs[..] else { return None };
    let out = out.tensor()?;
    let args = it.tensor_operands();
    // An operator without operands computes elements from their index in the whole tensor. It stays before
    // the loop, which reads slices of its result.
    if args.is_empty() {
        return None;
    }
    let from = args.iter().map(|arg| Sharding::of(program, *arg)).collect::<Option<Vec<_>>>()?;
    let goal = Sharding::of(program, out)?;
    let maps = dim_map::dim_maps(program, it)?;
    let ctx =
        SliceAnalysis { program, settings, it, args: &args, from: &from, maps: &maps, out, goal: &goal };
    match goal.dims.iter().position(|dim| dim.stream().is_some()) {
        Some(dim) => ctx.streamed(dim),
        None => ctx.reduce_scatter().or_else(|| ctx.all_to_all(None)),
    }
}

/// Returns the device axes of a dimension, with their numbers of devices.
fn device_extents(sharding: &Sharding, dim: usize) -> Vec<(DeviceDim, usize)> {
    sharding.dims[dim].devices().map(|device| (device, sharding.mesh.extent(device))).collect()
}

struct SliceAnalysis<'c> {
    program: &'c Program,
    settings: LoopOptions,
    it: &'c OpStmt,
    args: &'c [TensorId],
    from: &'c [Sharding],
    maps: &'c [Vec<DimMap>],
    out: TensorId,
    goal: &'c Sharding,
}

impl SliceAnalysis<'_> {
    /// Slices a statement whose result has a stream axis in dimension `dim`.
    fn streamed(&self, dim: usize) -> Option<Slicing> {
        let stream = *self.goal.dims[dim].stream()?;
        // All slices of a broadcast axis are the same element.
        let mut axes = self.program.tensors[self.out].loop_domain.iter().map(|it| &self.program.axes[*it]);
        if axes.any(|it| it.parallel == ParallelType::Stream && it.kind == AxisKind::Broadcast) {
            return None;
        }
        // Slices are ranges of a rank's part only if the stream piece is the outermost non-device piece.
        if self.goal.dims[dim].first_non_device_piece() != Some(&stream) {
            return None;
        }
        if let Some(slicing) = self.allgather(dim).or_else(|| self.all_to_all(Some(dim))) {
            return Some(slicing);
        }
        let mut operands = Vec::new();
        for (arg, (from, maps)) in self.args.iter().zip(self.from.iter().zip(self.maps)) {
            operands.push(self.operand(*arg, from, maps, dim)?);
        }
        // A dimension that no operand dimension maps to index by index, such as a range or a new shape,
        // cannot be sliced.
        if result_dims(self.program, self.it, self.maps).get(dim) == Some(&ResultDim::RequiresWhole) {
            return None;
        }
        let style = self.style(dim, &operands)?;
        let needs = propagation::operand_shardings(self.program, self.args, self.maps, self.goal);
        let kind = if propagation::is_local(self.program, self.from, &needs) {
            SliceKind::Local
        } else if self.keeps_devices_along(dim) && !stream.swizzled {
            SliceKind::Collective
        } else {
            return None;
        };
        let (count, swizzled) = (stream.count, stream.swizzled);
        Some(Slicing {
            kind,
            style,
            count,
            out: self.out,
            out_dim: Some(dim),
            operands,
            rotated: false,
            swizzled,
        })
    }

    /// Returns the part of an operand that an iteration reads; `None` if it is not a slice.
    fn operand(
        &self,
        tensor: TensorId,
        from: &Sharding,
        maps: &[DimMap],
        dim: usize,
    ) -> Option<OperandSlice> {
        let whole = OperandSlice { tensor, dim: None, repeated: false };
        let stream = *self.goal.dims[dim].stream()?;
        let Some(at) = maps.iter().position(|map| *map == DimMap::Parallel(dim)) else {
            // An operand with the result's rank and extent 1 in this dimension has to lose the dimension
            // together with the result.
            let aligned = matches!(self.it.op.def().type_rule, TypeRule::Pointwise | TypeRule::Expand)
                && maps.get(dim) == Some(&DimMap::Broadcast(dim));
            return Some(if aligned {
                OperandSlice { dim: Some(dim), repeated: true, ..whole }
            } else {
                whole
            });
        };
        let slice = OperandSlice { dim: Some(at), ..whole };
        let devices = device_extents(from, at);
        if devices != device_extents(self.goal, dim) {
            return None;
        }
        // An alias of a tensor whose device axes leave one element to each rank would get no stream axis.
        let devices: i64 = devices.iter().map(|it| it.1 as i64).product();
        let is_spent = devices > 1 && self.program.constant(from.dims[at].extent) == Some(devices);
        if is_spent && from.dims[at].stream().is_none() {
            return None;
        }
        // A stream piece outside of device pieces divides the whole dimension, not a rank's part, so operand
        // and result have to be divided alike.
        let place = |dim: &Dim| dim.pieces.iter().position(|piece| piece.device().is_none());
        let outside = |dim: &Dim| place(dim).is_some_and(|at| at < dim.devices().count());
        let is_cut_alike = place(&from.dims[at]) == place(&self.goal.dims[dim]);
        match from.dims[at].first_non_device_piece() {
            None if outside(&self.goal.dims[dim]) => None,
            // An alias gets a stream axis here, since a tensor has at most one stream axis.
            None => (!stream.swizzled && from.dims.iter().all(|dim| dim.stream().is_none())).then_some(slice),
            Some(piece) if piece.parallel == stream.parallel => {
                let alike =
                    same_extent(self.program, piece.count, stream.count) && piece.swizzled == stream.swizzled;
                (alike && is_cut_alike).then_some(slice)
            }
            Some(_) => None,
        }
    }

    /// Returns how to take slices; `None` if the requested style is not possible.
    fn style(&self, dim: usize, operands: &[OperandSlice]) -> Option<Style> {
        let stream = self.goal.dims[dim].stream()?;
        let is_whole = |sharding: &Sharding, dim: usize| {
            same_extent(self.program, sharding.dims[dim].extent, stream.count)
                && sharding.dims[dim].devices().next().is_none()
        };
        let all_whole = is_whole(self.goal, dim)
            && operands
                .iter()
                .zip(self.from)
                .all(|(operand, from)| operand.dim.is_none_or(|at| operand.repeated || is_whole(from, at)));
        let lost = LostDim { program: self.program, stmt: self.it, maps: self.maps, dim };
        let selects = all_whole && self.it.rule().keeps_meaning_without(&lost) && !stream.swizzled;
        match self.settings.style {
            Some(Style::Select) => selects.then_some(Style::Select),
            Some(Style::Shard) => Some(Style::Shard),
            None if selects => Some(Style::Select),
            None => Some(Style::Shard),
        }
    }

    /// Returns whether resharding does not change the devices of the sliced dimension.
    fn keeps_devices_along(&self, dim: usize) -> bool {
        let kept = |(from, maps): (&Sharding, &Vec<DimMap>)| {
            let at = maps.iter().position(|map| *map == DimMap::Parallel(dim));
            at.is_none_or(|at| device_extents(from, at) == device_extents(self.goal, dim))
        };
        self.from.iter().zip(self.maps).all(kept)
    }

    /// Slices a copy that all-gathers the sliced dimension, with one shard per slice.
    fn allgather(&self, dim: usize) -> Option<Slicing> {
        let stream = *self.goal.dims[dim].stream()?;
        let ([tensor], [from], true) = (self.args, self.from, is_copy(self.it)) else { return None };
        let Some(ReshardStep::Allgather { dim: gathered, device }) =
            reshard::step(self.program, from, self.goal)
        else {
            return None;
        };
        // Inside the pieces of other device axes, if there are any.
        let one_each = self.is_last_piece_of(&self.goal.dims[dim], &from.dims[dim]);
        if gathered != dim || !one_each {
            return None;
        }
        let rotated = match self.settings.allgather {
            Allgather::Broadcast if stream.swizzled => return None,
            Allgather::Broadcast => false,
            Allgather::Ring => self.settings.offset,
            Allgather::Permute => true,
            Allgather::Whole => return None,
        };
        let operands = vec![OperandSlice { tensor: *tensor, dim: None, repeated: false }];
        let style = self.style(dim, &operands)?;
        let (count, swizzled) = (stream.count, stream.swizzled);
        let kind = SliceKind::Allgather(device);
        Some(Slicing { kind, style, count, out: self.out, out_dim: Some(dim), operands, rotated, swizzled })
    }

    /// Slices a copy that is an all-to-all, with a slice of each device's part of one dimension: dimension `to` of the result,
    /// or the one that was sharded before. All devices exchange the same slice of their parts at a time.
    fn all_to_all(&self, to: Option<usize>) -> Option<Slicing> {
        let ([tensor], [from], true) = (self.args, self.from, is_copy(self.it)) else { return None };
        let Some(ReshardStep::AllToAll { from: gone, to: new, device }) =
            reshard::step(self.program, from, self.goal)
        else {
            return None;
        };
        if self.settings.style == Some(Style::Select) || to.is_some_and(|dim| dim != new) {
            return None;
        }
        let (part, dim, operand_dim) =
            if to.is_some() { (self.goal, new, None) } else { (from, gone, Some(gone)) };
        let (stream, devices) = part.dims[dim].pieces.split_last()?;
        let is_slice = stream.parallel == ParallelType::Stream
            && !stream.swizzled
            && devices.last()?.device() == Some(device)
            && devices.iter().all(|it| it.device().is_some() && self.program.constant(it.count).is_some());
        let is_alone =
            self.from.iter().chain([self.goal]).flat_map(|it| &it.dims).filter_map(Dim::stream).count() == 1;
        let (kind, count) = (SliceKind::AllToAll(dim, device), stream.count);
        let operands = vec![OperandSlice { tensor: *tensor, dim: operand_dim, repeated: false }];
        let (style, out, out_dim) = (Style::Shard, self.out, to);
        (is_slice && is_alone).then_some(Slicing {
            kind,
            style,
            count,
            out,
            out_dim,
            operands,
            rotated: false,
            swizzled: false,
        })
    }

    /// Returns whether the innermost piece of `chunked` is a stream with one chunk for each device of the innermost piece of
    /// `spread`, and the other pieces are the same.
    fn is_last_piece_of(&self, chunked: &Dim, spread: &Dim) -> bool {
        let (Some((stream, outer)), Some((device, others))) =
            (chunked.pieces.split_last(), spread.pieces.split_last())
        else {
            return false;
        };
        stream.parallel == ParallelType::Stream
            && same_extent(self.program, stream.count, device.count)
            && outer == others
    }

    /// Slices a reduction over devices that scatters its result, with one device per slice.
    fn reduce_scatter(&self) -> Option<Slicing> {
        let ([tensor], [from], [maps]) = (self.args, self.from, self.maps) else { return None };
        let summed: Vec<usize> = (0..maps.len()).filter(|at| maps[*at] == DimMap::Reduction).collect();
        let [partial] = summed[..] else { return None };
        let kept = from.without_dims(&summed);
        let device = from.dims[partial].devices().next()?;
        if self.it.op.def().type_rule != TypeRule::Reduce
            || collective_red_op(self.program, self.it).is_none()
            || from.mesh != self.goal.mesh
            || !reduces_in_one_step(self.program, from, &summed, self.goal)
        {
            return None;
        }
        let (scattered, _) = reshard::scattered_piece(self.program, &kept, self.goal)?;
        let at = maps.iter().position(|map| *map == DimMap::Parallel(scattered))?;
        let stream = *from.dims[at].stream()?;
        let one_each = self.is_last_piece_of(&from.dims[at], &self.goal.dims[scattered]);
        let rotated = match self.settings.reduce_scatter {
            ReduceScatter::Reduce if stream.swizzled => return None,
            ReduceScatter::Reduce => false,
            ReduceScatter::Ring => self.settings.offset,
            ReduceScatter::Whole => return None,
        };
        if !one_each {
            return None;
        }
        let is_whole = same_extent(self.program, from.dims[at].extent, stream.count)
            && from.dims[at].pieces.len() == 1
            && !stream.swizzled;
        let style = match self.settings.style {
            Some(Style::Select) => is_whole.then_some(Style::Select)?,
            Some(Style::Shard) => Style::Shard,
            None if is_whole => Style::Select,
            None => Style::Shard,
        };
        let operands = vec![OperandSlice { tensor: *tensor, dim: Some(at), repeated: false }];
        let (count, swizzled, kind) = (stream.count, stream.swizzled, SliceKind::ReduceScatter(device));
        Some(Slicing { kind, style, count, out: self.out, out_dim: None, operands, rotated, swizzled })
    }
}
