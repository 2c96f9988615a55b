//! The values of tensors, and which tensors may be views of each other.
//!
//! After `T1 = Set( T0 )`, `T0 = T0 + T2`, the name `T1` has the new elements if it is a view, and the old ones if the Set
//! copies. Which of the two it is depends on shardings, so a program that reads `T1` then has no meaning without them.

use grammar::{Aliasing, Code, Id, Op, OpClass, OpStmt, StmtId, TensorId};

use super::{Result, UnshardedPlanner, operands};
use hir_plan::{InstKind, View};

/// The value of a tensor.
#[derive(Clone, Default)]
pub(super) struct TensorValue {
    view: Option<View>,
    /// The buffer of the value before the current one, for the next value.
    spare: Option<View>,
    /// Tensors with the same number may be views of each other.
    storage: Option<u32>,
    /// The statement that made the tensor a view, if it may be one.
    copied_by: Option<StmtId>,
    /// The tensor and the line that wrote storage that this tensor may be a view of.
    overwritten: Option<(TensorId, u32)>,
}

impl UnshardedPlanner<'_> {
    /// Gives a tensor a value that a statement outside has computed.
    pub(super) fn bind(&mut self, tensor: TensorId, value: View) {
        self.values[tensor.index()] = TensorValue { view: Some(value), ..TensorValue::default() };
    }

    /// Returns the current value of a tensor.
    pub(super) fn value(&self, tensor: TensorId) -> Result<View> {
        let it = &self.values[tensor.index()];
        let name = self.program.tensor_name(tensor);
        if let Some((written, line)) = it.overwritten {
            let other = self.program.tensor_name(written);
            let message = format!(
                "`{name}` is read after line {line} has written `{other}`: it has the new elements if it is a view of `{other}`"
            );
            let it = self.diagnostic(Code::InvalidReference, message);
            return Err(Box::new(it.help(format!("write the new value of `{other}` to another tensor"))));
        }
        let value = it.view.clone();
        value.ok_or_else(|| self.diagnostic(Code::UndefinedTensor, format!("no statement defines `{name}`")))
    }

    /// Creates the buffer of a result.
    pub(super) fn result(&mut self, tensor: TensorId) -> Result<View> {
        let at = tensor.index();
        // Two buffers alternate: the statement may read the value that it replaces. An input stays as it is.
        let target = match self.values[at].spare.take() {
            Some(spare) if self.shape(tensor)? == spare.shape => spare,
            Some(_) | None => self.buffer(tensor)?,
        };
        self.emit(InstKind::Alloc { buffer: target.buffer, zeroed: None });
        let old = self.values[at].view.replace(target.clone());
        let is_input = |view: &View| {
            let inputs = self.plan.inputs.iter().filter_map(|it| it.shard.view.as_ref());
            inputs.into_iter().any(|it| it.buffer == view.buffer)
        };
        self.values[at].spare = old.filter(|old| !is_input(old));
        if let Some(storage) = self.values[at].storage {
            let line = self.lines.line(self.span.start);
            for value in self.values.iter_mut().filter(|it| it.storage == Some(storage)) {
                value.overwritten = Some((tensor, line));
            }
        }
        self.values[at].overwritten = None;
        Ok(target)
    }

    /// Ends the names that share storage with a tensor if the statement is about to make it a view of another one.
    pub(super) fn end_view(&mut self, stmt: StmtId, it: &OpStmt, tensor: TensorId) {
        let value = &mut self.values[tensor.index()];
        // A copy makes a view only if the tensor has no storage yet, or has that of the copy in the iteration before. A
        // slice may have other elements in each iteration: it then writes them to those of the first one.
        let is_same_copy = value.copied_by == Some(stmt) && it.op != Op::Slice;
        if may_be_view(it) && (it.op.def().class == OpClass::View || is_same_copy) {
            value.storage = None;
        }
    }

    /// Records that a statement may have made a tensor a view of its first operand.
    pub(super) fn note_view(&mut self, stmt: StmtId, it: &OpStmt, tensor: TensorId) {
        let Some(source) = operands(it).first().copied().filter(|_| may_be_view(it)) else { return };
        let storage = *self.values[source.index()].storage.get_or_insert_with(|| {
            self.storage_count += 1;
            self.storage_count
        });
        let value = &mut self.values[tensor.index()];
        (value.storage, value.copied_by) = (Some(storage), Some(stmt));
    }
}

/// Returns whether the result of an operator may be a view of its first operand.
fn may_be_view(it: &OpStmt) -> bool {
    it.rule().aliasing() != Aliasing::Never
}
