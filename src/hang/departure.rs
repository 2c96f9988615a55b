//! The one rank that departs from the program: whole logs of ranks are aligned, of all groups and messages.
//!
//! Programs of one source make the same calls on ranks with the same role. A rank departs if all ranks that made the same calls as it until then go
//! on to another call, and earlier rounds do, too. Calls of several ranks may be paired although they differ, so that this is
//! often before the call that hangs. What is only absent, since a log ends, is no departure: a rank may be behind.

use rustc_hash::FxHashSet;

use crate::{
    agreement::Key,
    divergence::How,
    peers::offset,
    queues::{Call, Job, same_collective},
    record::{Batch, Peer, Rank},
    site::site,
    stall::Stall,
};

/// Where a rank departs.
#[derive(Clone, Debug)]
pub(crate) struct Departure {
    /// What it calls.
    pub(crate) call: Call,
    /// What the others call there, by one of them.
    pub(crate) usual: Call,
    /// The ranks that make the other call.
    pub(crate) like: Vec<Rank>,
    pub(crate) how: How,
}

/// What a call does, its place, the description and size of its group, and the distance of its peer.
type Token<'j> = (Key, u32, &'j str, usize, Option<i64>);

/// The calls of a rank that its program issues, or those that autograd issues from a thread of its own.
struct Lane<'j> {
    calls: Vec<Call>,
    tokens: Vec<Token<'j>>,
}

/// The number of ranks with which one is compared.
const MAX_COMPARED: usize = 64;

/// The number of ranks above which logs are not aligned.
const MAX_RANKS: usize = 2048;

/// The number of calls before one that are compared with earlier rounds.
const MAX_CONTEXT: usize = 256;

/// The number of calls that are taken from earlier rounds behind the end of a log.
const MAX_AHEAD: usize = 4;

/// The number of calls that are a long run.
const MIN_CONTEXT: usize = 12;

/// The number of calls that a rank leaves out, adds or exchanges at most.
const MAX_SHIFT: usize = 16;

/// Finds the one rank that departs, if it takes part in something that does not proceed.
pub(crate) fn find(job: &Job<'_>, stalls: &[Stall]) -> Option<Departure> {
    let logs = &job.records.ranks;
    if logs.len() > MAX_RANKS || logs.iter().any(|it| it.only_active) {
        return None;
    }
    let mut found = Vec::new();
    for of_autograd in [false, true] {
        let lanes: Vec<Lane> = logs.iter().map(|it| lane(job, it.rank, of_autograd)).collect();
        found.extend((0..lanes.len()).filter_map(|at| departs(job, &lanes, at)));
    }
    let mut found = found.into_iter();
    found.next().filter(|it| found.next().is_none() && is_stuck(job, stalls, it))
}

/// Whether a call follows those before it on its rank as in earlier rounds, of which no record is lost.
pub(crate) fn is_habit(job: &Job<'_>, call: Call) -> bool {
    let record = job.record(call);
    let lane = lane(job, call.rank, site(job.records, record).is_some_and(|it| it.autograd));
    let at = lane.calls.binary_search(&call).ok().filter(|it| *it > 0);
    let is_whole = job.records.log(call.rank).is_some_and(|it| it.lost == 0);
    is_whole && at.is_some_and(|at| predicted(&lane.tokens, at) == Some(lane.tokens[at]))
}

fn lane<'j>(job: &'j Job<'_>, rank: Rank, of_autograd: bool) -> Lane<'j> {
    let records = job.records.log(rank).map_or(&[][..], |it| &it.records);
    let is_wanted = |call: &Call| {
        let record = job.record(*call);
        record.batch != Batch::P2pEnd
            && site(job.records, record).is_some_and(|it| it.autograd) == of_autograd
    };
    let calls = (0..records.len() as u32).map(|at| Call { rank, at }).filter(is_wanted);
    let calls: Vec<Call> = calls.collect();
    Lane { tokens: calls.iter().map(|it| token(job, *it)).collect(), calls }
}

fn token<'j>(job: &'j Job<'_>, call: Call) -> Token<'j> {
    let record = job.record(call);
    let (key, place) = job.token(call);
    let group = job.records.group(record.group);
    let peer = match record.peer {
        Peer::Rank(peer) => offset(job, record.group, call.rank, peer),
        Peer::None | Peer::Any => None,
    };
    (key, place, &group.description, group.members.as_ref().map_or(0, Vec::len), peer)
}

/// Where two lanes have the same call: at their begin, or behind what ring buffers have overwritten.
fn anchor(job: &Job<'_>, one: &Lane<'_>, two: &Lane<'_>) -> Option<(usize, usize)> {
    let rank = two.calls.first()?.rank;
    let is_whole = |it: &Lane<'_>| {
        it.calls.first().is_some_and(|it| job.records.log(it.rank).is_some_and(|it| it.lost == 0))
    };
    if is_whole(one) && is_whole(two) {
        return Some((0, 0));
    }
    let meet = |(at, call): (usize, &Call)| {
        let other = same_collective(job, *call, rank)?;
        Some((at, two.calls.binary_search(&other).ok()?))
    };
    one.calls.iter().enumerate().find_map(meet)
}

/// Finds where a rank departs from those that made the same calls until then.
fn departs(job: &Job<'_>, lanes: &[Lane<'_>], at: usize) -> Option<Departure> {
    let own = &lanes[at];
    // The nearest ranks first: in groups of neighbours, roles are alike.
    let mut others: Vec<usize> = (0..lanes.len()).filter(|it| *it != at).collect();
    others.sort_by_key(|it| it.abs_diff(at));
    let mut differ: Vec<(usize, usize, usize)> = Vec::new();
    let mut agreed = 0;
    for other in others.into_iter().take(MAX_COMPARED) {
        let Some((mine, theirs)) = anchor(job, own, &lanes[other]) else { continue };
        let (a, b) = (&own.tokens[mine..], &lanes[other].tokens[theirs..]);
        let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        if same < a.len() && same < b.len() {
            differ.push((mine + same, other, theirs + same));
        } else {
            agreed = agreed.max(mine + same);
        }
    }
    let place = differ.iter().map(|it| it.0).max()?;
    // Another rank makes the same call.
    if agreed > place {
        return None;
    }
    let like: Vec<(usize, usize)> = differ.iter().filter(|it| it.0 == place).map(|it| (it.1, it.2)).collect();
    let usual = |it: &(usize, usize)| lanes[it.0].tokens[it.1];
    let first = usual(like.first()?);
    if like.iter().any(|it| usual(it) != first) {
        return None;
    }
    let is_cut = job.records.log(own.calls[place].rank).is_none_or(|it| it.lost > 0);
    let habit = predicted(&own.tokens, place);
    let is_habit = habit == Some(first);
    let was_made = |token: &Token<'_>| own.tokens[..place].contains(token);
    // Of cut logs, the begin of rounds may be lost, in which roles differ.
    let is_usual = is_habit || like.len() > 1 && !is_cut;
    if !is_usual || !was_made(&first) || habit == Some(own.tokens[place]) {
        return None;
    }
    // The longest log shows best what follows.
    let longest = like.iter().max_by_key(|it| lanes[it.0].tokens.len() - it.1)?;
    let theirs = &lanes[longest.0];
    let how = how(job, (own, place), (theirs, longest.1));
    // Of two ranks, the one that leaves a loop for the first time may be right.
    let goes_on = own.tokens.get(place + 1).is_some() && !matches!(how, How::Other);
    let has_place = !job.records.stack(job.record(own.calls[place]).stack).frames.is_empty();
    let is_known = has_place && was_made(&own.tokens[place]);
    if like.len() == 1 && (is_cut || !is_known && !goes_on) {
        return None;
    }
    Some(Departure {
        call: own.calls[place],
        usual: theirs.calls[longest.1],
        like: like.iter().filter_map(|it| Some(lanes[it.0].calls.first()?.rank)).collect(),
        how,
    })
}

/// Returns what followed the calls before a position in earlier rounds: behind the longest run of calls that was made before.
fn predicted<'j>(tokens: &[Token<'j>], at: usize) -> Option<Token<'j>> {
    let last = tokens[..at].last()?;
    let mut best: Option<(usize, Token<'j>, bool)> = None;
    for end in (1..at).filter(|it| tokens[it - 1] == *last).rev().take(MAX_CONTEXT) {
        let pairs = tokens[..end].iter().rev().zip(tokens[..at].iter().rev());
        let length = pairs.take(MAX_CONTEXT).take_while(|(a, b)| a == b).count();
        // A round at least, or a long run.
        if length < (at - end).min(MIN_CONTEXT) {
            continue;
        }
        match &mut best {
            Some((longest, ..)) if length < *longest => (),
            Some((longest, next, is_one)) if length == *longest => *is_one &= *next == tokens[end],
            _ => best = Some((length, tokens[end], true)),
        }
    }
    best.filter(|it| it.2).map(|it| it.1)
}

/// Determines how the calls of a rank from a position on differ from those of another one.
fn how(job: &Job<'_>, (own, at): (&Lane<'_>, usize), (theirs, place): (&Lane<'_>, usize)) -> How {
    // A log that ends goes on as in earlier rounds.
    let mut theirs_on = theirs.tokens.clone();
    while theirs_on.len() < place + MAX_AHEAD
        && let Some(next) = predicted(&theirs_on, theirs_on.len())
    {
        theirs_on.push(next);
    }
    let (a, b) = (&own.tokens[at..], &theirs_on[place..]);
    // The number of calls that agree, if it is all that there are and at least one.
    let agree = |a: &[Token<'_>], b: &[Token<'_>]| {
        let count = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        (count > 0 && count == a.len().min(b.len())).then_some(count)
    };
    let tail = |of: &'_ [Token<'_>], from: usize| from.min(of.len());
    if (a[0].1, a[0].2, a[0].4) == (b[0].1, b[0].2, b[0].4) && a[0].0 != b[0].0 {
        let kind = |it: Call| job.records.signature(job.record(it).signature);
        let [mine, usual] = [own.calls[at], theirs.calls[place]].map(kind);
        let goes_on = a.len() == 1 || b.len() == 1 || agree(&a[1..], &b[1..]).is_some();
        if mine.name == usual.name && goes_on {
            let is_type = mine.element_type() != usual.element_type();
            return if is_type { How::ElementType } else { How::Elements };
        }
    }
    let mut shifts = (1..=MAX_SHIFT).flat_map(|by| {
        let skipped = agree(a, &b[tail(b, by)..]).map(|it| (it, How::Skipped(by as u32)));
        let added = agree(&a[tail(a, by)..], b).map(|it| (it, How::Added(by as u32)));
        [skipped, added]
    });
    // A call that was never made before is one more, rather than the first behind calls that are left out.
    let mut best: Option<(usize, How)> = None;
    for (count, how) in shifts.by_ref().flatten() {
        if best.as_ref().is_none_or(|it| count > it.0) {
            best = Some((count, how));
        }
    }
    // Calls that are left out explain short logs as well as another order.
    let least = best.as_ref().map_or(2, |it| it.0 + 1);
    for width in least.max(2)..=MAX_SHIFT.min(a.len()).min(b.len()) {
        let (mut x, mut y) = (a[..width].to_vec(), b[..width].to_vec());
        x.sort_unstable();
        y.sort_unstable();
        let rest = (&a[tail(a, width)..], &b[tail(b, width)..]);
        if x == y && (rest.0.is_empty() || rest.1.is_empty() || agree(rest.0, rest.1).is_some()) {
            return How::Reordered(width as u32);
        }
    }
    best.map_or_else(|| alone(own, at, (a, b)), |it| it.1)
}

/// The same if what follows is not known: a call that the rank never made before is one more, as far as its place shows.
fn alone(own: &Lane<'_>, at: usize, (a, b): (&[Token<'_>], &[Token<'_>])) -> How {
    let known: FxHashSet<&Token<'_>> = own.tokens[..at].iter().collect();
    // The same call in another group is no call more.
    let is_moved = (a[0].0, a[0].1) == (b[0].0, b[0].1) && a[0].1 != 0;
    if a[0].1 != 0 && !known.contains(&a[0]) && !is_moved { How::Added(1) } else { How::Other }
}

/// Whether the rank takes part in something that does not proceed, in one of the groups of the two calls.
fn is_stuck(job: &Job<'_>, stalls: &[Stall], found: &Departure) -> bool {
    let description = |call: Call| &job.records.group(job.record(call).group).description;
    let groups = [description(found.call), description(found.usual)];
    let rank = found.call.rank;
    !job.record(found.call).done
        || stalls.iter().any(|it| {
            groups.contains(&&job.records.group(it.group(job)).description)
                && (it.absent.contains(&rank) || it.ranks().any(|it| it == rank))
        })
}
