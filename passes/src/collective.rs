//! Collectives as statements.

use grammar::{
    ir::{Attr, ExprId, OpStmt, TensorId},
    ops::Op,
};

use crate::create;

/// A collective to post.
pub(crate) struct Collective<'t> {
    /// Its type.
    pub(crate) kind: &'static str,
    pub(crate) team: &'t [usize],
    /// A member of the team.
    pub(crate) root: Option<ExprId>,
    /// How it combines.
    pub(crate) red_op: Option<&'static str>,
    pub(crate) input: TensorId,
    pub(crate) output: TensorId,
}

impl Collective<'_> {
    /// The statement that posts it as `work`. What the CUDA backend does not have is left to NCCL: it has four types, for
    /// all ranks of the `world` together.
    pub(crate) fn stmt(self, work: u32, backend: &'static str, world: usize) -> OpStmt {
        let Self { kind, team, root, red_op, input, output } = self;
        let has_cuda = matches!(kind, "Broadcast" | "Allgather" | "Allreduce" | "Reduce");
        let backend = match backend {
            "CUDA" if !has_cuda || !is_everybody(team, world) => "NCCL",
            backend => backend,
        };
        let mut attrs = vec![("type", Attr::Word(kind)), ("team", Attr::Team(team.to_vec()))];
        attrs.extend(root.map(|root| ("root", Attr::Scalar(root))));
        attrs.extend(red_op.map(|op| ("red_op", Attr::Word(op))));
        attrs.extend([
            ("input", Attr::Tensor(input)),
            ("output", Attr::Tensor(output)),
            ("backend", Attr::Word(backend)),
        ]);
        OpStmt { number: Some(work), attrs, ..create::op(Op::Communication) }
    }
}

/// Whether a team contains every rank of a world of `world` ranks.
pub(crate) fn is_everybody(team: &[usize], world: usize) -> bool {
    let mut ranks = team.to_vec();
    ranks.sort_unstable();
    ranks.len() == world && ranks.iter().enumerate().all(|(at, rank)| at == *rank)
}
