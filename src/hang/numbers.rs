//! The one rank whose records have other numbers than those of the ranks with its role, in dumps of active calls.
//!
//! Such dumps leave out what has completed, but their records are numbered: ranks with one role give one number to a call that they all make, unless one of them
//! has made a call more or less before it.

use std::cmp::Ordering;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    agreement::Key,
    departure::{Count, Departure},
    divergence::How,
    lane::token,
    queues::{Call, Job},
    record::{Batch, Peer, Rank},
};

/// The number of ranks above which nothing is compared.
const MAX_RANKS: usize = 2048;

/// The kinds of the groups of a rank, and its position in those with messages: stages of a pipeline make other calls.
type Role = Vec<(u32, Option<usize>)>;

/// A call of a role: what it does, where, in groups of which kind, the distance of the peer, and its number in the group.
type Shown = (Role, (Key, u32, u32, Option<i64>), [u32; 2]);

/// Finds the rank, by how it differs from two others at least.
pub(crate) fn find(job: &Job<'_>) -> Option<Departure> {
    let logs = &job.records.ranks;
    if logs.len() != job.world.len() || logs.len() > MAX_RANKS || !logs.iter().all(|it| it.only_active) {
        return None;
    }
    let with_messages: FxHashSet<u32> = job.pairs.iter().map(|it| job.kind_of_group(it.0.0)).collect();
    let mut calls: FxHashMap<Shown, Vec<Call>> = FxHashMap::default();
    for log in logs {
        let role = role(job, log.rank, &with_messages);
        for (at, record) in log.records.iter().enumerate().filter(|it| it.1.batch != Batch::P2pEnd) {
            let call = Call { rank: log.rank, at: at as u32 };
            let it = token(job, call, 1);
            let numbers = if record.peer == Peer::None { [record.seq, 0] } else { [0, record.op] };
            calls
                .entry((role.clone(), (it.key, it.site, it.group, it.peer), numbers))
                .or_default()
                .push(call);
        }
    }
    let number = |it: &Call| job.record(*it).number;
    let mut found: Vec<(Call, Vec<Call>)> = Vec::new();
    let mut pairs = Vec::new();
    for calls in calls.into_values() {
        let (first, rest) = calls.split_first()?;
        if rest.iter().all(|it| number(it) == number(first)) {
            continue;
        }
        if let [_] = rest {
            pairs.push(calls);
            continue;
        }
        let is_alone = |it: &&Call| calls.iter().filter(|other| number(other) == number(it)).count() == 1;
        let mut alone = calls.iter().filter(is_alone);
        let (call, None) = (*alone.next()?, alone.next()) else { return None };
        let like: Vec<Call> = calls.iter().copied().filter(|it| *it != call).collect();
        let is_one =
            like.iter().all(|it| number(it) == number(&like[0]) && number(it).abs_diff(number(&call)) == 1);
        found.push(is_one.then_some((call, like))?);
    }
    found.sort_by_key(|it| it.0);
    let (call, like) = found.first()?;
    // Two that differ say nothing of others.
    let has_it = |it: &[Call]| it.iter().any(|it| it.rank == call.rank);
    if found.iter().any(|it| it.0.rank != call.rank) || !pairs.iter().all(|it| has_it(it)) {
        return None;
    }
    let order = |it: &(Call, Vec<Call>)| number(&it.0).cmp(&number(&it.1[0]));
    let ranks = like.iter().map(|it| it.rank).collect();
    let first = |wanted: Ordering| found.iter().find(|it| order(it) == wanted);
    let (how, usual) = match (first(Ordering::Less), first(Ordering::Greater)) {
        // One is before the others' place, the other one behind it.
        (Some((call, _)), Some((_, usual))) => {
            return Some(Departure {
                call: *call,
                usual: *usual.first()?,
                like: ranks,
                how: How::Reordered(2),
                count: None,
            });
        }
        (Some(_), None) => (How::Skipped(1), like[0]),
        (None, _) => (How::Added(1), like[0]),
    };
    let count = Count {
        rank: call.rank,
        kind: None,
        own: number(call) as usize,
        usual: number(&usual) as usize,
        at: *call,
    };
    Some(Departure { call: *call, usual, like: ranks, how, count: Some(count) })
}

fn role(job: &Job<'_>, rank: Rank, with_messages: &FxHashSet<u32>) -> Role {
    let groups = job.records.log(rank).into_iter().flat_map(|it| job.groups_of(it));
    let place = |it| {
        let members = job.queue(it).map_or(&[][..], |it| &it.members);
        members.iter().position(|it| *it == rank)
    };
    let mut role: Role = groups
        .map(|it| {
            let kind = job.kind_of_group(it);
            (kind, with_messages.contains(&kind).then(|| place(it)).flatten())
        })
        .collect();
    role.sort_unstable();
    role.dedup();
    role
}
