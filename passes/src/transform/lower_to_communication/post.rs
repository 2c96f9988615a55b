//! Emits the statements of a communication: the ALLOCATE, the communication and the Wait.

use grammar::{CommunicationType, OpStmt, TensorId};
use hir_ir::build;

use super::Lowering;
use crate::rewrite::collective::Collective;

impl Lowering<'_> {
    pub(super) fn emit(&mut self, stmt: OpStmt) {
        let id = build::add(self.program, stmt, self.span);
        self.stmts.push(id);
    }

    /// Emits an ALLOCATE for a result without storage.
    pub(super) fn allocate(&mut self, tensor: TensorId) {
        if !self.is_bound {
            self.is_bound = true;
            let allocate = build::allocate(self.program, tensor);
            self.emit(allocate);
        }
    }

    /// Posts a communication. One of a tensor without elements has nothing to move.
    pub(super) fn post(&mut self, post: Collective<'_>) {
        if self
            .program
            .dimensions(post.output)
            .any(|it| self.program.constant(self.program.axes[it].extent) == Some(0))
        {
            return;
        }
        let work = self.fresh.work();
        let stmt = post.stmt(work, self.backend, self.world);
        self.emit(stmt);
        self.pending_works.push(work);
    }

    /// Posts a transfer from one device to another; a copy if they are the same.
    pub(super) fn send(&mut self, sender: usize, receiver: usize, input: TensorId, output: TensorId) {
        let mut team = vec![sender, receiver];
        team.dedup();
        let transfer = Collective::new(CommunicationType::SendRecv, &team, input, output);
        let root = self.program.intern_int(0);
        self.post(Collective { root: Some(root), ..transfer });
    }

    /// Emits Waits for the pending communications, and deallocates the reshaped names.
    pub(super) fn emit_waits(&mut self) {
        for work in std::mem::take(&mut self.pending_works) {
            self.emit(build::wait(work));
        }
        // In a loop, the names are bound to other views in the next iteration.
        for name in std::mem::take(&mut self.reshaped_names) {
            self.emit(build::deallocate(name));
        }
    }
}
