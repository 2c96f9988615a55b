//! Lowers operators: to instructions on this rank's views if the shardings allow it, and otherwise to one
//! instruction on whole tensors.
//!
//! `lower` generates the instructions of an operator for given views, so that the same code serves the shards
//! of a rank and the whole tensors of a reshard.

mod contractions;

use grammar::{
    Aliasing, Code, ExprId, Id, Op, OpClass, OpStmt, Operand, OperandView, StmtId, TensorId, TypeRule, attr,
    flagged_dims, permutation,
};

use super::{
    Arg, Buffer, InstKind, Number, OverwrittenView, ShardLayout, View, ViewOnRank,
    complex::parts,
    context::{NOT_IMPLEMENTED, PlanBuilder, Result},
    operators::{self, OperatorCall, OperatorFault},
};

/// Instructions, and their temporary buffers.
pub(super) type Lowered = (Vec<InstKind>, Vec<Buffer>);

/// The help for operands of different shapes.
const SAME_SHAPE_HELP: &str =
    "give the symbolic extents that have to be equal the same number: `--set`, or the shapes of the inputs";

impl PlanBuilder<'_> {
    /// Lowers an operator with results, on the current stream.
    pub(super) fn compute(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(out) = stmt.out_tensor() else { return Ok(()) };
        if stmt.outs.len() > 1 || stmt.op == Op::Sdpa {
            return self.several_results(stmt);
        }
        let args = stmt.tensor_operands();
        // Most ranks of a program with many meshes have no part in a statement, whether it reshards or not.
        if args.iter().chain([&out]).all(|it| !self.holds_part(*it)) {
            self.note_slice(&args, out);
            return Ok(());
        }
        if self.needs_reshard(stmt, &args, out)? {
            self.note_overwritten_input(out);
            return self.reshard(stmt, &args, out);
        }
        if !self.holds_part(out) {
            self.note_slice(&args, out);
            return Ok(());
        }
        let mut views = args.iter().map(|arg| self.view(*arg)).collect::<Result<Vec<_>>>()?;
        if let (TypeRule::Same, [view]) = (stmt.op.def().type_rule, &mut views[..]) {
            *view = self.narrow_to_result(view, args[0], out);
        }
        // Nothing writes to an expanded view, so an `expand` that is executed again makes another one.
        let is_expanded = self.binding(out).is_some_and(|it| it.view.repeats_elements());
        let makes_view = self.binding(out).is_none()
            || is_expanded && stmt.rule().aliasing() == Aliasing::View(OperandView::Expanded);
        if let (true, Some(first)) = (makes_view, views.first()) {
            // Copying to a name without storage makes the name another view of the same elements.
            if let Some(view) = self.view_of_operand(stmt, first, args[0], out)? {
                let stream = self.binding(args[0]).and_then(|it| it.stream);
                self.bind(out, view, stream);
                self.note_view_of_copy(out);
                return self.check_shape(out);
            }
        }
        if let Some(first) = views.first() {
            self.note_overwritten_view(stmt, first, args[0], out)?;
        }
        self.note_overwritten_input(out);
        let target = self.output_view(out)?;
        if let Some(stream) = args.iter().find_map(|arg| self.binding(*arg).and_then(|it| it.stream)) {
            self.bind(out, target.clone(), Some(stream));
        }
        let first = self.plan.buffers.len() as u32;
        let lowered = self.lower(stmt, &views, &args, out, &[target], self.rank(), first)?;
        self.emit_lowered(lowered);
        Ok(())
    }

    /// Emits the instructions of an operator, between the allocation and the release of their temporary buffers.
    pub(super) fn emit_lowered(&mut self, (code, temporaries): Lowered) {
        let numbers = self.allocate_temporaries(temporaries);
        code.into_iter().for_each(|kind| self.emit(kind));
        numbers.into_iter().for_each(|number| self.release(number));
    }

    /// Remembers that the current statement made `out` a view of its operand.
    fn note_view_of_copy(&mut self, out: TensorId) {
        let stmt = self.current_stmt();
        if let Some(it) = &mut self.bindings[out.index()] {
            it.copied_by = stmt;
        }
    }

    /// Adds a copy to `Plan::overwritten_views` if the same statement made `out` a view of other elements in an
    /// earlier iteration.
    fn note_overwritten_view(
        &mut self,
        stmt: &OpStmt,
        first: &View,
        arg: TensorId,
        out: TensorId,
    ) -> Result<()> {
        let stmt_id = self.current_stmt();
        let Some(bound) = self.binding(out).filter(|it| it.copied_by.is_some() && it.copied_by == stmt_id)
        else {
            return Ok(());
        };
        let target = bound.view.clone();
        let is_same = self.view_of_operand(stmt, first, arg, out)?.is_none_or(|it| it == target);
        if !is_same {
            let origin = self.origin_no();
            let base = self.plan.buffers[target.buffer as usize].name.clone();
            let name = self.program.tensor_name(out);
            self.plan.overwritten_views.push(OverwrittenView { origin, is_copy: true, name, base });
        }
        Ok(())
    }

    /// Adds the current statement to `Plan::overwritten_views` if it writes to a name that another one, `Set`, made a view of an input. Who
    /// writes to a slice or another layout of an input means to write to it.
    fn note_overwritten_input(&mut self, out: TensorId) {
        let stmt = self.current_stmt();
        let is_set = |it: StmtId| self.program.op(it).is_some_and(|it| it.op == Op::Set);
        let bound = self.binding(out).filter(|it| it.copied_by != stmt && it.copied_by.is_some_and(is_set));
        let Some(buffer) = bound.map(|it| it.view.buffer) else { return };
        if self.plan.inputs.iter().any(|it| it.shard.view.as_ref().is_some_and(|it| it.buffer == buffer)) {
            let (origin, name) = (self.origin_no(), self.program.tensor_name(out));
            let base = self.plan.buffers[buffer as usize].name.clone();
            self.plan.overwritten_views.push(OverwrittenView { origin, is_copy: false, name, base });
        }
    }

    fn check_shape(&self, tensor: TensorId) -> Result<()> {
        let (have, want) = (self.view(tensor)?.shape, self.layout(tensor)?.local_shape());
        if have != want {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` is a view of shape {have:?}, but its domain has shape {want:?}");
            let it = self.error(Code::RuntimeShape, message, "the shapes do not match");
            return Err(Box::new(it.help("declare the tensor with the shape of the view, or reshape it")));
        }
        Ok(())
    }

    pub(super) fn shape_mismatch(
        &self,
        op: Op,
        have: &[usize],
        want: &[usize],
    ) -> Box<grammar::diagnostic::Diagnostic> {
        let message = format!("`{}`: an operand of shape {have:?} does not match shape {want:?}", op.name());
        let it = self.error(Code::RuntimeShape, message, "the shapes do not match");
        Box::new(it.help(self.shape_help()))
    }

    /// Returns what to do about an operand of the wrong shape: the storage of a tensor of the program may hold the part of one stream only.
    fn shape_help(&self) -> String {
        match self.program.tensors.ids().find(|it| self.program.is_split_by_stream(*it)) {
            Some(it) => {
                let name = self.program.tensor_name(it);
                format!(
                    "`allocation(...)` of `{name}` has its stream axis, so its storage holds the part of one stream: `stream-parallel` or `@overlap` writes the loop over streams"
                )
            }
            None => SAME_SHAPE_HELP.to_owned(),
        }
    }

    // ---- instructions for given views

    /// Returns the instructions that compute `targets` from `views`, and their temporary buffers, whose numbers begin with
    /// `first_buffer`. Copies use `rank` as the rank of both sides. `out` is the first result.
    #[allow(clippy::too_many_arguments, reason = "the parts of one statement")]
    pub(super) fn lower(
        &self,
        stmt: &OpStmt,
        views: &[View],
        args: &[TensorId],
        out: TensorId,
        targets: &[View],
        rank: usize,
        first_buffer: u32,
    ) -> Result<Lowered> {
        let is_lowered = operators::is_lowered(self.program, stmt);
        let (mut all, mut buffers) = (Vec::new(), Vec::new());
        for (views, targets) in parts(self.program, stmt, views, targets) {
            let first = first_buffer + buffers.len() as u32;
            let (code, temporaries) = match &targets[..] {
                _ if is_lowered => self.lower_operator(stmt, &views, out, &targets, rank, first)?,
                [target] => (self.instructions(stmt, &views, args, out, target, rank)?, Vec::new()),
                _ => return Err(self.unsupported(stmt.op, NOT_IMPLEMENTED)),
            };
            all.extend(code);
            buffers.extend(temporaries);
        }
        Ok((all, buffers))
    }

    /// Returns the instructions of an operator without an instruction of its own.
    fn lower_operator(
        &self,
        stmt: &OpStmt,
        operands: &[View],
        out: TensorId,
        results: &[View],
        rank: usize,
        first_buffer: u32,
    ) -> Result<Lowered> {
        let Some(target) = results.first() else { return Ok((Vec::new(), Vec::new())) };
        let layout = match self.layout(out) {
            Ok(own) if own.local_shape() != target.shape && own.shape == target.shape => {
                ShardLayout::whole(&target.shape)
            }
            Ok(_) if stmt.op.def().type_rule == TypeRule::Generate => {
                self.generated_layout(stmt, out, target)?
            }
            Ok(own) if own.local_shape() == target.shape => own,
            _ => ShardLayout::whole(&target.shape),
        };
        let value = |it| self.value(it, "the operand").ok();
        let call =
            OperatorCall { program: self.program, stmt, operands, results, layout: &layout, value: &value };
        operators::lower(&call, rank, first_buffer).map_err(|fault| match fault {
            OperatorFault::Shape(have, want) => self.shape_mismatch(stmt.op, &have, &want),
            OperatorFault::Unsupported(why) => self.unsupported(stmt.op, &why),
            OperatorFault::Scalar(expr) => match self.value(expr, "the operand") {
                Ok(_) => self.unsupported(stmt.op, NOT_IMPLEMENTED),
                Err(fault) => fault,
            },
        })
    }

    /// Returns the instructions of an operator with one result and no temporary buffers.
    fn instructions(
        &self,
        stmt: &OpStmt,
        views: &[View],
        args: &[TensorId],
        out: TensorId,
        target: &View,
        rank: usize,
    ) -> Result<Vec<InstKind>> {
        let copy = |from: View, to: View| InstKind::Copy {
            from: Box::new(ViewOnRank { rank, view: from }),
            to: Box::new(ViewOnRank { rank, view: to }),
        };
        if stmt.op.def().class == OpClass::Elementwise {
            return Ok(vec![self.map(stmt, views, target)?]);
        }
        match (stmt.op.def().type_rule, stmt.op) {
            (TypeRule::Linear | TypeRule::Matmul, _) => Ok(vec![self.gemm(stmt, views, out, target)?]),
            (TypeRule::Reduce, _) => Ok(vec![self.reduce(stmt, views, out, target)?]),
            (TypeRule::Reshape, _) => {
                let Some(from) = views.first() else { return Ok(Vec::new()) };
                // A reshape requires that one of the two sides is contiguous. It would otherwise need a
                // temporary buffer.
                let pair = from.reshape(&target.shape).map(|from| (from, target.clone()));
                let pair = pair.or_else(|| target.reshape(&from.shape).map(|to| (from.clone(), to)));
                match pair {
                    Some((from, to)) => Ok(vec![copy(from, to)]),
                    None => {
                        Err(self.unsupported(stmt.op, "neither its operand nor its result is contiguous"))
                    }
                }
            }
            (_, Op::Full) => {
                let value = self.scalar_operand(stmt, 0)?;
                Ok(vec![InstKind::Fill { to: Box::new(target.clone()), value }])
            }
            (_, Op::Iota) => self.iota(stmt, out, target),
            (_, Op::Eye) => self.eye(stmt, out, target),
            (_, Op::TensorConstruct) => self.construct(stmt, out, target),
            (_, Op::Constant) => self.constant(stmt, out, target),
            (_, Op::Cat) => {
                let dim =
                    usize::try_from(self.integer_operand(stmt, stmt.args.len().saturating_sub(1))?).ok();
                let dim = dim.filter(|dim| *dim < target.shape.len());
                let Some(dim) = dim else {
                    return Err(
                        self.unsupported(stmt.op, "its last operand is not a dimension of the result")
                    );
                };
                let mut start = 0;
                let mut copies = Vec::new();
                for view in views {
                    let len = view.shape.get(dim).copied().unwrap_or(0);
                    let mut part = target.shape.clone();
                    part[dim] = len;
                    if view.shape != part || start + len > target.shape[dim] {
                        return Err(self.shape_mismatch(stmt.op, &view.shape, &target.shape));
                    }
                    copies.push(copy(view.clone(), target.narrow(dim, start, len)));
                    start += len;
                }
                Ok(copies)
            }
            _ => match views.first() {
                Some(first) => match self.view_of_operand(stmt, first, args[0], out)? {
                    Some(from) if from.shape == target.shape => Ok(vec![copy(from, target.clone())]),
                    Some(from) => Err(self.shape_mismatch(stmt.op, &from.shape, &target.shape)),
                    None => Err(self.unsupported(stmt.op, NOT_IMPLEMENTED)),
                },
                None => Err(self.unsupported(stmt.op, NOT_IMPLEMENTED)),
            },
        }
    }

    /// Returns the result of an operator that only rearranges elements, as a view of its operand; `None` for
    /// other operators.
    fn view_of_operand(
        &self,
        stmt: &OpStmt,
        view: &View,
        arg: TensorId,
        out: TensorId,
    ) -> Result<Option<View>> {
        let program = self.program;
        let Aliasing::View(shown) = stmt.rule().aliasing() else { return Ok(None) };
        Ok(match shown {
            OperandView::Whole => Some(view.clone()),
            OperandView::Permuted => {
                let order = permutation(program, stmt);
                (order.len() == view.shape.len()).then(|| view.permute(&order))
            }
            OperandView::Broadcast => {
                let flags = flagged_dims(self.program, stmt, out);
                let mut view = view.clone();
                for (dim, _) in flags.iter().enumerate().filter(|(_, new)| **new) {
                    if dim > view.shape.len() {
                        return Err(self.shape_mismatch(stmt.op, &view.shape, &[]));
                    }
                    view = view.unsqueeze(dim);
                }
                Some(view)
            }
            OperandView::Squeezed => {
                let flags = flagged_dims(self.program, stmt, arg);
                let mut view = view.clone();
                for (dim, _) in flags.iter().enumerate().rev().filter(|(_, gone)| **gone) {
                    if view.shape.get(dim) != Some(&1) {
                        return Err(self.shape_mismatch(stmt.op, &view.shape, &[1]));
                    }
                    view = view.select(dim, 0);
                }
                Some(view)
            }
            OperandView::Sliced => Some(self.slice(stmt, arg, view)?),
            OperandView::Selected => Some(self.select(stmt, arg, view.clone())?),
            OperandView::Reshaped => view.reshape(&self.layout(out)?.local_shape()),
            OperandView::Expanded => view.expand(&self.layout(out)?.local_shape()),
            // `views` plans it.
            OperandView::StreamChunk => None,
        })
    }

    /// Returns whether a slice takes all of a dimension.
    fn takes_all(&self, stmt: &OpStmt, arg: TensorId, dim: usize) -> bool {
        grammar::slice_takes_all(self.program, stmt, arg, dim, &|it| self.scalars.int(it).ok())
    }

    fn slice(&self, stmt: &OpStmt, arg: TensorId, view: &View) -> Result<View> {
        let mut view = view.clone();
        let Some(ranges) = stmt.get(attr::RANGES) else { return Ok(view) };
        for (dim, [start, stop, step]) in ranges.iter().enumerate() {
            if self.takes_all(stmt, arg, dim) {
                // The rank's part of the dimension is kept whole.
                continue;
            }
            let Some(&extent) = view.shape.get(dim) else {
                return Err(self.shape_mismatch(stmt.op, &view.shape, &[]));
            };
            let bound = |expr: ExprId| self.index(expr, extent + 1, "the range", self.span);
            let (start, stop) = (bound(*start)?, bound(*stop)?);
            let step = self.step(*step)?;
            view = view.narrow(dim, start, stop.saturating_sub(start).div_ceil(step));
            // A step larger than the extent leaves at most one element.
            view.strides[dim] *= step.min(extent.max(1));
        }
        Ok(view)
    }

    /// Returns the step of a range.
    fn step(&self, expr: ExprId) -> Result<usize> {
        let value = self.int(expr, "the step")?;
        usize::try_from(value).ok().filter(|it| *it > 0).ok_or_else(|| {
            let message = format!("the step of the range is {value}");
            self.error(Code::BadIndex, message, "expected a step of 1 or more")
        })
    }

    fn map(&self, stmt: &OpStmt, views: &[View], target: &View) -> Result<InstKind> {
        let mut views = views.iter();
        let mut args = Vec::with_capacity(stmt.args.len());
        for (at, operand) in stmt.args.iter().enumerate() {
            args.push(match operand {
                Operand::Tensor(_) => {
                    let Some(view) = views.next() else { continue };
                    let fit = view.expand(&target.shape);
                    Arg::View(fit.ok_or_else(|| self.shape_mismatch(stmt.op, &view.shape, &target.shape))?)
                }
                Operand::Scalar(_) | Operand::Stream(_) => Arg::Number(self.scalar_operand(stmt, at)?),
            });
        }
        Ok(InstKind::Map { op: stmt.op, args, out: Box::new(target.clone()) })
    }

    fn scalar_operand(&self, stmt: &OpStmt, at: usize) -> Result<Number> {
        match stmt.args.get(at) {
            Some(Operand::Scalar(expr)) => Ok(self.value(*expr, "the operand")?.into()),
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => {
                Err(self.unsupported(stmt.op, "it needs a scalar operand"))
            }
        }
    }

    pub(super) fn integer_operand(&self, stmt: &OpStmt, at: usize) -> Result<i64> {
        match self.scalar_operand(stmt, at)? {
            Number::Int(value) => Ok(value),
            Number::Float(_) | Number::Bool(_) => {
                Err(self.unsupported(stmt.op, "it needs an integer operand"))
            }
        }
    }
}
