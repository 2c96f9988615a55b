//! Collectives as statements.

use grammar::{
    attr,
    ir::{ExprId, OpStmt, TensorId},
    ops::Op,
    words::{Backend, CommunicationType, RedOp},
};

use crate::rewrite::builder;

/// A collective to post.
pub(crate) struct Collective<'t> {
    /// Its type.
    pub(crate) kind: CommunicationType,
    pub(crate) team: &'t [usize],
    /// A member of the team.
    pub(crate) root: Option<ExprId>,
    /// How it combines.
    pub(crate) red_op: Option<RedOp>,
    pub(crate) input: TensorId,
    pub(crate) output: TensorId,
}

impl Collective<'_> {
    /// The statement that posts it as `work`. What the CUDA backend does not have is left to NCCL: it has four types, for
    /// all ranks of the `world` together.
    pub(crate) fn stmt(self, work: u32, backend: Backend, world: usize) -> OpStmt {
        let Self { kind, team, root, red_op, input, output } = self;
        let backend = match backend {
            Backend::Cuda if !kind.is_supported_by_cuda() || !is_whole_world(team, world) => Backend::Nccl,
            backend => backend,
        };
        let mut attrs = vec![attr::TYPE.with(kind), attr::TEAM.with(team.to_vec())];
        attrs.extend(root.map(|root| attr::ROOT.with(root)));
        attrs.extend(red_op.map(|op| attr::RED_OP.with(op)));
        attrs.extend([attr::INPUT.with(input), attr::OUTPUT.with(output), attr::BACKEND.with(backend)]);
        OpStmt { number: Some(work), attrs, ..builder::op(Op::Communication) }
    }
}

/// Whether a team contains every rank of a world of `world` ranks.
pub(crate) fn is_whole_world(team: &[usize], world: usize) -> bool {
    let mut ranks = team.to_vec();
    ranks.sort_unstable();
    ranks.len() == world && ranks.iter().enumerate().all(|(at, rank)| at == *rank)
}
