//! What a rank calls next, by its earlier rounds.

use crate::{
    lane::{Lane, Token, is_whole, lane},
    queues::{Call, Job},
    record::Rank,
};

/// The number of calls before one that are compared with earlier rounds.
const MAX_CONTEXT: usize = 256;

/// The number of calls that are a long run.
pub(crate) const MIN_CONTEXT: usize = 12;

/// The number of calls that show how a rank goes on.
pub(crate) const MIN_OPEN: usize = 3;

/// Whether a call follows those before it on its rank as in earlier rounds, of which no record is lost.
pub(crate) fn is_habit(job: &Job<'_>, call: Call) -> bool {
    let record = job.record(call);
    let lane = lane(job, call.rank, job.is_autograd(record));
    let at = lane.calls.binary_search(&call).ok().filter(|it| *it > 0);
    let follows =
        |at: usize| earlier_round(job, &lane, at).is_some_and(|it| lane.tokens[it] == lane.tokens[at]);
    at.is_some_and(follows)
}

/// Whether the last call of a rank is one behind which it made another call in earlier rounds, the same one if it has not waited long: its program has not
/// ended.
pub(crate) fn is_amid(job: &Job<'_>, rank: Rank, has_waited: bool) -> bool {
    let lane = lane(job, rank, false);
    let Some((last, before)) = lane.tokens.split_last() else { return false };
    let end = lane.calls.len();
    has_waited && before.contains(last)
        || earlier(&lane.tokens, end, false).is_some()
        || always(job, &lane, end).is_some()
}

/// As `earlier`; where the begin of rounds is lost, in a round that has all calls of the log.
pub(crate) fn earlier_round(job: &Job<'_>, lane: &Lane, at: usize) -> Option<usize> {
    let tokens = &lane.tokens;
    let found = earlier(tokens, at, is_whole(job, lane.calls[0].rank)).or_else(|| always(job, lane, at))?;
    let has_all = || tokens[..found].iter().all(|it| tokens[found..at].contains(it));
    (is_whole(job, lane.calls[at].rank) || has_all()).then_some(found)
}

/// Returns what followed the calls before a position in earlier rounds: behind the longest run of calls that was made before.
pub(crate) fn predicted(tokens: &[Token], at: usize) -> Option<Token> {
    earlier(tokens, at, false).map(|it| tokens[it])
}

/// Returns where the call before a position was made last, if one call always followed it, twice at least. Without stacks, calls of several places
/// look alike.
fn always(job: &Job<'_>, lane: &Lane, at: usize) -> Option<usize> {
    let (tokens, before) = (&lane.tokens, at.checked_sub(1)?);
    if !job.records.log(lane.calls.first()?.rank)?.has_stacks {
        return None;
    }
    let mut after = (1..at).rev().filter(|it| tokens[it - 1] == tokens[before]);
    let (last, other) = (after.next()?, after.next()?);
    let is_same = |it: usize| tokens[it] == tokens[last];
    (is_same(other) && after.take(MAX_CONTEXT).all(is_same)).then_some(last)
}

/// Returns the position of the call that `predicted` returns. The begin of a whole log is one of a round.
fn earlier(tokens: &[Token], at: usize, is_whole: bool) -> Option<usize> {
    let last = tokens[..at].last()?;
    let runs = (1..at).filter(|it| tokens[it - 1] == *last).rev().take(MAX_CONTEXT).map(|end| {
        let pairs = tokens[..end].iter().rev().zip(tokens[..at].iter().rev());
        let length = pairs.take(MAX_CONTEXT).take_while(|(a, b)| a == b).count();
        (length + usize::from(is_whole && length == end), end)
    });
    let runs: Vec<(usize, usize)> = runs.collect();
    // A round at least, or a long run, of which half is enough from the begin of the first round.
    let least = |it: &(usize, usize)| if it.0 > it.1 { MIN_CONTEXT / 2 } else { MIN_CONTEXT };
    let is_round = |it: &&(usize, usize)| it.0 >= (at - it.1).min(least(it));
    // Of equal ones, the last. Behind a call that few rounds have, a shorter run that two of them share.
    let best = runs.iter().filter(is_round).rev().max_by_key(|it| it.0).or_else(|| {
        let longest = runs.iter().map(|it| it.0).max().filter(|it| *it > MIN_OPEN)?;
        let mut shared = runs.iter().filter(|it| it.0 == longest);
        shared.next().filter(|_| shared.next().is_some())
    })?;
    let is_one = runs.iter().filter(|it| it.0 >= best.0).all(|it| tokens[it.1] == tokens[best.1]);
    is_one.then_some(best.1)
}
