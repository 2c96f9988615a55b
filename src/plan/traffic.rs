//! The bytes that an instruction moves, counted as nccl-tests counts them.

use super::{CollectiveKind, Communication, CostClass, Inst, InstKind, Plan, View};

/// The bytes that an instruction moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The size of the data, as nccl-tests counts it.
    pub bytes: usize,
    /// The ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests: `2 (n-1) / n` for an all-reduce of
    /// `n` ranks.
    pub bus_factor: f64,
}

impl Plan {
    /// Returns the bytes that an instruction moves between or within memories; 0 for arithmetic and for
    /// instructions that only order others.
    pub fn traffic(&self, inst: &Inst) -> Traffic {
        let size = |view: &View| view.len() * self.buffers[view.buffer as usize].dtype.size();
        let traffic = |bytes, bus_factor| Traffic { bytes, bus_factor };
        match (inst.kind.communication(), inst.kind.cost_info().class) {
            (Some(Communication::Collective(it)), _) => {
                let members = self.communicators[it.communicator as usize].team.len();
                let bytes = it.input.iter().chain(&it.output).map(size).max().unwrap_or(0);
                traffic(bytes, bus_factor(it.kind, members))
            }
            (Some(Communication::P2pGroup(it)), _) => {
                traffic(it.ops.iter().map(|it| size(&it.view)).max().unwrap_or(0), 1.0)
            }
            // Use the views on this rank: buffer numbers of a peer refer to its own buffers.
            (None, CostClass::DataMovement) => traffic(copied_bytes(&inst.kind, self.rank, size), 1.0),
            (None, CostClass::PeerAccess) => {
                let accesses = inst.kind.accesses(self.rank);
                let remote = accesses.iter().filter(|it| !it.is_write && it.rank != self.rank).count();
                let written = accesses.iter().filter(|it| it.is_write && it.rank == self.rank);
                traffic(remote * written.map(|it| size(it.view)).sum::<usize>(), 1.0)
            }
            (None, CostClass::Ordering | CostClass::Compute) => traffic(0, 1.0),
        }
    }
}

/// Returns the number of bytes that a copy moves, from its view on this rank.
fn copied_bytes(kind: &InstKind, rank: usize, size: impl Fn(&View) -> usize) -> usize {
    let InstKind::Copy { from, to } = kind else { return 0 };
    size(if to.rank == rank { &to.view } else { &from.view })
}

/// Returns the ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests.
pub(super) fn bus_factor(kind: CollectiveKind, members: usize) -> f64 {
    let (sent, all) = kind.of.sent_part(members);
    sent as f64 / all as f64
}
