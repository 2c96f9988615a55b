//! lower-to-communication: turns single steps of resharding into communications.
//!
//! Before:
//! ```text
//! T4[iS10{8}, iS11{16}] = Set( T0[ideviceIdx.x0{8}, iS1{16}] )
//! ```
//! After:
//! ```text
//! T4[iS10{8}, iS11{16}] = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 5 (type=Allgather, team=(0 1 2 3 4 5 6 7), input=T0[ideviceIdx.x0{8}, iS1{16}], output=T4[iS10{8}, iS11{16}], backend=NCCL)
//! Wait(Communication 5)
//! ```
//!
//! | step (`reshard::Step`) | becomes |
//! |---|---|
//! | Broadcast | Broadcast from the first device that sends, a receiver if there is one |
//! | Allgather | Allgather, one a row of the mesh |
//! | Gather | Gather to each receiver; SendRecv pairs to one that sends nothing |
//! | Scatter | Scatter, one a row; SendRecv pairs where the receivers are other devices |
//! | AllToAll | AllToAll, one a row |
//! | SendRecv | SendRecv between devices at the same place of both meshes |
//! | sum, to all devices | Allreduce |
//! | sum, to a dimension on the devices | ReduceScatter |
//! | sum, to some of the devices | Reduce to each of them |
//!
//! The table is that of nvFuser's lowering (`lower_to_communication.cpp`). Collectives move equal parts of dense memory,
//! outermost first: where the axis is another one, the tensor is permuted before or behind.

use std::sync::Arc;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Attr, AxisKind, DeviceDim, Memory, Mesh, OpStmt, Parallel, Program, Stmt, StmtId, TensorId},
    ops::{Effect, Op, Rule},
    span::Span,
};
use rustc_hash::FxHashSet;

use crate::{
    bindings,
    blocks::expand,
    create::{self, Fresh},
    decompose_resharding::{is_copy, red_op, reduces_in_one_step},
    dims::{self, Fate},
    pack::{self, Leaf},
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass},
    reshard::{self, Step},
    sharding::{Dim, Sharding, split_by_stream},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "lower-to-communication",
    description: "turn single steps of resharding into communications and waits",
    options: &[OptionSpec {
        name: "backend",
        description: "who moves the data; what CUDA does not have is left to NCCL",
        kind: OptionKind::Word(&["nccl", "cuda", "ucc"]),
        default: Some("nccl"),
    }],
    run,
};

fn run(program: &mut Program, arguments: &Arguments) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut fresh = Fresh::of(program);
    let bound = bindings::facts(program).bound;
    let views = views(program);
    let world = world(program);
    let backend = match arguments.text("backend") {
        Some("cuda") => "CUDA",
        Some("ucc") => "UCC",
        Some(_) | None => "NCCL",
    };
    let changed = expand(program, body, &mut |program, stmt| {
        let span = program.stmt_span(stmt);
        let Stmt::Op(it) = program.stmts[stmt].clone() else { return Ok(None) };
        let is_bound = bound.contains(&stmt);
        let (stmts, works, names) = (Vec::new(), Vec::new(), Vec::new());
        let mut ctx = Ctx {
            program,
            fresh: &mut fresh,
            span,
            backend,
            world: &world,
            views: &views,
            is_bound,
            stmts,
            works,
            names,
        };
        let changed = ctx.statement(&it)?;
        ctx.wait();
        Ok(changed.then_some(ctx.stmts))
    })?;
    Ok(Change::from_flag(changed))
}

/// What becomes of one statement.
struct Ctx<'p> {
    program: &'p mut Program,
    fresh: &'p mut Fresh,
    span: Span,
    backend: &'static str,
    /// All ranks that the program names.
    world: &'p [usize],
    /// Tensors that are views of others.
    views: &'p FxHashSet<TensorId>,
    /// Whether the statement's result has storage already.
    is_bound: bool,
    stmts: Vec<StmtId>,
    /// Posted, and not waited for yet.
    works: Vec<u32>,
    /// Other shapes of results that are filled in part by part.
    names: Vec<TensorId>,
}

/// A communication to post.
struct Post<'t> {
    kind: &'static str,
    team: &'t [usize],
    /// A member of the team.
    root: Option<usize>,
    red_op: Option<&'static str>,
    input: TensorId,
    output: TensorId,
}

impl Ctx<'_> {
    /// Writes the statements that take the place of `it`; false if it may stay.
    fn statement(&mut self, it: &OpStmt) -> Result<bool, Diagnostic> {
        let ([arg], Some(out)) = (&dims::operands(it)[..], it.out_tensor()) else { return Ok(false) };
        let arg = *arg;
        let is_reduction = it.op.row().rule == Rule::Reduce;
        if !is_reduction && !is_copy(it) || self.program.tensors[out].unit.is_some() {
            return Ok(false);
        }
        let sharding = |tensor| Sharding::of(self.program, tensor);
        let (Some(from), Some(to)) = (sharding(arg), sharding(out)) else { return Ok(false) };
        if is_reduction {
            return self.reduction(it, arg, &from, out, &to);
        }
        let Some(step) = reshard::step(self.program, &from, &to) else {
            return Err(self.refused(it, "is more than one step of resharding"));
        };
        match step {
            Step::Local => return Ok(false),
            Step::Broadcast => {
                self.allocate(out);
                let common = to.mesh.devices.iter().find(|rank| from.mesh.contains(**rank));
                let root = common.copied().unwrap_or_else(|| from.mesh.devices[0]);
                let mut team = to.mesh.devices.clone();
                if !team.contains(&root) {
                    team.push(root);
                }
                let root = team.iter().position(|rank| *rank == root);
                self.post(Post {
                    kind: "Broadcast",
                    team: &team,
                    root,
                    red_op: None,
                    input: arg,
                    output: out,
                });
            }
            Step::Allgather { dim, device } => {
                self.allgather(arg, out, &with_dim(&to, dim, &from.dims[dim]), (dim, device));
            }
            Step::Gather { dim, device } => {
                self.gather(arg, &from.mesh, out, &with_dim(&to, dim, &from.dims[dim]), (dim, device));
            }
            Step::Scatter { dim, device } => {
                self.scatter(arg, &with_dim(&from, dim, &to.dims[dim]), out, &to.mesh, (dim, device));
            }
            Step::AllToAll { from: gone, to: new, device } => {
                let send = with_dim(&from, new, &to.dims[new]);
                let recv = with_dim(&to, gone, &from.dims[gone]);
                self.all_to_all(arg, (&send, new), out, (&recv, gone), device);
            }
            Step::SendRecv => {
                self.allocate(out);
                for (sender, receiver) in from.mesh.devices.iter().zip(&to.mesh.devices) {
                    self.send(*sender, *receiver, arg, out);
                }
            }
        }
        Ok(true)
    }

    fn reduction(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        out: TensorId,
        to: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let Some(fates) = dims::fates(self.program, it, &[arg], 0) else { return Ok(false) };
        let summed: Vec<usize> = (0..fates.len()).filter(|at| fates[*at] == Fate::Summed).collect();
        let spread = |at: &&usize| from.dims[**at].devices().next().is_some();
        let Some(dim) = summed.iter().find(spread).copied() else {
            let mut kept = from.clone();
            let mut fates = fates.iter();
            kept.dims.retain(|_| fates.next() != Some(&Fate::Summed));
            return match reshard::step(self.program, &kept, to) {
                Some(Step::Local) => Ok(false),
                _ => Err(self.refused(it, "reduces and reshards")),
            };
        };
        let mut kept = from.clone();
        kept.dims.remove(dim);
        let one_step = summed.len() == 1 && reduces_in_one_step(self.program, from, dim, &kept, to);
        let (Some(red_op), true, Some(device)) =
            (red_op(self.program, it), one_step, from.dims[dim].devices().next())
        else {
            return Err(self.refused(it, "is more than one step of reduction"));
        };
        if from.mesh != to.mesh {
            self.allocate(out);
            let team = from.mesh.devices.clone();
            for receiver in &to.mesh.devices {
                let root = team.iter().position(|rank| rank == receiver);
                let red_op = Some(red_op);
                self.post(Post { kind: "Reduce", team: &team, root, red_op, input: arg, output: out });
            }
        } else if let Some(Step::Scatter { dim: scattered, .. }) = reshard::step(self.program, &kept, to) {
            // Counted among the operand's dimensions, that which vanishes included.
            let at = scattered + usize::from(scattered >= dim);
            let input = self.parts_of(arg, &with_dim(from, at, &to.dims[scattered]), (at, device));
            self.allocate(out);
            for team in teams(&from.mesh, device) {
                let red_op = Some(red_op);
                self.post(Post {
                    kind: "ReduceScatter",
                    team: &team,
                    root: None,
                    red_op,
                    input,
                    output: out,
                });
            }
        } else {
            self.allocate(out);
            for team in teams(&from.mesh, device) {
                let red_op = Some(red_op);
                self.post(Post {
                    kind: "Allreduce",
                    team: &team,
                    root: None,
                    red_op,
                    input: arg,
                    output: out,
                });
            }
        }
        self.forget_reductions(out);
        Ok(true)
    }

    // ---- steps

    fn allgather(&mut self, arg: TensorId, out: TensorId, recv: &Sharding, at: (usize, DeviceDim)) {
        let teams = teams(&recv.mesh, at.1);
        self.unpacked(out, recv, at, &mut |this, buffer| {
            for team in &teams {
                let (input, output) = (arg, buffer);
                this.post(Post { kind: "Allgather", team, root: None, red_op: None, input, output });
            }
        });
    }

    fn gather(
        &mut self,
        arg: TensorId,
        senders: &Mesh,
        out: TensorId,
        recv: &Sharding,
        at: (usize, DeviceDim),
    ) {
        let team = senders.devices.clone();
        let receivers = recv.mesh.devices.clone();
        self.unpacked(out, recv, at, &mut |this, buffer| {
            for receiver in &receivers {
                match team.iter().position(|rank| rank == receiver) {
                    Some(root) => {
                        let (root, input, output) = (Some(root), arg, buffer);
                        this.post(Post { kind: "Gather", team: &team, root, red_op: None, input, output });
                    }
                    None => {
                        let parts = this.as_parts(buffer, team.len());
                        for (at, sender) in team.iter().enumerate() {
                            let slot = this.part(parts, at);
                            this.send(*sender, *receiver, arg, slot);
                        }
                    }
                }
            }
        });
    }

    fn scatter(
        &mut self,
        arg: TensorId,
        send: &Sharding,
        out: TensorId,
        receivers: &Arc<Mesh>,
        at: (usize, DeviceDim),
    ) {
        let input = self.parts_of(arg, send, at);
        self.allocate(out);
        let from = &send.mesh;
        for team in teams(receivers, at.1) {
            match team.iter().position(|rank| from.contains(*rank)) {
                Some(root) => {
                    let (root, output) = (Some(root), out);
                    self.post(Post { kind: "Scatter", team: &team, root, red_op: None, input, output });
                }
                None => {
                    let parts = self.as_parts(input, team.len());
                    for (at, receiver) in team.iter().enumerate() {
                        let slot = self.part(parts, at);
                        self.send(from.devices[0], *receiver, slot, out);
                    }
                }
            }
        }
    }

    fn all_to_all(
        &mut self,
        arg: TensorId,
        (send, sent): (&Sharding, usize),
        out: TensorId,
        (recv, received): (&Sharding, usize),
        device: DeviceDim,
    ) {
        let input = self.parts_of(arg, send, (sent, device));
        let teams = teams(&send.mesh, device);
        self.unpacked(out, recv, (received, device), &mut |this, buffer| {
            for team in &teams {
                let output = buffer;
                this.post(Post { kind: "AllToAll", team, root: None, red_op: None, input, output });
            }
        });
    }

    // ---- parts in memory

    /// Lets `post` put the parts of all devices into a buffer, outermost first, and that into `out`. `recv` is how
    /// `out` is spread, with the piece that tells the parts apart.
    fn unpacked(
        &mut self,
        out: TensorId,
        recv: &Sharding,
        (dim, device): (usize, DeviceDim),
        post: &mut dyn FnMut(&mut Self, TensorId),
    ) {
        let split = self.program.stream_split(out);
        let mut leaves = pack::leaves(self.program, recv, split);
        let Some(at) = pack::position(&leaves, dim, device) else { return };
        leaves[at] = leaves[at].serial();
        if pack::is_outermost(self.program, &leaves, at) {
            self.allocate(out);
            return post(self, out);
        }
        let arrived = pack::moved(&leaves, at, 0);
        let buffer = pack::tensor(self.program, self.fresh, out, &arrived);
        let allocate = create::allocate(self.program, buffer);
        self.emit(allocate);
        post(self, buffer);
        self.wait();
        let (permuted, stmt) = pack::permuted(self.program, self.fresh, buffer, &arrived, (0, at));
        if self.views.contains(&out) {
            // A slice of something larger is not dense: then what is copied to it has to be.
            let allocate = create::allocate(self.program, permuted);
            self.emit(allocate);
        }
        self.emit(stmt);
        self.allocate(out);
        self.emit(pack::copying(Op::Reshape, permuted, out));
        // In a loop, the next iteration's name is another view.
        self.emit(create::deallocate(permuted));
    }

    /// The tensor as parts, one for each device, outermost first. `send` is how it is spread, with the piece that tells
    /// the parts apart.
    fn parts_of(&mut self, arg: TensorId, send: &Sharding, (dim, device): (usize, DeviceDim)) -> TensorId {
        let split = self.program.stream_split(arg);
        let mut leaves = pack::leaves(self.program, send, split);
        let Some(at) = pack::position(&leaves, dim, device) else { return arg };
        leaves[at] = leaves[at].serial();
        if pack::is_outermost(self.program, &leaves, at) {
            return arg;
        }
        let cut = pack::tensor(self.program, self.fresh, arg, &leaves);
        self.emit(pack::copying(Op::Reshape, arg, cut));
        let (packed, stmt) = pack::permuted(self.program, self.fresh, cut, &leaves, (at, 0));
        let allocate = create::allocate(self.program, packed);
        self.emit(allocate);
        self.emit(stmt);
        // In a loop, the next iteration's name is another view.
        self.emit(create::deallocate(cut));
        packed
    }

    /// A tensor with its parts as a dimension of their own.
    fn as_parts(&mut self, tensor: TensorId, count: usize) -> TensorId {
        let Some(sharding) = Sharding::of(self.program, tensor) else { return tensor };
        let split = self.program.stream_split(tensor);
        let mut leaves = pack::leaves(self.program, &sharding, split);
        let count = self.program.int(count as i64);
        let Some(at) = leaves.iter().position(|leaf| leaf.is_wide(self.program)) else { return tensor };
        if crate::sharding::same(self.program, leaves[at].extent, count) && at == 0 {
            return tensor;
        }
        leaves[at].extent = crate::sharding::divide(self.program, leaves[at].extent, count);
        leaves.insert(0, Leaf { dim: 0, extent: count, parallel: Parallel::Serial });
        let parts = pack::tensor(self.program, self.fresh, tensor, &leaves);
        self.emit(pack::copying(Op::Reshape, tensor, parts));
        self.names.push(parts);
        parts
    }

    /// One part, as a view.
    fn part(&mut self, parts: TensorId, at: usize) -> TensorId {
        let Some(axis) = self.program.dimensions(parts).next() else { return parts };
        let Some(mut sharding) = Sharding::of(self.program, parts) else { return parts };
        sharding.dims.remove(0);
        let view = sharding.tensor(self.program, self.fresh, parts, Memory::Local);
        // A slice of what is one stream's already is that stream's too.
        if self.program.stream_split(parts) {
            split_by_stream(self.program, view);
        }
        let index = self.program.int(at as i64);
        self.emit(create::select(view, parts, axis, index));
        view
    }

    // ---- statements

    fn emit(&mut self, stmt: OpStmt) {
        let id = create::add(self.program, stmt, self.span);
        self.stmts.push(id);
    }

    /// Storage for a result that has none.
    fn allocate(&mut self, tensor: TensorId) {
        if !self.is_bound {
            self.is_bound = true;
            let allocate = create::allocate(self.program, tensor);
            self.emit(allocate);
        }
    }

    fn post(&mut self, post: Post<'_>) {
        let Post { kind, team, root, red_op, input, output } = post;
        let mut attrs = vec![("type", Attr::Word(kind)), ("team", Attr::Team(team.to_vec()))];
        if let Some(root) = root {
            attrs.push(("root", Attr::Scalar(self.program.int(root as i64))));
        }
        attrs.extend(red_op.map(|op| ("red_op", Attr::Word(op))));
        let has_cuda = matches!(kind, "Broadcast" | "Allgather" | "Allreduce" | "Reduce");
        let mut ranks = team.to_vec();
        ranks.sort_unstable();
        let backend = match self.backend {
            "CUDA" if !has_cuda || ranks != self.world => "NCCL",
            backend => backend,
        };
        attrs.extend([
            ("input", Attr::Tensor(input)),
            ("output", Attr::Tensor(output)),
            ("backend", Attr::Word(backend)),
        ]);
        let work = self.fresh.work();
        self.emit(OpStmt { number: Some(work), attrs, ..create::op(Op::Communication) });
        self.works.push(work);
    }

    /// One device's tensor to another; a copy where they are the same.
    fn send(&mut self, sender: usize, receiver: usize, input: TensorId, output: TensorId) {
        let mut team = vec![sender, receiver];
        team.dedup();
        self.post(Post { kind: "SendRecv", team: &team, root: Some(0), red_op: None, input, output });
    }

    /// Waits for what is posted.
    fn wait(&mut self) {
        for work in std::mem::take(&mut self.works) {
            self.emit(create::wait(work));
        }
        // In a loop, the next iteration's name is another view.
        for name in std::mem::take(&mut self.names) {
            self.emit(create::deallocate(name));
        }
    }

    /// A view's axes that a communication has summed away say nothing any more.
    fn forget_reductions(&mut self, tensor: TensorId) {
        if !self.views.contains(&tensor) {
            return;
        }
        let axes = &self.program.axes;
        let it = &mut self.program.tensors[tensor];
        for list in [&mut it.loops, &mut it.domains.logical].into_iter().chain(it.domains.allocation.as_mut())
        {
            list.retain(|axis| axes[*axis].kind != AxisKind::Reduction);
        }
    }

    fn refused(&self, it: &OpStmt, why: &str) -> Diagnostic {
        let message = format!("`{}` {why}", it.op.name());
        let it = Diagnostic::new(Code::NotRewritten, self.span, message, "no communication does this alone");
        it.help("run decompose-resharding before")
    }
}

/// `sharding` with one dimension as `other` has it.
fn with_dim(sharding: &Sharding, dim: usize, other: &Dim) -> Sharding {
    let mut it = sharding.clone();
    it.dims[dim] = other.clone();
    it
}

/// The rows of a mesh along one of its dimensions.
pub(crate) fn teams(mesh: &Mesh, device: DeviceDim) -> Vec<Vec<usize>> {
    let mut teams: Vec<Vec<usize>> = Vec::new();
    let mut rows: Vec<Vec<Option<usize>>> = Vec::new();
    for rank in &mesh.devices {
        let others = [DeviceDim::X, DeviceDim::Y, DeviceDim::Z].into_iter().filter(|dim| *dim != device);
        let row: Vec<Option<usize>> = others.map(|dim| mesh.coordinate(*rank, dim)).collect();
        match rows.iter().position(|it| *it == row) {
            Some(at) => teams[at].push(*rank),
            None => {
                rows.push(row);
                teams.push(vec![*rank]);
            }
        }
    }
    teams
}

/// Tensors that statements bind to views of others.
fn views(program: &Program) -> FxHashSet<TensorId> {
    let bound = program.stmts.iter().filter_map(|(_, stmt)| match stmt {
        Stmt::Op(it) if it.op.row().effect == Effect::View => it.out_tensor(),
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    });
    bound.collect()
}

/// All ranks of the smallest world that has every rank that the meshes name.
pub(crate) fn world(program: &Program) -> Vec<usize> {
    let named = program.tensors.iter().flat_map(|(_, it)| it.mesh.devices.iter().copied());
    (0..named.max().map_or(0, |it| it + 1)).collect()
}
