//! What does not proceed: for each group the first collective that did not finish, for each pair of ranks the first send or receive, with
//! the ranks that wait there and those that they wait for.

use crate::{
    queues::{Call, Job, Lane, Pair, PairKey, same_collective},
    record::{Batch, GroupId, Rank, Record},
    site::call_name,
};

/// Where ranks wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A collective: the queue of its group, and its sequence number.
    Collective { queue: usize, seq: u32 },
    /// A send or receive: the pair, and the position of the send and of the receive in it.
    Pair { pair: usize, send: usize, receive: usize },
    /// A receive from whichever rank sends.
    AnySource { group: GroupId },
}

/// Something that does not proceed.
#[derive(Clone, Debug)]
pub(crate) struct Stall {
    pub(crate) place: Place,
    /// The calls that did not finish here.
    pub(crate) waiting: Vec<Call>,
    /// For a collective: the ranks whose first open call of the group is a later one.
    pub(crate) behind: Vec<Rank>,
    /// The members that have not made the call, or whose call cannot begin because an earlier one has not finished.
    pub(crate) absent: Vec<Rank>,
    /// Whether records are lost that would show which calls of the others meet this one.
    pub(crate) is_lost: bool,
    /// For a send and a receive that are both posted: the earlier call of the same two ranks that has not finished.
    pub(crate) blocked_by: Option<Call>,
}

impl Stall {
    /// Returns the group.
    pub(crate) fn group(&self, job: &Job<'_>) -> GroupId {
        match self.place {
            Place::Collective { queue, .. } => job.queues[queue].group,
            Place::Pair { pair, .. } => job.pairs[pair].0.0,
            Place::AnySource { group } => group,
        }
    }

    /// Whether it is of messages of NCCL for which no host waits: `isend` and `irecv` return at once, so that the rank may be about to make the call
    /// that another one waits for. False if the watchdog has given them up.
    pub(crate) fn is_asynchronous(&self, job: &Job<'_>) -> bool {
        let is_returned = |call: &Call| {
            let name = call_name(job.records, job.record(*call));
            matches!(name, "isend" | "irecv" | "batch_isend_irecv")
        };
        // With both ends posted, the device executes them in their order.
        matches!(self.place, Place::Pair { .. })
            && self.blocked_by.is_none()
            && job.records.group(self.group(job)).backend.starts_with("nccl")
            && self.waiting.iter().all(is_returned)
            && !self.is_given_up(job)
    }

    /// Whether the watchdog of NCCL has given up a call: it is out of its list and has not completed.
    pub(crate) fn is_given_up(&self, job: &Job<'_>) -> bool {
        self.waiting.iter().any(|it| {
            let record = job.record(*it);
            let reports = job.records.log(it.rank).is_some_and(|it| it.reports_completion);
            reports && job.records.group(record.group).backend != "gloo" && record.retired && !record.done
        })
    }

    /// Returns the time of the first call that waits here.
    pub(crate) fn since(&self, job: &Job<'_>) -> i64 {
        self.waiting.iter().map(|it| job.record(*it).created).min().unwrap_or(i64::MAX)
    }

    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.waiting.iter().map(|it| it.rank).chain(self.behind.iter().copied())
    }
}

/// Returns everything that does not proceed.
pub(crate) fn stalls(job: &Job<'_>) -> Vec<Stall> {
    let mut found: Vec<Stall> = (0..job.queues.len()).filter_map(|at| collective(job, at)).collect();
    for (at, (key, pair)) in job.pairs.iter().enumerate() {
        found.extend(pair_stalls(job, at, *key, pair));
    }
    found.extend(job.any_source.iter().map(|call| Stall {
        place: Place::AnySource { group: job.record(*call).group },
        waiting: vec![*call],
        behind: Vec::new(),
        absent: Vec::new(),
        is_lost: false,
        blocked_by: None,
    }));
    found
}

fn collective(job: &Job<'_>, at: usize) -> Option<Stall> {
    let queue = &job.queues[at];
    let seq = queue.lanes.iter().filter_map(|it| it.head).min()?;
    let (mut waiting, mut behind, mut present) = (Vec::new(), Vec::new(), Vec::new());
    for lane in &queue.lanes {
        match (lane.head, job.call_at(lane, seq)) {
            (Some(head), Some(call)) if head == seq => waiting.push(call),
            (Some(_), _) => behind.push(lane.rank),
            (None, _) => (),
        }
        // A ring buffer may have lost the call, or it is left out since it has completed.
        if job.last_seq(lane).is_some_and(|it| it >= seq)
            || job.has_enqueued(lane, queue.group, seq) == Some(true)
        {
            present.push(lane.rank);
        }
    }
    present.sort_unstable();
    let absent: Vec<Rank> =
        queue.members.iter().copied().filter(|it| present.binary_search(it).is_err()).collect();
    let is_lost =
        absent.iter().all(|it| job.has_dump(*it)) && queue.lanes.iter().any(|it| has_lost(job, it, at, seq));
    let place = Place::Collective { queue: at, seq };
    Some(Stall { place, waiting, behind, absent, is_lost, blocked_by: None })
}

/// Whether a member may have made a collective whose record is lost: it has not kept this one, nor a later one that completed.
/// What `pg_status` counts, and calls that it has kept and another member made before this one, show that it has not.
pub(crate) fn has_lost(job: &Job<'_>, lane: &Lane, queue: usize, seq: u32) -> bool {
    let queue = &job.queues[queue];
    let log = job.records.log(lane.rank);
    if log.is_some_and(|it| it.only_active) {
        // What has completed is left out.
        let is_later = || job.last_seq(lane).is_some_and(|it| it >= seq);
        return !is_later() && job.has_enqueued(lane, queue.group, seq).is_none();
    }
    log.is_some_and(|it| it.is_cut())
        && (lane.calls.is_empty() || lane.first > seq && lane.head == Some(lane.first))
        && job.has_enqueued(lane, queue.group, seq) != Some(false)
        && !queue.lanes.iter().take(MAX_COMPARED).any(|it| {
            let call = job.call_at(it, seq).filter(|call| call.rank != lane.rank);
            call.is_some_and(|it| has_kept_earlier(job, lane.rank, it))
        })
}

/// Whether the first collective that a rank has kept and shares with the rank of a call is before the call there.
fn has_kept_earlier(job: &Job<'_>, rank: Rank, call: Call) -> bool {
    let count = job.records.log(rank).map_or(0, |it| it.records.len().min(MAX_SHARED) as u32);
    let shared = (0..count).find_map(|at| same_collective(job, Call { rank, at }, call.rank));
    shared.is_some_and(|it| it.at < call.at)
}

/// The members, and the calls of one, that are looked at.
const MAX_COMPARED: usize = 64;
const MAX_SHARED: usize = 256;

fn pair_stalls(job: &Job<'_>, at: usize, key: PairKey, pair: &Pair) -> Vec<Stall> {
    let (group, from, to) = key;
    let mut found = Vec::new();
    let send = (pair.sent < pair.sends.len()).then_some(pair.sent);
    if let Some(send) = send {
        let receive = pair.receive_of(send);
        let call = Call { rank: from, at: pair.sends[send] };
        let meets = pair.receives.get(receive).map(|it| Call { rank: to, at: *it });
        let meets = meets.filter(|it| !job.record(*it).done);
        let is_behind = earlier_open(job, group, call, to).is_some();
        // Both ends behind earlier messages of the two ranks wait for these.
        let meets_behind = meets.is_some_and(|it| earlier_open(job, group, it, from).is_some());
        if is_behind && meets_behind && receive == pair.received {
            return found;
        }
        // A send behind an earlier call of its rank does not wait: the receive that it meets waits for that call.
        if meets.is_none() || !is_behind {
            found.push(pair_stall(job, at, (send, receive), call, to));
        }
    }
    if pair.received < pair.receives.len() {
        let receive = pair.received;
        let send_of = pair.send_of(receive);
        let call = Call { rank: to, at: pair.receives[receive] };
        match found.first_mut() {
            // Both ends of one message are one stall. An end behind another call does not wait: the other one waits for it.
            Some(stall) if send == Some(send_of) || stall.is_lost => {
                if stall.blocked_by.is_none() {
                    stall.waiting.push(call);
                }
            }
            _ => found.push(pair_stall(job, at, (send_of, receive), call, from)),
        }
    }
    found
}

fn pair_stall(job: &Job<'_>, at: usize, (send, receive): (usize, usize), call: Call, other: Rank) -> Stall {
    let ((group, from, to), pair) = &job.pairs[at];
    let partner = if call.rank == *from { pair.receives.get(receive) } else { pair.sends.get(send) };
    let partner = partner.map(|it| Call { rank: other, at: *it });
    let is_guess = partner.is_none() && pair.is_cut || is_left_out(job, call, other, partner);
    let is_lost = job.has_dump(other) && (is_guess || !pair.are_heads_known);
    let blocked_by = partner.filter(|it| !is_lost && !job.record(*it).done).and_then(|it| {
        // A rank whose own batch is behind another one waits in that.
        let behind = || earlier_batch(job, *group, it).filter(|_| earlier_batch(job, *group, call).is_none());
        earlier_open(job, *group, it, call.rank).or_else(behind)
    });
    let is_absent = !is_lost && (partner.is_none() || blocked_by.is_some());
    debug_assert!(call.rank == *from || call.rank == *to);
    Stall {
        place: Place::Pair { pair: at, send, receive },
        waiting: vec![call],
        behind: Vec::new(),
        absent: if is_absent { vec![other] } else { Vec::new() },
        is_lost,
        blocked_by,
    }
}

/// Whether the other side of a message may be left out since it has completed: it is not in a batch, whose records stay. In a group of two, both sides have one
/// number.
fn is_left_out(job: &Job<'_>, call: Call, other: Rank, partner: Option<Call>) -> bool {
    if !job.records.log(other).is_some_and(|it| it.only_active) {
        return false;
    }
    let record = job.record(call);
    let is_pair = job.records.group(record.group).members.as_ref().is_some_and(|it| it.len() == 2);
    // What a rank waits in first meets what its peer waits in first.
    let is_first = |it: Call| {
        let before = job.records.log(it.rank).map_or(&[][..], |log| &log.records[..it.at as usize]);
        before.iter().all(|it| it.done)
    };
    let is_known = match partner {
        Some(it) => is_pair && job.record(it).p2p_seq == record.p2p_seq || is_first(call) && is_first(it),
        None => is_pair && job.enqueued(other, record.group).is_some_and(|it| it < i64::from(record.p2p_seq)),
    };
    record.batch == Batch::Alone && !is_known
}

/// Returns the first message of a rank in a batch of the group that has not finished, if it is of an earlier batch: batches run on the communicator of
/// the group.
fn earlier_batch(job: &Job<'_>, group: GroupId, call: Call) -> Option<Call> {
    let batch = |it: &Record| (it.batch == Batch::Member && it.group == group).then_some(it.p2p_seq);
    let own = batch(job.record(call))?;
    let begin = job.pairs.partition_point(|it| it.0.0 < group);
    let of_group = job.pairs[begin..].iter().take_while(|it| it.0.0 == group);
    let first = of_group.filter_map(|((_, from, to), pair)| {
        let (calls, done) = if *from == call.rank {
            (&pair.sends, pair.sent)
        } else if *to == call.rank {
            (&pair.receives, if pair.is_cut { pair.received } else { pair.received.max(pair.sent) })
        } else {
            return None;
        };
        let at =
            *calls[done.min(calls.len())..].iter().find(|it| !job.record(Call { at: **it, ..call }).done)?;
        Some(Call { at, ..call })
    });
    first.min().filter(|it| batch(job.record(*it)).is_some_and(|it| it < own))
}

/// Returns the first call between the two ranks that has not finished, if it is before this one. NCCL runs what two ranks send and receive in one
/// order, unless the calls are of one batch.
fn earlier_open(job: &Job<'_>, group: GroupId, call: Call, other: Rank) -> Option<Call> {
    let pair = |from: Rank, to: Rank| {
        let at = job.pairs.binary_search_by_key(&(group, from, to), |it| it.0).ok()?;
        Some(&job.pairs[at].1)
    };
    let sends = pair(call.rank, other).and_then(|it| it.sends.get(it.sent));
    // What the sender has seen to complete arrives, also if the receiver has not seen it.
    let arrived = |it: &Pair| if it.is_cut { it.received } else { it.received.max(it.sent) };
    let receives = pair(other, call.rank).and_then(|it| it.receives.get(arrived(it)));
    let first = sends.into_iter().chain(receives).min()?;
    let (first, mine) = (Call { rank: call.rank, at: *first }, job.record(call));
    let is_alone =
        |it: &Record| it.batch == Batch::Alone && call_name(job.records, it) != "batch_isend_irecv";
    (first.at < call.at && is_alone(mine) && is_alone(job.record(first))).then_some(first)
}
