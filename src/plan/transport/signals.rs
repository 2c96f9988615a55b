//! The signals around accesses to peer memory. A member
//!
//! 1. signals Ready to every peer that accesses its memory,
//! 2. waits for Ready from every peer whose memory it accesses,
//! 3. reads and writes,
//! 4. signals Done to every peer whose memory it accessed;
//! 5. where the collective is waited for, it waits for Done from every peer that accesses its memory.

use super::{CollectiveCall, LoweredComm};
use crate::plan::{InstKind, SignalId, SignalKind};

impl CollectiveCall<'_> {
    /// Surrounds `work`, which accesses the memory of the members `accessed`, with signals; `accessors` access this member's memory.
    pub(super) fn with_signals(
        &self,
        accessed: &[usize],
        accessors: &[usize],
        work: Vec<InstKind>,
    ) -> LoweredComm {
        let others = |members: &[usize]| -> Vec<usize> {
            members.iter().filter(|it| **it != self.me).map(|it| self.team[*it]).collect()
        };
        let (accessed, accessors) = (others(accessed), others(accessors));
        let (ready, done) = (SignalKind::TeamReady(self.team_no), SignalKind::TeamDone(self.team_no));
        let (me, index) = (self.team[self.me], self.index);
        let raise = |meaning| {
            move |to: &usize| InstKind::Signal {
                signal: SignalId { from: me, to: *to, kind: meaning, index },
            }
        };
        let expect = |meaning| {
            move |from: &usize| InstKind::WaitSignal {
                signal: SignalId { from: *from, to: me, kind: meaning, index },
            }
        };
        let mut posted: Vec<InstKind> = accessors.iter().map(raise(ready)).collect();
        posted.extend(accessed.iter().map(expect(ready)));
        posted.extend(work);
        posted.extend(accessed.iter().map(raise(done)));
        LoweredComm {
            at_post: posted,
            at_wait: accessors.iter().map(expect(done)).collect(),
            ..LoweredComm::default()
        }
    }

    /// All members.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.team.len()).collect()
    }
}
