//! One Synchronize for each of several streams. Iterations of a loop may wait for their communications on streams of their own: a
//! Synchronize with one of these streams leaves the race with the communication of another iteration, which is the same finding.

use hir_ir::edit::Edits;

use super::{FixSession, Fixed, Round, fix_extent};
use crate::{
    conflict::Race, explanation::RaceExplanation, race_side::RaceSide, repair::WaitedStream,
    repair_help::other_awaited_streams,
};

/// The maximum number of streams.
const MAX_STREAMS: usize = 16;

impl FixSession<'_> {
    /// Returns the text in which a stream waits for all streams that the help of a race names, if it names several.
    pub(super) fn fix_with_each_stream(&self, round: &mut Round<'_>, race: &Race) -> Option<Fixed> {
        let state = round.state;
        let [first, second] = RaceSide::in_issue_order(&state.plans, race);
        let help = RaceExplanation::of(race, &first, &second, &round.indexes);
        let [edit] = help.edits.as_slice() else { return None };
        let plan = if help.is_in_second { second.plan } else { first.plan };
        let Some(WaitedStream::Index { index, .. }) = edit.awaited_stream() else { return None };
        let mut streams =
            other_awaited_streams(plan, round.indexes.with_queues(race.p2p).of(plan.rank), edit);
        if streams.is_empty() || streams.len() >= MAX_STREAMS {
            return None;
        }
        streams.insert(*index);
        let (placed, _) = state.text.applications(edit).into_iter().next()?;
        let mut applied = Edits::default();
        for index in streams {
            if !applied.add(state.text.apply(&placed.with_stream(index)?)?.list()) {
                return None;
            }
        }
        fix_extent(state, &state.key(race), &placed, self.attempt(round, &applied)?)?;
        self.accept(round, &applied)
    }
}
