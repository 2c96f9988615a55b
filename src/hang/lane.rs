//! The calls of a rank as its program issues them, and where those of two ranks are the same.

use std::cmp::Ordering;

use crate::{
    agreement::Key,
    peers::offset,
    queues::{Call, Job, same_collective},
    record::{Batch, Peer, Rank},
};

/// What is compared of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) key: Key,
    /// Its place in the program.
    pub(crate) site: u32,
    /// The description and size of its group, as a number.
    pub(crate) group: u32,
    /// The distance of its peer.
    pub(crate) peer: Option<i64>,
    /// The number of calls since the one before, of which dumps may leave out those that have completed.
    pub(crate) gap: u32,
}

impl Token {
    pub(crate) fn without_gap(&self) -> Self {
        Self { gap: 1, ..*self }
    }
}

/// The calls of a rank that its program issues, or those that autograd issues from a thread of its own.
pub(crate) struct Lane {
    pub(crate) calls: Vec<Call>,
    pub(crate) tokens: Vec<Token>,
}

pub(crate) fn lane(job: &Job<'_>, rank: Rank, of_autograd: bool) -> Lane {
    let records = job.records.log(rank).map_or(&[][..], |it| &it.records);
    let is_wanted = |call: &Call| {
        let record = job.record(*call);
        record.batch != Batch::P2pEnd && job.is_autograd(record) == of_autograd
    };
    let calls = (0..records.len() as u32).map(|at| Call { rank, at }).filter(is_wanted);
    let calls: Vec<Call> = calls.collect();
    let mut before = 0;
    let tokens = calls.iter().map(|it| {
        let number = job.record(*it).number;
        token(job, *it, number.saturating_sub(std::mem::replace(&mut before, number)))
    });
    Lane { tokens: tokens.collect(), calls }
}

pub(crate) fn token(job: &Job<'_>, call: Call, gap: u32) -> Token {
    let record = job.record(call);
    let (key, site) = job.token(call);
    let peer = match record.peer {
        Peer::Rank(peer) => offset(job, record.group, call.rank, peer),
        Peer::None | Peer::Any => None,
    };
    // Ends of batches and calls of other threads are no gap.
    let only_active = job.records.log(call.rank).is_some_and(|it| it.only_active);
    let gap = if only_active { gap } else { 1 };
    Token { key, site, group: job.kind_of_group(record.group), peer, gap }
}

/// Where two lanes have the same call: at their begin, or behind what ring buffers have overwritten.
pub(crate) fn anchor(job: &Job<'_>, one: &Lane, two: &Lane) -> Option<(usize, usize)> {
    let rank = two.calls.first()?.rank;
    let is_whole = |it: &Lane| it.calls.first().is_some_and(|it| is_whole(job, it.rank));
    if is_whole(one) && is_whole(two) {
        return Some((0, 0));
    }
    let meet = |(at, call): (usize, &Call)| {
        let other = same_collective(job, *call, rank)?;
        Some((at, two.calls.binary_search(&other).ok()?))
    };
    one.calls.iter().enumerate().find_map(meet)
}

/// Whether no call of a rank is lost that its lane would hold.
pub(crate) fn is_whole(job: &Job<'_>, rank: Rank) -> bool {
    job.records.log(rank).is_some_and(|log| {
        let mut messages = log.records.iter().filter(|it| it.peer != Peer::None);
        log.lost == 0 || log.only_active && messages.next().is_none_or(|it| it.p2p_seq <= 1)
    })
}

/// Returns the positions up to which two lanes agree, and whether they differ there. Dumps without what has completed lack calls, but not the messages of
/// batches: what is missing is told by the numbers of records.
pub(crate) fn agreement(
    job: &Job<'_>,
    (own, mut mine): (&Lane, usize),
    (other, mut theirs): (&Lane, usize),
) -> ((usize, usize), bool) {
    let is_active = |it: &Lane| job.records.log(it.calls[0].rank).is_some_and(|it| it.only_active);
    let by_number = is_active(own) || is_active(other);
    while let (Some(a), Some(b)) = (own.calls.get(mine), other.calls.get(theirs)) {
        let (one, two) = (own.tokens[mine], other.tokens[theirs]);
        let numbers = (job.record(*a).number, job.record(*b).number);
        let is_same = one.without_gap() == two.without_gap();
        let is_left_out = |it: &Call| job.record(*it).batch != Batch::Member;
        match numbers.0.cmp(&numbers.1) {
            Ordering::Less if by_number && is_left_out(a) => mine += 1,
            Ordering::Greater if by_number && is_left_out(b) => theirs += 1,
            Ordering::Equal | Ordering::Less | Ordering::Greater
                if is_same && (!by_number || numbers.0 == numbers.1) =>
            {
                (mine, theirs) = (mine + 1, theirs + 1);
            }
            _ => return ((mine, theirs), true),
        }
    }
    ((mine, theirs), false)
}

/// Whether two calls at one place of the program are of other groups or peers.
pub(crate) fn is_moved(one: &Token, other: &Token) -> bool {
    (one.key, one.site) == (other.key, other.site) && one.site != 0 && one != other
}

/// Whether the last of some calls is in another group than all that were made at its place, and the other one is not.
pub(crate) fn keeps_group(tokens: &[Token], other: &Token) -> bool {
    let Some((last, before)) = tokens.split_last() else { return false };
    let mut at_place = before.iter().filter(|it| it.site == last.site).peekable();
    is_moved(last, other)
        && last.group != other.group
        && at_place.peek().is_some()
        && at_place.all(|it| it.group == other.group)
}
