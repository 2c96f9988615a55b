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
//!   a `reduction` over devices adds them; a bias is added behind it, once.
//! * Reductions over devices and over local axes are done one after the other.
//! * Every Set that is left is one step of `reshard::Step`, every reduction over devices is one all-reduce, one
//!   reduce-scatter, or a reduce to each device of another mesh.

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{
        Attr, AxisId, AxisKind, DeviceDim, Domains, Expr, Memory, OpStmt, Operand, Parallel, Program, Stmt,
        StmtId, TensorId,
    },
    mentions,
    ops::{Effect, Mode, Op, Rule},
    span::Span,
};

use crate::{
    blocks::expand,
    component::computes,
    create::{self, Fresh},
    dims::{self, Fate},
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass},
    reshard::{self, Step},
    sharding::{Dim, Piece, Sharding},
};

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

fn run(program: &mut Program, arguments: &Arguments) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut fresh = Fresh::of(program);
    let by_result = arguments.text("reshard") == Some("result");
    let changed = expand(program, body, &mut |program, stmt| {
        let span = program.stmt_span(stmt);
        let mut ctx = Ctx { program, fresh: &mut fresh, span, by_result, stmts: Vec::new() };
        let changed = ctx.statement(stmt)?;
        Ok(changed.then_some(ctx.stmts))
    })?;
    Ok(Change::from_flag(changed))
}

/// What becomes of one statement.
struct Ctx<'p> {
    program: &'p mut Program,
    fresh: &'p mut Fresh,
    span: Span,
    by_result: bool,
    stmts: Vec<StmtId>,
}

impl Ctx<'_> {
    /// Writes the statements that take the place of `stmt`; false if it may stay.
    fn statement(&mut self, stmt: StmtId) -> Result<bool, Diagnostic> {
        let Stmt::Op(it) = self.program.stmts[stmt].clone() else { return Ok(false) };
        let (true, Some(out)) = (computes(&it), it.out_tensor()) else { return Ok(false) };
        let args = dims::operands(&it);
        let shardings = args.iter().chain([&out]).map(|tensor| self.sharding(*tensor));
        let shardings = shardings.collect::<Result<Vec<Sharding>, Diagnostic>>();
        if shardings.is_err() && self.is_plainly_local(&args, out) {
            return Ok(false);
        }
        let mut shardings = shardings?;
        let Some(goal) = shardings.pop() else { return Ok(false) };
        if it.outs.len() > 1 {
            let local = shardings.iter().all(|from| from.mesh == goal.mesh && from.is_replicated());
            return if local { Ok(false) } else { Err(self.refused(&it, "it has several results")) };
        }
        if let (true, [from]) = (is_copy(&it), &shardings[..]) {
            return self.copy(&it, args[0], from, out, &goal);
        }
        let fates: Option<Vec<Vec<Fate>>> =
            (0..args.len()).map(|at| dims::fates(self.program, &it, &args, at)).collect();
        match fates {
            Some(fates) if it.op.row().rule == Rule::Reduce && has_spread_sum(&fates[0], &shardings[0]) => {
                self.reduction(&it, args[0], &shardings[0], &fates[0], out, &goal)
            }
            Some(fates) => self.operator(&it, &args, &shardings, &fates, out, &goal),
            None => self.opaque(&it, &args, &shardings, out, &goal),
        }
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
        if reshard::step(self.program, from, goal).is_some() {
            return Ok(false);
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
        fates: &[Vec<Fate>],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let needs = self.needs(args, fates, goal);
        let fits = |(from, need): (&Sharding, &Sharding)| {
            reshard::step(self.program, from, need) == Some(Step::Local)
        };
        if from.iter().zip(&needs).all(fits) {
            return Ok(false);
        }
        if let Some(device) = partial_device(from, fates, goal) {
            self.partial(it, args, from, fates, out, goal, device)?;
            return Ok(true);
        }
        let at_operands = if self.by_result { self.result_of(from, fates, goal) } else { None };
        match at_operands {
            Some(computed) if computed != *goal => {
                let needs = self.needs(args, fates, &computed);
                let temporary =
                    computed.without_streams().tensor(self.program, self.fresh, out, Memory::Global);
                self.compute(it, args, from, &needs, temporary)?;
                self.reshard(temporary, &computed, goal, Some(out))?;
            }
            Some(_) | None => self.compute(it, args, from, &needs, out)?,
        }
        Ok(true)
    }

    /// A product whose summed axis both operands have on `device`: partial sums, then their sum.
    #[allow(clippy::too_many_arguments, reason = "the statement, taken apart")]
    fn partial(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        fates: &[Vec<Fate>],
        out: TensorId,
        goal: &Sharding,
        device: DeviceDim,
    ) -> Result<(), Diagnostic> {
        let mut sums = goal.clone();
        for dim in &mut sums.dims {
            dim.pieces.retain(|piece| piece.device() != Some(device));
        }
        let mut scattered = sums.clone();
        let count = self.program.int(goal.mesh.extent(device) as i64);
        let piece = Piece { parallel: Parallel::Device(device), count, swizzled: false };
        let partial = Dim { partial: true, pieces: vec![piece], ..Dim::whole(count) };
        sums.dims.push(partial);
        let temporary = sums.tensor(self.program, self.fresh, out, Memory::Global);
        // A bias would be added once for every partial sum.
        let (product, bias) = (it.args.len().min(2), args.get(2).copied());
        let mut product = OpStmt { args: it.args[..product].to_vec(), ..it.clone() };
        product.outs = vec![Operand::Tensor(temporary)];
        let with_partial: Vec<Vec<Fate>> = fates[..2].to_vec();
        let needs = self.needs_with(&args[..2], &with_partial, &sums, Some(piece));
        self.compute(&product, &args[..2], &from[..2], &needs, temporary)?;
        // The result of the sum: as the goal asks if that is one step, else whole and resharded then.
        let one_step = goal.dims.iter().zip(&sums.dims).all(|(want, have)| {
            Sharding::aligned(self.program, want, have)
                || want.devices().last() == Some(device)
                    && want.devices().count() == have.devices().count() + 1
        });
        if one_step {
            scattered = goal.clone();
        }
        let in_place = one_step && bias.is_none() && self.is_written_once(out);
        let sum = match in_place {
            true => out,
            false => scattered.tensor(self.program, self.fresh, out, Memory::Global),
        };
        self.reduce_over(sum, &sums, sums.dims.len() - 1);
        self.emit_reduction(it, temporary, sum);
        let Some(bias) = bias else {
            if !in_place {
                self.reshard(sum, &scattered, goal, Some(out))?;
            }
            return Ok(());
        };
        let last = goal.dims.len() - 1;
        let resharded = scattered.clone();
        let sum = if one_step { sum } else { self.reshard(sum, &resharded, goal, None)? };
        let need = Sharding { mesh: goal.mesh.clone(), dims: vec![goal.dims[last].without_streams()] };
        let bias = self.reshard(bias, &from[2], &need, None)?;
        // One row of the result's rank.
        let one = self.program.int(1);
        let mut row = need;
        for _ in 0..last {
            row.dims.insert(0, Dim { kind: AxisKind::Broadcast, ..Dim::whole(one) });
        }
        let row = row.tensor(self.program, self.fresh, bias, Memory::Local);
        let flags = (0..=last).map(|at| at != last).collect();
        self.emit(OpStmt {
            outs: vec![Operand::Tensor(row)],
            args: vec![Operand::Tensor(bias)],
            attrs: vec![("flags", Attr::Flags(flags))],
            ..create::op(Op::Broadcast)
        });
        self.emit(OpStmt {
            outs: vec![Operand::Tensor(out)],
            args: vec![Operand::Tensor(sum), Operand::Tensor(row)],
            ..create::op(Op::Add)
        });
        Ok(())
    }

    /// A reduction over dimensions of which some are spread over devices.
    fn reduction(
        &mut self,
        it: &OpStmt,
        arg: TensorId,
        from: &Sharding,
        fates: &[Fate],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let spread: Vec<usize> = (0..fates.len())
            .filter(|at| fates[*at] == Fate::Summed && from.dims[*at].devices().next().is_some())
            .collect();
        let local: Vec<usize> = (0..fates.len())
            .filter(|at| fates[*at] == Fate::Summed && from.dims[*at].devices().next().is_none())
            .collect();
        let whole_devices = spread.iter().all(|at| {
            let dim = &from.dims[*at];
            dim.pieces.len() == 1 && crate::sharding::same(self.program, dim.extent, dim.pieces[0].count)
        });
        if !whole_devices || red_op(it).is_none() {
            // Bring everything together and combine it there.
            let needs = self.needs(&[arg], &[fates.to_vec()], goal);
            self.compute(it, &[arg], std::slice::from_ref(from), &needs, out)?;
            return Ok(true);
        }
        let [last] = spread[..] else {
            // One device dimension at a time; the first one's sum goes everywhere.
            let (sum, sharding) = self.reduced(it, arg, from, spread[0]);
            let rest = OpStmt { args: vec![Operand::Tensor(sum)], ..it.clone() };
            let mut left = fates.to_vec();
            left.remove(spread[0]);
            let out_target = self.drop_reductions(out, fates, &[spread[0]]);
            self.reduction(&rest, sum, &sharding, &left, out_target, goal)?;
            self.copied(out_target, out);
            return Ok(true);
        };
        if let [at, ..] = local[..] {
            // Local axes first: less to send.
            let mut sharding = from.clone();
            sharding.dims.remove(at);
            let partial = sharding.tensor(self.program, self.fresh, arg, Memory::Global);
            self.reduce_over(partial, from, at);
            self.emit_reduction(it, arg, partial);
            let rest = OpStmt { args: vec![Operand::Tensor(partial)], ..it.clone() };
            let mut left = fates.to_vec();
            left.remove(at);
            let out_target = self.drop_reductions(out, fates, &[at]);
            if !self.reduction(&rest, partial, &sharding, &left, out_target, goal)? {
                self.emit(OpStmt { outs: vec![Operand::Tensor(out_target)], ..rest });
            }
            self.copied(out_target, out);
            return Ok(true);
        }
        let mut kept = from.clone();
        kept.dims.remove(last);
        if reduces_in_one_step(self.program, from, last, &kept, goal) {
            return Ok(false);
        }
        let (sum, sharding) = self.reduced(it, arg, from, last);
        self.reshard(sum, &sharding, goal, Some(out))?;
        Ok(true)
    }

    /// An operator whose dimensions are not told apart: on whole tensors, unless only the outermost ones are spread.
    fn opaque(
        &mut self,
        it: &OpStmt,
        args: &[TensorId],
        from: &[Sharding],
        out: TensorId,
        goal: &Sharding,
    ) -> Result<bool, Diagnostic> {
        let outermost =
            |sharding: &Sharding| sharding.dims.iter().skip(1).all(|dim| dim.devices().next().is_none());
        let first = |sharding: &Sharding| -> Vec<DeviceDim> {
            sharding.dims.first().map(|dim| dim.devices().collect()).unwrap_or_default()
        };
        let keeps_rows = matches!(it.op.row().rule, Rule::Reshape);
        let alike = |from: &Sharding| {
            (from.mesh == goal.mesh || from.mesh.is_empty() && goal.is_replicated())
                && first(from) == first(goal)
                && outermost(from)
        };
        if outermost(goal) && from.iter().all(alike) && (keeps_rows || first(goal).is_empty()) {
            return Ok(false);
        }
        let whole = |sharding: &Sharding| {
            let extents = sharding.dims.iter().map(|dim| dim.extent);
            Sharding::replicated(goal.mesh.clone(), extents)
        };
        let needs: Vec<Sharding> = from.iter().map(whole).collect();
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

    /// What an operator needs of each operand for its result to be spread as `goal` says.
    fn needs(&self, args: &[TensorId], fates: &[Vec<Fate>], goal: &Sharding) -> Vec<Sharding> {
        // A product whose result counts partial sums has its summed axis on the devices that they are counted over.
        let partial = goal.dims.iter().find(|dim| dim.partial).and_then(|dim| dim.pieces.first().copied());
        self.needs_with(args, fates, goal, partial)
    }

    fn needs_with(
        &self,
        args: &[TensorId],
        fates: &[Vec<Fate>],
        goal: &Sharding,
        summed: Option<Piece>,
    ) -> Vec<Sharding> {
        let need = |arg: &TensorId, fates: &Vec<Fate>| {
            let dims = fates.iter().enumerate().filter_map(|(at, fate)| {
                let extent = dims::extent(self.program, *arg, at)?;
                let pieces = match fate {
                    Fate::Kept(to) => goal.dims[*to].pieces.clone(),
                    Fate::Summed => summed.into_iter().collect(),
                    Fate::Whole => Vec::new(),
                };
                Some(Dim { pieces, ..Dim::whole(extent) })
            });
            Sharding { mesh: goal.mesh.clone(), dims: dims.collect() }
        };
        args.iter().zip(fates).map(|(arg, fates)| need(arg, fates)).collect()
    }

    /// How the result is spread if no operand moves; `None` where they do not agree.
    fn result_of(&self, from: &[Sharding], fates: &[Vec<Fate>], goal: &Sharding) -> Option<Sharding> {
        let mesh = &from.iter().find(|it| !it.is_replicated())?.mesh;
        let mut result = goal.without_streams().on(mesh.clone());
        result.dims.iter_mut().for_each(|dim| dim.pieces.clear());
        for (sharding, fates) in from.iter().zip(fates) {
            for (dim, fate) in sharding.dims.iter().zip(fates) {
                match fate {
                    Fate::Kept(to) if dim.devices().next().is_some() => {
                        result.dims[*to].pieces = dim.without_streams().pieces;
                    }
                    Fate::Summed if dim.devices().next().is_some() => return None,
                    Fate::Kept(_) | Fate::Summed | Fate::Whole => (),
                }
            }
        }
        // One device axis spreads one dimension.
        let mut devices: Vec<DeviceDim> = result.dims.iter().flat_map(Dim::devices).collect();
        let count = devices.len();
        devices.dedup();
        (devices.len() == count).then_some(result)
    }

    // ---- statements

    fn emit(&mut self, stmt: OpStmt) {
        let id = create::add(self.program, stmt, self.span);
        self.stmts.push(id);
    }

    fn emit_reduction(&mut self, like: &OpStmt, from: TensorId, to: TensorId) {
        let stmt = reduction(self.program, like, from, to);
        self.emit(stmt);
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
        let path = match reshard::step(self.program, from, to) {
            Some(_) => vec![to.clone()],
            None => reshard::chain(self.program, from, to),
        };
        let mut now = arg;
        let count = path.len();
        for (at, sharding) in path.into_iter().enumerate() {
            let target = match out {
                Some(out) if at + 1 == count => out,
                _ => sharding.tensor(self.program, self.fresh, arg, Memory::Global),
            };
            self.emit(set(now, target));
            now = target;
        }
        Ok(now)
    }

    /// The sum over one dimension on devices, the others as they are.
    fn reduced(&mut self, it: &OpStmt, arg: TensorId, from: &Sharding, dim: usize) -> (TensorId, Sharding) {
        let mut sharding = from.clone();
        sharding.dims.remove(dim);
        let sum = sharding.tensor(self.program, self.fresh, arg, Memory::Global);
        self.reduce_over(sum, from, dim);
        self.emit_reduction(it, arg, sum);
        (sum, sharding)
    }

    /// Gives the result of a reduction the axis that vanishes, at its place among the operand's dimensions.
    fn reduce_over(&mut self, out: TensorId, from: &Sharding, dim: usize) {
        let (mut loops, mut domains) = (Vec::new(), Domains::default());
        let reduced = Dim { kind: AxisKind::Reduction, partial: false, ..from.dims[dim].clone() };
        reduced.build(self.program, self.fresh, &mut loops, &mut domains);
        let kept: Vec<_> = self.program.dimensions(out).collect();
        // Where the sum is scattered, its own axis is on the devices.
        let axes = &self.program.axes;
        let parallel = |axis: &AxisId| axes[*axis].parallel;
        let is_taken = |axis: &AxisId| {
            let mut others = self.program.tensors[out].loops.iter();
            others.any(|it| axes[*it].kind != AxisKind::Reduction && parallel(it) == parallel(axis))
        };
        for axis in loops.iter().copied().filter(|axis| is_taken(axis)).collect::<Vec<_>>() {
            self.program.axes[axis].parallel = Parallel::Serial;
        }
        let axes = &self.program.axes;
        let it = &mut self.program.tensors[out];
        it.loops.retain(|axis| axes[*axis].kind != AxisKind::Reduction);
        it.domains.logical = kept;
        it.domains.logical.insert(dim.min(it.domains.logical.len()), domains.logical[0]);
        it.domains.transforms.append(&mut domains.transforms);
        it.loops.append(&mut loops);
    }

    /// A result without some of its reductions: the tensor itself if nothing else gives it its value.
    fn drop_reductions(&mut self, out: TensorId, fates: &[Fate], dims: &[usize]) -> TensorId {
        let out = match self.is_written_once(out) {
            true => out,
            false => {
                let copy = self.program.tensors[out].clone();
                let span = self.program.tensor_span(out);
                let new = self.program.tensor(copy, span);
                self.program.tensors[new].number = self.fresh.tensor_number();
                new
            }
        };
        let logical = self.program.tensors[out].domains.logical.clone();
        let gone: Vec<_> = dims.iter().filter(|at| **at < fates.len()).map(|at| logical[*at]).collect();
        let it = &mut self.program.tensors[out];
        it.domains.logical.retain(|axis| !gone.contains(axis));
        it.loops.retain(|axis| !gone.contains(axis));
        out
    }

    fn copied(&mut self, from: TensorId, to: TensorId) {
        if from != to {
            self.emit(set(from, to));
        }
    }

    /// Whether one statement only writes the tensor, and no header or view shows it otherwise.
    fn is_written_once(&self, tensor: TensorId) -> bool {
        let mut count = 0;
        let Some(body) = self.program.body else { return false };
        self.program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &self.program.stmts[stmt] {
                mentions(self.program, it, &mut |other, mode| {
                    count += usize::from(other == tensor && matches!(mode, Mode::Write | Mode::Transfer));
                });
            }
        });
        count <= 1
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

fn has_spread_sum(fates: &[Fate], sharding: &Sharding) -> bool {
    let spread = |(fate, dim): (&Fate, &Dim)| *fate == Fate::Summed && dim.devices().next().is_some();
    fates.iter().zip(&sharding.dims).any(spread)
}

/// The devices that both operands of a product have its summed axis on, where the result shows nothing of it.
fn partial_device(from: &[Sharding], fates: &[Vec<Fate>], goal: &Sharding) -> Option<DeviceDim> {
    let [x, weight, ..] = from else { return None };
    if fates.len() < 2 || goal.dims.iter().any(|dim| dim.partial) {
        return None;
    }
    let on = |sharding: &Sharding, fates: &Vec<Fate>| -> Option<DeviceDim> {
        let dim = fates.iter().position(|fate| *fate == Fate::Summed)?;
        let mut devices = sharding.dims[dim].devices();
        devices.next().filter(|_| devices.next().is_none())
    };
    let device = on(x, &fates[0])?;
    (on(weight, &fates[1]) == Some(device) && x.mesh == goal.mesh && weight.mesh == goal.mesh)
        .then_some(device)
}

/// What a collective calls a reduction's operator.
pub(crate) fn red_op(it: &OpStmt) -> Option<&'static str> {
    match it.word_attr("op") {
        Some("add") => Some("SUM"),
        Some("mul") => Some("PRODUCT"),
        Some("max") => Some("MAX"),
        Some("min") => Some("MIN"),
        Some(_) | None => None,
    }
}

/// Whether a reduction over the devices of dimension `dim` is one collective: `kept` are the other dimensions.
pub(crate) fn reduces_in_one_step(
    program: &Program,
    from: &Sharding,
    dim: usize,
    kept: &Sharding,
    goal: &Sharding,
) -> bool {
    let Some(device) = from.dims[dim].devices().next() else { return false };
    if from.mesh != goal.mesh {
        return kept.is_replicated()
            && goal.is_replicated()
            && !goal.mesh.is_empty()
            && from.mesh.devices.len() == from.mesh.extent(device);
    }
    match reshard::step(program, kept, goal) {
        Some(Step::Local) => true,
        Some(Step::Scatter { device: to, .. }) => to == device,
        Some(
            Step::Broadcast
            | Step::Allgather { .. }
            | Step::Gather { .. }
            | Step::AllToAll { .. }
            | Step::SendRecv,
        )
        | None => false,
    }
}

fn set(from: TensorId, to: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(to)], args: vec![Operand::Tensor(from)], ..create::op(Op::Set) }
}

/// A reduction as `like`, if that is one; else a sum.
fn reduction(program: &mut Program, like: &OpStmt, from: TensorId, to: TensorId) -> OpStmt {
    let attrs = match like.op {
        Op::Reduction => like.attrs.clone(),
        _ => vec![
            ("op", Attr::Word("add")),
            ("initial value", Attr::Scalar(program.expr(Expr::Float(DType::Float, "0".to_owned())))),
            ("allreduce", Attr::Bool(false)),
        ],
    };
    OpStmt {
        outs: vec![Operand::Tensor(to)],
        args: vec![Operand::Tensor(from)],
        attrs,
        ..create::op(Op::Reduction)
    }
}

/// Replaces an operand, counted as `dims::operands` does.
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
