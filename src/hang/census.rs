//! The one rank that has made another number of calls than all others when they come to one collective.
//!
//! Ranks with one role make the same calls, so that their numbers of calls in groups of each kind are equal at each collective that they share. The numbers of
//! records count also calls that a ring buffer has overwritten, or a dump leaves out.

use rustc_hash::FxHashSet;

use crate::{
    departure::{Count, Departure, aligned_before},
    divergence::How,
    queues::{Call, Job, Lane, Queue},
    record::{Batch, GroupId, Rank, RankLog, Record},
};

/// The number of other ranks that show what is usual if no earlier collective does.
const MIN_OTHERS: usize = 3;

/// The number of last collectives of a group at which ranks are compared, and of their members.
const MAX_LAST: usize = 3;
const MAX_COMPARED: usize = 64;

/// Finds the rank, and explains what it leaves out or adds.
pub(crate) fn find(job: &Job<'_>) -> Option<Departure> {
    let mut found: Option<(Count, Vec<Call>)> = None;
    for queue in job.queues.iter().filter(|it| it.lanes.len() > 2) {
        let mut last: Vec<u32> = queue.lanes.iter().filter_map(|it| job.last_seq(it)).collect();
        last.sort_unstable_by(|a, b| b.cmp(a));
        last.dedup();
        for seq in last.into_iter().take(MAX_LAST) {
            let calls = calls_at(job, queue, seq);
            let kinds: FxHashSet<u32> = calls.iter().take(2).flat_map(|it| kinds(job, it.rank)).collect();
            let mut kinds: Vec<u32> = kinds.into_iter().collect();
            kinds.sort_unstable();
            for kind in kinds.into_iter().filter(|it| *it != job.kind_of_group(queue.group)) {
                let Some(one) = unlike(job, queue, (seq, &calls), kind) else { continue };
                match &found {
                    Some(it) if it.0.rank != one.0.rank => return None,
                    Some(_) => (),
                    None => found = Some(one),
                }
            }
        }
    }
    let (count, like) = found?;
    aligned_before(job, count, &like).or_else(|| {
        let by = count.own.abs_diff(count.usual) as u32;
        let how = if count.own < count.usual { How::Skipped(by) } else { How::Added(by) };
        let usual = *like.first()?;
        Some(Departure {
            call: count.at,
            usual,
            like: like.iter().map(|it| it.rank).collect(),
            how,
            count: Some(count),
        })
    })
}

fn calls_at(job: &Job<'_>, queue: &Queue, seq: u32) -> Vec<Call> {
    queue.lanes.iter().filter_map(|it| job.call_at(it, seq)).take(MAX_COMPARED).collect()
}

fn groups(job: &Job<'_>, rank: Rank) -> impl Iterator<Item = GroupId> {
    job.records.log(rank).into_iter().flat_map(|it| job.groups_of(it))
}

fn kinds(job: &Job<'_>, rank: Rank) -> impl Iterator<Item = u32> {
    groups(job, rank).map(|it| job.kind_of_group(it))
}

/// Compares the numbers of calls in groups of a kind, of the ranks that made a collective before it, and in all of those that have not come to it. Returns also the
/// calls of the others.
fn unlike(
    job: &Job<'_>,
    queue: &Queue,
    (seq, calls): (u32, &[Call]),
    kind: u32,
) -> Option<(Count, Vec<Call>)> {
    // Neighbours of a pipeline send and receive other numbers of messages.
    let of_kind = |rank: Rank| groups(job, rank).find(|it| job.kind_of_group(*it) == kind);
    let shared: Vec<GroupId> = calls.iter().filter_map(|it| of_kind(it.rank)).collect();
    let is_message = shared.iter().any(|it| has_messages(job, *it));
    if is_message && shared.iter().collect::<FxHashSet<_>>().len() < shared.len() {
        return None;
    }
    let counted = |it: &Call| Some((*it, made(job, it.rank, Some(it.at), kind)?));
    let counts: Vec<(Call, usize)> = calls.iter().filter_map(counted).collect();
    let usual =
        counts.iter().map(|it| it.1).max_by_key(|it| counts.iter().filter(|at| at.1 == *it).count())?;
    let (like, mut other): (Vec<_>, Vec<_>) = counts.iter().copied().partition(|it| it.1 == usual);
    // What a dump of active calls leaves out has completed.
    let has_come = |it: &Lane| {
        let only_active = job.records.log(it.rank).is_some_and(|it| it.only_active);
        job.last_seq(it).is_some_and(|last| last >= seq)
            || only_active && job.has_enqueued(it, queue.group, seq) != Some(false)
    };
    let absent = queue.lanes.iter().filter(|it| !has_come(it));
    other.extend(absent.take(MAX_COMPARED).filter_map(|it| {
        let last = job.records.log(it.rank)?.records.len().checked_sub(1)?;
        let own = made(job, it.rank, None, kind)?;
        (own > usual).then_some((Call { rank: it.rank, at: last as u32 }, own))
    }));
    let [(at, own)] = other.as_slice() else { return None };
    let like: Vec<Call> = like.into_iter().map(|it| it.0).collect();
    // One round before, all are alike.
    let before = queue.lanes.iter().filter(|it| !it.calls.is_empty()).map(|it| it.first).max()?;
    let earlier = (before..seq).find_map(|it| {
        let calls = calls_at(job, queue, it);
        let has = |rank: Rank| calls.iter().any(|it| it.rank == rank);
        (has(at.rank) && like.iter().all(|it| has(it.rank))).then_some(calls)
    });
    let numbers = |of: &[Call]| -> Option<Vec<usize>> {
        like.iter()
            .chain([at])
            .map(|it| {
                let call = of.iter().find(|call| call.rank == it.rank)?;
                made(job, it.rank, Some(call.at), kind)
            })
            .collect()
    };
    let earlier = earlier.and_then(|it| numbers(&it)).filter(|it| it.last() != Some(own) || it[0] != usual);
    let is_even = match earlier {
        Some(numbers) => like.len() > 1 && numbers.iter().all(|it| *it == numbers[0]),
        None => like.len() >= MIN_OTHERS,
    };
    let count = Count { rank: at.rank, kind: Some(kind), own: *own, usual, at: *at };
    is_even.then_some((count, like))
}

/// Returns the number of operations of a rank in groups of a kind, before a record or in all.
pub(crate) fn made(job: &Job<'_>, rank: Rank, before: Option<u32>, kind: u32) -> Option<usize> {
    let log = job.records.log(rank).filter(|it| !it.only_active || is_gapless(it))?;
    let at = before.map_or(log.records.len(), |it| it as usize);
    let number = |it: &Record| it.op.max(it.seq) as usize;
    let of_kind: Vec<GroupId> = groups(job, rank).filter(|it| job.kind_of_group(*it) == kind).collect();
    // A rank without such a group has another role.
    let mut sum = of_kind.first().map(|_| 0)?;
    for group in of_kind {
        let is_it = |it: &&Record| it.group == group;
        let last = log.records[..at].iter().rev().find(is_it);
        sum += match (last, log.records[at..].iter().find(is_it)) {
            (Some(last), _) => number(last),
            (None, Some(next)) if next.batch == Batch::Alone => number(next).checked_sub(1)?,
            (None, Some(_)) => return None,
            (None, None) if log.lost == 0 => 0,
            // The status has the number of the last collective or message.
            (None, None) if has_messages(job, group) => return None,
            (None, None) => usize::try_from(job.enqueued(rank, group)?).ok()?,
        };
    }
    Some(sum)
}

/// Whether a dump of active calls leaves out none behind its first one: what has completed is then before all that it holds.
fn is_gapless(log: &RankLog) -> bool {
    let is_next = |it: &[Record]| it[1].number == it[0].number + 1;
    log.records.first().is_some_and(|it| !it.done) && log.records.windows(2).all(is_next)
}

fn has_messages(job: &Job<'_>, group: GroupId) -> bool {
    let at = job.pairs.partition_point(|it| it.0.0 < group);
    job.pairs.get(at).is_some_and(|it| it.0.0 == group)
}
