//! Operators whose operands and result are sharded differently: one collective on whole tensors.

use std::{ops::Range, sync::Arc};

use grammar::{
    codes::Code,
    dim_map, flagged_dims,
    ir::{AxisKind, OpStmt, Parallel, TensorId},
    ops::Rule,
    selected_dim,
};

use super::{
    Buffer, InstKind, Layout, Reshard, Shard, View,
    build::{Builder, Result},
};

impl Builder<'_> {
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
            let it = self.fault(Code::DivergentReshard, message, "not all ranks come here");
            return Err(Box::new(it.help("move it out of the branch, or lower it to P2PCommunications")));
        }
        // Storage of an iteration that a communication filled holds the slice that the statement's other tensors hold.
        let stream = tensors.iter().find_map(|tensor| self.held_slice(*tensor));
        let mut operands = Vec::with_capacity(args.len());
        for arg in args {
            let view = if self.is_here(*arg) { Some(self.view(*arg)?) } else { None };
            operands.push(Shard { view, layout: self.member_slice(*arg, stream)? });
        }
        let view = if self.is_here(out) { Some(self.target(out)?) } else { None };
        if let (Some(stream), true) = (stream, self.program.stream_split(out)) {
            match &view {
                Some(view) => {
                    let known = self.binding(out).and_then(|it| it.stream).unwrap_or(stream);
                    self.bind(out, view.clone(), Some(known));
                }
                None => _ = self.slices.insert(out, stream),
            }
        }
        let result = Shard { view, layout: self.member_slice(out, stream)? };
        let whole = |at: usize, layout: &Layout| View::contiguous(at as u32, layout.shape.clone());
        let views: Vec<View> =
            operands.iter().enumerate().map(|(at, shard)| whole(at, &shard.layout)).collect();
        let target = whole(args.len(), &result.layout);
        let buffer = |tensor: &TensorId, layout: &Layout| Buffer {
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
        match self.is_here(tensor) {
            true => self.binding(tensor).and_then(|it| it.stream),
            false => self.slices.get(&tensor).copied(),
        }
    }

    /// Keeps in mind which slice other ranks compute in this iteration: a communication of it may come here.
    pub(super) fn note_slice(&mut self, args: &[TensorId], out: TensorId) {
        let slice = args.iter().find_map(|arg| self.held_slice(*arg));
        if let Some(slice) = slice.filter(|_| self.program.stream_split(out)) {
            self.slices.insert(out, slice);
        }
    }

    /// The layout on this rank, or for ranks outside the mesh that of a member.
    fn member_layout(&self, tensor: TensorId) -> Result<Layout> {
        self.member_slice(tensor, None)
    }

    /// As `member_layout`; `stream` is the slice that the tensor holds where nothing else says which.
    fn member_slice(&self, tensor: TensorId, stream: Option<usize>) -> Result<Layout> {
        let member = match self.is_here(tensor) {
            true => self.rank(),
            false => self.program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0),
        };
        self.slice_on(tensor, member, stream)
    }

    /// Whether some rank lacks what it needs for its own part of the result.
    pub(super) fn reshards(&self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        // A HostUnit is one rank's kernel.
        if self.program.tensors[out].unit.is_some() {
            return Ok(false);
        }
        let out_shards = self.sharding(out);
        for (position, arg) in args.iter().enumerate() {
            let arg_shards = self.sharding(*arg);
            let is_sharded = |shards: &[Sharding]| shards.iter().any(|dim| !dim.is_empty());
            if !self.reaches(*arg, out, is_sharded(&arg_shards)) {
                return Ok(true);
            }
            if (is_sharded(&arg_shards) || is_sharded(&out_shards))
                && !self.aligned(stmt, (position, *arg), &arg_shards, out, &out_shards)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether every rank that holds a part of `out` holds one of `arg`, in the same mesh when `arg` has parts.
    fn reaches(&self, arg: TensorId, out: TensorId, sharded: bool) -> bool {
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
    fn aligned(
        &self,
        stmt: &OpStmt,
        (position, arg): (usize, TensorId),
        arg_shards: &[Sharding],
        out: TensorId,
        out_shards: &[Sharding],
    ) -> bool {
        let none = Sharding::new();
        let shard = |dims: &[Sharding], at: usize| dims.get(at).cloned().unwrap_or_default();
        let partial = self.partial_dim(out);
        let plain: Vec<usize> = (0..out_shards.len()).filter(|at| Some(*at) != partial).collect();
        let partial_shard = partial.map_or(none.clone(), |at| shard(out_shards, at));
        // Summation over a sharded axis leaves partial sums on each device, counted by the result's own device axis.
        let summed_fits = |dim: &Sharding| {
            dim.iter().map(|(device, _)| device).eq(partial_shard.iter().map(|(device, _)| device))
        };
        match stmt.op.row().rule {
            Rule::Same => {
                arg_shards == out_shards
                    || (0..out_shards.len()).all(|at| {
                        shard(arg_shards, at) == out_shards[at]
                            || self.takes_part(arg, out, at, arg_shards, out_shards)
                    })
            }
            Rule::Cast => arg_shards == out_shards,
            Rule::Slice => {
                let is_cut = |at: usize| !arg_shards[at].is_empty() && !self.takes_all(stmt, arg, at);
                arg_shards == out_shards && !(0..arg_shards.len()).any(is_cut)
            }
            Rule::Pointwise => arg_shards.iter().zip(out_shards).zip(self.program.dimensions(arg)).all(
                |((mine, theirs), axis)| {
                    let repeated = self.program.constant(self.program.axes[axis].extent) == Some(1);
                    mine == theirs || mine.is_empty() && repeated
                },
            ),
            Rule::Linear | Rule::Matmul => {
                let linear = stmt.op.row().rule == Rule::Linear;
                let rank = arg_shards.len();
                let (k, n) = match (position, linear) {
                    (0, _) => (rank.checked_sub(1), None),
                    (1, true) => (Some(1), Some(0)),
                    // A vector has no columns.
                    (1, false) if rank < 2 => (Some(0), None),
                    (1, false) => (Some(rank - 2), Some(rank - 1)),
                    _ => (None, Some(0)),
                };
                // A batch of one is repeated.
                let repeated = |at: usize| {
                    let axis = self.program.dimensions(arg).nth(at);
                    arg_shards[at].is_empty()
                        && axis
                            .is_some_and(|it| self.program.constant(self.program.axes[it].extent) == Some(1))
                };
                let k_fits = k.is_none_or(|k| summed_fits(&shard(arg_shards, k)));
                let n_fits = n.is_none_or(|n| {
                    plain.last().is_none_or(|last| shard(arg_shards, n) == shard(out_shards, *last))
                });
                // The result's own columns are the second operand's affair, its rows and batches the first's.
                let rows = match position {
                    0 => (0..rank.saturating_sub(1)).all(|at| {
                        let shift = plain.len().saturating_sub(rank);
                        plain.get(at + shift).is_none_or(|to| shard(arg_shards, at) == shard(out_shards, *to))
                            || at + 2 < rank && repeated(at)
                    }),
                    1 if !linear => (0..rank.saturating_sub(2)).all(|at| {
                        let shift = plain.len().saturating_sub(rank);
                        let to = plain.get(at + shift).map_or(none.clone(), |to| shard(out_shards, *to));
                        shard(arg_shards, at) == to || repeated(at)
                    }),
                    _ => true,
                };
                k_fits && n_fits && rows
            }
            Rule::Reduce => {
                let mut kept = out_shards.iter();
                let logical = &self.program.tensors[out].domains.logical;
                logical.iter().zip(arg_shards).all(|(axis, mine)| {
                    match self.program.axes[*axis].kind == AxisKind::Reduction {
                        true => mine.is_empty(),
                        false => kept.next() == Some(mine),
                    }
                })
            }
            Rule::Broadcast => {
                let new = flagged_dims(self.program, stmt, out);
                let kept = out_shards.iter().zip(&new).filter(|(_, new)| !**new).map(|(dim, _)| dim);
                kept.eq(arg_shards)
            }
            Rule::Squeeze => {
                let gone = flagged_dims(self.program, stmt, arg);
                let pairs = || arg_shards.iter().zip(&gone);
                pairs().filter(|(_, gone)| !**gone).map(|(dim, _)| dim).eq(out_shards)
                    && pairs().all(|(dim, gone)| !*gone || dim.is_empty())
            }
            Rule::Permute => {
                let numbers: Vec<u32> =
                    self.program.dimensions(out).map(|axis| self.program.axes[axis].number).collect();
                let mut sorted = numbers.clone();
                sorted.sort_unstable();
                numbers.iter().zip(out_shards).all(|(number, theirs)| {
                    let from = sorted.iter().position(|it| it == number).unwrap_or(0);
                    shard(arg_shards, from) == *theirs
                })
            }
            Rule::Reshape => self.keeps_order(arg, arg_shards, out, out_shards),
            // What these do to a sharded axis is only sure where it is the outermost one on both sides, and as long: an
            // axis that grows is joined or padded.
            Rule::Free => match dim_map(self.program, stmt, position) {
                Some(dims) => {
                    let maps = (0..).map_while(|at| dim_map(self.program, stmt, at));
                    let covered: Vec<usize> = maps.flatten().flatten().collect();
                    let fits = |(at, to): (usize, &Option<usize>)| {
                        shard(arg_shards, at) == to.map_or(none.clone(), |to| shard(out_shards, to))
                    };
                    dims.iter().enumerate().all(fits)
                        && (0..out_shards.len()).all(|at| covered.contains(&at) || out_shards[at].is_empty())
                }
                None => {
                    let rest_whole = |dims: &[Sharding]| dims.iter().skip(1).all(Vec::is_empty);
                    shard(arg_shards, 0) == shard(out_shards, 0)
                        && rest_whole(arg_shards)
                        && rest_whole(out_shards)
                }
            },
            Rule::Select => {
                let gone = selected_dim(self.program, stmt, arg);
                let kept = (0..arg_shards.len()).filter(|at| Some(*at) != gone).map(|at| &arg_shards[at]);
                kept.eq(out_shards) && gone.is_none_or(|at| arg_shards[at].is_empty())
            }
            Rule::Generate | Rule::Shard | Rule::Communicate => true,
        }
    }

    /// Whether each rank's part of a dimension of `out` is one range of the part that it has of `arg`.
    fn takes_part(
        &self,
        arg: TensorId,
        out: TensorId,
        dim: usize,
        from: &[Sharding],
        to: &[Sharding],
    ) -> bool {
        let range = |tensor| self.range(tensor, dim, &self.member_layout(tensor).ok()?);
        from.get(dim).is_some_and(|it| to[dim].ends_with(it))
            && range(arg).zip(range(out)).is_some_and(|(has, takes)| contains(&has, &takes))
    }

    /// What a copy reads of its operand: where this rank has more of it than of the result, its own part.
    pub(super) fn own_part(&self, view: &View, arg: TensorId, out: TensorId) -> View {
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
    fn range(&self, tensor: TensorId, dim: usize, layout: &Layout) -> Option<Range<usize>> {
        let is_by_stream = self.program.stream_split(tensor)
            && super::shape::stream_piece(self.program, tensor).is_none_or(|(at, ..)| at == dim);
        if is_by_stream { None } else { layout.range(dim) }
    }

    /// Whether each rank's elements in order are those of the result in order: dimensions fall into groups of the same
    /// size on both sides, and within a group the same devices count the same steps.
    fn keeps_order(
        &self,
        arg: TensorId,
        arg_shards: &[Sharding],
        out: TensorId,
        out_shards: &[Sharding],
    ) -> bool {
        let extents = |tensor| self.member_layout(tensor).map(|layout| layout.shape).unwrap_or_default();
        let (arg_shape, out_shape) = (extents(arg), extents(out));
        let (mut a, mut b) = (0, 0);
        while a < arg_shape.len() || b < out_shape.len() {
            let (from_a, from_b) = (a, b);
            let (mut size_a, mut size_b) = (1, 1);
            loop {
                match size_a <= size_b && a < arg_shape.len() {
                    true => (size_a, a) = (size_a * arg_shape[a], a + 1),
                    false if b < out_shape.len() => (size_b, b) = (size_b * out_shape[b], b + 1),
                    false => return false,
                }
                if size_a == size_b {
                    break;
                }
            }
            let steps = |shards: &[Sharding], shape: &[usize], from: usize, to: usize| -> Vec<_> {
                let steps = |at: usize| {
                    let inner: usize = shape[at + 1..to].iter().product();
                    shards[at].iter().rev().map(move |(device, step)| (*device, step * inner))
                };
                (from..to).flat_map(steps).collect()
            };
            if steps(arg_shards, &arg_shape, from_a, a) != steps(out_shards, &out_shape, from_b, b) {
                return false;
            }
        }
        true
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
                if let Parallel::Device(device) = self.program.axes[*leaf].parallel {
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

fn contains(whole: &Range<usize>, part: &Range<usize>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}
