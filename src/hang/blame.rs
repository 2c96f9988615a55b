//! Which of the ranks that wait for each other, or miss a message, diverged: only if the records decide it.
//!
//! Programs of one source make the same calls on all ranks. What a rank has called less often than the others when they come to one collective, it
//! has left out; an order that no other rank and no earlier round has is its own.

use rustc_hash::FxHashMap;

use crate::{
    agreement::Key,
    census,
    graph::Edge,
    peers::offset,
    queues::{Call, Job},
    record::{GroupId, Kind, Peer, Rank, Record},
    stall::{Place, Stall},
};

/// Why a rank of a cycle is said to be the one that diverged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// It has made this call less often, or more often, than the others that came to the same collective: its number, and theirs.
    Count { call: Call, own: usize, usual: usize, at: Call },
    /// It has made fewer, or more, collectives in groups of this description than the others that came to the same collective.
    Total { call: Call, own: usize, usual: usize, at: Call },
    /// The other ranks make another call after the same one before it.
    History,
    /// In the round before, all ranks of the cycle used its two groups in the other order.
    Order,
    /// The other ranks wait together.
    Alone,
}

/// Finds the rank of a cycle that diverged.
pub(crate) fn deviant_of_cycle(job: &Job<'_>, stalls: &[Stall], edges: &[Edge]) -> Option<(Rank, Reason)> {
    let call = |edge: &Edge| stalls[edge.stall].waiting.iter().find(|it| it.rank == edge.from).copied();
    let calls: Vec<Call> = edges.iter().filter_map(call).collect();
    if calls.len() != edges.len() {
        return None;
    }
    // Both send, or both receive: no order of theirs is the usual one.
    let kind = |it: &Call| job.records.signature(job.record(*it).signature).kind;
    if calls.iter().all(|it| kind(it) == Kind::Send) || calls.iter().all(|it| kind(it) == Kind::Recv) {
        return None;
    }
    let counted: Vec<(Rank, Reason)> = edges
        .iter()
        .zip(&calls)
        .filter_map(|(edge, call)| {
            let theirs = calls.iter().find(|it| it.rank == edge.to)?;
            left_out(job, *call, edge.to, *theirs)
        })
        .collect();
    if let Some(first) = counted.first().filter(|first| counted.iter().all(|it| it.0 == first.0)) {
        return Some(*first);
    }
    if let Some(rank) = in_another_group(job, stalls, edges, &calls) {
        return Some((rank, Reason::Alone));
    }
    // What follows what cannot be told from parts of the logs.
    if calls.len() > MAX_EDGES || job.records.ranks.iter().any(|it| it.lost > 0) {
        return None;
    }
    let is_usual: Vec<bool> = calls.iter().map(|it| is_usual(job, *it)).collect();
    let mut unusual = calls.iter().zip(&is_usual).filter(|it| !it.1);
    if let (Some((call, _)), None) = (unusual.next(), unusual.next()) {
        return leaves_its_place(job, *call, &calls).then_some((call.rank, Reason::History));
    }
    if let Some(rank) = out_of_order(job, &calls) {
        return Some((rank, Reason::Order));
    }
    // A message without partner may be wrong on either side.
    if edges.iter().any(|it| matches!(stalls[it.stall].place, Place::Pair { .. })) {
        return None;
    }
    let waiters = |edge: &Edge| stalls[edge.stall].waiting.len() + stalls[edge.stall].behind.len();
    let largest = edges.iter().map(waiters).max().unwrap_or(0);
    // In a small group, few ranks can wait.
    let members = |it: &&Edge| job.queue(stalls[it.stall].group(job)).map_or(0, |it| it.members.len());
    let mut small = edges.iter().filter(|it| waiters(it) * 2 < largest && members(it) > largest);
    match (small.next(), small.next()) {
        (Some(edge), None) if edges.len() == 2 => Some((edge.from, Reason::Alone)),
        _ => None,
    }
}

/// Returns the rank that makes, at one place of the program, the call of most of the others in another group.
fn in_another_group(job: &Job<'_>, stalls: &[Stall], edges: &[Edge], calls: &[Call]) -> Option<Rank> {
    let [one, two] = calls else { return None };
    let has_stack = !job.records.stack(job.record(*one).stack).frames.is_empty();
    let is_same = job.token(*one) == job.token(*two) && job.record(*one).group != job.record(*two).group;
    let waiting = |edge: &Edge| stalls[edge.stall].ranks().count();
    let members = |edge: &Edge| job.queue(stalls[edge.stall].group(job)).map_or(0, |it| it.members.len());
    let is_most = |edge: &Edge| waiting(edge) > 1 && waiting(edge) * 2 > members(edge);
    let mut alone = edges.iter().filter(|it| waiting(it) == 1 && edges.iter().any(is_most));
    alone.next().map(|it| it.from).filter(|_| has_stack && is_same)
}

/// The number of calls of a cycle that are looked for elsewhere in the records.
const MAX_EDGES: usize = 16;

/// The number of ranks with which a rank is compared.
const MAX_COMPARED: usize = 64;

/// Compares how often ranks have made a call when they came to another one: rank `missing` came to `later` without its part of `call`, which
/// another rank waits in. Returns the rank whose number is not that of most of the others.
pub(crate) fn left_out(job: &Job<'_>, call: Call, missing: Rank, later: Call) -> Option<(Rank, Reason)> {
    if later.rank != missing {
        return None;
    }
    // Those of one place that are lost cannot be counted.
    let is_whole = job.records.ranks.iter().all(|it| it.lost == 0);
    let by_place = is_whole.then(|| by_place(job, call, missing, later)).flatten();
    by_place.or_else(|| by_group(job, call, missing, later))
}

/// As `left_out`, for the calls at one place of the program.
fn by_place(job: &Job<'_>, call: Call, missing: Rank, later: Call) -> Option<(Rank, Reason)> {
    let others = others_at(job, later, [call.rank, missing])?;
    let partner = partner_of(job, call, missing)?;
    // Ranks with other parts of the program, such as the first stage of a pipeline, make other numbers of calls.
    let before = earlier_at(job, later)?;
    let others_before = others_at(job, before, [call.rank, missing])?;
    let is_alike = |like: Call, rank: Rank| {
        let at = if rank == missing { Some(before) } else { part_of(job, before, rank) };
        let usual = usual_count(job, like, &others_before);
        usual.is_some_and(|usual| at.is_some_and(|it| count(job, like, it) == usual))
    };
    let own = count(job, partner, later);
    if let Some(usual) =
        usual_count(job, partner, &others).filter(|it| own < *it && is_alike(partner, missing))
    {
        return Some((missing, Reason::Count { call: partner, own, usual, at: later }));
    }
    // A member that waits in one call too many has not come to the collective. It may have passed its own message.
    let record = job.record(later);
    if !record.is_collective() || job.queue(record.group)?.lane(call.rank).is_none() {
        return None;
    }
    let own = count(job, call, call) + 1;
    let usual = usual_count(job, call, &others).filter(|it| own > *it && is_alike(call, call.rank))?;
    Some((call.rank, Reason::Count { call, own, usual, at: later }))
}

/// As `left_out`, for all collectives in groups of the description of the call: one too many at another place shifts those behind it. Their sequence numbers count
/// also those whose records are lost.
fn by_group(job: &Job<'_>, call: Call, missing: Rank, later: Call) -> Option<(Rank, Reason)> {
    let (record, other) = (job.record(call), job.record(later));
    job.records.group(record.group).own_description()?;
    let kind = job.kind_of_group(record.group);
    if !record.is_collective() || !other.is_collective() || record.group == other.group {
        return None;
    }
    let total = |before: Call| made_before(job, kind, before);
    let others = others_at(job, later, [call.rank, missing])?;
    let usual = common(job, kind, &others)?;
    // So did all ranks one round before, or many do now.
    match earlier_at(job, later) {
        Some(before) => {
            let mut all = others_at(job, before, [missing; 2])?;
            all.push(before);
            if !all.iter().any(|it| it.rank == call.rank) {
                return None;
            }
            common(job, kind, &all)?;
        }
        None if others.len() < MIN_OTHERS => return None,
        None => (),
    }
    let own = total(later)?;
    if own < usual {
        return Some((missing, Reason::Total { call, own, usual, at: later }));
    }
    let own_of_call = total(call)? + 1;
    (own == usual && own_of_call > usual)
        .then_some((call.rank, Reason::Total { call, own: own_of_call, usual, at: later }))
}

/// The number of other ranks that show alone how many calls are usual.
const MIN_OTHERS: usize = 3;

/// Returns the number of operations that a rank has made in groups of a kind before a call.
fn made_before(job: &Job<'_>, kind: u32, before: Call) -> Option<usize> {
    census::made(job, before.rank, Some(before.at), kind)
}

/// Returns the number of operations that ranks have made in groups of a kind before calls, if it is the same for two at least, and not 0.
fn common(job: &Job<'_>, kind: u32, calls: &[Call]) -> Option<usize> {
    let mut all = calls.iter().map(|it| made_before(job, kind, *it));
    let first = all.next()??;
    (calls.len() > 1 && first > 0 && all.all(|it| it == Some(first))).then_some(first)
}

/// Of two ranks whose calls in groups of two kinds have different orders, returns the one that came to the first of the two with another number of calls of the
/// other kind than all others.
pub(crate) fn unlike_others(job: &Job<'_>, at: [Call; 2], kind: Call) -> Option<Rank> {
    let group = job.record(kind).group;
    job.records.group(group).own_description()?;
    let kind = job.kind_of_group(group);
    let others = others_at(job, at[0], at.map(|it| it.rank))?;
    let usual = common(job, kind, &others).filter(|_| others.len() >= MIN_OTHERS)?;
    let [one, two] = at.map(|it| made_before(job, kind, it).map(|it| it == usual));
    match (one?, two?) {
        (true, false) => Some(at[1].rank),
        (false, true) => Some(at[0].rank),
        (true, true) | (false, false) => None,
    }
}

/// Returns the calls of a rank.
fn calls(job: &Job<'_>, rank: Rank) -> impl Iterator<Item = Call> {
    let count = job.records.log(rank).map_or(0, |it| it.records.len() as u32);
    (0..count).map(move |at| Call { rank, at })
}

/// What two calls of one group have in common if they are at one place of the program: what they do, the place, and the neighbour.
fn role(job: &Job<'_>, call: Call) -> ((Key, u32), GroupId, Option<i64>) {
    (job.token(call), job.record(call).group, peer_offset(job, call))
}

/// As `role`, for calls in groups of one description.
fn role_in_any_group<'j>(job: &'j Job<'_>, call: Call) -> ((Key, u32), &'j str, Option<i64>) {
    let group = job.records.group(job.record(call).group);
    (job.token(call), &group.description, peer_offset(job, call))
}

/// Returns the call of a rank that was at the place of a call one time earlier.
fn earlier_at(job: &Job<'_>, later: Call) -> Option<Call> {
    (0..later.at).rev().map(|at| Call { at, ..later }).find(|it| role(job, *it) == role(job, later))
}

/// Returns the call of another rank at the place of a call.
fn part_of(job: &Job<'_>, call: Call, rank: Rank) -> Option<Call> {
    others_at(job, call, [call.rank; 2])?.into_iter().find(|it| it.rank == rank)
}

/// Returns the calls of other ranks in the group that are at the place of a call: of a collective their parts, of the nth message to or from
/// the neighbour at some distance their nth one.
fn others_at(job: &Job<'_>, later: Call, without: [Rank; 2]) -> Option<Vec<Call>> {
    let record = job.record(later);
    let lanes = job.queue(record.group)?.lanes.iter().filter(|it| !without.contains(&it.rank));
    if record.is_collective() {
        return Some(lanes.filter_map(|it| job.call_at(it, record.seq)).take(MAX_COMPARED).collect());
    }
    let calls = |rank: Rank| calls(job, rank).filter(|it| role(job, *it) == role(job, later));
    let number = calls(later.rank).take_while(|it| it.at < later.at).count();
    Some(lanes.take(MAX_COMPARED).filter_map(|it| calls(it.rank).nth(number)).collect())
}

/// Returns a call like the one that a rank did not make: of a collective the call itself; of a message a call of the other kind, by the rank
/// itself if there is one.
fn partner_of(job: &Job<'_>, call: Call, missing: Rank) -> Option<Call> {
    let record = job.record(call);
    if record.peer == Peer::None {
        return Some(call);
    }
    let is_send = job.records.signature(record.signature).kind == Kind::Send;
    let others = job.pairs.iter().filter(|it| it.0.0 == record.group).filter_map(|((_, from, to), pair)| {
        let (rank, calls) = if is_send { (*to, &pair.receives) } else { (*from, &pair.sends) };
        Some(Call { rank, at: *calls.first()? })
    });
    others.min_by_key(|it| it.rank != missing)
}

/// Counts the calls of a rank before one of its calls that are like another call: of the same kind, at the same place of the program, in a group
/// of the same description.
fn count(job: &Job<'_>, like: Call, before: Call) -> usize {
    let kind = |call: Call| {
        let record = job.record(call);
        let group = &job.records.group(record.group).description;
        (job.records.signature(record.signature).kind, job.token(call).1, group)
    };
    let wanted = kind(like);
    (0..before.at).filter(|at| kind(Call { rank: before.rank, at: *at }) == wanted).count()
}

/// Returns the number of more than half of the others, if it is not 0.
fn usual_count(job: &Job<'_>, like: Call, others: &[Call]) -> Option<usize> {
    let mut counts: FxHashMap<usize, usize> = FxHashMap::default();
    others.iter().for_each(|it| *counts.entry(count(job, like, *it)).or_insert(0) += 1);
    let (usual, ranks) = counts.into_iter().max_by_key(|it| it.1)?;
    (ranks * 2 > others.len() && usual > 0).then_some(usual)
}

/// Whether another call of the records, at an earlier position or on another rank, is of the same kind and follows one of the same kind.
fn is_usual(job: &Job<'_>, call: Call) -> bool {
    let Some(before) = job.before(call) else { return false };
    let role = |call: Call| role_in_any_group(job, call);
    let (first, second) = (role(before), role(call));
    job.records.ranks.iter().any(|log| {
        let calls = |at: usize| Call { rank: log.rank, at: at as u32 };
        (1..log.records.len()).any(|at| {
            calls(at) != call
                && log.records[at].stack == job.record(call).stack
                && role(calls(at)) == second
                && role(calls(at - 1)) == first
        })
    })
}

/// Whether a rank leaves its place: after its nth call like the one before this one, the other ranks make another call. Before, it did as they do; ranks may have
/// parts of the program for themselves, so that what others make says nothing.
fn leaves_its_place(job: &Job<'_>, call: Call, cycle: &[Call]) -> bool {
    let role = |call: Call| role_in_any_group(job, call);
    // Neighbours may send and receive in other orders.
    let is_collective = |it: &Call| job.record(*it).is_collective();
    let Some(before) = job.before(call).filter(|it| is_collective(it) && is_collective(&call)).map(role)
    else {
        return false;
    };
    let earlier = calls(job, call.rank).take_while(|it| it.at < call.at);
    let number = earlier.filter(|it| role(*it) == before).count();
    // What a rank makes after its nth call like the one before.
    let after = |rank: Rank, nth: usize| {
        let at = calls(job, rank).filter(|it| role(*it) == before).nth(nth)?.at + 1;
        calls(job, rank).nth(at as usize).map(role)
    };
    let Some(previous) = number.checked_sub(2) else { return false };
    let own = after(call.rank, previous);
    let others = job.records.ranks.iter().map(|it| it.rank);
    let others = others.filter(|rank| cycle.iter().all(|it| it.rank != *rank)).take(MAX_COMPARED);
    let theirs: Vec<_> =
        others.filter_map(|rank| Some((after(rank, previous)?, after(rank, previous + 1)?))).collect();
    theirs.len() > 1 && theirs.iter().all(|it| Some(it.0) == own && it.1 == theirs[0].1 && it.1 != role(call))
}

/// Returns the position of the peer of a message in its group, relative to the rank.
fn peer_offset(job: &Job<'_>, call: Call) -> Option<i64> {
    let record = job.record(call);
    match record.peer {
        Peer::Rank(peer) => offset(job, record.group, call.rank, peer),
        Peer::None | Peer::Any => None,
    }
}

/// Finds the one waiting rank that departs from the order of its own earlier calls: what it calls now never followed the call before it, and another call
/// did so at least twice. Returns also that other call.
pub(crate) fn departs(job: &Job<'_>, stalls: &[Stall]) -> Option<(Call, Call)> {
    let role = |call: Call| {
        let record = job.record(call);
        (record.signature, record.group, peer_offset(job, call))
    };
    let departure = |call: Call| {
        let before = role(job.before(call)?);
        let earlier = (1..call.at).filter(|at| role(Call { rank: call.rank, at: at - 1 }) == before);
        let after: Vec<Call> = earlier.map(|at| Call { rank: call.rank, at }).collect();
        let usual = *after.first()?;
        let is_habit = after.len() > 1 && after.iter().all(|it| role(*it) == role(usual));
        (is_habit && role(call) != role(usual)).then_some((call, usual))
    };
    let mut found =
        stalls.iter().flat_map(|it| it.waiting.iter().copied()).take(MAX_DEPARTURES).filter_map(departure);
    match (found.next(), found.next()) {
        (Some(one), None) => Some(one),
        _ => None,
    }
}

/// The number of waiting calls that are looked at.
const MAX_DEPARTURES: usize = 64;

/// For a cycle of two ranks over two groups: returns the rank that uses the groups in another order than both did before.
fn out_of_order(job: &Job<'_>, calls: &[Call]) -> Option<Rank> {
    let [a, b] = calls else { return None };
    let (one, two) = (job.record(*a), job.record(*b));
    if one.group == two.group || one.peer != Peer::None || two.peer != Peer::None {
        return None;
    }
    // The position of the call before in each group, on each rank.
    let before = |rank: Rank, group: GroupId, seq: u32| {
        Some(job.call_at(job.queue(group)?.lane(rank)?, seq.checked_sub(1)?)?.at)
    };
    let first_is_one = |rank| Some(before(rank, one.group, one.seq)? < before(rank, two.group, two.seq)?);
    // With several calls of a group in a round, the last ones of the two groups may be of different rounds.
    let alternates = |rank: Rank| {
        let calls = |group: GroupId, seq: u32| {
            let calls = job.queue(group).and_then(|it| it.lane(rank)).into_iter().flat_map(|it| &it.calls);
            calls
                .copied()
                .filter(move |at| job.record(Call { rank, at: *at }).seq < seq)
                .map(move |at| (at, group))
        };
        let mut all: Vec<(u32, GroupId)> =
            calls(one.group, one.seq).chain(calls(two.group, two.seq)).collect();
        all.sort_unstable();
        all.windows(2).all(|it| it[0].1 != it[1].1)
    };
    if !alternates(a.rank) || !alternates(b.rank) {
        return None;
    }
    let changed = match (first_is_one(a.rank)?, first_is_one(b.rank)?) {
        // Both used the group of `a` first: `b` has changed the order.
        (true, true) => *b,
        (false, false) => *a,
        _ => return None,
    };
    // Another rank that uses such groups in the same order shows that it is the usual one.
    let kinds = [one.group, two.group].map(|it| &job.records.group(it).description);
    let uses = |rank: Rank| {
        let records = job.records.log(rank).into_iter().flat_map(|it| &it.records).enumerate();
        let kind = |it: &Record| &job.records.group(it.group).description;
        records.map(move |(at, it)| (at, kind(it))).filter(|it| kinds.contains(&it.1))
    };
    let own = || uses(changed.rank).take_while(|it| it.0 <= changed.at as usize).map(|it| it.1);
    let others = job.records.ranks.iter().map(|it| it.rank).filter(|it| ![a.rank, b.rank].contains(it));
    let is_usual = others.take(MAX_COMPARED).any(|rank| {
        let mut theirs = uses(rank).map(|it| it.1);
        own().all(|it| theirs.next() == Some(it))
    });
    (!is_usual).then_some(changed.rank)
}
