//! The first cause of a hang.
//!
//! What does not proceed waits for other ranks, which wait in turn. The cause is where this ends: calls that cannot be one communication, a rank that went
//! past a call, ranks that wait for each other, a rank without a dump, or one that waits for nothing. Of several, the one that happened
//! first is reported; what only waits for it is not a cause. Faults of the program come before ranks that are gone or late, since
//! a rank may be gone or late because of them.
//!
//! Invariant: a rank is named as the one at fault only for a reason that the report gives (`Basis`, or what the call itself shows).

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    divergence::{self, Basis, Divergence},
    graph::{Edge, Graph},
    queues::{Call, Job},
    record::{GroupId, Kind, Peer, Rank},
    site::program_frame,
    stall::{Place, Stall, stalls},
};

/// Why a job does not proceed.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Ranks have different members for a group of the same name.
    Membership { variants: Vec<GroupId>, waiting: Vec<Call> },
    /// The members of a group do not make the same call.
    Diverged(Divergence),
    /// The members of an all-to-all pass more or fewer elements than they expect in total.
    Uneven { queue: usize, seq: u32, odd: Vec<Call> },
    /// A send and its receive have different sizes or element types.
    Message { send: Call, receive: Call },
    /// A rank names the wrong peer.
    WrongPeer { call: Call, expected: Rank, usual: i64 },
    /// A rank made a later call without this one.
    Passed { stall: usize, ranks: Vec<Rank>, later: Call },
    /// Ranks wait for each other.
    Cycle { edges: Vec<Edge>, deviant: Option<(Rank, Reason)> },
    /// A rank has no dump.
    Missing { stall: usize, ranks: Vec<Rank> },
    /// The ring buffer has lost the records that would show it.
    Lost { stall: usize },
    /// A rank has issued nothing else.
    Late { stall: usize, ranks: Vec<Rank> },
    /// Ranks issue collectives of two groups in different orders, and none of the two proceeds.
    Crossed { one: Call, two: Call, other: Rank },
    /// All ranks have made the call, and what the records hold agrees.
    Unknown { stall: usize },
}

/// Why a rank of a cycle is said to be the one that diverged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The others make this call after the same one before it.
    History,
    /// In the round before, all ranks of the cycle used its two groups in the other order.
    Order,
    /// The other ranks wait together.
    Alone,
}

/// What was found, with what the explanation needs.
pub(crate) struct Analysis {
    pub(crate) stalls: Vec<Stall>,
    /// The first cause first.
    pub(crate) causes: Vec<Cause>,
    /// Calls that were paired although they differ, in groups that proceed.
    pub(crate) completed: Vec<Divergence>,
}

/// Finds the causes of what does not proceed.
pub(crate) fn analyse(job: &Job<'_>) -> Analysis {
    let stalls = stalls(job);
    let mut completed = Vec::new();
    let mut strong: Vec<(i64, Cause)> = Vec::new();
    let mut weak = Vec::new();
    let mut open = vec![true; stalls.len()];
    if stalls.is_empty() {
        completed.extend(
            (0..job.queues.len()).filter_map(|at| divergence::find(job, at)).filter(|it| is_kind(job, it)),
        );
        return Analysis { stalls, causes: Vec::new(), completed };
    }
    for (at, stall) in stalls.iter().enumerate() {
        match stall.place {
            Place::Collective { queue, seq } => {
                let diverged = divergence::find(job, queue);
                if let Some(found) = diverged.filter(|it| it.seq <= seq || it.is_before_records) {
                    open[at] = false;
                    if found.is_before_records && found.basis == Basis::Undecided {
                        weak.push((2, stall.since(job), Cause::Lost { stall: at }));
                    } else {
                        strong.push((first_time(job, &found), Cause::Diverged(found)));
                    }
                } else if let Some(odd) = uneven(job, queue, seq).filter(|_| stall.absent.is_empty()) {
                    open[at] = false;
                    strong.push((stall.since(job), Cause::Uneven { queue, seq, odd }));
                } else if stall.absent.is_empty() {
                    open[at] = false;
                    let is_lost = may_have_lost(job, at, &stalls);
                    let cause =
                        if is_lost { Cause::Lost { stall: at } } else { Cause::Unknown { stall: at } };
                    weak.push((if is_lost { 2 } else { 4 }, stall.since(job), cause));
                }
            }
            Place::AnySource { .. } => {
                open[at] = false;
                weak.push((3, stall.since(job), Cause::Unknown { stall: at }));
            }
            Place::Pair { pair, send, receive } => {
                let pair = &job.pairs[pair];
                let ends = (pair.1.sends.get(send), pair.1.receives.get(receive));
                if let (Some(send), Some(receive)) = ends {
                    let (send, receive) =
                        (Call { rank: pair.0.1, at: *send }, Call { rank: pair.0.2, at: *receive });
                    if differ(job, send, receive) {
                        open[at] = false;
                        strong.push((stall.since(job), Cause::Message { send, receive }));
                    } else if stall.absent.is_empty() {
                        open[at] = false;
                        weak.push((4, stall.since(job), Cause::Unknown { stall: at }));
                    }
                }
            }
        }
    }
    for (at, stall) in stalls.iter().enumerate().filter(|it| it.1.blocked_by.is_none()) {
        if !open[at] {
            continue;
        }
        if let Some((ranks, later)) = passed(job, stall) {
            open[at] = false;
            strong.push((stall.since(job), Cause::Passed { stall: at, ranks, later }));
        }
    }
    strong.extend(crossed(job, &stalls));
    let graph = Graph::new(&stalls, open.clone());
    for edges in graph.cycles(|at| stalls[at].since(job)) {
        let since = edges.iter().map(|it| stalls[it.stall].since(job)).max().unwrap_or(0);
        let deviant = deviant_of_cycle(job, &stalls, &edges);
        strong.push((since, Cause::Cycle { edges, deviant }));
    }
    let wrong = wrong_peer(job, &stalls);
    strong.sort_by_key(|it| it.0);
    let mut causes: Vec<Cause> = membership(job, &stalls).into_iter().collect();
    if let Some((cause, group)) = wrong {
        // It is what the cycles and orphans of its group are about.
        let is_about = |it: &Cause| match it {
            Cause::Cycle { edges, .. } => edges.iter().any(|it| stalls[it.stall].group(job) == group),
            Cause::Passed { stall, .. } => stalls[*stall].group(job) == group,
            _ => false,
        };
        if strong.first().is_none_or(|it| is_about(&it.1)) {
            strong.retain(|it| !is_about(&it.1));
            causes.push(cause);
        }
    }
    causes.extend(strong.into_iter().map(|it| it.1));
    for (at, stall) in stalls.iter().enumerate().filter(|(at, _)| open[*at]) {
        let (missing, present): (Vec<Rank>, Vec<Rank>) =
            stall.absent.iter().partition(|it| !job.has_dump(**it));
        let idle: Vec<Rank> = present.into_iter().filter(|it| graph.stalls_of(*it).is_empty()).collect();
        if !missing.is_empty() {
            weak.push((1, stall.since(job), Cause::Missing { stall: at, ranks: missing }));
        } else if !idle.is_empty() {
            weak.push((3, stall.since(job), Cause::Late { stall: at, ranks: idle }));
        }
    }
    weak.sort_by_key(|it| (it.0, it.1));
    causes.extend(weak.into_iter().map(|it| it.2));
    Analysis { stalls, causes, completed }
}

fn is_kind(job: &Job<'_>, found: &Divergence) -> bool {
    let kind = |it: &Call| job.records.signature(job.record(*it).signature).kind;
    let kinds = (found.expected.first().map(kind), found.diverged.first().map(kind));
    kinds.0 != kinds.1
}

fn first_time(job: &Job<'_>, found: &Divergence) -> i64 {
    found.expected.iter().chain(&found.diverged).map(|it| job.record(*it).created).min().unwrap_or(0)
}

/// Whether the first call that did not finish may be one that the ring buffer has lost: the oldest record of a log that lost some did
/// not finish.
fn may_have_lost(job: &Job<'_>, at: usize, stalls: &[Stall]) -> bool {
    stalls[at].waiting.iter().any(|call| {
        let log = job.records.log(call.rank);
        log.is_some_and(|log| {
            log.lost > 0 && log.records.iter().all(|it| it.group != job.record(*call).group || !it.done)
        })
    })
}

/// Returns the members whose part differs from that of most, if an all-to-all cannot be right: the inputs of all members have another number of elements
/// than the outputs.
fn uneven(job: &Job<'_>, queue: usize, seq: u32) -> Option<Vec<Call>> {
    let queue = &job.queues[queue];
    let calls: Option<Vec<Call>> = queue.lanes.iter().map(|it| job.call_at(it, seq)).collect();
    let calls = calls.filter(|it| it.len() == queue.members.len())?;
    let elements = |call: &Call| {
        let signature = job.records.signature(job.record(*call).signature);
        let sum = |shapes: &[Vec<i64>]| {
            shapes.iter().map(|it| crate::record::count(it)).fold(0, i64::saturating_add)
        };
        (signature.kind == Kind::AllToAll).then(|| (sum(&signature.inputs), sum(&signature.outputs)))
    };
    let sizes: Option<Vec<(i64, i64)>> = calls.iter().map(elements).collect();
    let sizes = sizes?;
    let total = |of: fn(&(i64, i64)) -> i64| sizes.iter().map(of).fold(0, i64::saturating_add);
    if total(|it| it.0) == total(|it| it.1) {
        return None;
    }
    // Those whose own sizes are not those of most.
    let mut counts: FxHashMap<(i64, i64), usize> = FxHashMap::default();
    sizes.iter().for_each(|it| *counts.entry(*it).or_insert(0) += 1);
    let usual = counts.iter().find(|it| *it.1 * 2 > sizes.len()).map(|it| *it.0);
    let odd = calls.into_iter().zip(sizes).filter(|it| usual.is_some_and(|usual| it.1 != usual));
    Some(odd.map(|it| it.0).collect())
}

/// Whether a send and a receive cannot be one message.
fn differ(job: &Job<'_>, send: Call, receive: Call) -> bool {
    let signature = |it| job.records.signature(job.record(it).signature);
    let (send, receive) = (signature(send), signature(receive));
    let types = (send.element_type(), receive.element_type());
    send.elements() != receive.elements() || matches!(types, (Some(a), Some(b)) if a != b)
}

/// Returns the ranks that went past a call, and a later call that shows it: the ranks that wait in the call made the later one behind it, and these ranks
/// made it without.
fn passed(job: &Job<'_>, stall: &Stall) -> Option<(Vec<Rank>, Call)> {
    let waiting = *stall.waiting.first()?;
    let log = job.records.log(waiting.rank)?;
    let mut ranks = Vec::new();
    let mut shown = None;
    for rank in stall.absent.iter().filter(|it| job.has_dump(**it)) {
        let later = (waiting.at + 1..log.records.len() as u32).map(|at| Call { rank: waiting.rank, at });
        let found = later.take(MAX_LATER).find_map(|it| same_collective(job, it, *rank));
        if let Some(call) = found {
            shown.get_or_insert(call);
            ranks.push(*rank);
        }
    }
    Some((ranks, shown?))
}

/// The number of later calls that are compared.
const MAX_LATER: usize = 64;

/// Returns the call of another rank that is one communication with a collective.
pub(crate) fn same_collective(job: &Job<'_>, call: Call, rank: Rank) -> Option<Call> {
    let record = job.record(call);
    if record.peer != Peer::None {
        return None;
    }
    let queue = job.queues.binary_search_by_key(&record.group, |it| it.group).ok()?;
    let lane = job.queues[queue].lanes.iter().find(|it| it.rank == rank)?;
    job.call_at(lane, record.seq)
}

/// Finds groups of one name whose members ranks state differently, if something waits in them.
fn membership(job: &Job<'_>, stalls: &[Stall]) -> Option<Cause> {
    let mut by_name: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
    for (at, queue) in job.queues.iter().enumerate() {
        if job.records.group(queue.group).members.is_some() {
            by_name.entry(job.records.group(queue.group).name.as_str()).or_default().push(at);
        }
    }
    let mut found: Vec<(i64, Cause)> = Vec::new();
    for queues in by_name.into_values().filter(|it| it.len() > 1) {
        // A member of one variant that states another one.
        let is_conflict = |a: usize, b: usize| {
            let (a, b) = (&job.queues[a], &job.queues[b]);
            a.members != b.members && b.lanes.iter().any(|it| a.members.contains(&it.rank))
        };
        let in_conflict: Vec<usize> = queues
            .iter()
            .copied()
            .filter(|a| queues.iter().any(|b| is_conflict(*a, *b) || is_conflict(*b, *a)))
            .collect();
        let variants: Vec<GroupId> = in_conflict.iter().map(|it| job.queues[*it].group).collect();
        let waiting: Vec<&Stall> = stalls.iter().filter(|it| variants.contains(&it.group(job))).collect();
        if let Some(since) = waiting.iter().map(|it| it.since(job)).min() {
            let waiting = waiting.iter().flat_map(|it| it.waiting.iter().copied()).collect();
            found.push((since, Cause::Membership { variants, waiting }));
        }
    }
    found.into_iter().min_by_key(|it| it.0).map(|it| it.1)
}

/// Finds a rank that sends to or receives from another rank than the same line does on all others, if that explains two calls without partner.
fn wrong_peer(job: &Job<'_>, stalls: &[Stall]) -> Option<(Cause, GroupId)> {
    let orphans: Vec<(Call, Rank, GroupId)> = stalls
        .iter()
        .filter(|it| matches!(it.place, Place::Pair { .. }) && it.blocked_by.is_none())
        .filter_map(|it| Some((*it.waiting.first()?, *it.absent.first()?, it.group(job))))
        .collect();
    for (call, peer, group) in &orphans {
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
            return Some((Cause::WrongPeer { call: *call, expected: other.rank, usual }, *group));
        }
    }
    None
}

/// Returns the position of a peer in a group relative to a rank.
fn offset(job: &Job<'_>, group: GroupId, rank: Rank, peer: Rank) -> Option<i64> {
    let queue = job.queues.binary_search_by_key(&group, |it| it.group).ok()?;
    let members = &job.queues[queue].members;
    let place = |rank: Rank| members.iter().position(|it| *it == rank).map(|it| it as i64);
    Some((place(peer)? - place(rank)?).rem_euclid(members.len() as i64))
}

/// Returns the offset that all other ranks use at the place of this call, if the rank of the call always uses another one there. `None` if nothing can be
/// said for any call.
fn usual_offset(job: &Job<'_>, call: Call, group: GroupId) -> Option<Option<i64>> {
    let record = job.record(call);
    let kind = job.records.signature(record.signature).kind;
    let place = |stack| {
        let at = program_frame(job.records, stack)?;
        let frame = job.records.stack(stack).frames[at];
        Some((frame.file, frame.line))
    };
    let here = place(record.stack);
    let (mut own, mut others): (FxHashSet<i64>, FxHashMap<i64, FxHashSet<Rank>>) = Default::default();
    for ((of, from, to), pair) in &job.pairs {
        if *of != group {
            continue;
        }
        let (rank, peer, calls) =
            if kind == Kind::Send { (*from, *to, &pair.sends) } else { (*to, *from, &pair.receives) };
        let at_place = |at: &u32| place(job.record(Call { rank, at: *at }).stack) == here;
        if !calls.iter().any(at_place) {
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

/// Finds two collectives of NCCL that all members have issued and none has completed, in one order on a rank and in the other one on
/// another rank: a GPU may execute the kernels of one communicator at a time.
fn crossed(job: &Job<'_>, stalls: &[Stall]) -> Option<(i64, Cause)> {
    let is_issued = |it: &&Stall| {
        let is_nccl = job.records.group(it.group(job)).backend.starts_with("nccl");
        is_nccl
            && matches!(it.place, Place::Collective { .. })
            && it.absent.is_empty()
            && it.behind.is_empty()
    };
    let issued: Vec<&Stall> = stalls.iter().filter(is_issued).take(MAX_CROSSED).collect();
    for (at, one) in issued.iter().enumerate() {
        for two in &issued[at + 1..] {
            let both =
                one.waiting.iter().filter_map(|a| Some((a, two.waiting.iter().find(|b| b.rank == a.rank)?)));
            let (first, second): (Vec<_>, Vec<_>) = both.partition(|(a, b)| a.at < b.at);
            if let (Some((a, b)), Some((other, _))) = (first.first(), second.first()) {
                return Some((one.since(job), Cause::Crossed { one: **a, two: **b, other: other.rank }));
            }
        }
    }
    None
}

/// The number of collectives that are compared with each other.
const MAX_CROSSED: usize = 64;

/// Finds the rank of a cycle that diverged.
fn deviant_of_cycle(job: &Job<'_>, stalls: &[Stall], edges: &[Edge]) -> Option<(Rank, Reason)> {
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
    let is_usual: Vec<bool> = calls.iter().map(|it| is_usual(job, *it)).collect();
    let mut unusual = calls.iter().zip(&is_usual).filter(|it| !it.1);
    if let (Some((call, _)), None) = (unusual.next(), unusual.next()) {
        return Some((call.rank, Reason::History));
    }
    if let Some(rank) = out_of_order(job, &calls) {
        return Some((rank, Reason::Order));
    }
    let waiters = |edge: &Edge| stalls[edge.stall].waiting.len() + stalls[edge.stall].behind.len();
    let largest = edges.iter().map(waiters).max().unwrap_or(0);
    let mut small = edges.iter().filter(|it| waiters(it) * 2 < largest);
    match (small.next(), small.next()) {
        (Some(edge), None) if edges.len() == 2 => Some((edge.from, Reason::Alone)),
        _ => None,
    }
}

/// Whether another call of the records, at an earlier position or on another rank, is of the same kind and follows one of the same kind.
fn is_usual(job: &Job<'_>, call: Call) -> bool {
    let Some(before) = job.before(call) else { return false };
    let role = |call: Call| {
        let record = job.record(call);
        let group = job.records.group(record.group);
        let by = match record.peer {
            Peer::Rank(peer) => offset(job, record.group, call.rank, peer),
            Peer::None | Peer::Any => None,
        };
        (job.token(call), group.description.as_str(), by)
    };
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

/// Finds the one waiting rank that departs from the order of its own earlier calls: what it calls now never followed the call before it, and another call
/// did so at least twice. Returns also that other call.
pub(crate) fn departs(job: &Job<'_>, stalls: &[Stall]) -> Option<(Call, Call)> {
    let role = |call: Call| {
        let record = job.record(call);
        let by = match record.peer {
            Peer::Rank(peer) => offset(job, record.group, call.rank, peer),
            Peer::None | Peer::Any => None,
        };
        (record.signature, record.group, by)
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
        let queue = job.queues.binary_search_by_key(&group, |it| it.group).ok()?;
        let lane = job.queues[queue].lanes.iter().find(|it| it.rank == rank)?;
        Some(job.call_at(lane, seq.checked_sub(1)?)?.at)
    };
    let first_is_one = |rank| Some(before(rank, one.group, one.seq)? < before(rank, two.group, two.seq)?);
    match (first_is_one(a.rank)?, first_is_one(b.rank)?) {
        // Both used the group of `a` first: `b` has changed the order.
        (true, true) => Some(b.rank),
        (false, false) => Some(a.rank),
        _ => None,
    }
}
