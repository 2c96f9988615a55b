//! Adds signals around accesses to peer memory. Each member
//!
//! 1. sets Ready for every peer that accesses its memory,
//! 2. waits for Ready from every peer whose memory it accesses,
//! 3. reads and writes,
//! 4. sets Done for every peer whose memory it accessed,
//! 5. waits, where the collective is waited for, for Done from every peer that accesses its memory.

use super::CollectiveCall;
use crate::{Phase, SignalId, SignalKind, Transfer};

impl CollectiveCall<'_> {
    /// Adds signals around transfers that access the memory of the members `accessed`. The members `accessors` access this
    /// member's memory.
    pub(super) fn with_signals(
        &self,
        accessed: &[usize],
        accessors: &[usize],
        transfers: Vec<Transfer>,
    ) -> [Phase; 2] {
        let others = |members: &[usize]| -> Vec<usize> {
            members.iter().filter(|it| **it != self.me).map(|it| self.team[*it]).collect()
        };
        let (accessed, accessors) = (others(accessed), others(accessors));
        let (ready, done) = (SignalKind::TeamReady(self.team_no), SignalKind::TeamDone(self.team_no));
        let (me, index) = (self.team[self.me], self.index);
        let set = |members: &[usize], kind| -> Vec<SignalId> {
            members.iter().map(|to| SignalId { from: me, to: *to, kind, index }).collect()
        };
        let wait = |members: &[usize], kind| -> Vec<SignalId> {
            members.iter().map(|from| SignalId { from: *from, to: me, kind, index }).collect()
        };
        [
            Phase { transfers: Vec::new(), signals: set(&accessors, ready), waits: wait(&accessed, ready) },
            Phase { transfers, signals: set(&accessed, done), waits: wait(&accessors, done) },
        ]
    }

    /// Returns the other members, beginning with the next one, so that not all members send to the same one
    /// first.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        let (me, n) = (self.me, self.team.len());
        (1..n).map(move |step| (me + step) % n)
    }

    /// Returns all members.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.team.len()).collect()
    }
}
