//! The signals around what a member does to the memory of others:
//!
//! 1. a member tells those who touch its memory that they may (Ready),
//! 2. waits for those whose memory it touches to say so,
//! 3. reads and writes,
//! 4. tells them that it is done (Done);
//! 5. where the collective is waited for, it waits for those who touch its memory.

use super::{Call, Steps};
use crate::plan::{InstKind, Meaning, Slot};

impl Call<'_> {
    /// The protocol of a member that touches the memory of `touched` and whose memory `touching` touch; all count within the team.
    pub(super) fn exchange(&self, touched: &[usize], touching: &[usize], work: Vec<InstKind>) -> Steps {
        let others = |members: &[usize]| -> Vec<usize> {
            members.iter().filter(|it| **it != self.me).map(|it| self.team[*it]).collect()
        };
        let (touched, touching) = (others(touched), others(touching));
        let (ready, done) = (Meaning::TeamReady(self.group), Meaning::TeamDone(self.group));
        let (me, index) = (self.team[self.me], self.index);
        let raise =
            |meaning| move |to: &usize| InstKind::Signal { slot: Slot { from: me, to: *to, meaning, index } };
        let expect = |meaning| {
            move |from: &usize| InstKind::Await { slot: Slot { from: *from, to: me, meaning, index } }
        };
        let mut posted: Vec<InstKind> = touching.iter().map(raise(ready)).collect();
        posted.extend(touched.iter().map(expect(ready)));
        posted.extend(work);
        posted.extend(touched.iter().map(raise(done)));
        Steps { posted, waited: touching.iter().map(expect(done)).collect(), ..Steps::default() }
    }

    /// All members.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.team.len()).collect()
    }
}
