//! Computes the size of a plan in bytes, so that a world that is too large is rejected before memory is
//! exhausted.

use std::sync::Arc;

use super::{
    Buffer, Inst, InstKind, IoBinding, MemHandle, Origin, PeerCollective, Phase, Plan, Shard, SignalId,
    Transfer, View, ViewOnRank,
};

/// The overhead of a heap allocation, in bytes.
const BLOCK: usize = 16;

impl Plan {
    /// Returns the size of the plan in bytes, including its share of the tables that ranks have in common.
    pub fn bytes(&self) -> usize {
        let code: usize = self.code.iter().map(|it| size_of::<Inst>() + heap(&it.kind)).sum();
        let ports = self.inputs.iter().chain(&self.outputs).chain(&self.bound_at_exit);
        let origins = self.origins.len() * size_of::<Origin>() / Arc::strong_count(&self.origins);
        let frames =
            self.iterations.len() * size_of::<super::LoopIteration>() / Arc::strong_count(&self.iterations);
        let ports: usize = ports.map(|it| size_of::<IoBinding>() + shard(&it.shard)).sum();
        let skips: usize = self.skips.iter().map(super::SkippedComm::bytes).sum();
        let allocations = self.allocations.len() * size_of::<super::Allocation>()
            + self.skipped_allocations.len() * size_of::<super::SkippedAllocation>()
            + self.overwritten_views.len() * size_of::<super::OverwrittenView>()
            + self.waits_for_peers.len() * size_of::<super::WaitForPeers>();
        size_of::<Self>()
            + code
            + skips
            + allocations
            + self.peer_collectives.iter().map(peer_collective).sum::<usize>()
            + origins
            + frames
            + ports
            + self.buffers.len() * size_of::<Buffer>()
    }
}

/// Returns the size of the heap allocations of an instruction, in bytes.
fn heap(kind: &InstKind) -> usize {
    let mut bytes = kind.computation().map_or(0, |it| it.own_bytes());
    kind.visit_accesses(0, &mut |it| bytes += BLOCK + size_of::<ViewOnRank>() + view(it.view));
    if let InstKind::Constant { bytes: elements, .. } = kind {
        bytes += elements.len() / Arc::strong_count(elements);
    }
    bytes
        + match kind {
            InstKind::ShareMemHandles { handles } => BLOCK + handles.len() * size_of::<MemHandle>(),
            InstKind::Reshard(it) => {
                let shards = it.operands.iter().chain([&it.result]).map(|it| size_of::<Shard>() + shard(it));
                let body = it.body.iter().map(|it| size_of::<InstKind>() + heap(it));
                shards.chain(body).sum::<usize>() + it.buffers.len() * size_of::<Buffer>()
            }
            _ => 0,
        }
}

fn peer_collective(it: &PeerCollective) -> usize {
    let phase = |it: &Phase| {
        let views: usize = it.views().map(|it| size_of::<ViewOnRank>() + view(it)).sum();
        let signals = (it.signals.len() + it.waits.len()) * size_of::<SignalId>();
        size_of::<Phase>() + it.transfers.len() * (2 * BLOCK + size_of::<Transfer>()) + views + signals
    };
    size_of::<PeerCollective>() + it.phases.all().iter().map(phase).sum::<usize>()
}

fn view(it: &View) -> usize {
    2 * (BLOCK + it.shape.len() * size_of::<usize>())
}

fn shard(it: &Shard) -> usize {
    let dims = it.layout.shape.len();
    it.view.as_ref().map_or(0, view) + dims * (BLOCK + size_of::<usize>() + 2 * size_of::<super::AxisPiece>())
}
