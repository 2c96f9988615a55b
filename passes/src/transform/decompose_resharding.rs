//! decompose-resharding: splits operators on differently sharded tensors into local ones and single steps of resharding.
//!
//! Before (T0's rows are on eight devices, T3 is everywhere):
//! ```text
//! T3[istreamIdx6{8}, iS7{16}, iS8{128}] = linear(T0[ideviceIdx.x0{8}, iS1{16}, iS2{128}], T1[iS3{128}, iS4{128}])
//! ```
//! After:
//! ```text
//! T4[istreamIdx10{8}, iS11{16}, iS12{128}] = Set( T0[ideviceIdx.x0{8}, iS1{16}, iS2{128}] )
//! T3[istreamIdx6{8}, iS7{16}, iS8{128}] = linear(T4[istreamIdx10{8}, iS11{16}, iS12{128}], T1[iS3{128}, iS4{128}])
//! ```
//!
//! * Operands are brought to the sharding that the result asks for (`reshard=operands`), or the result is computed where
//!   the operands are and moved then (`reshard=result`).
//! * Where a product sums over an axis that both operands have on the same devices, every device makes a partial sum and
//!   a `reduction` over devices adds them, one for each axis of the mesh; a bias is added behind it, once.
//! * A tensor that several operators need in the same sharding is resharded once; one that an operator makes of scalars
//!   (iota, eye, full) is rematerialized in that sharding instead.
//! * Reductions over devices and over local axes are done one after the other.
//! * Every Set that is left is one step of `reshard::Step`, every reduction over devices is one all-reduce, one
//!   reduce-scatter, or a reduce to each device of another mesh.

mod sums;

use grammar::{
    DimMap,
    attr::{self, AttrName},
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Attr, AxisId, ExprId, Memory, OpStmt, Operand, Parallel, Program, Stmt, StmtId, TensorId},
    ops::{Effect, Op, Rule},
    span::Span,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        component::computes,
        dims,
        names::written,
        propagation,
        reshard::{self, Step},
        sharding::Sharding,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::{
        blocks::expand,
        create::{self, Fresh},
    },
};
use sums::{has_spread_sum, partial_pieces};
pub(crate) use sums::{red_op, reduces_in_one_step};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "decompose-resharding",
    description: "split resharding operators into local operators and single steps of communication",
    options: &[OptionSpec {
        name: "reshard",
        description: "what moves where operands and result disagree",
        kind: OptionKind::Word(&["operands", "result"]),
        default: Some("operands"),
    }],
    run,
};

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut fresh = Fresh::of(program);
    let written = written(program, &|_| true);
    let by_result = arguments.text("reshard") == Some("result");
    let mut moved = Moved::default();
    // What is written again, or in a loop, has another value later.
    let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    let is_value = written.iter().all(|(tensor, count)| *count < 2 && !inputs.contains(tensor));
    let top_level: FxHashSet<StmtId> = program.block(body).iter().copied().filter(|_| is_value).collect();
    let generated = top_level.iter().filter_map(|stmt| generated(program, *stmt)).collect();
    let changed = expand(program, body, &mut |program, stmt| {
        let span = program.stmt_span(stmt);
        let moved = top_level.contains(&stmt).then_some(&mut moved);
        let (written, generated, fresh, stmts) = (&written, &generated, &mut fresh, Vec::new());
        let mut ctx = Ctx { program, fresh, written, generated, moved, span, by_result, stmts };
        let changed = ctx.statement(stmt)?;
        Ok(changed.then_some(ctx.stmts))
    })?;
    Ok(Change::from_flag(changed))
}

/// What tensors have become by resharding so far: the tensor that has the same elements, spread in another way.
type Moved = FxHashMap<TensorId, Vec<(Sharding, TensorId)>>;

/// What becomes of one statement.
struct Ctx<'p> {
    program: &'p mut Program,
    fresh: &'p mut Fresh,
    /// How many statements write each tensor.
    written: &'p FxHashMap<TensorId, usize>,
    /// What makes tensors that have no operands, where nothing else writes them.
    generated: &'p FxHashMap<TensorId, OpStmt>,
    /// `None` where values change, or stand in a loop or branch.
    moved: Option<&'p mut Moved>,
    span: Span,
    by_result: bool,
    stmts: Vec<StmtId>,
}

impl Ctx<'_> {
    /// Writes the statements that take the place of `stmt`; false if it may stay.
    fn statement(&mut self, stmt: StmtId) -> Result<bool, Diagnostic> {
        let Stmt::Op(it) = self.program.stmts[stmt].clone() else { return Ok(false) };
        // A select is a view where its operand has what it needs.
        let (true, Some(out)) = (computes(&it) || it.op == Op::Select, it.out_tensor()) else {
            return Ok(false);
        };
        let args = it.tensor_operands();
        let shardings = args.iter().chain([&out]).map(|tensor| self.sharding(*tensor));
        let shardings = shardings.collect::<Result<Vec<Sharding>, Diagnostic>>();
        if shardings.is_err() && self.is_plainly_local(&args, out) {
            return Ok(false);
        }
        let mut shardings = shardings?;
        let Some(goal) = shardings.pop() else { return Ok(false) };
        if it.outs.len() > 1 {
            let local = shardings.iter().all(|from| from.mesh == goal.mesh && from.is_replicated())
                || self.is_local_along(&it, &args, &shardings, &goal);
            return if local { Ok(false) } else { Err(self.refused(&it, "it has several results")) };
        }
        if let (true, [from]) = (is_copy(&it), &shardings[..]) {
            return self.copy(&it, args[0], from, out, &goal);
        }
        match dims::dim_maps(self.program, &it) {
            Some(maps) if it.op.row().rule == Rule::Reduce && has_spread_sum(&maps[0], &shardings[0]) => {
                self.reduction(&it, args[0], &shardings[0], &maps[0], out, &goal)
            }
            Some(maps) => self.operator(&it, &args, &shardings, &maps, out, &goal),
            None => self.opaque(&it, &args, &shardings, out, &goal),
        }
    }

    /// Whether an operator of several results, all spread alike, has what it needs on every device.
    fn is_local_along(&self, it: &OpStmt, args: &[TensorId], from: &[Sharding], goal: &Sharding) -> bool {
        let outs = Program::tensors_of(&it.outs);
        let alike = outs.map(|out| Sharding::of(self.program, out)).all(|it| it.as_ref() == Some(goal));
        dims::dim_maps(self.program, it).filter(|_| alike).is_some_and(|maps| {
            let needs = propagation::needs(self.program, args, &maps, goal);
            propagation::own_parts(self.program, it, &maps, goal) == *goal
                && propagation::is_local(self.program, from, &needs)
        })
    }

    // ---- kinds of operators

    /// A copy: the chain of its steps.
    fn copy(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        if let Some(step) = reshard::step(self.program, from, goal) {
            if let (false, Some(it)) = (matches!(step, Step::Local | Step::Slice), self.generated.get(&arg)) {
                self.rematerialized(it.clone(), arg, goal, Some(out));
                return Ok(true);
            }
            let known = if step == Step::Local { None } else { self.known(arg, goal) };
            match known {
                Some(known) => self.emit(set(known, out)),
                None => self.remember(arg, goal, out),
            }
            return Ok(known.is_some());
        }
        let last = self.reshard(arg, from, goal, Some(out))?;
        debug_assert_eq!(last, out, "{:?}", it.op);
        Ok(true)
    }

    /// An operator whose dimensions are told apart.
    fn operator(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        maps: &[Vec<DimMap>],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let own = propagation::own_parts(self.program, it, maps, goal);
        let needs = propagation::needs(self.program, args, maps, &own);
        if own == *goal && propagation::is_local(self.program, from, &needs) {
            return Ok(false);
        }
        let pieces = partial_pieces(from, maps, goal);
        if !pieces.is_empty() {
            self.partial(it, args, from, maps, out, goal, &pieces)?;
            return Ok(true);
        }
        // Repeated elements stay where they are: a temporary of them is no broadcast axis any more.
        let repeats = self.program.dimensions(out).any(|axis| self.program.axes[axis].expanded.is_some());
        let at_operands = match self.by_result && !repeats {
            true => propagation::result_of(from, maps, &own),
            false => None,
        };
        let computed = at_operands.unwrap_or(own);
        if computed == *goal {
            self.compute(it, args, from, &needs, out)?;
            return Ok(true);
        }
        let needs = propagation::needs(self.program, args, maps, &computed);
        let temporary = self.result(it, &computed, &needs, maps, out);
        self.compute(it, args, from, &needs, temporary)?;
        self.reshard(temporary, &computed, goal, Some(out))?;
        Ok(true)
    }

    /// A new tensor for an operator's result, spread as `computed` says.
    fn result(
        &mut self,
        it: &OpStmt,
        computed: &Sharding,
        needs: &[Sharding],
        maps: &[Vec<DimMap>],
        out: TensorId,
    ) -> TensorId {
        let new = computed.without_streams().tensor(self.program, self.fresh, out, Memory::Global);
        match it.op.row().rule {
            Rule::Reduce => {
                let summed: Vec<usize> =
                    (0..maps[0].len()).filter(|at| maps[0][*at] == DimMap::Reduction).collect();
                self.reduce_over(new, &needs[0], &summed);
            }
            // The order of the numbers is the operand's order of dimensions.
            Rule::Permute => {
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
            Rule::Same
            | Rule::Free
            | Rule::Generate
            | Rule::Cast
            | Rule::Pointwise
            | Rule::Linear
            | Rule::Matmul
            | Rule::Broadcast
            | Rule::Squeeze
            | Rule::Reshape
            | Rule::Select
            | Rule::Slice
            | Rule::Shard
            | Rule::Communicate => (),
        }
        new
    }

    /// An operator whose dimensions are not told apart: on whole tensors.
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
        let target = match goal.is_replicated() {
            true => out,
            false => computed.tensor(self.program, self.fresh, out, Memory::Global),
        };
        self.compute(it, args, from, &needs, target)?;
        if target != out {
            self.reshard(target, &computed, goal, Some(out))?;
        }
        Ok(true)
    }

    // ---- shardings

    fn sharding(&self, tensor: TensorId) -> Result<Sharding, Diagnostic> {
        Sharding::of(self.program, tensor).ok_or_else(|| {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` is spread over the inner part of an axis");
            let it = Diagnostic::new(Code::NotRewritten, self.span, message, "used here");
            it.help("split the axis with its device or stream part outermost")
        })
    }

    /// Whether all tensors have the same loop axes, whatever these are.
    fn is_plainly_local(&self, args: &[TensorId], out: TensorId) -> bool {
        let spread = |tensor: TensorId| {
            let it = &self.program.tensors[tensor];
            let parallel = it.loops.iter().map(|axis| self.program.axes[*axis].parallel);
            (it.mesh.clone(), parallel.filter(|it| matches!(it, Parallel::Device(_))).collect::<Vec<_>>())
        };
        args.iter().all(|arg| spread(*arg) == spread(out))
    }

    // ---- statements

    fn emit(&mut self, stmt: OpStmt) {
        let id = create::add(self.program, stmt, self.span);
        self.stmts.push(id);
    }

    /// The operator on operands that have what it needs.
    fn compute(
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
            set_operand(&mut it, at, moved);
            // A select names an axis of its operand.
            let axis = grammar::selected_dim(self.program, &it, *arg)
                .and_then(|dim| self.program.dimensions(moved).nth(dim));
            if let Some(axis) = axis {
                it.set(attr::AXIS, axis);
            }
        }
        it.outs = vec![Operand::Tensor(out)];
        self.emit(it);
        Ok(())
    }

    /// Copies step by step, into `out` or a new tensor; nothing where everything is in its place already.
    fn reshard(
        &mut self,
        arg: TensorId,
        from: &Sharding,
        to: &Sharding,
        out: Option<TensorId>,
    ) -> Result<TensorId, Diagnostic> {
        if out.is_none() && reshard::step(self.program, from, to) == Some(Step::Local) {
            return Ok(arg);
        }
        if to.mesh.is_empty() && !from.mesh.is_empty() {
            let name = self.program.tensor_name(arg);
            let message =
                format!("`{name}` is on some ranks and needed on every one, however many there are");
            let it = Diagnostic::new(Code::NotRewritten, self.span, message, "needed here");
            return Err(it.help("give the result a DeviceMesh"));
        }
        let step = reshard::step(self.program, from, to);
        if let (true, Some(it)) = (step != Some(Step::Slice), self.generated.get(&arg)) {
            return Ok(self.rematerialized(it.clone(), arg, to, out));
        }
        let path = match step {
            Some(_) => vec![to.clone()],
            None => reshard::chain(self.program, from, to),
        };
        let mut now = arg;
        let count = path.len();
        for (at, sharding) in path.into_iter().enumerate() {
            let known = self.known(arg, &sharding);
            let target = match (out, known) {
                (Some(out), _) if at + 1 == count => out,
                (_, Some(known)) => {
                    now = known;
                    continue;
                }
                (_, None) => sharding.tensor(self.program, self.fresh, arg, Memory::Global),
            };
            self.emit(set(known.unwrap_or(now), target));
            self.remember(arg, &sharding, target);
            now = target;
        }
        Ok(now)
    }

    /// A tensor of numbers alone, rematerialized where it is needed: nothing is sent.
    fn rematerialized(
        &mut self,
        it: OpStmt,
        arg: TensorId,
        to: &Sharding,
        out: Option<TensorId>,
    ) -> TensorId {
        if let (None, Some(known)) = (out, self.known(arg, to)) {
            return known;
        }
        let target = out.unwrap_or_else(|| to.tensor(self.program, self.fresh, arg, Memory::Global));
        self.emit(OpStmt { outs: vec![Operand::Tensor(target)], ..it });
        self.remember(arg, to, target);
        target
    }

    /// The tensor that `arg` has become by resharding before, spread as `sharding` says.
    fn known(&self, arg: TensorId, sharding: &Sharding) -> Option<TensorId> {
        let all = self.moved.as_ref()?.get(&arg)?;
        all.iter().find(|(other, _)| other == sharding).map(|(_, tensor)| *tensor)
    }

    fn remember(&mut self, arg: TensorId, sharding: &Sharding, tensor: TensorId) {
        if let Some(moved) = &mut self.moved {
            moved.entry(arg).or_default().push((sharding.clone(), tensor));
        }
    }

    fn refused(&self, it: &OpStmt, why: &str) -> Diagnostic {
        let message = format!("`{}` reshards, and {why}", it.op.name());
        let it = Diagnostic::new(Code::NotRewritten, self.span, message, "not decomposed");
        it.help("give operands and results one sharding, with Sets around the operator")
    }
}

/// Whether it moves elements and changes nothing about them.
pub(crate) fn is_copy(it: &OpStmt) -> bool {
    it.op.row().rule == Rule::Same && it.op.row().effect == Effect::Compute
}

/// The statement's result and itself, if it makes a tensor of numbers alone: the same wherever and whenever it runs.
fn generated(program: &Program, stmt: StmtId) -> Option<(TensorId, OpStmt)> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    let makes = it.op.row().rule == Rule::Generate || it.op == Op::TensorConstruct;
    let is_number = |expr: &ExprId| !program.depends_on(*expr, &|_| true);
    let scalars = |operand: &Operand| match operand {
        Operand::Scalar(expr) => is_number(expr),
        Operand::Tensor(_) | Operand::Stream(_) => false,
    };
    let fixed = |(_, attr): &(AttrName, Attr)| match attr {
        Attr::Scalar(expr) => is_number(expr),
        Attr::Scalars(exprs) => exprs.iter().all(is_number),
        Attr::Word(_) | Attr::DType(_) | Attr::Bool(_) => true,
        Attr::Tensor(_)
        | Attr::Axis(_)
        | Attr::Name(_)
        | Attr::Team(_)
        | Attr::Flags(_)
        | Attr::Ranges(_)
        | Attr::Values(_)
        | Attr::Unit(_)
        | Attr::Work(_)
        | Attr::Stmts(_) => false,
    };
    let is_fixed = makes && it.outs.len() == 1 && it.args.iter().all(scalars) && it.attrs.iter().all(fixed);
    Some((it.out_tensor().filter(|_| is_fixed)?, it.clone()))
}

fn set(from: TensorId, to: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(to)], args: vec![Operand::Tensor(from)], ..create::op(Op::Set) }
}

/// Replaces an operand, counted as `OpStmt::tensor_operands` does.
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
