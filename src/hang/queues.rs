//! The order of the calls: for each group and member the collectives, for each pair of ranks the sends and receives.
//!
//! A communicator pairs calls by their position: the n-th collective of a group on one member is one communication with the n-th on each other
//! member, and the n-th send from a to b with the n-th receive of b from a. `collective_seq_id` is that position also if the ring
//! buffer has lost records; for sends and receives, what is lost has to be inferred.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    agreement::{self, Key},
    record::{Batch, GroupId, GroupStatus, Kind, Peer, Rank, RankLog, Record, Records, SignatureId, StackId},
    site::{is_autograd, program_frame},
};

/// A call: a rank, and the position of the record in its log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Call {
    pub(crate) rank: Rank,
    pub(crate) at: u32,
}

/// The collectives of one member of a group, in order.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) rank: Rank,
    pub(crate) calls: Vec<u32>,
    /// The sequence number of the first one.
    pub(crate) first: u32,
    /// The sequence number of the first one that did not finish, if there is one.
    pub(crate) head: Option<u32>,
}

/// The collectives of a group.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) group: GroupId,
    pub(crate) members: Vec<Rank>,
    /// For each member with a dump, its calls, by rank.
    pub(crate) lanes: Vec<Lane>,
}

impl Queue {
    /// Returns the calls of a member, if it has a dump.
    pub(crate) fn lane(&self, rank: Rank) -> Option<&Lane> {
        self.lanes.binary_search_by_key(&rank, |it| it.rank).ok().map(|at| &self.lanes[at])
    }
}

/// The sends from one rank to another in a group, and the receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pair {
    pub(crate) sends: Vec<u32>,
    pub(crate) receives: Vec<u32>,
    /// The number of sends before the first one that did not finish.
    pub(crate) sent: usize,
    /// The same of receives.
    pub(crate) received: usize,
    /// Whether one of the two logs has lost messages of the group, so that which receive belongs to a send is a guess.
    pub(crate) is_cut: bool,
    /// Whether messages are left out that are lost, or before those that are paired.
    pub(crate) is_partial: bool,
    /// Whether the first send and the first receive that the records hold as open are the first open ones: none before them is lost.
    pub(crate) are_heads_known: bool,
}

impl Pair {
    /// Returns the position of the receive that is one communication with a send.
    pub(crate) fn receive_of(&self, send: usize) -> usize {
        if self.is_cut { (send + self.received).saturating_sub(self.sent) } else { send }
    }

    /// Returns the position of the send that is one communication with a receive.
    pub(crate) fn send_of(&self, receive: usize) -> usize {
        if self.is_cut { (receive + self.sent).saturating_sub(self.received) } else { receive }
    }
}

/// A group, the sender and the receiver.
pub(crate) type PairKey = (GroupId, Rank, Rank);

/// All calls of a job, by the order in which communicators pair them.
#[derive(Debug)]
pub(crate) struct Job<'r> {
    pub(crate) records: &'r Records,
    /// All ranks that the records name.
    pub(crate) world: Vec<Rank>,
    /// The ranks whose dumps cannot be read.
    pub(crate) unreadable: Vec<Rank>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) pairs: Vec<(PairKey, Pair)>,
    /// The receives from any rank that did not finish.
    pub(crate) any_source: Vec<Call>,
    /// The groups that stand for those without a backend.
    aliases: FxHashMap<GroupId, GroupId>,
    /// The groups with messages that are not in batches.
    alone: FxHashSet<GroupId>,
    /// The position of the log of each rank.
    places: Vec<u32>,
    /// The key of each signature.
    keys: Vec<Key>,
    /// The place in the program of each stack: equal numbers, equal places; 0 is none.
    sites: Vec<u32>,
    /// Whether autograd issues the calls of each stack.
    autograd: Vec<bool>,
    /// The description and the number of members of each group: equal numbers, equal ones.
    kinds: Vec<u32>,
}

impl<'r> Job<'r> {
    pub(crate) fn new(records: &'r Records, unreadable: &[Rank]) -> Self {
        let aliases = aliases(records);
        let mut lanes: FxHashMap<GroupId, Vec<Lane>> = FxHashMap::default();
        let mut pairs: FxHashMap<PairKey, Pair> = FxHashMap::default();
        let mut any_source = Vec::new();
        for log in &records.ranks {
            let groups = log.groups.iter().map(|it| (*aliases.get(it).unwrap_or(it), Vec::new()));
            let mut own: FxHashMap<GroupId, Vec<u32>> = groups.collect();
            for (at, record) in log.records.iter().enumerate() {
                let at = at as u32;
                let kind = records.signature(record.signature).kind;
                match (record.peer, kind) {
                    (Peer::Rank(to), Kind::Send) => {
                        pairs.entry((record.group, log.rank, to)).or_default().sends.push(at);
                    }
                    (Peer::Rank(from), Kind::Recv) => {
                        pairs.entry((record.group, from, log.rank)).or_default().receives.push(at);
                    }
                    (Peer::Any, Kind::Recv) if !record.done && log.reports_completion => {
                        any_source.push(Call { rank: log.rank, at });
                    }
                    _ if record.is_collective() => {
                        own.entry(record.group).or_default().push(at);
                    }
                    _ => (),
                }
            }
            for (group, mut calls) in own {
                // Calls of several threads.
                calls.sort_by_key(|it| log.records[*it as usize].seq);
                let first = calls.first().map_or(0, |it| log.records[*it as usize].seq);
                lanes.entry(group).or_default().push(Lane { rank: log.rank, calls, first, head: None });
            }
        }
        let world = world(records, unreadable);
        let mut queues: Vec<Queue> = lanes
            .into_iter()
            .map(|(group, lanes)| {
                let members = match &records.group(group).members {
                    Some(members) => members.clone(),
                    None if records.group(group).name == "0" => world.clone(),
                    None => lanes.iter().map(|it| it.rank).collect(),
                };
                Queue { group, members, lanes }
            })
            .collect();
        queues.sort_by_key(|it| it.group);
        queues.iter_mut().for_each(|it| leave_out_begun_groups(records, it));
        let mut pairs: Vec<(PairKey, Pair)> = pairs.into_iter().collect();
        pairs.sort_by_key(|it| it.0);
        let mut job = Self {
            records,
            world,
            unreadable: unreadable.to_vec(),
            queues,
            pairs,
            any_source,
            aliases,
            alone: alone(records),
            places: places(records),
            keys: agreement::keys(records),
            sites: sites(records),
            autograd: (0..records.stacks.len()).map(|it| is_autograd(records, StackId(it as u32))).collect(),
            kinds: numbered(
                records.groups.iter().map(|it| (&it.description, it.members.as_ref().map_or(0, Vec::len))),
            ),
        };
        job.find_heads();
        job
    }

    fn find_heads(&mut self) {
        let records = self.records;
        let mut queues = std::mem::take(&mut self.queues);
        for queue in &mut queues {
            let mut is_complete: FxHashMap<u32, bool> = FxHashMap::default();
            for lane in 0..queue.lanes.len() {
                let log = records.log(queue.lanes[lane].rank);
                let Some(log) = log else { continue };
                let calls = &queue.lanes[lane].calls;
                let open = if log.reports_completion {
                    // NCCL runs the calls of a group one after the other: those before a finished one have finished.
                    let is_nccl = records.group(queue.group).backend.starts_with("nccl");
                    let done = calls.iter().rposition(|it| is_nccl && log.records[*it as usize].done);
                    let rest = calls.get(done.map_or(0, |it| it + 1)..).unwrap_or_default();
                    rest.iter().find(|it| !log.records[**it as usize].done)
                } else {
                    calls.iter().find(|it| {
                        let seq = log.records[**it as usize].seq;
                        !*is_complete.entry(seq).or_insert_with(|| self.is_complete(queue, seq))
                    })
                };
                queue.lanes[lane].head = open.map(|it| log.records[*it as usize].seq);
            }
        }
        self.queues = queues;
        let mut pairs = std::mem::take(&mut self.pairs);
        for ((group, from, to), pair) in &mut pairs {
            let (from_lost, to_lost) =
                (lost_messages(records, *from, *group), lost_messages(records, *to, *group));
            pair.is_cut = from_lost || to_lost;
            pair.is_partial = pair.is_cut;
            if pair.is_cut && self.begin_at_collective((*from, *to), pair) {
                pair.is_cut = false;
            }
            let done = |rank: Rank, calls: &[u32], others: usize| {
                let Some(log) = records.log(rank) else { return 0 };
                if !log.reports_completion {
                    return calls.len().min(others);
                }
                calls.iter().rposition(|it| log.records[*it as usize].done).map_or(0, |it| it + 1)
            };
            pair.sent = done(*from, &pair.sends, pair.receives.len());
            pair.received = done(*to, &pair.receives, pair.sends.len());
            // What two ranks send each other completes in order: an open call that is lost has no completed one after it.
            pair.are_heads_known =
                !pair.is_cut || (!from_lost || pair.sent > 0) && (!to_lost || pair.received > 0);
            // What was received was sent, also if the sender has not seen it.
            if !pair.is_cut {
                pair.sent = pair.sent.max(pair.received.min(pair.sends.len()));
            }
        }
        self.pairs = pairs;
    }

    /// Leaves out the messages before the first collective that both ranks hold and have completed: what is before it is no part of what is behind it. Between
    /// such collectives, the ranks have to have as many sends as receives.
    fn begin_at_collective(&self, (from, to): (Rank, Rank), pair: &mut Pair) -> bool {
        let count = self.records.log(from).map_or(0, |it| it.records.len() as u32);
        let shared = (0..count).map(|at| Call { rank: from, at }).filter_map(|it| {
            let other = same_collective(self, it, to)?;
            (self.record(it).done && self.record(other).done).then_some((it.at, other.at))
        });
        let before = |calls: &[u32], at: u32| calls.partition_point(|it| *it < at);
        let mut counts = shared.map(|(a, b)| (before(&pair.sends, a), before(&pair.receives, b)));
        let Some(first) = counts.next() else { return false };
        let is_even = counts.all(|it| it.0.checked_sub(first.0) == it.1.checked_sub(first.1));
        if is_even {
            pair.sends.drain(..first.0);
            pair.receives.drain(..first.1);
        }
        is_even
    }

    /// Whether all members have called a collective, and alike.
    fn is_complete(&self, queue: &Queue, seq: u32) -> bool {
        let mut keys = queue.lanes.iter().map(|it| self.call_at(it, seq).map(|it| self.key(it)));
        let first = keys.next().flatten();
        queue.lanes.len() == queue.members.len() && first.is_some() && keys.all(|it| it == first)
    }

    /// Returns the collectives of a group.
    pub(crate) fn queue(&self, group: GroupId) -> Option<&Queue> {
        self.queues.binary_search_by_key(&group, |it| it.group).ok().map(|at| &self.queues[at])
    }

    /// Returns the groups of a rank.
    pub(crate) fn groups_of(&self, log: &'r RankLog) -> impl Iterator<Item = GroupId> {
        log.groups.iter().map(|it| *self.aliases.get(it).unwrap_or(it))
    }

    pub(crate) fn record(&self, call: Call) -> &'r Record {
        // A call is made from a log of the records.
        &self.records.ranks[self.places[call.rank as usize] as usize].records[call.at as usize]
    }

    /// Returns the call of a member with a sequence number.
    pub(crate) fn call_at(&self, lane: &Lane, seq: u32) -> Option<Call> {
        let guess = seq.checked_sub(lane.first)? as usize;
        let of = |at: &u32| self.record(Call { rank: lane.rank, at: *at }).seq;
        let at = match lane.calls.get(guess) {
            Some(at) if of(at) == seq => *at,
            _ => *lane.calls.get(lane.calls.partition_point(|it| of(it) < seq))?,
        };
        (of(&at) == seq).then_some(Call { rank: lane.rank, at })
    }

    pub(crate) fn last_seq(&self, lane: &Lane) -> Option<u32> {
        lane.calls.last().map(|it| self.record(Call { rank: lane.rank, at: *it }).seq)
    }

    /// Returns what the dump of a rank says of the last operations of a group.
    pub(crate) fn status(&self, rank: Rank, group: GroupId) -> Option<GroupStatus> {
        let is_it =
            |it: &&GroupStatus| it.of.is_some_and(|it| *self.aliases.get(&it).unwrap_or(&it) == group);
        self.records.log(rank)?.status.iter().find(is_it).copied()
    }

    /// Returns the number of the last operation of a group that a rank has enqueued, if its dump says so.
    pub(crate) fn enqueued(&self, rank: Rank, group: GroupId) -> Option<i64> {
        self.status(rank, group).map(|it| it.enqueued)
    }

    /// Returns whether a member has made a collective, by what `pg_status` counts and by the numbers of its messages: `None` if they do not show that. The
    /// status has the number of the last operation, a collective or a message.
    pub(crate) fn has_enqueued(&self, lane: &Lane, group: GroupId, seq: u32) -> Option<bool> {
        let log = self.records.log(lane.rank)?;
        let messages = || log.records.iter().filter(|it| it.group == group && it.peer != Peer::None);
        if messages().any(|it| it.seq >= seq) {
            return Some(true);
        }
        let last = self.enqueued(lane.rank, group).filter(|_| !self.alone.contains(&group))?;
        let is_message = last > 0 && messages().map(|it| i64::from(it.p2p_seq)).max() == Some(last);
        (!is_message).then_some(last >= i64::from(seq))
    }

    pub(crate) fn key(&self, call: Call) -> Key {
        self.keys[self.record(call).signature.index()]
    }

    /// Returns what is compared to find the same call in two logs: what it does, and where it is in the program.
    pub(crate) fn token(&self, call: Call) -> (Key, u32) {
        let record = self.record(call);
        (self.keys[record.signature.index()], self.sites[record.stack.index()])
    }

    /// Whether autograd issues the call of a record, from a thread of its own.
    pub(crate) fn is_autograd(&self, record: &Record) -> bool {
        self.autograd[record.stack.index()]
    }

    /// Returns the number of the description and size of a group.
    pub(crate) fn kind_of_group(&self, group: GroupId) -> u32 {
        self.kinds[group.index()]
    }

    /// Returns the description of the groups with a number of `kind_of_group`.
    pub(crate) fn description_of_kind(&self, kind: u32) -> &'r str {
        let at = self.kinds.iter().position(|it| *it == kind).unwrap_or_default();
        &self.records.groups[at].description
    }

    pub(crate) fn has_dump(&self, rank: Rank) -> bool {
        self.records.log(rank).is_some()
    }

    /// Returns the call before this one in the log of its rank.
    pub(crate) fn before(&self, call: Call) -> Option<Call> {
        Some(Call { rank: call.rank, at: call.at.checked_sub(1)? })
    }
}

/// Returns the call of another rank that is one communication with a collective.
pub(crate) fn same_collective(job: &Job<'_>, call: Call, rank: Rank) -> Option<Call> {
    let record = job.record(call);
    if !record.is_collective() {
        return None;
    }
    job.call_at(job.queue(record.group)?.lane(rank)?, record.seq)
}

/// Whether the log of a rank may have lost messages of a group: the number of the first record of the group tells how many messages it had before.
pub(crate) fn lost_messages(records: &Records, rank: Rank, group: GroupId) -> bool {
    let Some(log) = records.log(rank).filter(|it| it.is_cut()) else { return false };
    log.records.iter().find(|it| it.group == group).is_none_or(|first| match first.peer {
        Peer::None => first.p2p_seq > 0 || first.batch != Batch::Alone,
        Peer::Any | Peer::Rank(_) => first.p2p_seq != 1 || first.batch != Batch::Alone,
    })
}

/// Leaves out the last calls of a lane if another lane shows that they are the first ones of a coalesced group, whose end is not recorded yet.
fn leave_out_begun_groups(records: &Records, queue: &mut Queue) {
    let record = |rank: Rank, at: u32| records.log(rank).and_then(|log| log.records.get(at as usize));
    let ends = queue.lanes.iter().flat_map(|lane| lane.calls.iter().filter_map(|at| record(lane.rank, *at)));
    let ends = ends.filter(|it| it.batch == Batch::CollectiveEnd);
    let groups: FxHashMap<u32, SignatureId> = ends.map(|it| (it.seq, it.signature)).collect();
    if groups.is_empty() {
        return;
    }
    for lane in &mut queue.lanes {
        while let Some(last) = lane.calls.last().and_then(|at| record(lane.rank, *at)) {
            let parts = groups.get(&last.seq).map(|it| &records.signature(*it).parts);
            if last.batch != Batch::Alone || !parts.is_some_and(|it| it.contains(&last.signature)) {
                break;
            }
            lane.calls.pop();
        }
    }
}

/// Groups of ranks without records in them have no backend: returns the group of the same name and members that has one.
fn aliases(records: &Records) -> FxHashMap<GroupId, GroupId> {
    let number = |at: usize| GroupId(at as u32);
    let key = |at: usize| (&records.groups[at].name, &records.groups[at].members);
    let (without, with): (Vec<usize>, Vec<usize>) =
        (0..records.groups.len()).partition(|at| records.groups[*at].backend.is_empty());
    let known: FxHashMap<_, usize> = with.into_iter().map(|at| (key(at), at)).collect();
    without.into_iter().filter_map(|at| Some((number(at), number(*known.get(&key(at))?)))).collect()
}

fn alone(records: &Records) -> FxHashSet<GroupId> {
    let messages = records.ranks.iter().flat_map(|it| &it.records).filter(|it| it.peer != Peer::None);
    messages.filter(|it| it.batch == Batch::Alone).map(|it| it.group).collect()
}

fn places(records: &Records) -> Vec<u32> {
    let mut places = vec![0; records.ranks.last().map_or(0, |it| it.rank as usize + 1)];
    for (at, log) in records.ranks.iter().enumerate() {
        places[log.rank as usize] = at as u32;
    }
    places
}

fn world(records: &Records, unreadable: &[Rank]) -> Vec<Rank> {
    let mut world: BTreeSet<Rank> =
        records.ranks.iter().map(|it| it.rank).chain(unreadable.iter().copied()).collect();
    let mut is_known = false;
    for members in records.groups.iter().filter_map(|it| it.members.as_ref()) {
        is_known = true;
        world.extend(members);
    }
    if !is_known {
        world.extend(0..world.last().copied().unwrap_or(0));
    }
    world.into_iter().collect()
}

/// Returns the place in the program of each stack as a number; 0 is none.
fn sites(records: &Records) -> Vec<u32> {
    let place = |at: usize| {
        let frame = records.stacks[at].frames[program_frame(records, StackId(at as u32))?];
        Some((frame.file, frame.line))
    };
    let none = std::iter::once(None);
    numbered(none.chain((0..records.stacks.len()).map(place))).split_off(1)
}

/// Numbers equal values alike.
fn numbered<T: Eq + std::hash::Hash>(all: impl Iterator<Item = T>) -> Vec<u32> {
    let mut numbers = FxHashMap::default();
    all.map(|it| {
        let next = numbers.len() as u32;
        *numbers.entry(it).or_insert(next)
    })
    .collect()
}
