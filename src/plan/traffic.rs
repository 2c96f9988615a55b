//! The bytes that an instruction moves, counted as nccl-tests counts them.

use std::ops::Range;

use grammar::DType;

use super::{Access, CollectiveKind, Communication, CostClass, Inst, InstKind, Plan, View};

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
    /// Returns the element type of a view on this rank.
    pub fn dtype_of(&self, view: &View) -> DType {
        self.buffers[view.buffer as usize].dtype
    }

    /// Returns the bytes of a view on this rank. With broadcast dimensions they can exceed the size of the buffer by far.
    pub fn bytes_of(&self, view: &View) -> usize {
        view.len().saturating_mul(self.dtype_of(view).size())
    }

    /// Returns the accesses of some instructions to the memory of other ranks, each with its bytes. The views of a peer have its buffers;
    /// those of this rank have elements of the same type.
    pub(crate) fn peer_accesses(&self, range: Range<usize>) -> Vec<(Access<'_>, usize)> {
        let accesses = range.flat_map(|at| self.code[at].kind.accesses(self.rank));
        let (own, peers): (Vec<_>, Vec<_>) = accesses.partition(|it| it.rank == self.rank);
        let element = own.first().map_or(1, |it| self.dtype_of(it.view).size());
        peers.into_iter().map(|it| (it, it.view.len().saturating_mul(element))).collect()
    }

    /// Returns the instructions of the collective over peer memory that one belongs to, or that instruction alone.
    pub(crate) fn kernel_range(&self, at: usize) -> Range<usize> {
        self.peer_collective_at(at).map_or(at..at + 1, |it| it.range.clone())
    }

    /// Returns the bytes that an instruction moves between or within memories; 0 for arithmetic and for
    /// instructions that only order others.
    pub fn traffic(&self, inst: &Inst) -> Traffic {
        let size = |view: &View| self.bytes_of(view);
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
