//! Emits the copies that reshard a tensor step by step, each at most once.

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Operand, TensorId},
    ops::Op,
};

use super::Decomposer;
use crate::{
    analysis::{
        reshard::{self, ReshardStep},
        sharding::Sharding,
    },
    rewrite::builder::{self},
};

impl Decomposer<'_> {
    /// Emits copies that reshard `arg` step by step, into `out` or a new tensor. Returns `arg` if there is
    /// nothing to do.
    pub(super) fn reshard(
        &mut self,
        arg: TensorId,
        from: &Sharding,
        to: &Sharding,
        out: Option<TensorId>,
    ) -> Result<TensorId, Diagnostic> {
        if out.is_none() && reshard::step(self.program, from, to) == Some(ReshardStep::Local) {
            return Ok(arg);
        }
        if to.mesh.is_empty() && !from.mesh.is_empty() {
            let name = self.program.tensor_name(arg);
            let message = format!(
                "`{name}` is on the ranks of its mesh only, but the statement needs it on every rank"
            );
            let it = Diagnostic::new(Code::NotRewritten, self.span, message, "needed here");
            return Err(it.help("give the result a DeviceMesh"));
        }
        let step = reshard::step(self.program, from, to);
        if let (true, Some(it)) = (step != Some(ReshardStep::Slice), self.generators.get(&arg)) {
            return Ok(self.rematerialize(it.clone(), arg, to, out));
        }
        let path = match step {
            Some(_) => vec![to.clone()],
            None => reshard::intermediate_shardings(self.program, from, to),
        };
        let mut now = arg;
        let count = path.len();
        for (at, sharding) in path.into_iter().enumerate() {
            let known = self.known_copy(arg, &sharding);
            let target = match (out, known) {
                (Some(out), _) if at + 1 == count => out,
                (_, Some(known)) => {
                    now = known;
                    continue;
                }
                (_, None) => self.new_tensor(&sharding, arg),
            };
            self.emit(copy_stmt(known.unwrap_or(now), target));
            self.record_copy(arg, &sharding, target);
            now = target;
        }
        Ok(now)
    }

    /// Emits a copy of the statement that makes `arg` from scalars, with the sharding `to`, so that nothing
    /// is sent.
    pub(super) fn rematerialize(
        &mut self,
        it: OpStmt,
        arg: TensorId,
        to: &Sharding,
        out: Option<TensorId>,
    ) -> TensorId {
        if let (None, Some(known)) = (out, self.known_copy(arg, to)) {
            return known;
        }
        let target = out.unwrap_or_else(|| self.new_tensor(to, arg));
        self.emit(OpStmt { outs: vec![Operand::Tensor(target)], ..it });
        self.record_copy(arg, to, target);
        target
    }

    /// Returns the earlier copy of `arg` with this sharding.
    pub(super) fn known_copy(&self, arg: TensorId, sharding: &Sharding) -> Option<TensorId> {
        let all = self.resharded.as_ref()?.get(&arg)?;
        all.iter().find(|(other, _)| other == sharding).map(|(_, tensor)| *tensor)
    }

    pub(super) fn record_copy(&mut self, arg: TensorId, sharding: &Sharding, tensor: TensorId) {
        if let Some(moved) = &mut self.resharded {
            moved.entry(arg).or_default().push((sharding.clone(), tensor));
        }
    }
}

pub(super) fn copy_stmt(from: TensorId, to: TensorId) -> OpStmt {
    OpStmt { outs: vec![Operand::Tensor(to)], args: vec![Operand::Tensor(from)], ..builder::op(Op::Set) }
}
