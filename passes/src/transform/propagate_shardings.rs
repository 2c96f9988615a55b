//! propagate-shardings: determines the mesh and the sharding of each intermediate tensor without a DeviceMesh.
//!
//! Before (T0 is replicated, and the rows of the weight T1 are sharded over two devices):
//! ```text
//! T2[iS5{32}, iS6{64}] = linear(T0[iS0{32}, iS1{16}] (DeviceMesh{0 1}), T1[ideviceIdx.x2{2}, iS3{32}, iS4{16}] (DeviceMesh{0 1}))
//! T3[iS7{32}, iS8{64}] = relu(T2[iS5{32}, iS6{64}]);
//! ```
//! After:
//! ```text
//! T2[iS5{32}, ideviceIdx.x9{2}, iS10{32}] (DeviceMesh{0 1}) = linear(T0[iS0{32}, iS1{16}] (DeviceMesh{0 1}), T1[ideviceIdx.x2{2}, iS3{32}, iS4{16}] (DeviceMesh{0 1}))
//! T3[iS7{32}, ideviceIdx.x11{2}, iS12{32}] (DeviceMesh{0 1}) = relu(T2[iS5{32}, ideviceIdx.x9{2}, iS10{32}] (DeviceMesh{0 1}));
//! ```
//!
//! The pass follows nvFuser's PropagateShardingsPass:
//!
//! * Forward, in program order: a result gets the mesh of the operands. Each of its dimensions is split as the
//!   dimensions of operands that correspond to it. Replicated operands do not restrict the result. A
//!   dimension that the operator sums is gone, so the result is complete on every device; later passes
//!   decompose the operator into partial sums and a reduction over devices. If all users need only a part of the sum on
//!   each device, as the addition of a sharded residual does, the result is sharded, and the reduction is a reduce-scatter.
//!   Devices that have the same operands sum only the part that their users need: an all-reduce of the part.
//! * A copy whose users work on another mesh is on that mesh.
//! * Slices, cats and pads that move the rows of a sharded tensor have its sharding.
//! * Backward, in reverse order: if no operand has a mesh (iota, full, eye, rand, and operators on tensors
//!   without a mesh), the result gets the sharding that all its users need. If the users disagree, the result
//!   is replicated on their mesh. If a user needs it on every rank, it stays without a mesh.
//!
//! A sharding that the program states never changes. The pass rejects a program that leaves a choice: operands
//! of different meshes, two shardings for one dimension of a result, or one device axis for two dimensions. It reports all
//! such statements, each with the texts that determine the result. With `prefer=` it decides itself, and remarks say how:
//!
//! * `weights-stay`: an operand that no arithmetic has computed, such as a weight, stays as it is. Of two such operands, or of
//!   none, the second one of a product stays, and the first one of any other operator.
//! * `activations-stay`: the other way round.
//! * `least-bytes`: one of these two, or the operand of which each rank receives fewer bytes is gathered, statement by statement: the
//!   one with which the program communicates the fewest bytes; a remark states all three.
//!
//! The pass leaves these tensors unchanged: inputs, tensors that lowered statements mention (storage,
//! communications, loops over streams, branches, HostUnits), and results that depend on the rank. A tensor that is written
//! several times gets the sharding of its first result that has one. A view of storage that is written again
//! later stays unchanged, because it may become a copy; a remark says so.

mod choice;
mod least_bytes;
mod preference;
mod shifts;
mod users;
mod uses;

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        dim_map, propagation,
        sharding::{Dim, DimPiece, Sharding},
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
};
use choice::{ClaimedPieces, Claims, Demands, mesh_conflict};
use grammar::{
    Attr, AxisKind, DType, DeviceDim, Diagnostic, DimMap, Mesh, Named, OpStmt, Operand, ParallelType,
    Program, ResultDim, Stmt, StmtId, TensorId, dims_of_first_result, result_dims,
};
use hir_ir::build::IrBuilder;
use preference::Preference;
use uses::TensorUses;

/// The pass.
pub(crate) const PASS: Pass = Pass::new("propagate-shardings", include_str!("propagate_shardings.rs"), run)
    .for_conditions()
    .about("determine meshes and device axes of intermediate tensors that have no DeviceMesh")
    .with_options(&[OptionSpec::new("prefer", OptionKind::Word(Preference::NAMES), None).about(
        "which operand stays as it is where operands demand different shardings of a result; the other one \
         is resharded; default: report all such statements",
    )]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let uses = TensorUses::of(program, body);
    let mut views: Vec<(TensorId, StmtId)> = uses.views.iter().map(|(view, write)| (*view, *write)).collect();
    views.sort_unstable();
    for (view, write) in views {
        let name = program.tensor_name(view);
        let message =
            format!("`{name}` gets no DeviceMesh: it may be a view of storage that is written here");
        remarks.no_effect(
            program.stmt_span(write),
            message,
            format!("read as `{name}` behind this statement"),
        );
    }
    if uses.candidates.is_empty() {
        return Ok(Change::Unchanged);
    }
    let mut prefer: Option<Preference> = arguments.choice("prefer");
    if prefer == Some(Preference::LeastBytes) {
        let (rule, counts) = least_bytes::choose(program, &uses);
        let label = format!("chosen: {}", rule.rule_text());
        remarks.note(program.spans.header, counts, label);
        prefer = Some(rule);
    }
    let before = prefer.is_none().then(|| program.clone());
    let done = Propagation::of(program, &uses, remarks, prefer);
    let changed = Change::from_flag(done.changed);
    let mut ambiguities = done.ambiguities.into_iter();
    match ambiguities.next() {
        Some(first) => {
            ambiguities.for_each(|it| remarks.reject(it));
            Err(match before {
                Some(it) => first.note(preference::ways_out(&it, &uses)),
                None => first,
            })
        }
        None => Ok(changed),
    }
}

struct Propagation<'p> {
    program: &'p mut Program,
    builder: IrBuilder,
    uses: &'p TensorUses,
    remarks: &'p mut Remarks,
    /// What to do where the operands leave a choice; without a rule, each choice is reported.
    prefer: Option<Preference>,
    /// The tensors that arithmetic computes.
    computed: FxHashSet<TensorId>,
    /// The choices that the program leaves.
    ambiguities: Vec<Diagnostic>,
    /// The bytes that each rank receives at most, for what the rule decides; `None` if an extent is no constant.
    moved_bytes: Option<usize>,
    changed: bool,
}

impl<'p> Propagation<'p> {
    /// Determines the shardings of all candidates.
    fn of(
        program: &'p mut Program,
        uses: &'p TensorUses,
        remarks: &'p mut Remarks,
        prefer: Option<Preference>,
    ) -> Self {
        let builder = IrBuilder::of(program);
        let stmts = &uses.operators;
        let (computed, ambiguities) = (FxHashSet::default(), Vec::new());
        let moved_bytes = Some(0);
        let mut it = Self {
            program,
            builder,
            uses,
            remarks,
            prefer,
            computed,
            ambiguities,
            moved_bytes,
            changed: false,
        };
        for stmt in stmts {
            it.forward(*stmt);
        }
        for stmt in stmts.iter().rev() {
            it.backward(*stmt);
        }
        it
    }
}

impl Propagation<'_> {
    /// Returns whether the sharding of a tensor is still to be determined.
    fn is_open(&self, tensor: TensorId) -> bool {
        self.uses.candidates.contains(&tensor) && self.program.tensors[tensor].mesh.is_empty()
    }

    /// Determines the shardings of a statement's results from those of its operands, if an operand has a mesh.
    fn forward(&mut self, stmt: StmtId) {
        let Stmt::Op(it) = self.program.stmts[stmt].clone() else { return };
        self.note_computed(&it);
        let outs: Vec<(usize, TensorId)> =
            Program::tensors_of(&it.outs).enumerate().filter(|(_, out)| self.is_open(*out)).collect();
        let Some((_, out)) = outs.first().copied() else { return };
        let args = it.tensor_operands();
        let has_mesh = |arg: &TensorId| !self.program.tensors[*arg].mesh.is_empty();
        let Some(mut first) = args.iter().copied().find(has_mesh) else { return };
        let mesh_of = |tensor: TensorId| self.program.tensors[tensor].mesh.clone();
        let other = args.iter().copied().filter(has_mesh).find(|arg| mesh_of(*arg) != mesh_of(first));
        if let Some(other) = other {
            let conflict = mesh_conflict(self.program, &it, [first, other]);
            let alternatives = [first, other].map(|it| (mesh_of(it), Claims::new()));
            self.report(stmt, out, &conflict, alternatives);
            if self.yields(&it, first, other) {
                first = other;
            }
        }
        let mut mesh = self.program.tensors[first].mesh.clone();
        let shardings = args.iter().map(|arg| Sharding::of(self.program, *arg)).collect::<Option<Vec<_>>>();
        // A later pass names the operand that is sharded in a way that cannot be propagated.
        let Some(mut shardings) = shardings else { return };
        // An operand on another mesh is resharded as a whole.
        shardings.iter_mut().filter(|it| !it.mesh.is_empty() && it.mesh != mesh).for_each(|it| {
            it.dims.iter_mut().for_each(|dim| dim.pieces.clear());
        });
        let mut claims = Claims::new();
        if let Some(maps) = dim_map::dim_maps(self.program, &it) {
            let (program, args, shardings, maps) = (&*self.program, &args[..], &shardings[..], &maps[..]);
            let demands = Demands { program, it: &it, out, args, shardings, maps };
            let (chosen, conflict) = demands.claims(&|a, b| self.yields(&it, a, b));
            claims = chosen;
            if let Some(conflict) = conflict {
                let alternatives =
                    [false, true].map(|yields| (mesh.clone(), demands.claims(&|_, _| yields).0));
                self.report(stmt, out, &conflict, alternatives);
            }
            self.scatter(&users::summed_pieces(&it, shardings, maps), shardings, first, out, &mut claims);
        }
        self.shift(stmt, out, &mesh, &mut claims);
        if users::is_copy(&it)
            && let Some(stage) = self.mesh_of_users(out).filter(|stage| *stage != mesh)
        {
            // A copy to another stage. Its devices have the same parts if there are as many of them.
            if stage.shape != mesh.shape {
                claims.clear();
            }
            mesh = stage;
        }
        for (position, out) in outs {
            let claimed = |dim: Option<usize>| match claims.get(dim?) {
                Some(Some(ClaimedPieces { dim, .. })) => Some(dim.pieces.clone()),
                Some(None) | None => None,
            };
            let dims = dims_of_first_result(self.program, &it, position);
            let pieces = dims.into_iter().map(|dim| claimed(dim).unwrap_or_default()).collect();
            self.set_pieces(stmt, out, &mesh, pieces);
        }
    }

    /// Shards a sum over devices along the dimension of which all users need a part only. Devices that have the same operands
    /// sum only the part that they need, so that they reduce no more than this part.
    fn scatter(
        &self,
        summed: &[DimPiece],
        shardings: &[Sharding],
        operand: TensorId,
        out: TensorId,
        claims: &mut Claims,
    ) {
        let mesh = &self.program.tensors[operand].mesh;
        let is_sharded = |device: DeviceDim| {
            shardings.iter().flat_map(|it| &it.dims).any(|dim| dim.devices().any(|it| it == device))
        };
        let replicated = [DeviceDim::X, DeviceDim::Y, DeviceDim::Z]
            .into_iter()
            .filter(|device| !summed.is_empty() && mesh.extent(*device) > 1 && !is_sharded(*device));
        for device in summed.iter().filter_map(|piece| piece.device()).chain(replicated) {
            let Some((dim, pieces)) = self.scattered_dim(out, mesh, device) else { continue };
            let Some((_, outer)) = pieces.split_last() else { continue };
            let claimed = claims.get(dim).and_then(Option::as_ref).map_or(&[][..], |it| &it.dim.pieces);
            let is_taken = |it: &ClaimedPieces| it.dim.devices().any(|it| it == device);
            if claimed != outer || claims.iter().flatten().any(is_taken) {
                continue;
            }
            if claims.len() <= dim {
                claims.resize_with(dim + 1, || None);
            }
            let Some(extent) = dim_map::extent(self.program, out, dim) else { continue };
            claims[dim] = Some(ClaimedPieces { operand, dim: Dim { pieces, ..Dim::whole(extent) } });
        }
    }

    /// Determines the sharding of a statement's result from those that its users need, if no operand has a
    /// mesh.
    fn backward(&mut self, stmt: StmtId) {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return };
        let ([Operand::Tensor(out)], true) = (&it.outs[..], it.computes()) else { return };
        let out = *out;
        let has_mesh = |arg: &TensorId| !self.program.tensors[*arg].mesh.is_empty();
        if !self.is_open(out) || it.tensor_operands().iter().any(has_mesh) {
            return;
        }
        // An output without a mesh is on every rank.
        if Program::tensors_of(&self.program.outputs).any(|it| it == out) {
            return;
        }
        let mut needs = Vec::new();
        for user in self.uses.stmts.get(&out).into_iter().flatten().filter(|user| **user != stmt) {
            let Stmt::Op(user) = &self.program.stmts[*user] else { return };
            match self.needed_shardings(user, out) {
                Some(mut found) => needs.append(&mut found),
                None => return,
            }
        }
        let Some((first, others)) = needs.split_first() else { return };
        if others.iter().any(|it| it.mesh != first.mesh) {
            return;
        }
        let is_same = |it: &Sharding| {
            it.dims.iter().zip(&first.dims).all(|(a, b)| Sharding::are_aligned(self.program, a, b))
        };
        let mut pieces = if others.iter().all(is_same) {
            first.dims.iter().map(|dim| dim.pieces.clone()).collect()
        } else {
            vec![Vec::new(); first.dims.len()]
        };
        // The operator may be unable to compute parts of a dimension.
        let dims = dim_map::dim_maps(self.program, it).map(|maps| result_dims(self.program, it, &maps));
        for (at, pieces) in pieces.iter_mut().enumerate() {
            let dim = dims.as_ref().and_then(|dims| dims.get(at));
            if dim.is_none_or(|dim| *dim == ResultDim::RequiresWhole) {
                pieces.clear();
            }
        }
        let mesh = first.mesh.clone();
        self.set_pieces(stmt, out, &mesh, pieces);
    }

    /// Returns the shardings that a statement needs of `arg`, one for each time that it reads it, or `None` if
    /// it needs it on every rank.
    fn needed_shardings(&self, user: &OpStmt, arg: TensorId) -> Option<Vec<Sharding>> {
        let args = user.tensor_operands();
        let goal = Sharding::of(self.program, user.out_tensor()?).filter(|goal| !goal.mesh.is_empty())?;
        let replicated = |tensor: &TensorId| {
            let dims = Sharding::of(self.program, *tensor)?.dims;
            Some(Sharding::replicated(goal.mesh.clone(), dims.into_iter().map(|dim| dim.extent)))
        };
        let needs = match dim_map::dim_maps(self.program, user) {
            Some(maps) => {
                let goal = propagation::computable_sharding(self.program, user, &maps, &goal);
                match self.contracted_pieces(user, &args, &maps, &goal) {
                    Some(summed) => {
                        // Every device computes a partial sum of all that the summed pieces would shard.
                        let mut sums = goal.clone();
                        let is_summed =
                            |piece: &DimPiece| summed.iter().any(|it| it.parallel == piece.parallel);
                        sums.dims.iter_mut().for_each(|dim| dim.pieces.retain(|piece| !is_summed(piece)));
                        propagation::operand_shardings_with_reduction(
                            self.program,
                            &args,
                            &maps,
                            &sums,
                            &summed,
                        )
                    }
                    None => propagation::operand_shardings(self.program, &args, &maps, &goal),
                }
            }
            None => args.iter().map(replicated).collect::<Option<_>>()?,
        };
        let of_arg = args.iter().zip(needs).filter(|(it, _)| **it == arg);
        Some(of_arg.map(|(_, need)| need.without_streams()).collect())
    }

    /// Returns the device pieces of the contracted dimension of a linear or matmul, if one operand has a mesh
    /// and shards that dimension.
    fn contracted_pieces(
        &self,
        it: &OpStmt,
        args: &[TensorId],
        maps: &[Vec<DimMap>],
        goal: &Sharding,
    ) -> Option<Vec<DimPiece>> {
        let has_zero = |out| self.program.tensors[out].dtype.is_none_or(DType::has_zero);
        if !it.rule().is_matrix_product()
            || goal.dims.iter().any(|dim| dim.partial)
            || !it.out_tensor().is_none_or(has_zero)
        {
            return None;
        }
        let mut pieces = args.iter().zip(maps).take(2).filter_map(|(arg, maps)| {
            let sharding = Sharding::of(self.program, *arg).filter(|it| it.mesh == goal.mesh)?;
            let at = maps.iter().position(|map| *map == DimMap::Reduction)?;
            let pieces = sharding.without_streams().dims[at].pieces.clone();
            (!pieces.is_empty() && pieces.iter().all(|piece| piece.device().is_some())).then_some(pieces)
        });
        pieces.next()
    }

    /// Gives a tensor a mesh, and splits each dimension that can be split into these pieces.
    fn set_pieces(&mut self, stmt: StmtId, tensor: TensorId, mesh: &Arc<Mesh>, pieces: Vec<Vec<DimPiece>>) {
        let sharding = match with_pieces(self.program, tensor, mesh, pieces) {
            Ok(it) => it,
            Err(reason) => {
                let name = self.program.tensor_name(tensor);
                let message = format!("`{name}` gets no DeviceMesh: {reason}");
                self.remarks.no_effect(self.program.stmt_span(stmt), message, "written here");
                return;
            }
        };
        let renamed = sharding.apply_to(self.program, &mut self.builder, tensor);
        // A select names an axis of its operand.
        for stmt in self.uses.stmts.get(&tensor).into_iter().flatten() {
            let Stmt::Op(it) = &mut self.program.stmts[*stmt] else { continue };
            for (_, attr) in &mut it.attrs {
                if let Attr::Axis(axis) = attr {
                    *axis = renamed.get(axis).copied().unwrap_or(*axis);
                }
            }
        }
        self.changed = true;
    }
}

/// Returns the sharding of a tensor on `mesh` with each dimension that can be split split into these pieces, or the
/// reason why it cannot have it.
fn with_pieces(
    program: &Program,
    tensor: TensorId,
    mesh: &Arc<Mesh>,
    pieces: Vec<Vec<DimPiece>>,
) -> Result<Sharding, &'static str> {
    let mut sharding = Sharding::of(program, tensor).ok_or("its domain is not a sharding")?;
    let axes = program.dimensions(tensor).map(|axis| &program.axes[axis]);
    for ((dim, axis), mut pieces) in sharding.dims.iter_mut().zip(axes).zip(pieces) {
        if axis.kind == AxisKind::Iteration && !axis.is_ragged && axis.expanded.is_none() {
            // A stream of the result splits the part of each device.
            pieces.append(&mut dim.pieces);
            dim.pieces = pieces;
        }
    }
    sharding.mesh = mesh.clone();
    let pieces = sharding.dims.iter().flat_map(|dim| &dim.pieces);
    let streams = pieces.filter(|piece| piece.parallel == ParallelType::Stream).count();
    let even =
        |dim: &Dim| dim.stream().is_none() || dim.devices().next().is_none() || divides_evenly(program, dim);
    match (streams <= 1, sharding.dims.iter().all(even)) {
        (true, true) => Ok(sharding),
        (false, _) => Err("it would have two stream axes"),
        (true, false) => Err("its stream axis does not divide the part of each device"),
    }
}

/// Returns whether the pieces of a dimension divide it evenly. Returns true if an extent or a count is not a constant,
/// because it may divide then.
fn divides_evenly(program: &Program, dim: &Dim) -> bool {
    let counts: Option<Vec<i64>> = dim.pieces.iter().map(|piece| program.constant(piece.count)).collect();
    let Some((extent, counts)) = program.constant(dim.extent).zip(counts) else { return true };
    let parts = counts.into_iter().try_fold(1_i64, i64::checked_mul);
    parts.is_some_and(|parts| parts > 0 && extent % parts == 0)
}
