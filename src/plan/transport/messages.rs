//! Transfers of the CUDA backend: one side copies, between two signals.
//!
//! | | send | recv | wait for the send | wait for the recv |
//! |---|---|---|---|---|
//! | get | raise Ready | await Ready, copy from the peer, raise Done | await Done | – |
//! | put | await Ready, copy to the peer, raise Done | raise Ready | – | await Done |

use grammar::words::P2pProtocol;

use super::LoweredComm;
use crate::plan::{Direction, InstKind, SignalId, SignalKind, View, ViewOnRank};

/// One side of a message, with the other's view where there is one.
pub(super) struct Message<'a> {
    /// This rank.
    pub rank: usize,
    /// The other rank.
    pub peer: usize,
    /// What this rank does.
    pub direction: Direction,
    /// Which side copies.
    pub protocol: P2pProtocol,
    /// Which message between the two, in this direction.
    pub index: u32,
    /// This side's view.
    pub mine: &'a View,
    /// The other side's view; `None`: nobody posts it.
    pub theirs: Option<&'a View>,
}

impl Message<'_> {
    /// The instructions of this side.
    pub(super) fn lower(&self) -> LoweredComm {
        let (rank, peer, index) = (self.rank, self.peer, self.index);
        let (ready, done) = match self.protocol {
            P2pProtocol::Get => (SignalKind::Ready, SignalKind::Done),
            P2pProtocol::Put => (SignalKind::PutReady, SignalKind::PutDone),
        };
        let raise =
            |meaning| InstKind::Signal { signal: SignalId { from: rank, to: peer, kind: meaning, index } };
        let expect = |meaning| InstKind::WaitSignal {
            signal: SignalId { from: peer, to: rank, kind: meaning, index },
        };
        if copies(self.protocol, self.direction) {
            let copy = self.theirs.and_then(|theirs| self.copy(theirs));
            let posted = [Some(expect(ready)), copy, Some(raise(done))].into_iter().flatten().collect();
            return LoweredComm { at_post: posted, ..LoweredComm::default() };
        }
        LoweredComm { at_post: vec![raise(ready)], at_wait: vec![expect(done)], ..LoweredComm::default() }
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

/// Whether a side copies.
fn copies(protocol: P2pProtocol, direction: Direction) -> bool {
    match protocol {
        P2pProtocol::Get => direction == Direction::Recv,
        P2pProtocol::Put => direction == Direction::Send,
    }
}
