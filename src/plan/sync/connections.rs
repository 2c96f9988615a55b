//! Where NCCL connects the ranks of a communicator, which blocks hosts (`host_rules`).

use rustc_hash::FxHashSet;

use super::{CommKey, CommNo, InstRef, MatchedComm, World};
use crate::{Backend, InstKind};

impl World {
    /// Returns the communications for which NCCL may have to connect ranks: the first of each pair of ranks and direction, and the first
    /// collective of each kind, operator, type and size, on each communicator.
    pub(super) fn connections(&self) -> &FxHashSet<CommNo> {
        self.connections.get_or_init(|| {
            let matching = self.matching();
            let is_nccl = |group: u32| matching.groups[group as usize].backend == Some(Backend::Nccl);
            let mut seen = FxHashSet::default();
            let mut is_first = |group: u32, comm: &MatchedComm| {
                let InstRef { rank, inst } = comm.parts[0].inst_ref;
                let plan = &self[rank];
                let InstKind::Collective(it) = &plan.code[inst].kind else { return false };
                // No library of executors that map the shards executes it.
                if plan.gathered_views.iter().any(|view| view.work == it.work) {
                    return false;
                }
                let view = it.input.as_ref().or(it.output.as_ref());
                let data = view.map(|it| (plan.buffers[it.buffer as usize].dtype, it.len()));
                seen.insert((group, it.kind.of, it.kind.op, data))
            };
            let connects = |(_, comm): &(CommNo, &MatchedComm)| match comm.key {
                CommKey::Message(group, from, to, which) => which == 0 && from != to && is_nccl(group),
                CommKey::Collective(group, _) => is_nccl(group) && is_first(group, comm),
                CommKey::Handle(..) | CommKey::Barrier(_) | CommKey::Signal(_) => false,
            };
            (0..).zip(&matching.comms).filter(connects).map(|it| it.0).collect()
        })
    }
}
