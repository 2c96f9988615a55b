//! The first cause of a hang.
//!
//! What does not proceed waits for other ranks, which wait in turn. The cause is where this ends: calls that cannot be one communication, a rank that went
//! past a call, ranks that wait for each other, a rank without a dump, or one that waits for nothing. Of several, the one that happened
//! first is reported; what only waits for it is not a cause. Faults of the program come before ranks that are gone or late, since
//! a rank may be gone or late because of them.
//!
//! Invariant: a rank is named as the one at fault only for a reason that the report gives (`Basis`, or what the call itself shows).

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use crate::{
    blame::{Reason, deviant_of_cycle, left_out},
    census,
    crossed::{Crossed, crossed},
    departure::{self, Departure},
    divergence::{self, Basis, Divergence},
    graph::{Edge, Graph},
    numbers,
    peers::{WrongPeer, differ, uneven, usual_size, wrong_peer},
    queues::{Call, Job, Lane, Queue, same_collective},
    record::{Batch, GroupId, Rank, Record},
    repair, rounds,
    stall::{Place, Stall, has_lost, stalls},
};

/// Why a job does not proceed.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Ranks have different members for a group of the same name.
    Membership { variants: Vec<GroupId>, waiting: Vec<Call> },
    /// Ranks have made two groups in different orders.
    Crosswise { at: usize, waiting: Vec<Call> },
    /// The members of a group do not make the same call.
    Diverged(Divergence),
    /// One rank leaves the calls of the program, in groups that others may not share.
    Departed(Departure),
    /// The members of an all-to-all pass more or fewer elements than they expect in total.
    Uneven { queue: usize, seq: u32, deviating: Vec<Call> },
    /// A send and its receive have different sizes or element types;
    /// `deviating` is the rank whose size is not the usual one at its line.
    Message { send: Call, receive: Call, deviating: Option<Rank> },
    /// A rank names the wrong peer.
    WrongPeer(WrongPeer),
    /// A rank made a later call without this one. `deviant` is the rank that is said to be wrong.
    Passed { stall: usize, ranks: Vec<Rank>, later: Call, deviant: Option<(Rank, Reason)> },
    /// Ranks wait for each other; if it is not proven, unless one of them is about to make the next call.
    Cycle { edges: Vec<Edge>, deviant: Option<(Rank, Reason)>, is_proven: bool },
    /// A rank has no dump.
    Missing { stall: usize, ranks: Vec<Rank> },
    /// The ring buffer has lost the records that would show it. If it is not proven that something hangs, the calls may be in flight.
    Lost { stall: usize, is_hang: bool },
    /// A rank has issued nothing else. `is_proven` if it is the one to blame: else the ranks that wait may have made a call too many.
    Late { stall: usize, ranks: Vec<Rank>, is_proven: bool },
    /// Ranks issue collectives of two groups in different orders, and none of the two proceeds.
    Crossed(Crossed),
    /// All ranks have made the call, and what the records hold agrees.
    Unknown { stall: usize },
}

/// A kind of cause, the one that is reported first before the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// A fault of the program.
    Fault,
    Missing,
    Lost,
    Cycle,
    Late,
    Unknown,
}

impl Weight {
    /// Whether ranks that only wait, or are late, have it.
    fn is_weak(self) -> bool {
        matches!(self, Self::Lost | Self::Cycle | Self::Late | Self::Unknown)
    }
}

/// A cause with its kind, and the time at which it began.
type Dated = (Weight, i64, Cause);

/// Whether what is about a cause waits for nothing else in the order in which devices execute: all of its calls are the first open ones of their
/// ranks, and those that are late have none.
fn is_root(job: &Job<'_>, stalls: &[Stall], first: &FxHashMap<Rank, Call>, cause: &Cause) -> bool {
    let is_first = |it: &Call| is_one(job, first.get(&it.rank), *it);
    let waits_first = |at: usize| stalls[at].waiting.iter().all(is_first);
    match cause {
        Cause::Late { stall, ranks, .. } => {
            waits_first(*stall) && ranks.iter().all(|it| !first.contains_key(it))
        }
        // A rank that waits elsewhere is no cause.
        Cause::Lost { stall, .. } => {
            waits_first(*stall)
                && match stalls[*stall].place {
                    Place::Collective { queue, seq } => {
                        let lanes = job.queues[queue].lanes.iter().filter(|it| has_lost(job, it, queue, seq));
                        lanes.map(|it| it.rank).all(|it| !first.contains_key(&it))
                    }
                    Place::Pair { pair, .. } => {
                        let (_, from, to) = job.pairs[pair].0;
                        let waits = |it: Rank| stalls[*stall].ranks().any(|rank| rank == it);
                        [from, to].into_iter().all(|it| waits(it) || !first.contains_key(&it))
                    }
                    Place::AnySource { .. } => true,
                }
        }
        Cause::Unknown { stall } => waits_first(*stall),
        Cause::Cycle { edges, .. } => edges.iter().all(|it| waits_first(it.stall)),
        _ => true,
    }
}

/// Returns the first open call of each rank.
fn first_open(stalls: &[Stall], job: &Job<'_>) -> FxHashMap<Rank, Call> {
    let mut first: FxHashMap<Rank, Call> = FxHashMap::default();
    let lanes = job.queues.iter().flat_map(|it| &it.lanes);
    let heads = lanes.filter_map(|it| job.call_at(it, it.head?));
    for call in heads.chain(stalls.iter().flat_map(|it| it.waiting.iter().copied())) {
        let known = first.entry(call.rank).or_insert(call);
        *known = call.min(*known);
    }
    first
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
    if stalls.is_empty() {
        let diverged = (0..job.queues.len()).filter_map(|at| divergence::find(job, at));
        let completed = diverged.filter(|it| is_kind(job, it)).collect();
        return Analysis { stalls, causes: Vec::new(), completed };
    }
    let mut found: Vec<Dated> = Vec::new();
    // Of the stalls without a cause of their own, others are the cause.
    let mut open = Vec::with_capacity(stalls.len());
    for (at, stall) in stalls.iter().enumerate() {
        let cause = own_cause(job, at, stall);
        open.push(cause.is_none());
        found.extend(cause);
    }
    let is_async: Vec<bool> = stalls.iter().map(|it| it.is_asynchronous(job)).collect();
    for (at, stall) in stalls.iter().enumerate().filter(|it| it.1.blocked_by.is_none()) {
        if open[at]
            && let Some(cause) = went_past(job, at, stall)
            && (!is_async[at] || is_ordered(job, stall, &cause.2))
        {
            open[at] = false;
            found.push(cause);
        }
    }
    found.extend(crossed(job, &stalls).map(|it| (Weight::Fault, it.since, Cause::Crossed(it))));
    let in_graph = open.iter().zip(&is_async).map(|(open, is_async)| *open && !is_async).collect();
    let graph = Graph::new(&stalls, in_graph);
    found.extend(cycles(job, &stalls, (&graph, &open), &is_async));
    for (at, stall) in stalls.iter().enumerate().filter(|(at, _)| open[*at]) {
        found.extend(absence(job, at, stall, (&graph, &is_async)));
    }
    // Of causes that began at one time, the one that was found first comes first.
    let first = first_open(&stalls, job);
    found.sort_by_cached_key(|it| {
        let is_behind = it.0.is_weak() && !is_root(job, &stalls, &first, &it.2);
        // Of ranks that are late, the most.
        let late = match &it.2 {
            Cause::Late { is_proven: true, ranks, .. } => ranks.len(),
            _ => 0,
        };
        (if it.0.is_weak() { Weight::Lost } else { it.0 }, is_behind, Reverse(late), it.0, it.1)
    });
    let mut causes: Vec<Cause> =
        crosswise(job, &stalls).into_iter().chain(membership(job, &stalls)).collect();
    if let Some(wrong) = wrong_peer(job, &stalls) {
        // It is what the cycles and orphans of its group are about.
        let is_about = |it: &Cause| match it {
            Cause::Cycle { edges, .. } => edges.iter().any(|it| stalls[it.stall].group(job) == wrong.group),
            Cause::Passed { stall, .. } => stalls[*stall].group(job) == wrong.group,
            _ => false,
        };
        let is_fault = |it: &Dated| it.0 == Weight::Fault;
        if found.first().filter(|it| is_fault(it)).is_none_or(|it| is_about(&it.2)) {
            found.retain(|it| !(is_fault(it) && is_about(&it.2)));
            causes.push(Cause::WrongPeer(wrong));
        }
    }
    causes.extend(found.into_iter().map(|it| it.2));
    depart(job, &stalls, &mut causes);
    Analysis { stalls, causes, completed: Vec::new() }
}

/// Puts the one rank that departs from the program before causes that name nobody, and instead of what a group alone shows of it.
fn depart(job: &Job<'_>, stalls: &[Stall], causes: &mut Vec<Cause>) {
    let Some(first) = causes.first() else { return };
    let named = match first {
        Cause::Diverged(it) if it.basis != Basis::Undecided => {
            it.diverged.first().and_then(|it| it.first()).map(|it| it.rank)
        }
        Cause::Crossed(Crossed { deviant: Some(rank), .. }) => Some(*rank),
        // The reasons that name a rank are shown with it, unless what it did is known.
        Cause::Passed { deviant: Some((rank, _)), .. } | Cause::Cycle { deviant: Some((rank, _)), .. } => {
            let is_it = |it: &Departure| it.call.rank == *rank && it.how != divergence::How::Other;
            if let Some(found) = repair::find(job).filter(is_it) {
                causes.insert(0, Cause::Departed(found));
            }
            return;
        }
        Cause::Message { deviating: Some(_), .. }
        | Cause::Membership { .. }
        | Cause::Crosswise { .. }
        | Cause::WrongPeer(_)
        | Cause::Missing { .. }
        | Cause::Uneven { .. } => return,
        _ => None,
    };
    let is_named = |it: &Departure| named.is_none_or(|rank| rank == it.call.rank);
    let found = departure::find(job, stalls).filter(is_named);
    let is_crossed = matches!(first, Cause::Crossed(_));
    let counted = || census::find(job).filter(is_named).filter(|_| named.is_none() || is_crossed);
    let by_habit = || departure::by_habit(job, &suspects(job, stalls, first)).filter(is_named);
    let numbered = || numbers::find(job).filter(is_named);
    let repaired = || repair::find(job).filter(|_| named.is_none());
    let Some(found) = found.or_else(counted).or_else(numbered).or_else(by_habit).or_else(repaired) else {
        return;
    };
    if named.is_some() && found.how == divergence::How::Other {
        return;
    }
    // What the group alone shows is known better if it is the same.
    let is_same = |it: &Divergence| it.calls().any(|it| *it == found.call) && it.how == found.how;
    if let Cause::Diverged(it) = first
        && named.is_some()
        && is_same(it)
    {
        return;
    }
    causes.insert(0, Cause::Departed(found));
}

/// Returns the ranks whose calls contradict each other in a cause; of ranks that only wait, those that wait for each other in the order in which
/// devices execute.
fn suspects(job: &Job<'_>, stalls: &[Stall], cause: &Cause) -> Vec<Rank> {
    match cause {
        Cause::Diverged(it) => it.calls().map(|it| it.rank).collect(),
        Cause::Crossed(it) => vec![it.one.rank, it.other],
        Cause::Message { send, receive, .. } => vec![send.rank, receive.rank],
        Cause::Passed { stall, ranks, .. } => {
            stalls[*stall].waiting.iter().map(|it| it.rank).chain(ranks.iter().copied()).collect()
        }
        Cause::Cycle { edges, is_proven: true, .. } => edges.iter().map(|it| it.from).collect(),
        Cause::Cycle { .. } | Cause::Lost { .. } | Cause::Late { .. } | Cause::Unknown { .. } => {
            let first = first_open(stalls, job);
            let is_first = |it: &Call| is_one(job, first.get(&it.rank), *it);
            // What is posted behind the first open call of its rank waits for that.
            let ordered = stalls.iter().map(|stall| {
                let (waiting, behind): (Vec<Call>, Vec<Call>) =
                    stall.waiting.iter().partition(|it| is_first(it));
                let absent = stall.absent.iter().copied().chain(behind.iter().map(|it| it.rank)).collect();
                Stall { waiting, absent, behind: Vec::new(), ..stall.clone() }
            });
            let ordered: Vec<Stall> = ordered.filter(|it| !it.waiting.is_empty()).collect();
            let graph = Graph::new(&ordered, vec![true; ordered.len()]);
            let cycle = graph.cycles(|at| ordered[at].since(job)).into_iter().next().unwrap_or_default();
            cycle.iter().map(|it| it.from).collect()
        }
        Cause::Membership { .. }
        | Cause::Crosswise { .. }
        | Cause::Departed(_)
        | Cause::Uneven { .. }
        | Cause::WrongPeer(_)
        | Cause::Missing { .. } => Vec::new(),
    }
}

/// Whether a call is the first open one of its rank, or in one batch with it.
fn is_one(job: &Job<'_>, first: Option<&Call>, call: Call) -> bool {
    let is_batch = |a: &Record, b: &Record| {
        (a.batch, a.group, a.p2p_seq) == (Batch::Member, b.group, b.p2p_seq) && b.batch == Batch::Member
    };
    first.is_none_or(|it| *it == call || is_batch(job.record(*it), job.record(call)))
}

/// Returns the cause that the calls of a stall show by themselves.
fn own_cause(job: &Job<'_>, at: usize, stall: &Stall) -> Option<Dated> {
    let since = || stall.since(job);
    let unknown = |weight| Some((weight, since(), Cause::Unknown { stall: at }));
    let lost = || {
        let is_hang = stall.is_given_up(job) || stall.ranks().any(|it| is_far_ahead(job, it));
        Some((Weight::Lost, since(), Cause::Lost { stall: at, is_hang }))
    };
    match stall.place {
        Place::Collective { queue, seq } => {
            let diverged = divergence::find(job, queue);
            if let Some(found) = diverged.filter(|it| it.seq <= seq || it.is_before_records) {
                return Some(if found.is_before_records && found.basis == Basis::Undecided {
                    (Weight::Lost, since(), Cause::Lost { stall: at, is_hang: true })
                } else {
                    (Weight::Fault, first_time(job, &found), Cause::Diverged(found))
                });
            }
            if stall.is_lost {
                lost()
            } else if !stall.absent.is_empty() {
                None
            } else if let Some(deviating) = uneven(job, queue, seq) {
                Some((Weight::Fault, since(), Cause::Uneven { queue, seq, deviating }))
            } else if may_have_lost(job, stall) {
                lost()
            } else {
                unknown(Weight::Unknown)
            }
        }
        Place::AnySource { .. } => unknown(Weight::Late),
        Place::Pair { .. } if stall.is_lost => lost(),
        Place::Pair { pair, send, receive } => {
            let ((_, from, to), pair) = &job.pairs[pair];
            let send = Call { rank: *from, at: *pair.sends.get(send)? };
            let receive = Call { rank: *to, at: *pair.receives.get(receive)? };
            if differ(job, send, receive) {
                // In logs that lost records, which receive belongs to a send is a guess.
                if pair.is_cut {
                    return lost();
                }
                let deviating = usual_size(job, send, receive);
                Some((Weight::Fault, since(), Cause::Message { send, receive, deviating }))
            } else if stall.absent.is_empty() {
                unknown(Weight::Unknown)
            } else {
                None
            }
        }
    }
}

/// Returns the cause of a stall that other ranks went past.
fn went_past(job: &Job<'_>, at: usize, stall: &Stall) -> Option<Dated> {
    // In logs that lost records, which receive belongs to a send is a guess, and dumps are not of one moment.
    let is_guess = matches!(stall.place, Place::Pair { pair, .. } if job.pairs[pair].1.is_cut);
    if is_guess && !stall.is_given_up(job) {
        return None;
    }
    let (ranks, later) = passed(job, stall)?;
    let deviant = stall
        .waiting
        .first()
        .zip(ranks.first())
        .and_then(|(call, rank)| left_out(job, *call, *rank, same_collective(job, later, *rank)?));
    // One rank against most of the others.
    let is_alone = matches!(stall.place, Place::Collective { .. })
        && stall.behind.is_empty()
        && ranks.len() > 1
        && ranks.len() * 2 > members(job, stall);
    let alone = match stall.waiting.as_slice() {
        [call] if is_alone => Some((call.rank, Reason::Alone)),
        _ => None,
    };
    let deviant = deviant.or(alone);
    Some((Weight::Fault, stall.since(job), Cause::Passed { stall: at, ranks, later, deviant }))
}

/// Whether a batch of messages is on one communicator with the later call that shows that a rank went past it, so that this cannot complete before.
fn is_ordered(job: &Job<'_>, stall: &Stall, cause: &Cause) -> bool {
    let Cause::Passed { later, .. } = cause else { return false };
    let is_member = |it: &Call| job.record(*it).batch == Batch::Member;
    job.record(*later).group == stall.group(job) && stall.waiting.iter().all(is_member)
}

/// Returns the cycles of ranks that wait for each other. `graph` has the open stalls that are not asynchronous.
fn cycles(
    job: &Job<'_>,
    stalls: &[Stall],
    (graph, open): (&Graph<'_>, &[bool]),
    is_async: &[bool],
) -> Vec<Dated> {
    let since = |at: usize| stalls[at].since(job);
    let latest = |edges: &[Edge]| edges.iter().map(|it| since(it.stall)).max().unwrap_or(0);
    let proven = graph.cycles(since).into_iter().map(|edges| {
        let deviant = deviant_of_cycle(job, stalls, &edges);
        (Weight::Fault, latest(&edges), Cause::Cycle { edges, deviant, is_proven: true })
    });
    let possible = Graph::new(stalls, open.to_vec()).cycles(since).into_iter();
    let possible = possible.filter(|edges| edges.iter().any(|it| is_async[it.stall]));
    let possible = possible.map(|edges| {
        (Weight::Cycle, latest(&edges), Cause::Cycle { edges, deviant: None, is_proven: false })
    });
    proven.chain(possible).collect()
}

/// Whether a call that some members have not made is one of the program: more than half of all members have made it, or all members of another
/// group of the same description at the same position.
pub(crate) fn is_expected(job: &Job<'_>, stall: &Stall) -> bool {
    let Place::Collective { queue, seq } = stall.place else { return false };
    let by_others =
        || stall.waiting.first().is_some_and(|it| divergence::is_made_by_other_groups(job, queue, seq, *it));
    stall.ranks().count() * 2 > job.queues[queue].members.len() || by_others()
}

/// Whether two ranks wait for a rank, in different groups or in messages, or most members of a group in a collective: not all have made a call too
/// many.
fn is_missed_twice(job: &Job<'_>, graph: &Graph<'_>, rank: Rank) -> bool {
    let misses = |it: &&Stall| it.blocked_by.is_none() && it.absent.contains(&rank);
    let mut waiting: Option<(Rank, GroupId)> = None;
    graph.stalls().iter().filter(misses).any(|it| {
        let other = it.ranks().find(|it| *it != rank).map(|other| (other, it.group(job)));
        is_expected(job, it) || other.is_some_and(|it| *waiting.get_or_insert(it) != it)
    })
}

/// Whether some of several ranks may wait for another one of them in the first call of a communicator, which makes no record before all members have come to
/// it: in a group that other ranks have one of, and have used.
fn may_initialize(job: &Job<'_>, idle: &[Rank], free: &[Rank]) -> bool {
    let description = |queue: &Queue| job.records.group(queue.group).own_description();
    // What has completed may be left out.
    let is_used = |queue: &Queue| {
        let may = |rank: Rank| job.records.log(rank).is_some_and(|it| it.only_active);
        let made = |it: &Lane| job.has_enqueued(it, queue.group, 1).unwrap_or_else(|| may(it.rank));
        queue.lanes.iter().any(|it| !it.calls.is_empty() || made(it))
            || job.pairs.binary_search_by_key(&queue.group, |it| it.0.0).is_ok()
    };
    free.len() > 1
        && job.queues.iter().any(|queue| {
            let members = queue.members.iter().filter(|it| free.contains(it)).count();
            let is_own = queue.members.iter().any(|it| idle.contains(it));
            let is_like =
                |other: &Queue| description(other).is_some() && description(other) == description(queue);
            members > 1 && is_own && !is_used(queue) && job.queues.iter().any(|it| is_like(it) && is_used(it))
        })
}

/// Returns the number of ranks that a stall needs.
fn members(job: &Job<'_>, stall: &Stall) -> usize {
    match stall.place {
        Place::Collective { queue, .. } => job.queues[queue].members.len(),
        Place::Pair { .. } | Place::AnySource { .. } => 2,
    }
}

/// Returns the cause of a stall whose absent ranks have no dump, or wait for nothing.
fn absence(
    job: &Job<'_>,
    at: usize,
    stall: &Stall,
    (graph, is_async): (&Graph<'_>, &[bool]),
) -> Option<Dated> {
    let (missing, present): (Vec<Rank>, Vec<Rank>) = stall.absent.iter().partition(|it| !job.has_dump(**it));
    if !missing.is_empty() {
        return Some((Weight::Missing, stall.since(job), Cause::Missing { stall: at, ranks: missing }));
    }
    // A rank that sends to itself waits for itself only.
    let is_own = |it: usize, rank: Rank| it == at && stall.ranks().all(|other| other == rank);
    let is_idle = |rank: &Rank| graph.stalls_of(*rank).iter().all(|it| is_async[*it] || is_own(*it, *rank));
    let idle: Vec<Rank> = present.into_iter().filter(is_idle).collect();
    // A rank with open messages may wait for them.
    let is_free = |rank: &Rank| graph.stalls_of(*rank).iter().all(|it| is_own(*it, *rank));
    let is_few = idle.len() * 2 <= members(job, stall);
    let is_needed = is_expected(job, stall)
        || idle.iter().all(|it| is_missed_twice(job, graph, *it))
        || is_few && stall.waiting.first().is_some_and(|it| rounds::is_habit(job, *it))
        || is_few && idle.iter().all(|it| rounds::is_amid(job, *it, stall.is_given_up(job)));
    // Ranks that wait for nothing may wait for each other.
    let free: Vec<Rank> = job.world.iter().copied().filter(|it| job.has_dump(*it) && is_free(it)).collect();
    let is_proven = is_needed && idle.iter().all(is_free) && !may_initialize(job, &idle, &free);
    (!idle.is_empty())
        .then(|| (Weight::Late, stall.since(job), Cause::Late { stall: at, ranks: idle, is_proven }))
}

fn is_kind(job: &Job<'_>, found: &Divergence) -> bool {
    let kind = |it: &Call| job.records.signature(job.record(*it).signature).kind;
    let kinds =
        (found.expected.first().map(kind), found.diverged.first().and_then(|it| it.first()).map(kind));
    kinds.0 != kinds.1
}

fn first_time(job: &Job<'_>, found: &Divergence) -> i64 {
    found.calls().map(|it| job.record(*it).created).min().unwrap_or(0)
}

/// Whether a rank has made more calls since the first open one than its ring buffer holds.
fn is_full(job: &Job<'_>, rank: Rank) -> bool {
    let log = job.records.log(rank);
    log.is_some_and(|log| log.is_cut() && log.records.first().is_some_and(|it| !it.done))
}

/// The number of calls that a host runs ahead of the device at most in a job that proceeds.
const MAX_AHEAD: usize = 256;

/// Whether a rank has made more calls since the first open one than a host is ahead of the device.
fn is_far_ahead(job: &Job<'_>, rank: Rank) -> bool {
    is_full(job, rank) && job.records.log(rank).is_some_and(|it| it.records.len() >= MAX_AHEAD)
}

/// Whether the first call that did not finish may be one that the ring buffer has lost: the oldest record of a log that lost some did
/// not finish.
fn may_have_lost(job: &Job<'_>, stall: &Stall) -> bool {
    stall.waiting.iter().filter(|it| job.record(**it).seq > 1).any(|call| {
        let log = job.records.log(call.rank);
        log.is_some_and(|log| {
            let open = log.records.iter().filter(|it| !it.done).count();
            log.is_cut()
                && (open >= MAX_AHEAD || is_full(job, call.rank) || stall.is_given_up(job))
                && log.records.iter().all(|it| it.group != job.record(*call).group || !it.done)
        })
    })
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

/// Finds groups that ranks have made in different orders, if something waits in them.
fn crosswise(job: &Job<'_>, stalls: &[Stall]) -> Option<Cause> {
    job.records.crosswise.iter().enumerate().find_map(|(at, it)| {
        let is_in = |stall: &&Stall| it.names.contains(&job.records.group(stall.group(job)).name);
        let waiting: Vec<Call> =
            stalls.iter().filter(is_in).flat_map(|it| it.waiting.iter().copied()).collect();
        (!waiting.is_empty()).then_some(Cause::Crosswise { at, waiting })
    })
}

/// Finds groups of one name whose members ranks state differently, if something waits in them.
fn membership(job: &Job<'_>, stalls: &[Stall]) -> Option<Cause> {
    let mut by_name: FxHashMap<(&str, &str), Vec<usize>> = FxHashMap::default();
    for (at, queue) in job.queues.iter().enumerate() {
        let group = job.records.group(queue.group);
        if group.members.is_some() {
            by_name.entry((&group.name, &group.backend)).or_default().push(at);
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
