//! Builds statements that post collectives.

use grammar::{Backend, CommunicationType, ExprId, Op, OpStmt, RedOp, TensorId, attr};
use hir_ir::build;

/// A collective to post.
pub struct Collective<'t> {
    /// The type of the collective.
    pub kind: CommunicationType,
    /// The ranks, in the order of their pieces.
    pub team: &'t [usize],
    /// The root, a member of the team; `None` for collectives without a root.
    pub root: Option<ExprId>,
    /// The reduction operation.
    pub red_op: Option<RedOp>,
    /// What each member contributes.
    pub input: TensorId,
    /// What each member receives.
    pub output: TensorId,
}

impl<'t> Collective<'t> {
    /// Makes a collective that has no root and reduces nothing.
    pub fn new(kind: CommunicationType, team: &'t [usize], input: TensorId, output: TensorId) -> Self {
        Self { kind, team, root: None, red_op: None, input, output }
    }

    /// Returns the statement that posts the collective as communication `work`. nvFuser's CUDA backend has four
    /// types, and only for all ranks of the `world` together. Other collectives use NCCL, so that nvFuser can run the
    /// program too.
    pub fn stmt(self, work: u32, backend: Backend, world: usize) -> OpStmt {
        let Self { kind, team, root, red_op, input, output } = self;
        let backend = match backend {
            Backend::Cuda if !kind.facts().is_in_cuda_backend_of_nvfuser || !is_whole_world(team, world) => {
                Backend::Nccl
            }
            backend => backend,
        };
        let mut attrs = vec![attr::TYPE.with(kind), attr::TEAM.with(team.to_vec())];
        attrs.extend(root.map(|root| attr::ROOT.with(root)));
        attrs.extend(red_op.map(|op| attr::RED_OP.with(op)));
        attrs.extend([attr::INPUT.with(input), attr::OUTPUT.with(output), attr::BACKEND.with(backend)]);
        OpStmt { number: Some(work), attrs, ..build::op(Op::Communication) }
    }
}

/// Returns true if a team contains every rank of a world of `world` ranks.
pub fn is_whole_world(team: &[usize], world: usize) -> bool {
    let mut ranks = team.to_vec();
    ranks.sort_unstable();
    ranks.len() == world && ranks.iter().enumerate().all(|(at, rank)| at == *rank)
}
