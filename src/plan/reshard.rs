//! Lowers operators whose operands and result are sharded differently, to one collective on whole tensors.

use std::{ops::Range, sync::Arc};

use grammar::{
    Code, DimGroup, DimMap, OpStmt, OperandMap, ParallelType, Program, ResultDim, TensorId, TypeRule, attr,
    dims_of_first_result, operand_map, result_dims,
};

use super::{
    Buffer, InstKind, Reshard, Shard, ShardLayout, View,
    context::{PlanBuilder, Result},
    shape,
};

impl PlanBuilder<'_> {
    /// Emits one collective on whole tensors.
    pub(super) fn reshard(&mut self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<()> {
        let tensors: Vec<TensorId> = args.iter().copied().chain([out]).collect();
        let meshes = tensors.iter().map(|it| &self.program.tensors[*it].mesh);
        let everywhere = meshes.clone().any(|mesh| mesh.is_empty());
        let team = if everywhere {
            Arc::clone(self.teams.world())
        } else {
            self.teams.team(stmt, || -> Result<_> {
                let mut team: Vec<usize> = meshes.flat_map(|mesh| mesh.devices.iter().copied()).collect();
                team.sort_unstable();
                team.dedup();
                Ok(team)
            })?
        };
        if team.binary_search(&self.rank()).is_err() {
            self.note_slice(args, out);
            return Ok(());
        }
        if self.is_divergent() {
            let message =
                format!("`{}` reshards in a loop or branch that depends on the rank", stmt.op.name());
            let it = self.error(Code::DivergentReshard, message, "not all ranks execute this");
            return Err(Box::new(it.help("move it out of the branch, or lower it to P2PCommunications")));
        }
        // Storage that a communication has filled in this iteration holds the same slice as the other tensors
        // of the statement.
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
        self.check_slices(stmt, args, &operands, out, &result)?;
        let whole = |(at, (tensor, shard)): (usize, (&TensorId, &Shard))| {
            let name = self.program.tensor_name(*tensor);
            Buffer::of_elements(name, self.dtype(*tensor), at as u32, shard.layout.shape.clone())
        };
        let shards = tensors.iter().zip(operands.iter().chain([&result]));
        let (mut buffers, mut views): (Vec<Buffer>, Vec<View>) = shards.enumerate().map(whole).unzip();
        let targets = views.split_off(args.len());
        let first = buffers.len() as u32;
        let (body, temporaries) = self.lower(stmt, &views, args, out, &targets, team[0], first)?;
        buffers.extend(temporaries);
        let with_parts = |tensor: TensorId, shard: Shard| {
            let dtype = self.dtype(tensor);
            Shard { view: shard.view.map(|it| it.with_parts(dtype)), layout: shard.layout.with_parts(dtype) }
        };
        let operands = args.iter().zip(operands).map(|(arg, it)| with_parts(*arg, it)).collect();
        let result = with_parts(out, result);
        self.emit(InstKind::Reshard(Box::new(Reshard { team, operands, result, buffers, body })));
        Ok(())
    }

    /// Checks that the slices of the operands contain the elements of the slice of the result. A stream axis inside a device
    /// axis divides the part of each device, and one outside divides the whole axis, so slices of one number can contain
    /// different elements.
    ///
    /// Nothing is checked if a slice of the program depends on the rank: the slices of all ranks together may contain the
    /// elements then.
    fn check_slices(
        &self,
        stmt: &OpStmt,
        args: &[TensorId],
        operands: &[Shard],
        out: TensorId,
        result: &Shard,
    ) -> Result<()> {
        let slice = |tensor: TensorId, shard: &Shard| {
            let (dim, at, swizzled) = shape::stream_piece(self.program, tensor)?;
            let pieces = shard.layout.pieces.get(dim)?;
            let inner: usize = pieces.get(at + 1..)?.iter().map(|it| it.extent).product();
            // A swizzled axis gives every device another slice.
            let is_plain = self.program.is_split_by_stream(tensor) && !swizzled && pieces[at].extent > 1;
            is_plain.then_some((dim, (pieces[at], inner)))
        };
        let Some((dim, wanted)) = slice(out, result) else { return Ok(()) };
        let value = |it| self.scalars.int(it).ok();
        for (at, (arg, operand)) in args.iter().zip(operands).enumerate() {
            let Some((from, has)) = slice(*arg, operand).filter(|it| it.1 != wanted) else { continue };
            let Some(OperandMap::Dims(maps)) = operand_map(self.program, stmt, at, &value) else { continue };
            if maps.get(from) != Some(&DimMap::Parallel(dim)) || self.slices_depend_on_rank() {
                continue;
            }
            let (name, out) = (self.program.tensor_name(*arg), self.program.tensor_name(out));
            let message = format!("the slice of `{name}` does not contain the elements of that of `{out}`");
            let numbers = (has.0.coordinate, wanted.0.coordinate);
            let (label, help) = match numbers {
                (Some(one), Some(other)) if (has.0.extent, has.1) == (wanted.0.extent, wanted.1) => (
                    format!("`{name}` is slice {one}, and `{out}` is slice {other}"),
                    "take slices of the same number, with the same `stream_index=`",
                ),
                _ => (
                    "the stream axes of the two divide the dimension differently".to_owned(),
                    "split the dimension alike in both tensors, for devices first and then for streams, or the reverse",
                ),
            };
            return Err(Box::new(self.error(Code::RuntimeShape, message, label).help(help)));
        }
        Ok(())
    }

    /// Returns whether ranks may take slices of different numbers at the same time. The program of one rank does not say
    /// which slices the other ranks take.
    fn slices_depend_on_rank(&self) -> bool {
        self.program.is_of_one_rank()
            || self.program.stmts.iter().any(|(_, it)| {
                let index = it.op().and_then(|it| it.get(attr::STREAM_INDEX));
                index.is_some_and(|index| self.scalars.depends_on_rank(index))
            })
    }

    /// Returns the stream whose slice a tensor holds at this point, on this rank or on the ranks that hold
    /// the tensor.
    pub(super) fn held_slice(&self, tensor: TensorId) -> Option<usize> {
        if self.holds_part(tensor) {
            self.binding(tensor).and_then(|it| it.stream)
        } else {
            self.slices.get(&tensor).copied()
        }
    }

    /// Records which slice other ranks compute in this iteration. A later communication may bring it to this
    /// rank.
    pub(super) fn note_slice(&mut self, args: &[TensorId], out: TensorId) {
        let slice = args.iter().find_map(|arg| self.held_slice(*arg));
        if let Some(slice) = slice.filter(|_| self.program.is_split_by_stream(out)) {
            self.slices.insert(out, slice);
        }
    }

    /// Returns the layout on this rank, or that of a member if this rank is outside the mesh.
    fn member_layout(&self, tensor: TensorId) -> Result<ShardLayout> {
        self.member_slice(tensor, None)
    }

    /// Like `member_layout`. `stream` is the slice that the tensor holds if its binding does not determine
    /// the slice.
    fn member_slice(&self, tensor: TensorId, stream: Option<usize>) -> Result<ShardLayout> {
        let member = if self.holds_part(tensor) {
            self.rank()
        } else {
            self.program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0)
        };
        self.layout_of_slice(tensor, member, stream)
    }

    /// Returns whether some rank lacks elements that it needs to compute its part of the result.
    pub(super) fn needs_reshard(&self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        // A HostUnit is the kernel of one rank and never communicates.
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

    /// Returns whether every rank that holds a part of `out` also holds a part of `arg`. If `arg` is sharded,
    /// both must have the same mesh.
    fn is_available_to(&self, arg: TensorId, out: TensorId, sharded: bool) -> bool {
        let (from, to) = (&self.program.tensors[arg].mesh, &self.program.tensors[out].mesh);
        match (from.is_empty(), to.is_empty()) {
            (true, _) => true,
            (false, true) => (0..self.plan.world).all(|rank| from.contains(rank)),
            (false, false) if sharded => from == to,
            // In most programs there is one mesh. Comparing shared meshes does not compare devices.
            (false, false) => from == to || to.devices.iter().all(|rank| from.contains(*rank)),
        }
    }

    /// Returns whether corresponding dimensions are sharded in the same way.
    fn is_aligned(
        &self,
        stmt: &OpStmt,
        args: &[TensorId],
        from: &[Vec<Sharding>],
        out: TensorId,
        to: &[Sharding],
    ) -> bool {
        let value = |it| self.scalars.int(it).ok();
        let maps = (0..args.len()).map(|at| operand_map(self.program, stmt, at, &value));
        let Some(maps) = maps.collect::<Option<Vec<OperandMap>>>() else {
            return stmt.rule().runs_on_outermost_parts(stmt)
                && from.iter().all(|from| is_outermost_alike(from, to));
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
        // Reducing a sharded axis leaves a partial sum on each device. The device axis of the result indexes
        // the partial sums.
        let partial = results.iter().position(|it| *it == ResultDim::Partial);
        let partial = partial.map_or(Vec::new(), |at| devices(&shard(to, at)));
        let fits = |(at, map): (usize, &DimMap), arg: TensorId, from: &[Sharding]| match *map {
            DimMap::Parallel(dim) => {
                shard(from, at) == shard(to, dim)
                    || stmt.op.def().type_rule == TypeRule::Same && self.is_subrange(arg, out, at, from, to)
            }
            DimMap::InGroups { to: dim, .. } => {
                let extents = [self.extent(arg, at), self.extent(out, dim)];
                are_same_parts(&shard(from, at), &shard(to, dim), extents)
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

    /// Returns whether each rank's part of a dimension of `out` is one range of its part of `arg`.
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

    /// Returns the view that a copy reads. If this rank holds more of the operand than of the result, the
    /// view is narrowed to the result's range.
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

    /// Returns the indices of a dimension that a rank holds, if they are contiguous and do not depend on the
    /// stream.
    fn range(&self, tensor: TensorId, dim: usize, layout: &ShardLayout) -> Option<Range<usize>> {
        let is_by_stream = self.program.is_split_by_stream(tensor)
            && super::shape::stream_piece(self.program, tensor).is_none_or(|(at, ..)| at == dim);
        if is_by_stream { None } else { layout.range(dim) }
    }

    /// Returns whether the elements of each rank, in order, are the elements of its part of the result, in
    /// order: within each group of dimensions, the same devices split the elements at the same steps.
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

    /// Returns the first result that is not on the mesh of the first one, or of which a dimension is sharded in another way
    /// than the corresponding dimension of the first one.
    pub(super) fn result_sharded_differently(&self, stmt: &OpStmt) -> Option<TensorId> {
        let first = stmt.out_tensor()?;
        let goal = self.sharding(first);
        let is_alike = |(position, out): &(usize, TensorId)| {
            let dims = dims_of_first_result(self.program, stmt, *position);
            let has = self.sharding(*out);
            self.program.tensors[*out].mesh == self.program.tensors[first].mesh
                && dims.into_iter().enumerate().all(|(at, to)| match to {
                    Some(to) => {
                        let extents = [self.extent(*out, at), self.extent(first, to)];
                        are_same_parts(&shard(&has, at), &shard(&goal, to), extents)
                    }
                    None => shard(&has, at).is_empty(),
                })
        };
        Program::tensors_of(&stmt.outs).enumerate().find(|it| !is_alike(it)).map(|it| it.1)
    }

    /// Returns the extent of a whole dimension.
    fn extent(&self, tensor: TensorId, dim: usize) -> usize {
        self.member_layout(tensor).ok().and_then(|it| it.shape.get(dim).copied()).unwrap_or(0)
    }

    /// Returns, for every dimension, the device axes that split it, each with the number of elements between
    /// its indices.
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
                    // A mesh of extent 1 along the axis does not split it.
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

/// The device axes of one dimension, innermost first.
type Sharding = Vec<(grammar::ir::DeviceDim, usize)>;

fn shard(dims: &[Sharding], at: usize) -> Sharding {
    dims.get(at).cloned().unwrap_or_default()
}

/// Returns whether the same devices split two dimensions with these extents at the same fractions of them.
fn are_same_parts(a: &Sharding, b: &Sharding, [extent_a, extent_b]: [usize; 2]) -> bool {
    let is_same = |((device, step), (other, its)): (&(_, usize), &(_, usize))| {
        device == other && step * extent_b == its * extent_a
    };
    a.len() == b.len() && a.iter().zip(b).all(is_same)
}

/// Returns whether both sides are sharded along the outermost axis only, and in the same way. Only then is
/// the sharding of an operator that moves elements known to be preserved; an axis of another length has been
/// concatenated or padded.
fn is_outermost_alike(from: &[Sharding], to: &[Sharding]) -> bool {
    let rest_whole = |dims: &[Sharding]| dims.iter().skip(1).all(Vec::is_empty);
    shard(from, 0) == shard(to, 0) && rest_whole(from) && rest_whole(to)
}

fn contains(whole: &Range<usize>, part: &Range<usize>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}
