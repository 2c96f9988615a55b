//! Messages whose two ends do not fit: other sizes, or a peer that the same line does not have on other ranks.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    queues::{Call, Job},
    record::{GroupId, Kind, Rank, total},
    stall::{Place, Stall},
};

/// Whether a send and a receive cannot be one message.
pub(crate) fn differ(job: &Job<'_>, send: Call, receive: Call) -> bool {
    let signature = |it| job.records.signature(job.record(it).signature);
    let (send, receive) = (signature(send), signature(receive));
    let types = (send.element_type(), receive.element_type());
    send.elements() != receive.elements() || matches!(types, (Some(a), Some(b)) if a != b)
}

/// A send or receive that names another peer than the same line does on all other ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongPeer {
    pub(crate) call: Call,
    /// The rank that has a call with this rank, and no partner.
    pub(crate) expected: Rank,
    /// The distance of the peer in the group, on all other ranks.
    pub(crate) usual: i64,
    pub(crate) group: GroupId,
}

/// Returns the end of a message whose size or element type is not that of the other calls at its place of the program, if that of the other end
/// is.
pub(crate) fn usual_size(job: &Job<'_>, send: Call, receive: Call) -> Option<Rank> {
    let (one, two) = (alike(job, send), alike(job, receive));
    // Of several sizes at one place, such as those of buckets, one that is new is none of them.
    match (is_usual_size(job, send, one)?, is_usual_size(job, receive, two)?) {
        (true, false) => Some(receive.rank),
        (false, true) => Some(send.rank),
        _ if one.0 == 0 && two.0 > 1 => Some(send.rank),
        _ if two.0 == 0 && one.0 > 1 => Some(receive.rank),
        (true, true) | (false, false) => None,
    }
}

/// Returns the numbers of other calls of its kind at its place that have the size of a call, and another one.
fn alike(job: &Job<'_>, call: Call) -> (usize, usize) {
    let here = job.token(call);
    let (mut same, mut other) = (0, 0);
    for log in &job.records.ranks {
        for at in 0..log.records.len() as u32 {
            let it = Call { rank: log.rank, at };
            let token = job.token(it);
            let is_kind = job.records.signature(job.record(it).signature).kind
                == job.records.signature(job.record(call).signature).kind;
            if it != call && is_kind && token.1 == here.1 {
                if token.0 == here.0 { same += 1 } else { other += 1 }
            }
        }
    }
    (same, other)
}

fn is_usual_size(job: &Job<'_>, call: Call, (same, other): (usize, usize)) -> Option<bool> {
    // Without stacks, messages of several places are counted together: only a size that no other has is none of theirs.
    let has_stack = !job.records.stack(job.record(call).stack).frames.is_empty();
    (same + other > 0).then_some(if has_stack { same > other } else { same > 0 })
}

/// The number of calls without partner that are compared with the calls of other ranks.
const MAX_ORPHANS: usize = 32;

/// Finds a rank that sends to or receives from another rank than the same line does on all others, if that explains two calls without partner.
pub(crate) fn wrong_peer(job: &Job<'_>, stalls: &[Stall]) -> Option<WrongPeer> {
    let mut orphans: Vec<(Call, Rank, GroupId)> = stalls
        .iter()
        .filter(|it| matches!(it.place, Place::Pair { .. }) && it.blocked_by.is_none())
        .filter_map(|it| Some((*it.waiting.first()?, *it.absent.first()?, it.group(job))))
        .collect();
    orphans.sort_by_key(|it| job.record(it.0).created);
    for (call, peer, group) in orphans.iter().take(MAX_ORPHANS) {
        let kind = job.records.signature(job.record(*call).signature).kind;
        let usual = usual_offset(job, *call, *group)?;
        // The rank that has a call with this rank, of the other kind, and without partner.
        let other = orphans.iter().find(|(it, to, of)| {
            let signature = job.records.signature(job.record(*it).signature);
            of == group
                && *to == call.rank
                && it.rank != *peer
                && signature.kind != kind
                && !differ(job, *call, *it)
        });
        let Some((other, ..)) = other else { continue };
        if let Some(usual) = usual.filter(|it| offset(job, *group, call.rank, other.rank) == Some(*it)) {
            return Some(WrongPeer { call: *call, expected: other.rank, usual, group: *group });
        }
    }
    None
}

/// Returns the position of a peer in a group relative to a rank.
pub(crate) fn offset(job: &Job<'_>, group: GroupId, rank: Rank, peer: Rank) -> Option<i64> {
    let members = &job.queue(group)?.members;
    let place = |rank: Rank| members.iter().position(|it| *it == rank).map(|it| it as i64);
    Some((place(peer)? - place(rank)?).rem_euclid(members.len() as i64))
}

/// Returns the offset that all other ranks use in the calls with the stack of this one, if this call uses another one. Without stacks, calls of several
/// places look alike, so that the rank must never use the offset of the others. `None` if nothing can be said for any call.
fn usual_offset(job: &Job<'_>, call: Call, group: GroupId) -> Option<Option<i64>> {
    let record = job.record(call);
    let kind = job.records.signature(record.signature).kind;
    let has_stack = !job.records.stack(record.stack).frames.is_empty();
    let (mut own, mut others): (FxHashSet<i64>, FxHashMap<i64, FxHashSet<Rank>>) = Default::default();
    for ((of, from, to), pair) in &job.pairs {
        if *of != group {
            continue;
        }
        let (rank, peer, calls) =
            if kind == Kind::Send { (*from, *to, &pair.sends) } else { (*to, *from, &pair.receives) };
        let is_like = |at: &u32| {
            let it = Call { rank, at: *at };
            job.record(it).stack == record.stack && (rank != call.rank || !has_stack || it == call)
        };
        if !calls.iter().any(is_like) {
            continue;
        }
        let by = offset(job, group, rank, peer)?;
        if rank == call.rank {
            own.insert(by);
        } else {
            others.entry(by).or_default().insert(rank);
        }
    }
    let usual = others.iter().next().filter(|it| others.len() == 1 && it.1.len() > 1).map(|it| *it.0);
    Some(usual.filter(|it| !own.contains(it)))
}

/// Returns the members whose part differs from that of most, if an all-to-all cannot be right: the inputs of all members have another number of elements
/// than the outputs.
pub(crate) fn uneven(job: &Job<'_>, queue: usize, seq: u32) -> Option<Vec<Call>> {
    let queue = &job.queues[queue];
    let calls: Option<Vec<Call>> = queue.lanes.iter().map(|it| job.call_at(it, seq)).collect();
    let calls = calls.filter(|it| it.len() == queue.members.len())?;
    let elements = |call: &Call| {
        let signature = job.records.signature(job.record(*call).signature);
        (signature.kind == Kind::AllToAll).then(|| (total(&signature.inputs), total(&signature.outputs)))
    };
    let sizes: Option<Vec<(i64, i64)>> = calls.iter().map(elements).collect();
    let sizes = sizes?;
    let sum = |of: fn(&(i64, i64)) -> i64| sizes.iter().map(of).fold(0, i64::saturating_add);
    if sum(|it| it.0) == sum(|it| it.1) {
        return unusual_splits(job, &calls);
    }
    // Those whose own sizes are not those of most.
    let mut counts: FxHashMap<(i64, i64), usize> = FxHashMap::default();
    sizes.iter().for_each(|it| *counts.entry(*it).or_insert(0) += 1);
    let usual = counts.iter().find(|it| *it.1 * 2 > sizes.len()).map(|it| *it.0);
    let deviating = calls.into_iter().zip(sizes).filter(|it| usual.is_some_and(|usual| it.1 != usual));
    Some(deviating.map(|it| it.0).collect())
}

/// Returns the one member whose all-to-all has another shape than those of all others, if none of them had another one at this place before.
fn unusual_splits(job: &Job<'_>, calls: &[Call]) -> Option<Vec<Call>> {
    let shape = |it: Call| &job.records.signature(job.record(it).signature).inputs;
    let mut counts: FxHashMap<_, Vec<Call>> = FxHashMap::default();
    calls.iter().for_each(|it| counts.entry(shape(*it)).or_default().push(*it));
    let mut sides: Vec<(_, Vec<Call>)> = counts.into_iter().collect();
    sides.sort_by_key(|it| it.1.len());
    let [small, large] = sides.as_slice() else { return None };
    let is_like =
        |a: Call, b: Call| job.token(a) == job.token(b) && job.record(a).group == job.record(b).group;
    let earlier = |call: &Call| {
        let before = (0..call.at).map(|at| Call { at, ..*call });
        before.filter(|it| is_like(*it, *call)).map(shape).collect::<Vec<_>>()
    };
    let is_usual = |usual| calls.iter().all(|it| earlier(it).iter().all(|it| it == usual));
    let pairs = [(small, large), (large, small)];
    let mut found = pairs.iter().filter(|(one, usual)| {
        // Splits may differ for the first time.
        one.1.len() == 1 && !earlier(&one.1[0]).is_empty() && is_usual(&usual.0)
    });
    found.next().filter(|_| found.next().is_none()).map(|it| it.0.1.clone())
}
