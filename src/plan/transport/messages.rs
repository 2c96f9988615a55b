//! Lowers transfers of the CUDA backend: one side copies, between two signals.
//!
//! | | send | recv | wait for the send | wait for the recv |
//! |---|---|---|---|---|
//! | get | set Ready | wait for Ready, copy from the peer, set Done | wait for Done | – |
//! | put | wait for Ready, copy to the peer, set Done | set Ready | – | wait for Done |

use grammar::P2pProtocol;

use super::Steps;
use crate::{Direction, InstKind, SignalId, SignalKind, View, ViewOnRank};

/// One side of a message, with the view of the other side.
pub(super) struct Message<'a> {
    /// This rank.
    pub rank: usize,
    /// The other rank.
    pub peer: usize,
    /// Whether this rank sends or receives.
    pub direction: Direction,
    /// The protocol, which determines the side that copies.
    pub protocol: P2pProtocol,
    /// The index of the message between the two ranks, in this direction.
    pub index: u32,
    /// The view of this side.
    pub mine: &'a View,
    /// The view of the other side; `None` if no rank posts it.
    pub theirs: Option<&'a View>,
}

impl Message<'_> {
    /// Returns the instructions of this side.
    pub(super) fn lower(&self) -> Steps {
        let (rank, peer, index) = (self.rank, self.peer, self.index);
        let (ready, done) = match self.protocol {
            P2pProtocol::Get => (SignalKind::Ready, SignalKind::Done),
            P2pProtocol::Put => (SignalKind::PutReady, SignalKind::PutDone),
        };
        let set = |kind| InstKind::Signal { signal: SignalId { from: rank, to: peer, kind, index } };
        let wait = |kind| InstKind::WaitSignal { signal: SignalId { from: peer, to: rank, kind, index } };
        if self.direction == self.protocol.copier() {
            let copy = self.theirs.and_then(|theirs| self.copy(theirs));
            let posted = [Some(wait(ready)), copy, Some(set(done))].into_iter().flatten().collect();
            return Steps::Separate { at_post: posted, at_wait: Vec::new() };
        }
        Steps::Separate { at_post: vec![set(ready)], at_wait: vec![wait(done)] }
    }

    fn copy(&self, theirs: &View) -> Option<InstKind> {
        let (mine, theirs) = self.mine.in_common_shape(theirs)?;
        let here = Box::new(ViewOnRank { rank: self.rank, view: mine });
        let there = Box::new(ViewOnRank { rank: self.peer, view: theirs });
        Some(match self.direction {
            Direction::Recv => InstKind::Copy { from: there, to: here },
            Direction::Send => InstKind::Copy { from: here, to: there },
        })
    }
}
