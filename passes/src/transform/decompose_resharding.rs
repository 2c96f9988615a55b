//! decompose-resharding: splits operators on differently sharded tensors into local operators and single
//! resharding steps.
//!
//! Before (the rows of T0 are sharded over eight devices, T3 is on every device):
//! ```text
//! T3[istreamIdx6{8}, iS7{16}, iS8{128}] = linear(T0[ideviceIdx.x0{8}, iS1{16}, iS2{128}], T1[iS3{128}, iS4{128}])
//! ```
//! After:
//! ```text
//! T4[istreamIdx10{8}, iS11{16}, iS12{128}] = Set( T0[ideviceIdx.x0{8}, iS1{16}, iS2{128}] )
//! T3[istreamIdx6{8}, iS7{16}, iS8{128}] = linear(T4[istreamIdx10{8}, iS11{16}, iS12{128}], T1[iS3{128}, iS4{128}])
//! ```
//!
//! The pass makes these changes:
//!
//! * It reshards the operands to the sharding that the result requires (`reshard=operands`), or computes the
//!   result with the sharding of the operands and then reshards it (`reshard=result`).
//! * If both operands of a matmul shard the contracted axis over the same devices, every device computes a
//!   partial sum, and a `reduction` adds the partial sums, over all mesh axes at once. A bias is added once, after the
//!   reductions. If one operand is replicated and it is less to send the partial sums than to gather the other, each device
//!   takes its part of the replicated one.
//! * If the devices of a mesh axis shard the result, the reduction over them comes first, so that the others send less.
//! * An operator with several results computes them as the first one is sharded; the others are resharded behind it.
//! * Sums of partial sums are added before they are reduced, also those of the iterations of a loop: one reduction
//!   instead of several (`partial_sums`).
//! * A sum of which all readers take the same slices is reduced to these (`sliced_sums`).
//! * The transpose of a product that is an output is a product of transposes (`transposed_products`).
//! * If a sharded tensor is another one with its rows shifted (`slice`, `cat`, `pad`), neighbours exchange the rows at the
//!   borders of their parts (`shifts`).
//! * It reshards a tensor once for all operators that need the same sharding. A tensor that an operator makes
//!   from scalars alone (iota, eye, full) is rematerialized with that sharding instead.
//! * In a statement on one stream's slices, new tensors are slices too. The pass refuses a statement that would
//!   need a whole tensor in place of a slice.
//! * Reductions over local axes and reductions over devices become separate statements.
//! * Every Set that remains is one `reshard::ReshardStep`, and every reduction over devices is one
//!   all-reduce, one reduce-scatter, or a reduce to each device of another mesh.
//!
//! A remark names each input, such as a weight, that is gathered, and its bytes.

mod contraction;
mod copies;
mod device_reduction;
mod generators;
mod partial_sums;
mod red_op;
mod several_results;
mod shifts;
mod sliced_sums;
mod slices;
mod transposed_products;

use grammar::{
    AccessMode, Attr, AxesState, AxisId, BlockId, Code, Diagnostic, DimMap, Op, OpClass, OpStmt, Operand,
    ParallelType, Program, Span, Stmt, StmtId, TensorId, TypeRule, attr, axis_text,
};
use hir_ir::{
    build::{self, IrBuilder},
    edit::expand,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        dim_map,
        name_uses::write_counts,
        propagation,
        reshard::{self, ReshardStep},
        sharding::{Sharding, gathered_bytes},
    },
    pass::{Arguments, Change, OptionSpec, Pass, Remarks},
};
use contraction::contracted_device_pieces;
use copies::{ReshardedCopies, copy_stmt, rewritten_storage};
use device_reduction::reduces_over_devices;
pub(crate) use device_reduction::{reduces_in_one_step, reduction_stmt, set_reduction_axes};
use generators::generator_stmt;
pub(crate) use red_op::collective_red_op;
use slices::mentions_slice;

/// The pass.
pub(crate) const PASS: Pass = Pass::new("decompose-resharding", include_str!("decompose_resharding.rs"), run)
    .for_conditions()
    .about("split operators that reshard into local operators and single resharding steps")
    .with_options(&[OptionSpec::word("reshard", &["operands", "result"])
        .about("what to reshard if the shardings of operands and result differ")]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    program.tensors.ids().try_for_each(|tensor| check_even_parts(program, tensor))?;
    let mut fresh = IrBuilder::of(program);
    let mut changed = shifts::exchange_rows(program, &mut fresh, body, remarks);
    let write_counts = write_counts(program, &|_| true);
    let rewritten = rewritten_storage(program, body, &write_counts);
    changed |= transposed_products::fold(program, &mut fresh, body, &rewritten);
    changed |= sliced_sums::shard(program, &mut fresh, body, &rewritten, remarks);
    let reshards_result = arguments.text("reshard") == Some("result");
    let mut copies = ReshardedCopies::of(program, body, rewritten);
    let is_value = |it: &(TensorId, OpStmt)| !copies.is_rewritten(it.0);
    let top_level = program.block(body).iter();
    let generators = top_level.filter_map(|stmt| generator_stmt(program, *stmt)).filter(is_value).collect();
    let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    changed |= expand(program, body, &mut |program, stmt| {
        let span = program.stmt_span(stmt);
        let is_on_slices = mentions_slice(program, stmt);
        copies.enter(program, stmt);
        let copies = (!is_on_slices).then_some(&mut copies);
        let (write_counts, generators, fresh, stmts) = (&write_counts, &generators, &mut fresh, Vec::new());
        let (inputs, remarks) = (&inputs, &mut *remarks);
        let mixes_slices = false;
        let mut ctx = Decomposer {
            program,
            fresh,
            write_counts,
            inputs,
            remarks,
            generators,
            copies,
            span,
            reshards_result,
            stmts,
            is_on_slices,
            mixes_slices,
        };
        let changed = ctx.decompose(stmt)?;
        if ctx.mixes_slices {
            return Err(ctx.slice_error(stmt));
        }
        Ok(changed.then_some(ctx.stmts))
    })?;
    changed |= partial_sums::add_before_reduction(program, &mut fresh, body, remarks);
    Ok(Change::from_flag(changed))
}

/// Checks that the devices have equal parts of each dimension, as planning requires.
fn check_even_parts(program: &Program, tensor: TensorId) -> Result<(), Diagnostic> {
    let Some(sharding) = Sharding::of(program, tensor) else { return Ok(()) };
    for (axis, dim) in program.dimensions(tensor).zip(&sharding.dims) {
        let devices = dim.pieces.iter().filter(|piece| piece.device().is_some());
        let parts = devices
            .map(|piece| program.constant(piece.count))
            .try_fold(1_i64, |parts, count| parts.checked_mul(count?));
        if let (Some(extent), Some(parts)) = (program.constant(dim.extent), parts)
            && parts > 0
            && extent % parts != 0
        {
            let (name, axis) = (program.tensor_name(tensor), axis_text(program, axis));
            let message =
                format!("`{name}`: `{axis}` of extent {extent} cannot be split into {parts} equal parts");
            let it = Diagnostic::new(
                Code::BadIndex,
                program.tensor_span(tensor),
                message,
                "each device has one part",
            );
            return Err(it.help(format!("pad the axis to a multiple of {parts}, or shard another axis")));
        }
    }
    Ok(())
}

/// Decomposes one statement.
struct Decomposer<'p> {
    program: &'p mut Program,
    fresh: &'p mut IrBuilder,
    /// The number of statements that write each tensor.
    write_counts: &'p FxHashMap<TensorId, usize>,
    inputs: &'p FxHashSet<TensorId>,
    remarks: &'p mut Remarks,
    /// The statements that make tensors from scalars alone, if no other statement writes these tensors.
    generators: &'p FxHashMap<TensorId, OpStmt>,
    /// The resharded copies so far; `None` for a statement on slices.
    copies: Option<&'p mut ReshardedCopies>,
    span: Span,
    reshards_result: bool,
    stmts: Vec<StmtId>,
    /// Whether an operand or result of the statement is one stream's slice.
    is_on_slices: bool,
    /// Whether a new tensor would be whole where the statement has a slice, or a slice where it has a whole tensor.
    mixes_slices: bool,
}

impl Decomposer<'_> {
    /// Emits the statements that replace `stmt`. Returns false if `stmt` can stay.
    fn decompose(&mut self, stmt: StmtId) -> Result<bool, Diagnostic> {
        let Stmt::Op(it) = self.program.stmts[stmt].clone() else { return Ok(false) };
        // A select is a view if its operand has the sharding that it needs.
        let (true, Some(out)) = (it.computes() || it.op == Op::Select, it.out_tensor()) else {
            return Ok(false);
        };
        let args = it.tensor_operands();
        let shardings = args.iter().chain([&out]).map(|tensor| self.sharding(*tensor));
        let shardings = shardings.collect::<Result<Vec<Sharding>, Diagnostic>>();
        if shardings.is_err() && self.has_same_device_axes(&args, out) {
            return Ok(false);
        }
        let mut shardings = shardings?;
        let Some(goal) = shardings.pop() else { return Ok(false) };
        if it.outs.len() > 1 {
            return self.several_results(&it, &args, &shardings, &goal);
        }
        if let (true, [from]) = (is_copy(&it), &shardings[..]) {
            return self.copy(&it, args[0], from, out, &goal);
        }
        match dim_map::dim_maps(self.program, &it) {
            Some(maps)
                if it.op.def().type_rule == TypeRule::Reduce
                    && reduces_over_devices(&maps[0], &shardings[0]) =>
            {
                self.decompose_reduction(&it, args[0], &shardings[0], &maps[0], out, &goal)
            }
            Some(maps) => self.operator(&it, &args, &shardings, &maps, out, &goal),
            None => self.opaque(&it, &args, &shardings, out, &goal),
        }
    }

    // ---- kinds of operators

    /// Decomposes a copy into its resharding steps.
    fn copy(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        if let Some(step) = reshard::step(self.program, from, goal) {
            if let (false, Some(it)) =
                (matches!(step, ReshardStep::Local | ReshardStep::Slice), self.generators.get(&arg))
            {
                self.rematerialize(it.clone(), arg, goal, Some(out));
                return Ok(true);
            }
            let known = if step == ReshardStep::Local { None } else { self.known_copy(arg, goal) };
            match known {
                Some(known) => self.emit(copy_stmt(known, out)),
                None => self.record_copy(arg, goal, out),
            }
            return Ok(known.is_some());
        }
        let last = self.reshard(arg, from, goal, Some(out))?;
        debug_assert_eq!(last, out, "{:?}", it.op);
        Ok(true)
    }

    /// Decomposes an operator whose dimension maps are known.
    fn operator(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        maps: &[Vec<DimMap>],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let own = propagation::computable_sharding(self.program, it, maps, goal);
        let needs = propagation::operand_shardings(self.program, args, maps, &own);
        if own == *goal && propagation::is_local(self.program, from, &needs) {
            return Ok(false);
        }
        let pieces = contracted_device_pieces(self.program, args, from, maps, out, goal);
        if !pieces.is_empty() {
            self.decompose_matmul(it, args, from, maps, out, goal, &pieces)?;
            return Ok(true);
        }
        // A broadcast axis stays where it is: a temporary result would have a full axis instead.
        let repeats = self.program.dimensions(out).any(|axis| self.program.axes[axis].expanded.is_some());
        let at_operands = if self.reshards_result && !repeats {
            propagation::local_result_sharding(from, maps, &own)
        } else {
            None
        };
        let computed = at_operands.unwrap_or(own);
        if computed == *goal {
            self.emit_on_resharded(it, args, from, &needs, out)?;
            return Ok(true);
        }
        let needs = propagation::operand_shardings(self.program, args, maps, &computed);
        let temporary = self.temporary_result(it, &computed, &needs, maps, out);
        self.emit_on_resharded(it, args, from, &needs, temporary)?;
        self.reshard(temporary, &computed, goal, Some(out))?;
        Ok(true)
    }

    /// Returns a new tensor for an operator's result, with the sharding `computed`.
    fn temporary_result(
        &mut self,
        it: &OpStmt,
        computed: &Sharding,
        needs: &[Sharding],
        maps: &[Vec<DimMap>],
        out: TensorId,
    ) -> TensorId {
        let new = if self.is_on_slices {
            self.new_tensor(computed, out)
        } else {
            self.new_tensor(&computed.without_streams(), out)
        };
        match it.rule().axes_state() {
            AxesState::Reductions => {
                let summed: Vec<usize> =
                    (0..maps[0].len()).filter(|at| maps[0][*at] == DimMap::Reduction).collect();
                self.set_reduction_axes(new, &needs[0], &summed);
            }
            AxesState::Order => {
                let numbers = |program: &Program, tensor| -> Vec<u32> {
                    program.dimensions(tensor).map(|axis| program.axes[axis].number).collect()
                };
                let (order, fresh) = (numbers(self.program, out), numbers(self.program, new));
                let dims: Vec<AxisId> = self.program.dimensions(new).collect();
                for (axis, old) in dims.into_iter().zip(&order) {
                    let rank = order.iter().filter(|it| *it < old).count();
                    self.program.axes[axis].number = fresh[rank];
                }
            }
            AxesState::Extents => (),
        }
        new
    }

    /// Decomposes an operator whose dimension maps are not known: it runs on replicated tensors.
    fn opaque(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let whole = |sharding: &Sharding| {
            let extents = sharding.dims.iter().map(|dim| dim.extent);
            Sharding::replicated(goal.mesh.clone(), extents)
        };
        let needs: Vec<Sharding> = from.iter().map(whole).collect();
        if goal.is_replicated() && propagation::is_local(self.program, from, &needs) {
            return Ok(false);
        }
        let computed = whole(goal);
        let target = if goal.is_replicated() { out } else { self.new_tensor(&computed, out) };
        self.emit_on_resharded(it, args, from, &needs, target)?;
        if target != out {
            self.reshard(target, &computed, goal, Some(out))?;
        }
        Ok(true)
    }

    // ---- shardings

    fn sharding(&self, tensor: TensorId) -> Result<Sharding, Diagnostic> {
        Sharding::of(self.program, tensor).ok_or_else(|| {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` is sharded over the inner part of a split axis");
            let it = Diagnostic::new(Code::NotRewritten, self.span, message, "used here");
            it.help("split the axis so that its device or stream part is outermost")
        })
    }

    /// Returns whether all tensors have the same mesh and the same device axes, in this order.
    fn has_same_device_axes(&self, args: &[TensorId], out: TensorId) -> bool {
        let spread = |tensor: TensorId| {
            let it = &self.program.tensors[tensor];
            let parallel = it.loop_domain.iter().map(|axis| self.program.axes[*axis].parallel);
            (it.mesh.clone(), parallel.filter(|it| matches!(it, ParallelType::Device(_))).collect::<Vec<_>>())
        };
        args.iter().all(|arg| spread(*arg) == spread(out))
    }

    // ---- statements

    fn emit(&mut self, stmt: OpStmt) {
        let id = build::add(self.program, stmt, self.span);
        self.stmts.push(id);
    }

    /// Reshards the operands to `needs` and emits the operator on them, with the result `out`.
    fn emit_on_resharded(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        needs: &[Sharding],
        out: TensorId,
    ) -> Result<(), Diagnostic> {
        let mut it = it.clone();
        for (at, (arg, (from, need))) in args.iter().zip(from.iter().zip(needs)).enumerate() {
            let moved = self.reshard(*arg, from, need, None)?;
            if moved != *arg && self.inputs.contains(arg) {
                self.remark_gather(&it, *arg, from, need);
            }
            set_operand(&mut it, at, moved);
            // A select refers to an axis of its operand.
            let axis = grammar::selected_dim(self.program, &it, *arg)
                .and_then(|dim| self.program.dimensions(moved).nth(dim));
            if let Some(axis) = axis {
                it.set(attr::AXIS, axis);
            }
        }
        // Other results stay as they are.
        it.outs.iter_mut().take(1).for_each(|first| *first = Operand::Tensor(out));
        self.emit(it);
        Ok(())
    }

    /// Remarks that the statement needs an input, such as a weight, whole, of which each device has a part.
    fn remark_gather(&mut self, it: &OpStmt, arg: TensorId, from: &Sharding, need: &Sharding) {
        if from.mesh != need.mesh || from.is_replicated() || !need.is_replicated() {
            return;
        }
        let name = self.program.tensor_name(arg);
        let received = gathered_bytes(self.program, arg)
            .map_or(String::new(), |bytes| format!(": each rank receives {bytes} bytes"));
        let message = format!("the input `{name}` is gathered for `{}`{received}", it.op.name());
        self.remarks.note(self.span, message, format!("needs all of `{name}`"));
    }

    fn resharding_error(&self, it: &OpStmt, why: &str) -> Diagnostic {
        let message = format!("`{}` reshards, but {why}", it.op.name());
        let it = Diagnostic::new(Code::NotRewritten, self.span, message, "not decomposed");
        it.help("give the operands and results the same sharding, with Sets before and after the operator")
    }
}

/// Returns the statements that read each tensor, once for each operand.
fn readers(program: &Program, body: BlockId) -> FxHashMap<TensorId, Vec<StmtId>> {
    let mut readers: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
    for (stmt, it) in program.ops_in(body) {
        for (tensor, _) in it.tensor_uses(program).into_iter().filter(|it| it.1 != AccessMode::Write) {
            readers.entry(tensor).or_default().push(stmt);
        }
    }
    readers
}

/// Returns whether the operator copies elements without changing them.
pub(crate) fn is_copy(it: &OpStmt) -> bool {
    it.op.def().type_rule == TypeRule::Same && it.op.def().class == OpClass::Compute
}

/// Replaces the operand at `position` in the order of `OpStmt::tensor_operands`.
pub(crate) fn set_operand(it: &mut OpStmt, position: usize, tensor: TensorId) {
    let args = it.args.iter_mut().filter_map(|arg| match arg {
        Operand::Tensor(tensor) => Some(tensor),
        Operand::Scalar(_) | Operand::Stream(_) => None,
    });
    let attrs = it.attrs.iter_mut().filter_map(|(_, attr)| match attr {
        Attr::Tensor(tensor) => Some(tensor),
        _ => None,
    });
    args.chain(attrs).skip(position).take(1).for_each(|operand| *operand = tensor);
}
