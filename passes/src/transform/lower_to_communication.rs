//! lower-to-communication: replaces single resharding steps by communications.
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
//! | step (`reshard::ReshardStep`) | lowered to |
//! |---|---|
//! | Local, Slice | a Set, unchanged: every device has what it needs |
//! | Broadcast | Broadcast from the first device that sends, preferably one that also receives |
//! | Allgather | one Allgather for each row of the mesh |
//! | Gather | Gather to each receiver that is also a sender; SendRecv pairs to every other receiver |
//! | Scatter | Scatter if one of the receivers has the whole tensor, else SendRecv pairs |
//! | AllToAll | one AllToAll for each row of the mesh |
//! | AllToAllOfMeshes | one AllToAll of all devices |
//! | SendRecv | SendRecv between devices at the same position of both meshes |
//! | reduction to all devices | Allreduce |
//! | reduction to a sharded dimension | ReduceScatter |
//! | reduction to some of the devices | Reduce to each of them |
//!
//! The table follows nvFuser's lowering (`lower_to_communication.cpp`). Collectives move equal parts of dense
//! memory, outermost first. If the sharded axis is not outermost, the tensor is permuted before or after the
//! communication.

mod parts;
mod post;
mod steps;

use grammar::{
    AxisKind, Backend, BlockId, Code, CommunicationType, DeviceDim, Diagnostic, DimMap, Op, OpClass, OpStmt,
    ParallelType, Program, Span, Stmt, StmtId, TensorId, TypeRule, ranks_in_meshes,
};
use hir_ir::{build::IrBuilder, edit::expand};
use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        bindings, dim_map,
        reshard::{self, ReshardStep},
        sharding::{Dim, DimPiece, Sharding},
    },
    pass::{Arguments, Change, OptionSpec, Pass, Remarks},
    rewrite::{collective::Collective, mesh::teams_along},
    transform::decompose_resharding::{collective_red_op, is_copy, reduces_in_one_step},
};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("lower-to-communication", include_str!("lower_to_communication.rs"), run)
        .for_conditions()
        .about("replace single resharding steps by communications and waits")
        .with_options(&[OptionSpec::word("backend", &["nccl", "cuda", "ucc"]).about(
            "backend of the communications; cuda applies to those that nvFuser's CUDA backend supports, the \
             others use NCCL",
        )]);

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let backend = arguments.text("backend").and_then(Backend::from_text).unwrap_or(Backend::Nccl);
    let facts = LoweringFacts::of(program);
    lower(program, facts, backend)
}

/// What lowering has to know about a program before it changes.
pub(crate) struct LoweringFacts {
    fresh: IrBuilder,
    /// Operators whose first result has storage before them.
    bound: FxHashSet<StmtId>,
    /// The tensors that are views of others.
    views: FxHashSet<TensorId>,
    /// The number of ranks that the program needs.
    world: usize,
}

impl LoweringFacts {
    /// Analyzes a program.
    pub(crate) fn of(program: &Program) -> Self {
        Self {
            fresh: IrBuilder::of(program),
            bound: bindings::analyze_bindings(program).already_bound,
            views: program.body.map(|body| view_tensors(program, body)).unwrap_or_default(),
            world: world_size(program),
        }
    }
}

/// Lowers the resharding of a program. `facts` are those of the program, or of one that is equal to it.
///
/// # Errors
/// Returns the error of the first statement that needs more than one step.
pub(crate) fn lower(
    program: &mut Program,
    facts: LoweringFacts,
    backend: Backend,
) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let LoweringFacts { mut fresh, bound, views, world } = facts;
    let mut reduced = Vec::new();
    let changed = expand(program, body, &mut |program, stmt| {
        let span = program.stmt_span(stmt);
        let Stmt::Op(it) = &program.stmts[stmt] else { return Ok(None) };
        if it.op.def().type_rule != TypeRule::Reduce && !is_copy(it) {
            return Ok(None);
        }
        let it = it.clone();
        let is_bound = bound.contains(&stmt);
        let (stmts, works, names) = (Vec::new(), Vec::new(), Vec::new());
        let mut ctx = Lowering {
            program,
            fresh: &mut fresh,
            span,
            backend,
            world,
            views: &views,
            reduced: &mut reduced,
            is_bound,
            stmts,
            pending_works: works,
            reshaped_names: names,
        };
        let changed = ctx.lower(&it)?;
        ctx.emit_waits();
        Ok(changed.then_some(ctx.stmts))
    })?;
    forget_reductions(program, body, reduced.into_iter().filter(|it| views.contains(it)));
    Ok(Change::from_flag(changed))
}

/// Lowers one statement.
struct Lowering<'p> {
    program: &'p mut Program,
    fresh: &'p mut IrBuilder,
    span: Span,
    backend: Backend,
    /// The number of ranks that the program needs.
    world: usize,
    /// The tensors that are views of others.
    views: &'p FxHashSet<TensorId>,
    /// The results of the reductions that communications do now.
    reduced: &'p mut Vec<TensorId>,
    /// Whether the statement's result has storage already.
    is_bound: bool,
    stmts: Vec<StmtId>,
    /// The numbers of the communications that are posted and not waited for yet.
    pending_works: Vec<u32>,
    /// Reshaped names of results that are received part by part.
    reshaped_names: Vec<TensorId>,
}

impl Lowering<'_> {
    /// Emits the statements that replace a copy or a reduction. Returns false if `it` can stay.
    fn lower(&mut self, it: &OpStmt) -> Result<bool, Diagnostic> {
        let ([arg], Some(out)) = (&it.tensor_operands()[..], it.out_tensor()) else { return Ok(false) };
        let arg = *arg;
        let is_reduction = it.op.def().type_rule == TypeRule::Reduce;
        if self.program.tensors[out].unit.is_some() {
            return Ok(false);
        }
        let sharding = |tensor| Sharding::of(self.program, tensor);
        let (Some(from), Some(to)) = (sharding(arg), sharding(out)) else { return Ok(false) };
        if is_reduction {
            return self.reduction(it, arg, &from, out, &to);
        }
        let Some(step) = reshard::step(self.program, &from, &to) else {
            return Err(self.lowering_error(it, "needs more than one resharding step"));
        };
        let is_local = matches!(step, ReshardStep::Local | ReshardStep::Slice);
        if !is_local && self.program.is_split_by_stream(arg) != self.program.is_split_by_stream(out) {
            return Err(self.slice_error(it, arg, out));
        }
        match step {
            ReshardStep::Local | ReshardStep::Slice => return Ok(false),
            ReshardStep::Broadcast => {
                self.allocate(out);
                let common = to.mesh.devices.iter().find(|rank| from.mesh.contains(**rank));
                let root = common.copied().unwrap_or_else(|| from.mesh.devices[0]);
                let mut team = to.mesh.devices.clone();
                if !team.contains(&root) {
                    team.push(root);
                }
                let root = team.iter().position(|rank| *rank == root);
                let root = root.map(|it| self.program.intern_int(it as i64));
                self.post(Collective {
                    root,
                    ..Collective::new(CommunicationType::Broadcast, &team, arg, out)
                });
            }
            ReshardStep::Allgather { dim, device } => {
                self.allgather(arg, out, &with_dim(&to, dim, &from.dims[dim]), (dim, device));
            }
            ReshardStep::Gather { dim, device } => {
                self.gather(arg, &from.mesh, out, &with_dim(&to, dim, &from.dims[dim]), (dim, device));
            }
            ReshardStep::Scatter { dim, device } => {
                self.scatter(arg, &with_dim(&from, dim, &to.dims[dim]), out, &to.mesh, (dim, device));
            }
            ReshardStep::AllToAll { from: gone, to: new, device } => {
                let send = with_dim(&from, new, &to.dims[new]);
                let recv = with_dim(&to, gone, &from.dims[gone]);
                let teams = teams_along(&from.mesh, &[device]);
                self.all_to_all(arg, (&send, new), out, (&recv, gone), device, &teams);
            }
            ReshardStep::AllToAllOfMeshes { from: gone, to: new } => {
                // Each side has one part for each device, whatever the axes of the mesh are.
                let device = DeviceDim::X;
                let team = from.mesh.devices.clone();
                let count = self.program.intern_int(team.len() as i64);
                let piece = DimPiece { parallel: ParallelType::Device(device), count, swizzled: false };
                let parts = |dim: &Dim| Dim { pieces: vec![piece], ..dim.clone() };
                let send = with_dim(&from, new, &parts(&from.dims[new]));
                let recv = with_dim(&to, gone, &parts(&to.dims[gone]));
                self.all_to_all(arg, (&send, new), out, (&recv, gone), device, &[team]);
            }
            ReshardStep::SendRecv => {
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
        let Some(maps) = dim_map::dim_map(self.program, it, 0) else { return Ok(false) };
        let summed: Vec<usize> = (0..maps.len()).filter(|at| maps[*at] == DimMap::Reduction).collect();
        let kept = from.without_dims(&summed);
        let spread = |at: &&usize| from.dims[**at].devices().next().is_some();
        let Some(dim) = summed.iter().find(spread).copied() else {
            return match reshard::step(self.program, &kept, to) {
                Some(ReshardStep::Local) => Ok(false),
                _ => Err(self.lowering_error(it, "reduces and reshards in one statement")),
            };
        };
        let one_step = reduces_in_one_step(self.program, from, &summed, to);
        let (Some(red_op), true, Some(device)) =
            (collective_red_op(self.program, it), one_step, from.dims[dim].devices().next())
        else {
            return Err(self.lowering_error(it, "needs more than one reduction step"));
        };
        let red_op = Some(red_op);
        if from.mesh != to.mesh {
            self.allocate(out);
            let team = from.mesh.devices.clone();
            for receiver in &to.mesh.devices {
                let root = team.iter().position(|rank| rank == receiver);
                let root = root.map(|it| self.program.intern_int(it as i64));
                let reduce = Collective::new(CommunicationType::Reduce, &team, arg, out);
                self.post(Collective { root, red_op, ..reduce });
            }
        } else if let Some((scattered, _)) = reshard::scattered_piece(self.program, &kept, to) {
            // The dimension among the operand's dimensions, including the reduced one.
            let at = scattered + usize::from(scattered >= dim);
            let input = self.pack_parts(arg, &with_dim(from, at, &to.dims[scattered]), (at, device));
            self.allocate(out);
            for team in teams_along(&from.mesh, &[device]) {
                let scatter = Collective::new(CommunicationType::ReduceScatter, &team, input, out);
                self.post(Collective { red_op, ..scatter });
            }
        } else {
            self.allocate(out);
            let devices: Vec<DeviceDim> = summed.iter().flat_map(|at| from.dims[*at].devices()).collect();
            for team in teams_along(&from.mesh, &devices) {
                self.post(Collective {
                    red_op,
                    ..Collective::new(CommunicationType::Allreduce, &team, arg, out)
                });
            }
        }
        self.reduced.push(out);
        Ok(true)
    }

    /// The error of a statement one side of which holds all slices, and the other only that of the iteration.
    fn slice_error(&self, it: &OpStmt, arg: TensorId, out: TensorId) -> Diagnostic {
        let (name, other) = if self.program.is_split_by_stream(arg) { (arg, out) } else { (out, arg) };
        let (name, other) = (self.program.tensor_name(name), self.program.tensor_name(other));
        let message = format!("`{}`: a communication cannot take one slice of `{other}`", it.op.name());
        let label = format!("`{name}` is one slice, and `{other}` has all slices");
        let help = format!("take the slice of `{other}` with `ShardByStream` first");
        Diagnostic::new(Code::NotRewritten, self.span, message, label).help(help)
    }

    fn lowering_error(&self, it: &OpStmt, why: &str) -> Diagnostic {
        let message = format!("`{}` {why}", it.op.name());
        let it = Diagnostic::new(Code::NotRewritten, self.span, message, "no single communication does this");
        it.help("run `decompose-resharding` first")
    }
}

/// Removes the reduction axes of views, which have no meaning behind a communication, unless a reduction still computes
/// the view.
fn forget_reductions(program: &mut Program, body: BlockId, views: impl Iterator<Item = TensorId>) {
    let reductions = program.ops_in(body).filter(|(_, it)| it.op.def().type_rule == TypeRule::Reduce);
    let computed: FxHashSet<TensorId> =
        reductions.flat_map(|(_, it)| Program::tensors_of(&it.outs)).collect();
    for view in views.filter(|it| !computed.contains(it)) {
        let axes = &program.axes;
        let it = &mut program.tensors[view];
        for list in
            [&mut it.loop_domain, &mut it.domains.logical].into_iter().chain(it.domains.allocation.as_mut())
        {
            list.retain(|axis| axes[*axis].kind != AxisKind::Reduction);
        }
    }
}

/// Returns `sharding` with dimension `dim` replaced by `other`.
fn with_dim(sharding: &Sharding, dim: usize, other: &Dim) -> Sharding {
    let mut it = sharding.clone();
    it.dims[dim] = other.clone();
    it
}

/// Returns the tensors that statements bind to views of others, and their reshapes.
fn view_tensors(program: &Program, body: BlockId) -> FxHashSet<TensorId> {
    let mut views = FxHashSet::default();
    for (_, it) in program.ops_in(body) {
        if it.op.def().class == OpClass::View
            || it.op == Op::Reshape && Program::tensors_of(&it.args).any(|arg| views.contains(&arg))
        {
            views.extend(it.out_tensor());
        }
    }
    views
}

/// Returns the number of ranks of the smallest world that contains every rank of the meshes.
pub(crate) fn world_size(program: &Program) -> usize {
    ranks_in_meshes(program).map(|(rank, _)| rank).max().map_or(0, |it| it.saturating_add(1))
}
