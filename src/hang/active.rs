//! What dumps mean that do not hold all calls, or that were written behind an abort.
//!
//! With `TORCH_INCLUDE_ONLY_ACTIVE` a dump leaves out what has completed: what is absent is no record that a ring buffer has lost. The end of a batch
//! of messages is left out with the others, and its messages, whose states nobody keeps up to date, stay.
//!
//! An abort of a communicator ends its kernels, so that what hangs is `completed` in dumps that are written later. It is discovered at or
//! after the time-out of the call, and another member has not made the call.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    record::{Batch, GroupId, Kind, Peer, Rank, RankLog, Record, Records, State},
    site::call_name,
};

/// Finds the groups of `pg_status` that no record of the rank names: ranks give a group, or groups of one description, one number.
pub(crate) fn name_status(records: &mut Records) {
    let mut of_group: FxHashMap<(&[Rank], &str), Option<u32>> = FxHashMap::default();
    let mut of_description: FxHashMap<&str, Option<u32>> = FxHashMap::default();
    let key = |it: GroupId| {
        let group = records.group(it);
        (group.members.as_deref().unwrap_or_default(), group.description.as_str())
    };
    let known = records.ranks.iter().flat_map(|log| &log.status).filter_map(|it| Some((it.group, it.of?)));
    for (number, group) in known {
        let (members, description) = key(group);
        let known = of_group.entry((members, description)).or_insert(Some(number));
        *known = known.filter(|it| *it == number);
        let known = of_description.entry(description).or_insert(Some(number));
        *known = known.filter(|it| *it == number);
    }
    of_description.entry("default_pg").or_insert(Some(0));
    let by_members = |it: GroupId| of_group.get(&key(it)).copied().flatten();
    let by_description = |it: GroupId| *of_description.get(key(it).1).filter(|_| !key(it).1.is_empty())?;
    // The groups of one description may have several numbers, those of one number several descriptions.
    let of = |log: &RankLog, wanted: u32| {
        let one = |number: &dyn Fn(GroupId) -> Option<u32>| {
            let mut found = log.groups.iter().copied().filter(|it| number(*it) == Some(wanted));
            found.next().filter(|_| found.next().is_none())
        };
        one(&by_members).or_else(|| one(&|it| by_members(it).or_else(|| by_description(it))))
    };
    let found: Vec<Vec<Option<GroupId>>> = records
        .ranks
        .iter()
        .map(|log| log.status.iter().map(|it| it.of.or_else(|| of(log, it.group))).collect())
        .collect();
    for (log, found) in records.ranks.iter_mut().zip(found) {
        log.status.iter_mut().zip(found).for_each(|(it, of)| it.of = of);
    }
}

/// Marks the logs of dumps that hold active calls only, and the messages of their batches that have completed.
pub(crate) fn mark_active(records: &mut Records) {
    let has_completed =
        |log: &RankLog| log.reports_completion && log.records.iter().any(|it| it.state == State::Completed);
    // Dumps without any records are of a recorder that keeps none.
    let has_records = records.ranks.iter().any(|log| !log.records.is_empty());
    if !has_records || records.ranks.iter().any(has_completed) || !is_left_out(&records.ranks) {
        return;
    }
    let key = |it: &Record| (it.group, it.p2p_seq);
    let is_message = |it: &Record| it.peer != Peer::None && it.batch == Batch::Alone;
    let is_pair = |it: &[Record]| is_message(&it[0]) && is_message(&it[1]) && key(&it[0]) == key(&it[1]);
    // Without stacks, groups tell whether their messages are in batches: some have several messages, or an end.
    let mut batched: FxHashSet<&str> = FxHashSet::default();
    for log in &records.ranks {
        let pairs = log.records.windows(2).filter(|it| is_pair(it)).map(|it| &it[0]);
        let ends = log.records.iter().filter(|it| it.batch == Batch::P2pEnd);
        batched.extend(pairs.chain(ends).map(|it| records.group(it.group).description.as_str()));
    }
    let is_done = |log: &RankLog, it: &Record| {
        is_message(it)
            && match log.has_stacks {
                true => call_name(records, it) == "batch_isend_irecv",
                false => batched.contains(records.group(it.group).description.as_str()),
            }
    };
    // What is issued behind it has completed.
    let last_gap = |log: &RankLog| {
        let gap = |it: &[Record]| it[1].number > it[0].number + 1;
        log.records.windows(2).rposition(gap).map_or(0, |it| it + 1)
    };
    let of_log = |log: &RankLog| {
        let gap = last_gap(log);
        let is_over = |group: GroupId| {
            log.status.iter().any(|it| it.of == Some(group) && it.enqueued > 0 && it.enqueued == it.completed)
        };
        let is_done = |(at, it): (usize, &Record)| {
            is_done(log, it) || is_message(it) && (at < gap || is_over(it.group))
        };
        log.records.iter().enumerate().map(is_done).collect()
    };
    let done: Vec<Vec<bool>> = records.ranks.iter().map(of_log).collect();
    for (log, done) in records.ranks.iter_mut().zip(done) {
        log.only_active = true;
        // The calls that are left out cannot be counted.
        log.lost = log.lost.max(1);
        for (record, is_done) in log.records.iter_mut().zip(done) {
            if is_done {
                (record.batch, record.done) = (Batch::Member, true);
            }
        }
    }
}

/// Whether the logs show that records are left out that no ring buffer has overwritten: some between others, or all. A ring buffer that has
/// overwritten records is full, so that those of one job have one size, and nobody makes it very small.
fn is_left_out(logs: &[RankLog]) -> bool {
    let is_sign =
        |log: &RankLog| log.has_gaps || log.records.is_empty() && log.status.iter().any(|it| it.enqueued > 0);
    let mut cut = logs.iter().filter(|it| it.lost > 0).map(|it| it.records.len()).peekable();
    let first = cut.peek().copied();
    logs.iter().any(is_sign) || cut.any(|it| it < MIN_RING || Some(it) != first)
}

/// The number of records that a ring buffer holds at least.
const MIN_RING: usize = 8;

/// Takes calls that have completed by an abort for open, and given up.
pub(crate) fn mark_aborted(records: &mut Records) {
    let given_up: Vec<&Record> =
        records.ranks.iter().flat_map(|log| &log.records).filter(|it| it.outlived).collect();
    let Some(first) = given_up.iter().map(|it| it.completed).min() else { return };
    if !records
        .ranks
        .iter()
        .any(|log| log.records.iter().any(|it| it.outlived && is_missed(records, log, it)))
    {
        return;
    }
    for log in &mut records.ranks {
        // By the clock of the host, or else of another one.
        let own = log.records.iter().filter(|it| it.outlived).map(|it| it.completed).min();
        let since = own.unwrap_or(first - CLOCKS);
        let is_aborted = |it: &Record| it.outlived || it.completed >= since && it.waited_long;
        let mut ended: FxHashSet<(GroupId, u32)> = FxHashSet::default();
        for record in log.records.iter_mut().filter(|it| it.done && is_aborted(it)) {
            (record.done, record.retired, record.state) = (false, true, State::Scheduled);
            if record.batch == Batch::P2pEnd {
                ended.insert((record.group, record.p2p_seq));
            }
        }
        let members = log.records.iter_mut().filter(|it| it.batch == Batch::Member && it.peer != Peer::None);
        for member in members.filter(|it| ended.contains(&(it.group, it.p2p_seq))) {
            (member.done, member.retired) = (false, true);
        }
    }
}

/// The difference of the clocks of two hosts, in nanoseconds, that is taken for possible.
const CLOCKS: i64 = 1_000_000_000;

/// Whether a call has outlived its time-out, and another rank, which it needs, has not made its part.
fn is_missed(records: &Records, log: &RankLog, record: &Record) -> bool {
    let whole = |rank: Rank| records.log(rank).filter(|it| it.lost == 0);
    // The ring buffer keeps the newest.
    let newest = |rank: Rank| {
        let is_kept = |it: &Record| it.group == record.group && it.is_collective();
        records.log(rank).filter(|it| it.lost == 0 || it.records.iter().any(is_kept))
    };
    match record.peer {
        Peer::None if record.batch == Batch::P2pEnd => {
            let members = log.records.iter().filter(|it| it.batch == Batch::Member);
            let mut members = members.filter(|it| (it.group, it.p2p_seq) == (record.group, record.p2p_seq));
            members.any(|it| is_missed(records, log, it))
        }
        Peer::None => {
            let kind = records.signature(record.signature).kind;
            let needs_all = kind.needs_all() || kind == Kind::Coalesced;
            let makes = |it: &Record| it.group == record.group && it.seq >= record.seq && it.is_collective();
            let members = records.group(record.group).members.iter().flatten();
            let logs = members.map(|rank| newest(*rank));
            needs_all && logs.flatten().any(|log| !log.records.iter().any(makes))
        }
        Peer::Rank(peer) => {
            let kind = |it: &Record| records.signature(it.signature).kind;
            let to = |it: &&Record, other: Rank| it.group == record.group && it.peer == Peer::Rank(other);
            let own = log.records.iter().filter(|it| to(it, peer) && kind(it) == kind(record));
            let own = own.take_while(|it| it.op <= record.op).count();
            let theirs = |log: &RankLog, rank: Rank| {
                log.records.iter().filter(|it| to(it, rank) && kind(it) != kind(record)).count()
            };
            log.lost == 0 && whole(peer).is_some_and(|it| theirs(it, log.rank) < own)
        }
        Peer::Any => false,
    }
}
