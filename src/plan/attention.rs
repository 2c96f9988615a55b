//! Plans `sdpa`, scaled dot-product attention: `softmax(scale · q · kᵀ + bias) · v`, as one instruction, and operators with several results.
//!
//! A dropout draws a number for each weight, by the index of the weight in the whole tensor of scores (`operators::random`). The
//! state of the random numbers, which `sdpa` also returns, is the seed 0 and the offset of the statement.

use grammar::{Op, OpStmt, Program, TensorId};

use super::{
    Attention, BufferNo, InstKind, Number, View,
    context::{NOT_IMPLEMENTED, PlanBuilder, Result},
    operators::{AttentionOptions, dropout, is_lowered},
};

impl PlanBuilder<'_> {
    /// Lowers an operator with several results, or `sdpa`, on this rank's parts of its operands.
    pub(super) fn several_results(&mut self, stmt: &OpStmt) -> Result<()> {
        if stmt.op != Op::Sdpa && !is_lowered(self.program, stmt) {
            return Err(self.unsupported(stmt.op, NOT_IMPLEMENTED));
        }
        let outs: Vec<TensorId> = Program::tensors_of(&stmt.outs).collect();
        let args = stmt.tensor_operands();
        let Some(out) = outs.first() else { return Ok(()) };
        if let Some(other) = self.result_sharded_differently(stmt) {
            let [first, other] = [*out, other].map(|it| self.program.tensor_name(it));
            let why = format!("its results `{first}` and `{other}` are sharded differently");
            let it = *self.unsupported(stmt.op, &why);
            return Err(Box::new(
                it.help(format!("shard `{other}` along the same axes as `{first}`, or not at all")),
            ));
        }
        if self.needs_reshard(stmt, &args, *out)? {
            let name = self.program.tensor_name(*out);
            let why = format!(
                "an operand is not sharded as its result `{name}` is, or `{name}` is sharded along an axis that it needs whole"
            );
            let it = *self.unsupported(stmt.op, &why);
            return Err(Box::new(it.help(
                "add `--passes decompose-resharding`, which reshards the operands, or names the axis that has to be whole",
            )));
        }
        if !self.holds_part(*out) {
            outs.iter().for_each(|out| self.note_slice(&args, *out));
            return Ok(());
        }
        let views = args.iter().map(|arg| self.view(*arg)).collect::<Result<Vec<_>>>()?;
        let stream = args.iter().find_map(|arg| self.binding(*arg).and_then(|it| it.stream));
        let targets = outs.iter().enumerate().map(|(at, it)| {
            let target = match views.get(at + usize::from(stmt.op == Op::SdpaBwd)) {
                Some(like) if matches!((stmt.op, at), (Op::Sdpa, 0) | (Op::SdpaBwd, _)) => {
                    self.output_view_like(*it, like)?
                }
                _ => self.output_view(*it)?,
            };
            if stream.is_some() {
                self.bind(*it, target.clone(), stream);
            }
            Ok(target)
        });
        let targets = targets.collect::<Result<Vec<_>>>()?;
        self.check_separate_results(stmt, &outs, &targets)?;
        if stmt.op != Op::Sdpa {
            let first = self.plan.buffers.len() as u32;
            let lowered = self.lower(stmt, &views, &args, *out, &targets, self.rank(), first)?;
            self.emit_lowered(lowered);
            return Ok(());
        }
        self.attention(stmt, &views, targets)
    }

    /// Lowers `sdpa`.
    fn attention(&mut self, stmt: &OpStmt, views: &[View], targets: Vec<View>) -> Result<()> {
        let columns = views.first().and_then(|it| it.shape.last()).copied().unwrap_or(0);
        let options = AttentionOptions::of(
            self.program,
            stmt,
            columns,
            |it| self.value(it, "the operand"),
            |why| self.unsupported(stmt.op, why),
        )?;
        let mut targets = targets.into_iter();
        let (Some(target), Some(out)) = (targets.next(), stmt.out_tensor()) else { return Ok(()) };
        let keys = views.get(1).and_then(|it| it.shape.iter().rev().nth(1)).copied().unwrap_or(0);
        let (layout, first) = (self.layout(out)?, self.plan.buffers.len() as BufferNo);
        let (mut keep, mut temporaries) = (None, Vec::new());
        if let Some((code, drawn)) = dropout(&options, (keys, &layout), &target, self.rank(), first) {
            temporaries = self.allocate_temporaries(code.buffers);
            code.code.into_iter().for_each(|kind| self.emit(kind));
            keep = Some(drawn);
        }
        let it = Attention::of(views, &options, keep, target, targets.next())
            .map_err(|(have, want)| self.shape_mismatch(stmt.op, &have, &want))?;
        self.emit(InstKind::Attention(Box::new(it)));
        temporaries.into_iter().for_each(|buffer| self.release(buffer));
        for (state, value) in targets.zip([0, options.offset]) {
            self.emit(InstKind::Fill { to: Box::new(state), value: Number::Int(value) });
        }
        Ok(())
    }

    /// Checks that no two results have the same memory: one kernel writes them. Views of which neither is contiguous may
    /// have alternating elements, and are not compared.
    fn check_separate_results(&self, stmt: &OpStmt, outs: &[TensorId], views: &[View]) -> Result<()> {
        for (at, view) in views.iter().enumerate() {
            let shares = |it: &View| it.may_alias(view) && (it.is_contiguous() || view.is_contiguous());
            if let Some(other) = views[..at].iter().position(shares) {
                let [name, other] = [at, other].map(|it| self.program.tensor_name(outs[it]));
                let why =
                    format!("its results `{other}` and `{name}` share memory, and one kernel writes both");
                let it = *self.unsupported(stmt.op, &why);
                return Err(Box::new(it.help(format!("give `{name}` memory of its own"))));
            }
        }
        Ok(())
    }
}
