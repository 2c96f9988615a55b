//! Lowers statements on streams, storage and views. They bind names and move no data.

use grammar::{AxisKind, Code, MemoryType, Op, OpStmt, Operand, Program, Stream, StreamId, TensorId, attr};

use super::{
    EventNo, InstKind, PlanStream, SkippedAllocation, StreamNo, View,
    context::{PlanBuilder, Result, StreamKey},
    shape,
};

impl PlanBuilder<'_> {
    pub(super) fn stream(&mut self, stream: StreamId) -> Result<StreamNo> {
        let (key, kind) = match &self.program.streams[stream] {
            Stream::Named(number) => match self.streams.get(&StreamKey::Named(*number)) {
                Some(known) => return Ok(*known),
                None => {
                    let message = format!("stream `s{number}` is not captured yet");
                    return Err(self.error(Code::UndefinedStream, message, "used here"));
                }
            },
            Stream::Index(index) => {
                let index = self.int(*index, "the stream's index")?;
                (StreamKey::Index(index), PlanStream::Indexed(index))
            }
        };
        let next = self.plan.streams.len() as StreamNo;
        let number = *self.streams.entry(key).or_insert(next);
        if number == next {
            self.plan.streams.push(kind);
            if let Some(event) = self.host_wait {
                self.emit_on(number, InstKind::WaitEvent { event });
            }
        }
        Ok(number)
    }

    pub(super) fn stream_op(&mut self, stmt: &OpStmt) -> Result<()> {
        let operand = |operands: &[Operand]| match operands {
            [Operand::Stream(stream)] => Some(*stream),
            _ => None,
        };
        if let Some(captured) = operand(&stmt.outs) {
            if let Stream::Named(number) = self.program.streams[captured] {
                // The first capture of a name is the one that counts.
                self.streams.entry(StreamKey::Named(number)).or_insert(self.current);
            }
            return Ok(());
        }
        if stmt.op == Op::SynchronizeHost {
            self.wait_on_host();
            return Ok(());
        }
        if let [Operand::Tensor(tensor), Operand::Stream(stream)] = *stmt.args {
            return self.record_stream(tensor, stream);
        }
        let Some(stream) = operand(&stmt.args) else { return Ok(()) };
        let stream = self.stream(stream)?;
        if stmt.op == Op::SetCurrentStream {
            self.current = stream;
        } else if stream != self.current {
            let event = self.event();
            self.emit_on(stream, InstKind::RecordEvent { event });
            self.emit(InstKind::WaitEvent { event });
        }
        Ok(())
    }

    /// Blocks the host until the current stream has finished its work so far. What is issued to any stream afterwards follows
    /// this work, which the other streams' waits for the event state.
    pub(super) fn wait_on_host(&mut self) -> EventNo {
        let event = self.event();
        self.emit(InstKind::RecordEvent { event });
        self.emit(InstKind::HostWait { event });
        let (streams, current) = (self.plan.streams.len() as StreamNo, self.current);
        for stream in (0..streams).filter(|it| *it != current) {
            self.emit_on(stream, InstKind::WaitEvent { event });
        }
        self.host_wait = Some(event);
        event
    }

    pub(super) fn allocation(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(tensor) = stmt.out_tensor() else { return Ok(()) };
        let bound = self.binding(tensor).is_some();
        if !self.holds_part(tensor) {
            return Ok(());
        }
        if bound && stmt.op == Op::AllocateOnce {
            self.count_skipped_allocation();
            return Ok(());
        }
        if let Some(alias) = stmt.get(attr::ALIAS) {
            let view = self.view(alias)?;
            // The tensor shares the storage, not the shape.
            let shape = self.layout(tensor)?.local_shape();
            let view = view.reshape(&shape).unwrap_or(view);
            self.check_dim_count(tensor, &view)?;
            self.bind(tensor, view, None);
            return Ok(());
        }
        self.allocate(tensor, stmt.get(attr::ZERO_INIT) == Some(true))?;
        if let Some(it) = self.plan.allocations.last_mut() {
            it.is_symmetric = stmt.get(attr::MEM_TYPE) == Some(MemoryType::Symmetric);
            if let Some(name) = stmt.get(attr::POOL) {
                let pools = &mut self.plan.pools;
                let known = pools.iter().position(|it| *it == name);
                it.pool.named = Some(known.unwrap_or(pools.len()) as u32);
                pools.extend(known.is_none().then(|| name.to_owned()));
            }
        }
        Ok(())
    }

    /// Counts an ALLOCATE in a loop that has no effect in this iteration, since its name is bound.
    fn count_skipped_allocation(&mut self) {
        let Some(stmt) = self.current_stmt().filter(|_| self.iteration.is_some()) else { return };
        match self.plan.skipped_allocations.iter_mut().find(|it| it.stmt == stmt) {
            Some(it) => it.count += 1,
            None => self.plan.skipped_allocations.push(SkippedAllocation { stmt, count: 1 }),
        }
    }

    /// Reports an error if the view does not have as many dimensions as the tensor.
    pub(super) fn check_dim_count(&self, tensor: TensorId, view: &View) -> Result<()> {
        let (have, want) = (view.shape.len(), self.program.dimensions(tensor).count());
        if have != want {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` has {want} dimensions, but its view has shape {:?}", view.shape);
            return Err(self.error(Code::RuntimeShape, message, "the shapes do not match"));
        }
        Ok(())
    }

    pub(super) fn deallocate(&mut self, tensor: TensorId) -> Result<()> {
        if self.holds_part(tensor) {
            self.view(tensor)?;
            self.plan.deallocates = true;
            self.unbind(tensor);
            self.unbound_by.extend(self.current_stmt().map(|stmt| (tensor, stmt)));
        }
        Ok(())
    }

    pub(super) fn view_op(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(out), Some(input)) = (stmt.out_tensor(), Program::tensors_of(&stmt.args).next()) else {
            return Ok(());
        };
        // In a loop, or with an index that depends on the rank, `select` comes from a lowered program and
        // indexes this rank's part, as HirAliasSelect does. Any other `select` indexes the whole axis.
        let own = self.iteration.is_some()
            || stmt.get(attr::INDEX).is_none_or(|it| self.scalars.depends_on_rank(it));
        if stmt.op == Op::Select && !own && self.needs_reshard(stmt, &[input], out)? {
            return self.reshard(stmt, &[input], out);
        }
        self.bind_view(stmt, out, input)
    }

    fn bind_view(&mut self, stmt: &OpStmt, out: TensorId, input: TensorId) -> Result<()> {
        if !self.holds_part(out) || !self.holds_part(input) {
            self.check_source_of_view(out, input)?;
            let index = stmt.get(attr::STREAM_INDEX).and_then(|it| self.scalars.int(it).ok());
            if let Some(index) = index.and_then(|it| usize::try_from(it).ok()) {
                self.slices.insert(out, index);
            }
            return Ok(());
        }
        let view = self.view(input)?;
        let (view, stream) = match stmt.op {
            Op::ShardByStream => {
                let (view, at) = self.shard_by_stream(stmt, input, view)?;
                (view, Some(at))
            }
            Op::HirAliasSelect | Op::Select => {
                (self.select(stmt, input, view)?, self.binding(input).and_then(|it| it.stream))
            }
            Op::SymmetricContiguousView => return self.gather_shards(stmt, out, input),
            _ => return Err(self.unsupported(stmt.op, "it is no view that hir knows")),
        };
        self.bind(out, view.clone(), stream);
        let wanted = self.layout(out)?.local_shape();
        if view.shape != wanted {
            let name = self.program.tensor_name(out);
            let message =
                format!("`{name}` is a view of shape {:?}, but its domain has shape {wanted:?}", view.shape);
            return Err(self.error(Code::RuntimeShape, message, "the shapes do not match"));
        }
        Ok(())
    }

    /// Reports an error if this rank holds a view but not what it is a view of: the name would then refer to storage of
    /// its own. A tensor without a mesh can be a local name of the ranks that hold its source.
    fn check_source_of_view(&self, out: TensorId, input: TensorId) -> Result<()> {
        if !self.holds_part(out) || self.program.tensors[out].mesh.is_empty() {
            return Ok(());
        }
        let [view, source] = [out, input].map(|it| self.program.tensor_name(it));
        let rank = self.rank();
        let message = format!("`{view}` is a view of `{source}`, which rank {rank} does not hold");
        let label = format!("rank {rank} is a device of `{view}`");
        let help = format!("give both tensors the mesh of the ranks that use `{view}`");
        Err(Box::new(self.error(Code::BadSharding, message, label).help(help)))
    }

    pub(super) fn select(&self, stmt: &OpStmt, input: TensorId, view: View) -> Result<View> {
        // A reduction axis is not a dimension of the view. All ranks may name their own index of a dimension whose part on each rank is one
        // index, loops over a broadcast name that of their iteration, and an index that is not known can only be 0.
        let (Some(dim), Some(index)) =
            (grammar::selected_dim(self.program, stmt, input), stmt.get(attr::INDEX))
        else {
            return Ok(view);
        };
        // A rank outside of the mesh holds no part.
        let is_split =
            || !self.layout(input).is_ok_and(|it| it.pieces[dim].iter().all(|it| it.coordinate.is_none()));
        let axis = self.program.dimensions(input).nth(dim).map(|it| self.program.axes[it].kind);
        let index = match view.shape[dim] {
            1 if axis == Some(AxisKind::Broadcast) || is_split() || self.int(index, "the index").is_err() => {
                0
            }
            extent => self.index(index, extent, "the index", self.attr_span(attr::INDEX.name()))?,
        };
        Ok(view.select(dim, index))
    }

    fn shard_by_stream(&self, stmt: &OpStmt, input: TensorId, view: View) -> Result<(View, usize)> {
        let Some((dim, at, swizzled)) = shape::stream_piece(self.program, input) else {
            return Err(self.unsupported(stmt.op, "its operand has no stream axis"));
        };
        let layout = self.layout(input)?;
        let local = |pieces: &[super::AxisPiece]| -> usize {
            pieces.iter().filter(|it| it.coordinate.is_none()).map(|it| it.extent).product()
        };
        let pieces = &layout.pieces[dim];
        if pieces[at].coordinate.is_some() || local(&pieces[..at]) != 1 {
            return Err(
                self.unsupported(stmt.op, "the stream axis is not the outermost part of its dimension")
            );
        }
        let count = pieces[at].extent;
        let Some(expr) = stmt.get(attr::STREAM_INDEX) else { return Ok((view, 0)) };
        let mut index = self.index(expr, count, "the stream's index", self.span)?;
        if swizzled {
            let mesh = &self.program.tensors[input].mesh;
            let me = mesh.coordinate(self.rank(), grammar::ir::DeviceDim::X).unwrap_or(0);
            index = (index + me) % count;
        }
        let chunk = view.shape[dim] / count.max(1);
        Ok((view.narrow(dim, index * chunk, chunk), index))
    }
}
