//! Operators whose operands and result are sharded differently: one collective on whole tensors.

use std::{ops::Range, sync::Arc};

use grammar::{
    DimGroup, DimMap, OperandMap, ResultDim,
    codes::Code,
    ir::{OpStmt, ParallelType, TensorId},
    operand_map,
    ops::TypeRule,
    result_dims,
};

use super::{
    Buffer, InstKind, Reshard, Shard, ShardLayout, View,
    context::{PlanBuilder, Result},
};

impl PlanBuilder<'_> {
    /// One collective on whole tensors.
    pub(super) fn reshard(&mut self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<()> {
        let tensors: Vec<TensorId> = args.iter().copied().chain([out]).collect();
        let meshes = tensors.iter().map(|it| &self.program.tensors[*it].mesh);
        let everywhere = meshes.clone().any(|mesh| mesh.is_empty());
        let team = match everywhere {
            true => Arc::clone(self.teams.world()),
            false => self.teams.team(stmt, || {
                let mut team: Vec<usize> = meshes.flat_map(|mesh| mesh.devices.iter().copied()).collect();
                team.sort_unstable();
                team.dedup();
                team
            }),
        };
        if team.binary_search(&self.rank()).is_err() {
            self.note_slice(args, out);
            return Ok(());
        }
        if self.is_divergent() {
            let message =
                format!("`{}` reshards under an index or predicate that depends on the rank", stmt.op.name());
            let it = self.error(Code::DivergentReshard, message, "not all ranks come here");
            return Err(Box::new(it.help("move it out of the branch, or lower it to P2PCommunications")));
        }
        // Storage of an iteration that a communication filled holds the slice that the statement's other tensors hold.
        let stream = tensors.iter().find_map(|tensor| self.held_slice(*tensor));
        let mut operands = Vec::with_capacity(args.len());
        for arg in args {
            let view = if self.holds_part(*arg) { Some(self.view(*arg)?) } else { None };
            operands.push(Shard { view, layout: self.member_slice(*arg, stream)? });
        }
        let view = if self.holds_part(out) { Some(self.output_view(out)?) } else { None };
        if let (Some(stream), true) = (stream, self.program.is_split_by_stream(out)) {
            match &view {
                Some(view) => {
                    let known = self.binding(out).and_then(|it| it.stream).unwrap_or(stream);
                    self.bind(out, view.clone(), Some(known));
                }
                None => _ = self.slices.insert(out, stream),
            }
        }
        let result = Shard { view, layout: self.member_slice(out, stream)? };
        let whole = |at: usize, layout: &ShardLayout| View::contiguous(at as u32, layout.shape.clone());
        let views: Vec<View> =
            operands.iter().enumerate().map(|(at, shard)| whole(at, &shard.layout)).collect();
        let target = whole(args.len(), &result.layout);
        let buffer = |tensor: &TensorId, layout: &ShardLayout| Buffer {
            name: self.program.tensor_name(*tensor),
            dtype: self.dtype(*tensor),
            len: layout.shape.iter().product(),
        };
        let shards = operands.iter().chain([&result]);
        let buffers =
            tensors.iter().zip(shards).map(|(tensor, shard)| buffer(tensor, &shard.layout)).collect();
        let body = self.lower(stmt, &views, args, out, &target, team[0])?;
        self.emit(InstKind::Reshard(Box::new(Reshard { team, operands, result, buffers, body })));
        Ok(())
    }

    /// The stream's slice that a tensor holds at this point, on this rank or on those that have it.
    pub(super) fn held_slice(&self, tensor: TensorId) -> Option<usize> {
        match self.holds_part(tensor) {
            true => self.binding(tensor).and_then(|it| it.stream),
            false => self.slices.get(&tensor).copied(),
        }
    }

    /// Keeps in mind which slice other ranks compute in this iteration: a communication of it may come here.
    pub(super) fn note_slice(&mut self, args: &[TensorId], out: TensorId) {
        let slice = args.iter().find_map(|arg| self.held_slice(*arg));
        if let Some(slice) = slice.filter(|_| self.program.is_split_by_stream(out)) {
            self.slices.insert(out, slice);
        }
    }

    /// The layout on this rank, or for ranks outside the mesh that of a member.
    fn member_layout(&self, tensor: TensorId) -> Result<ShardLayout> {
        self.member_slice(tensor, None)
    }

    /// As `member_layout`; `stream` is the slice that the tensor holds where nothing else says which.
    fn member_slice(&self, tensor: TensorId, stream: Option<usize>) -> Result<ShardLayout> {
        let member = match self.holds_part(tensor) {
            true => self.rank(),
            false => self.program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0),
        };
        self.layout_of_slice(tensor, member, stream)
    }

    /// Whether some rank lacks what it needs for its own part of the result.
    pub(super) fn needs_reshard(&self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        // A HostUnit is one rank's kernel.
        if self.program.tensors[out].unit.is_some() {
            return Ok(false);
        }
        let is_sharded = |shards: &[Sharding]| shards.iter().any(|dim| !dim.is_empty());
        let (from, to): (Vec<_>, _) =
            (args.iter().map(|arg| self.sharding(*arg)).collect(), self.sharding(out));
        if !args.iter().zip(&from).all(|(arg, from)| self.is_available_to(*arg, out, is_sharded(from))) {
            return Ok(true);
        }
        let is_spread = is_sharded(&to) || from.iter().any(|it| is_sharded(it));
        Ok(is_spread && !self.is_aligned(stmt, args, &from, out, &to))
    }

    /// Whether every rank that holds a part of `out` holds one of `arg`, in the same mesh when `arg` has parts.
    fn is_available_to(&self, arg: TensorId, out: TensorId, sharded: bool) -> bool {
        let (from, to) = (&self.program.tensors[arg].mesh, &self.program.tensors[out].mesh);
        match (from.is_empty(), to.is_empty()) {
            (true, _) => true,
            (false, true) => (0..self.plan.world).all(|rank| from.contains(rank)),
            (false, false) if sharded => from == to,
            // One mesh is the usual case; comparing shared ones looks at no device.
            (false, false) => from == to || to.devices.iter().all(|rank| from.contains(*rank)),
        }
    }

    /// Whether corresponding dimensions are sharded alike.
    fn is_aligned(
        &self,
        stmt: &OpStmt,
        args: &[TensorId],
        from: &[Vec<Sharding>],
        out: TensorId,
        to: &[Sharding],
    ) -> bool {
        let rule = stmt.op.def().type_rule;
        let value = |it| self.scalars.int(it).ok();
        let maps = (0..args.len()).map(|at| operand_map(self.program, stmt, at, &value));
        let Some(maps) = maps.collect::<Option<Vec<OperandMap>>>() else {
            return rule == TypeRule::Unchecked && from.iter().all(|from| is_outermost_alike(from, to));
        };
        let mut dims = Vec::with_capacity(maps.len());
        for ((map, arg), from) in maps.into_iter().zip(args).zip(from) {
            match map {
                OperandMap::Dims(it) => dims.push(it),
                // A reshape has one operand.
                OperandMap::Groups(groups) => return self.keeps_order(&groups, *arg, from, out, to),
            }
        }
        let results = result_dims(self.program, stmt, &dims);
        let devices = |dim: &Sharding| dim.iter().map(|(device, _)| *device).collect::<Vec<_>>();
        // A reduction of a sharded axis leaves partial sums on each device, which the result's own device axis counts.
        let partial = results.iter().position(|it| *it == ResultDim::Partial);
        let partial = partial.map_or(Vec::new(), |at| devices(&shard(to, at)));
        let fits = |(at, map): (usize, &DimMap), arg: TensorId, from: &[Sharding]| match *map {
            DimMap::Parallel(dim) => {
                shard(from, at) == shard(to, dim)
                    || rule == TypeRule::Same && self.is_subrange(arg, out, at, from, to)
            }
            DimMap::Broadcast(_) | DimMap::RequiresWhole => shard(from, at).is_empty(),
            DimMap::Reduction => devices(&shard(from, at)) == partial,
        };
        let mut operands = dims.iter().zip(args).zip(from);
        operands.all(|((dims, arg), from)| dims.iter().enumerate().all(|it| fits(it, *arg, from)))
            && results.iter().enumerate().all(|(at, it)| match it {
                ResultDim::RequiresWhole => shard(to, at).is_empty(),
                ResultDim::Mapped | ResultDim::Broadcast | ResultDim::Partial | ResultDim::IndexDependent => {
                    true
                }
            })
    }

    /// Whether each rank's part of a dimension of `out` is one range of the part that it has of `arg`.
    fn is_subrange(
        &self,
        arg: TensorId,
        out: TensorId,
        dim: usize,
        from: &[Sharding],
        to: &[Sharding],
    ) -> bool {
        let range = |tensor| self.range(tensor, dim, &self.member_layout(tensor).ok()?);
        from.get(dim).zip(to.get(dim)).is_some_and(|(from, to)| to.ends_with(from))
            && range(arg).zip(range(out)).is_some_and(|(has, takes)| contains(&has, &takes))
    }

    /// What a copy reads of its operand: where this rank has more of it than of the result, its own part.
    pub(super) fn narrow_to_result(&self, view: &View, arg: TensorId, out: TensorId) -> View {
        let mut view = view.clone();
        let (Ok(from), Ok(to)) = (self.layout(arg), self.layout(out)) else { return view };
        if from.shape != to.shape {
            return view;
        }
        for dim in 0..view.shape.len() {
            if let Some((has, takes)) = self.range(arg, dim, &from).zip(self.range(out, dim, &to))
                && has != takes
                && has.len() == view.shape[dim]
                && contains(&has, &takes)
            {
                view = view.narrow(dim, takes.start - has.start, takes.len());
            }
        }
        view
    }

    /// The indices of a dimension that a rank has, where they follow each other and no stream decides them.
    fn range(&self, tensor: TensorId, dim: usize, layout: &ShardLayout) -> Option<Range<usize>> {
        let is_by_stream = self.program.is_split_by_stream(tensor)
            && super::shape::stream_piece(self.program, tensor).is_none_or(|(at, ..)| at == dim);
        if is_by_stream { None } else { layout.range(dim) }
    }

    /// Whether each rank's elements in order are those of the result in order: within a group of dimensions, the same devices
    /// count the same steps.
    fn keeps_order(
        &self,
        groups: &[DimGroup],
        arg: TensorId,
        from: &[Sharding],
        out: TensorId,
        to: &[Sharding],
    ) -> bool {
        let shape = |tensor| self.member_layout(tensor).map(|layout| layout.shape).unwrap_or_default();
        let (mine, theirs) = (shape(arg), shape(out));
        let steps = |shape: &[usize], shards: &[Sharding], dims: Range<usize>| -> Vec<_> {
            let steps = |at: usize| {
                let inner: usize = shape.get(at + 1..dims.end).unwrap_or_default().iter().product();
                shard(shards, at).into_iter().rev().map(move |(device, step)| (device, step * inner))
            };
            dims.clone().flat_map(steps).collect()
        };
        groups
            .iter()
            .all(|it| steps(&mine, from, it.operand.clone()) == steps(&theirs, to, it.result.clone()))
    }

    /// For every dimension, the device axes it is split by, each with the number of elements in one of its steps.
    fn sharding(&self, tensor: TensorId) -> Vec<Sharding> {
        let Ok(layout) = self.member_layout(tensor) else { return Vec::new() };
        let dims = self.program.dimensions(tensor).zip(&layout.pieces);
        dims.map(|(axis, pieces)| {
            let mut leaves = Vec::new();
            super::shape::leaf_axes(self.program, tensor, axis, &mut leaves);
            let mut inner = 1;
            let mut found = Vec::new();
            for (leaf, piece) in leaves.iter().zip(pieces).rev() {
                if let ParallelType::Device(device) = self.program.axes[*leaf].parallel {
                    // A mesh of one device along the axis holds all of it.
                    if piece.extent > 1 {
                        found.push((device, inner));
                    }
                }
                inner *= piece.extent;
            }
            found
        })
        .collect()
    }
}

/// Device axes of one dimension, innermost first.
type Sharding = Vec<(grammar::ir::DeviceDim, usize)>;

fn shard(dims: &[Sharding], at: usize) -> Sharding {
    dims.get(at).cloned().unwrap_or_default()
}

/// What an operator that moves elements does to a sharded axis is only sure where it is the outermost one on both sides, and as
/// long: an axis that grows is joined or padded.
fn is_outermost_alike(from: &[Sharding], to: &[Sharding]) -> bool {
    let rest_whole = |dims: &[Sharding]| dims.iter().skip(1).all(Vec::is_empty);
    shard(from, 0) == shard(to, 0) && rest_whole(from) && rest_whole(to)
}

fn contains(whole: &Range<usize>, part: &Range<usize>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}
