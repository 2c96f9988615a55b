//! The statements of a communication: its storage, the post and the Wait.

use grammar::{
    ir::{Attr, OpStmt, TensorId},
    ops::Op,
};

use super::Ctx;
use crate::create;

/// A communication to post.
pub(super) struct Post<'t> {
    pub(super) kind: &'static str,
    pub(super) team: &'t [usize],
    /// A member of the team.
    pub(super) root: Option<usize>,
    pub(super) red_op: Option<&'static str>,
    pub(super) input: TensorId,
    pub(super) output: TensorId,
}

impl Ctx<'_> {
    pub(super) fn emit(&mut self, stmt: OpStmt) {
        let id = create::add(self.program, stmt, self.span);
        self.stmts.push(id);
    }

    /// Storage for a result that has none.
    pub(super) fn allocate(&mut self, tensor: TensorId) {
        if !self.is_bound {
            self.is_bound = true;
            let allocate = create::allocate(self.program, tensor);
            self.emit(allocate);
        }
    }

    pub(super) fn post(&mut self, post: Post<'_>) {
        let Post { kind, team, root, red_op, input, output } = post;
        let mut attrs = vec![("type", Attr::Word(kind)), ("team", Attr::Team(team.to_vec()))];
        if let Some(root) = root {
            attrs.push(("root", Attr::Scalar(self.program.int(root as i64))));
        }
        attrs.extend(red_op.map(|op| ("red_op", Attr::Word(op))));
        let has_cuda = matches!(kind, "Broadcast" | "Allgather" | "Allreduce" | "Reduce");
        let mut ranks = team.to_vec();
        ranks.sort_unstable();
        let backend = match self.backend {
            "CUDA" if !has_cuda || ranks != self.world => "NCCL",
            backend => backend,
        };
        attrs.extend([
            ("input", Attr::Tensor(input)),
            ("output", Attr::Tensor(output)),
            ("backend", Attr::Word(backend)),
        ]);
        let work = self.fresh.work();
        self.emit(OpStmt { number: Some(work), attrs, ..create::op(Op::Communication) });
        self.works.push(work);
    }

    /// One device's tensor to another; a copy where they are the same.
    pub(super) fn send(&mut self, sender: usize, receiver: usize, input: TensorId, output: TensorId) {
        let mut team = vec![sender, receiver];
        team.dedup();
        self.post(Post { kind: "SendRecv", team: &team, root: Some(0), red_op: None, input, output });
    }

    /// Waits for what is posted.
    pub(super) fn wait(&mut self) {
        for work in std::mem::take(&mut self.works) {
            self.emit(create::wait(work));
        }
        // In a loop, the next iteration's name is another view.
        for name in std::mem::take(&mut self.names) {
            self.emit(create::deallocate(name));
        }
    }
}
