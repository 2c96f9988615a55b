//! Emits the loop of a group: allocations before it, slices and operators in it, and statements that combine
//! slices after it.

use grammar::{
    AxisId, ExprId, For, InfixOp, Memory, Op, OpStmt, Operand, ParallelType, Program, Span, Stmt, StmtId,
    TensorId, TypeRule, attr, permutation,
};
use hir_ir::build::{self, infix};
use rustc_hash::FxHashMap;

use super::{
    StreamParallel, all_to_all,
    group::{LoopStmt, StmtGroup},
    loop_comms,
    options::{OwnSlice, Style},
    slicing::{OperandSlice, SliceKind},
    views::LoopViews,
};
use crate::{
    analysis::sharding::{DimPiece, Sharding},
    rewrite::{contiguity, mesh, sharded_tensors::allocate_per_stream},
    transform::decompose_resharding::set_operand,
};

/// A loop under construction.
pub(super) struct LoopWriter<'l, 'p> {
    pub(super) pass: &'l mut StreamParallel<'p>,
    pub(super) group: &'l StmtGroup,
    pub(super) span: Span,
    /// The loop's index.
    pub(super) iteration: ExprId,
    /// The distance in the ring from the rank's own slice.
    pub(super) step: ExprId,
    /// The index of the slice that this rank works on.
    pub(super) chunk: ExprId,
    /// The statements before the loop.
    before: Vec<StmtId>,
    /// The statements of an iteration.
    pub(super) body: Vec<StmtId>,
    /// The statements at the end of an iteration.
    pub(super) tail: Vec<StmtId>,
    /// The statements after the loop.
    after: Vec<StmtId>,
    /// The numbers of the communications that are posted and not waited for yet.
    pub(super) waits: Vec<u32>,
    /// The slices of this iteration, by tensor and dimension.
    slices: FxHashMap<(TensorId, usize), TensorId>,
    /// Aliases with a stream axis of tensors without one, by tensor and dimension.
    chunked: FxHashMap<(TensorId, usize), TensorId>,
    /// The results that are views of operands.
    views: LoopViews,
}

impl<'l, 'p> LoopWriter<'l, 'p> {
    pub(super) fn new(pass: &'l mut StreamParallel<'p>, group: &'l StmtGroup) -> Self {
        let zero = pass.program.intern_int(0);
        let span = group.members.first().map(|it| pass.program.stmt_span(it.stmt)).unwrap_or_default();
        Self {
            pass,
            group,
            span,
            iteration: zero,
            step: zero,
            chunk: zero,
            before: Vec::new(),
            body: Vec::new(),
            tail: Vec::new(),
            after: Vec::new(),
            waits: Vec::new(),
            slices: FxHashMap::default(),
            chunked: FxHashMap::default(),
            views: LoopViews::default(),
        }
    }

    /// Appends the loop and the statements around it to the new body. Returns the loop.
    pub(super) fn write(mut self) -> StmtId {
        let program = &mut *self.pass.program;
        let index = match self.group.style {
            Style::Select => program.intern_symbol(None, "streamIdx", Span::default()),
            Style::Shard => self.pass.fresh.scalar(program),
        };
        self.iteration = build::symbol(program, index);
        self.step = self.step();
        self.chunk = self.chunk();
        let group = self.group;
        self.views = LoopViews::of(&self);
        for (at, member) in group.members.iter().enumerate() {
            self.span = self.pass.program.stmt_span(member.stmt);
            match member.slicing.kind {
                SliceKind::Local | SliceKind::Collective => self.operator(member),
                SliceKind::Allgather(device) => loop_comms::allgather(&mut self, member, device),
                SliceKind::ReduceScatter(device) => loop_comms::reduce_scatter(&mut self, member, device),
                SliceKind::AllToAll(dim, _) => all_to_all::emit(&mut self, member, dim),
            }
            // The next iteration makes views of other elements.
            for view in self.views.last_read_by(at) {
                let name = self.slices.get(&view).copied().unwrap_or(view.0);
                self.emit(build::deallocate(name));
            }
        }
        let Self { pass, before, mut body, mut tail, after, span, .. } = self;
        body.append(&mut tail);
        let program = &mut *pass.program;
        let body = build::block(program, body);
        let (start, stop) = (program.intern_int(0), group.count);
        let axis = match group.style {
            Style::Select => stream_axis(program, group),
            Style::Shard => None,
        };
        let all = program.add_stmt(Stmt::For(For { index, axis, start, stop, body }), span);
        pass.out.extend(before);
        pass.out.push(all);
        pass.out.extend(after);
        all
    }

    /// Returns the distance in the ring from the rank's own slice. It is 0 in the first iteration, or, if the
    /// own slice comes last, in the last one, where it is the number of ranks.
    fn step(&mut self) -> ExprId {
        let rings =
            || self.group.members.iter().map(|it| &it.slicing).filter(|it| it.rotated && !it.swizzled);
        let is_last = match self.pass.settings.own_slice {
            OwnSlice::First => false,
            OwnSlice::Last => true,
            OwnSlice::Auto => rings().all(|it| matches!(it.kind, SliceKind::ReduceScatter(_))),
        };
        if !is_last || rings().next().is_none() {
            return self.iteration;
        }
        let program = &mut *self.pass.program;
        let one = program.intern_int(1);
        infix(program, InfixOp::Add, self.iteration, one)
    }

    /// Returns the index of the slice that this rank works on.
    fn chunk(&mut self) -> ExprId {
        let rotated = self.group.members.iter().find(|it| it.slicing.rotated && !it.slicing.swizzled);
        let Some(member) = rotated else { return self.iteration };
        let (SliceKind::Allgather(device) | SliceKind::ReduceScatter(device)) = member.slicing.kind else {
            return self.iteration;
        };
        let program = &mut *self.pass.program;
        let members = program.tensors[member.slicing.out].mesh.clone();
        let me = mesh::coordinate(program, &members, device);
        let sum = infix(program, InfixOp::Add, me, self.step);
        infix(program, InfixOp::Rem, sum, self.group.count)
    }

    /// Emits an operator on slices.
    fn operator(&mut self, member: &LoopStmt) {
        let Stmt::Op(mut it) = self.pass.program.stmts[member.stmt].clone() else { return };
        let slicing = &member.slicing;
        if self.views.is_whole(slicing.out) {
            self.emit_after(it.clone());
            if !self.views.contains(slicing.out) {
                return;
            }
        }
        if let (Style::Select, Some(dim)) = (self.group.style, slicing.out_dim) {
            remove_dimension(self.pass.program, &mut it, dim, &slicing.operands);
        }
        for (at, operand) in slicing.operands.iter().enumerate() {
            let slice = self.operand_slice(*operand);
            set_operand(&mut it, at, slice);
        }
        let out = self.result_slice(member);
        it.outs = vec![Operand::Tensor(out)];
        self.emit(it);
    }

    // ---- tensors

    /// Returns the part of an operand that an iteration reads.
    pub(super) fn operand_slice(&mut self, operand: OperandSlice) -> TensorId {
        match operand.dim {
            None => operand.tensor,
            Some(_) if operand.repeated && self.group.style == Style::Shard => operand.tensor,
            Some(_) if self.is_split(operand.tensor) => operand.tensor,
            Some(dim) => self.slice(operand.tensor, dim, operand.repeated),
        }
    }

    /// Returns the tensor that an iteration writes: a slice of a tensor that is allocated before the loop, a tensor that the
    /// iteration allocates, or a view of an operand.
    pub(super) fn result_slice(&mut self, member: &LoopStmt) -> TensorId {
        let (out, stmt) = (member.slicing.out, member.stmt);
        let Some(dim) = member.slicing.out_dim else { return out };
        if self.views.is_whole(out) {
            let view = self.name_like(out, None);
            allocate_per_stream(self.pass.program, view);
            self.slices.insert((out, dim), view);
            return view;
        }
        if self.is_of_one_iteration(member) {
            allocate_per_stream(self.pass.program, out);
            if !self.views.contains(out) {
                let allocate = build::allocate(self.pass.program, out);
                self.emit(allocate);
            }
            return out;
        }
        self.allocate_before(out, stmt);
        self.slice(out, dim, false)
    }

    /// Returns whether the result of a statement is a tensor of one iteration, not a slice of a tensor of all iterations.
    pub(super) fn is_of_one_iteration(&self, member: &LoopStmt) -> bool {
        let out = member.slicing.out;
        // The allocation of a tensor that is split by stream holds the slice of one iteration.
        self.group.style == Style::Shard
            && (!self.pass.settings.allocate_before || self.pass.program.is_split_by_stream(out))
            && !self.escapes(out)
            && !self.pass.facts.bindings.already_bound.contains(&member.stmt)
    }

    /// Emits an ALLOCATE for the whole tensor before the loop, unless it has storage.
    pub(super) fn allocate_before(&mut self, tensor: TensorId, stmt: StmtId) {
        if !self.pass.facts.bindings.already_bound.contains(&stmt) {
            let allocate = build::allocate(self.pass.program, tensor);
            self.emit_before(allocate);
        }
    }

    /// Returns whether only one slice of a tensor exists at a time.
    fn is_split(&self, tensor: TensorId) -> bool {
        self.group.produced.contains_key(&tensor) && self.pass.program.is_split_by_stream(tensor)
    }

    /// Returns whether a statement outside of the loop uses the tensor, or a peer exchanges its handle once
    /// for all iterations.
    pub(super) fn escapes(&self, tensor: TensorId) -> bool {
        let settings = self.pass.settings;
        if self.views.is_viewed(tensor) {
            return true;
        }
        let is_shared = |member: &LoopStmt| member.slicing.ring_buffer(settings) == Some(tensor);
        if settings.cuda && self.group.members.iter().any(is_shared) {
            return true;
        }
        let mentions = |member: &&LoopStmt| {
            member.slicing.out == tensor || member.slicing.operands.iter().any(|it| it.tensor == tensor)
        };
        let here = self.group.members.iter().filter(mentions).count();
        self.pass.facts.uses.get(&tensor).copied().unwrap_or(0) > here
    }

    /// Returns the view of this iteration's slice, which is created once.
    fn slice(&mut self, tensor: TensorId, dim: usize, repeated: bool) -> TensorId {
        if let Some(known) = self.slices.get(&(tensor, dim)) {
            return *known;
        }
        let view = match self.group.style {
            Style::Select => {
                let index = if repeated { self.pass.program.intern_int(0) } else { self.chunk };
                let Some(axis) = self.pass.program.dimensions(tensor).nth(dim) else { return tensor };
                let view = self.name_like(tensor, Some(dim));
                self.emit(build::select(view, tensor, axis, index));
                view
            }
            Style::Shard => {
                let tensor = self.chunked(tensor, dim);
                let view = self.name_like(tensor, None);
                allocate_per_stream(self.pass.program, view);
                // The index of a swizzled axis counts from the rank's own slice already.
                let swizzled = self.group.members.iter().any(|it| it.slicing.swizzled);
                let index = if swizzled { self.iteration } else { self.chunk };
                self.emit(OpStmt {
                    outs: vec![Operand::Tensor(view)],
                    args: vec![Operand::Tensor(tensor)],
                    attrs: vec![attr::STREAM_INDEX.with(index)],
                    ..build::op(Op::ShardByStream)
                });
                view
            }
        };
        self.slices.insert((tensor, dim), view);
        view
    }

    /// Returns the tensor with a stream axis in dimension `dim`: the tensor itself, or an alias of it.
    fn chunked(&mut self, tensor: TensorId, dim: usize) -> TensorId {
        if let Some(known) = self.chunked.get(&(tensor, dim)) {
            return *known;
        }
        let Some(mut sharding) = Sharding::of(self.pass.program, tensor) else { return tensor };
        if sharding.dims[dim].stream().is_some() {
            return tensor;
        }
        let piece = DimPiece { parallel: ParallelType::Stream, count: self.group.count, swizzled: false };
        sharding.dims[dim].pieces.push(piece);
        let StreamParallel { program, fresh, .. } = &mut *self.pass;
        let alias = sharding.new_tensor(program, fresh, tensor, Memory::Local);
        self.emit_before(contiguity::unary_op(Op::Set, tensor, alias));
        self.chunked.insert((tensor, dim), alias);
        alias
    }

    /// Returns a new tensor with the domains of `tensor`, without dimension `dim` if there is one.
    pub(super) fn name_like(&mut self, tensor: TensorId, dim: Option<usize>) -> TensorId {
        let StreamParallel { program, fresh, .. } = &mut *self.pass;
        let Some(sharding) = Sharding::of(program, tensor) else { return tensor };
        let split = program.is_split_by_stream(tensor);
        let view = sharding.resharded_tensor(program, fresh, tensor, Memory::Local, dim);
        // A slice of a per-stream allocation is per-stream as well.
        if split {
            allocate_per_stream(program, view);
        }
        view
    }

    /// Returns a view of a rank's part of a tensor, without device and stream axes. `aliases` receives the
    /// names that the next iteration has to bind again.
    pub(super) fn unsharded(&mut self, tensor: TensorId, aliases: &mut Vec<TensorId>) -> TensorId {
        let StreamParallel { program, fresh, .. } = &mut *self.pass;
        let Some(sharding) = Sharding::of(program, tensor) else { return tensor };
        let split = program.is_split_by_stream(tensor);
        let leaves = contiguity::sub_axes(program, &sharding, split);
        let mut now = tensor;
        if leaves.len() != sharding.dims.len() {
            now = contiguity::tensor(program, fresh, tensor, &leaves);
            self.emit(contiguity::unary_op(Op::Reshape, tensor, now));
            aliases.push(now);
        }
        for at in (0..leaves.len()).rev().filter(|at| leaves[*at].parallel != ParallelType::Serial) {
            let Some(axis) = self.pass.program.dimensions(now).nth(at) else { continue };
            let view = self.name_like(now, Some(at));
            let zero = self.pass.program.intern_int(0);
            self.emit(build::select(view, now, axis, zero));
            now = view;
        }
        now
    }

    // ---- statements

    pub(super) fn add(&mut self, stmt: OpStmt) -> StmtId {
        build::add(self.pass.program, stmt, self.span)
    }

    pub(super) fn emit(&mut self, stmt: OpStmt) {
        let id = self.add(stmt);
        self.body.push(id);
    }

    pub(super) fn emit_before(&mut self, stmt: OpStmt) {
        let id = self.add(stmt);
        self.before.push(id);
    }

    pub(super) fn emit_after(&mut self, stmt: OpStmt) {
        let id = self.add(stmt);
        self.after.push(id);
    }
}

/// Returns the stream axis that the loop iterates over, from its first statement.
fn stream_axis(program: &Program, group: &StmtGroup) -> Option<AxisId> {
    let first = group.members.first()?;
    let (tensor, dim) = match first.slicing.out_dim {
        Some(dim) => (first.slicing.out, dim),
        None => first.slicing.operands.iter().find_map(|it| Some((it.tensor, it.dim?)))?,
    };
    program.dimensions(tensor).nth(dim)
}

/// Removes the dimension that is selected from the `flags` of a broadcast or squeeze, the extents of an expansion, and the `dims`
/// of a permutation.
fn remove_dimension(program: &mut Program, it: &mut OpStmt, dim: usize, operands: &[OperandSlice]) {
    if it.op == Op::Permute {
        let mut order = permutation(program, it);
        if dim < order.len() {
            let gone = order.remove(dim);
            let dims = order.iter().map(|at| program.intern_int((at - usize::from(*at > gone)) as i64));
            it.set(attr::DIMS, dims.collect());
        }
    }
    if let (Op::Expand, Some(extents)) = (it.op, it.get(attr::EXTENTS)) {
        let mut extents = extents.to_vec();
        if dim < extents.len() {
            extents.remove(dim);
            it.set(attr::EXTENTS, extents);
        }
    }
    let at = match it.op.def().type_rule {
        TypeRule::Broadcast => Some(dim),
        TypeRule::Squeeze => operands.first().and_then(|it| it.dim),
        _ => None,
    };
    let flags = it.get(attr::FLAGS).map(<[bool]>::to_vec);
    if let (Some(at), Some(mut flags)) = (at, flags)
        && at < flags.len()
    {
        flags.remove(at);
        it.set(attr::FLAGS, flags);
    }
}
