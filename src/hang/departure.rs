//! The one rank that departs from the program: whole logs of ranks are aligned, of all groups and messages.
//!
//! Programs of one source make the same calls on ranks with the same role. A rank departs if all ranks that made the same calls as it until then go
//! on to another call, and earlier rounds do, too. Calls of several ranks may be paired although they differ, so that this is
//! often before the call that hangs. What is only absent, since a log ends, is no departure: a rank may be behind.

use crate::{
    divergence::How,
    lane::{Lane, Token, agreement, anchor, is_moved, is_whole, keeps_group, lane},
    queues::{Call, Job, same_collective},
    record::Rank,
    rounds::{MIN_CONTEXT, MIN_OPEN, earlier_round, predicted},
    stall::Stall,
};

/// Where a rank departs.
#[derive(Clone, Debug)]
pub(crate) struct Departure {
    /// What it calls.
    pub(crate) call: Call,
    /// What the others call there, by one of them.
    pub(crate) usual: Call,
    /// The ranks that make the other call; empty if the rank itself made it in earlier rounds.
    pub(crate) like: Vec<Rank>,
    pub(crate) how: How,
    /// The numbers of calls that name the rank, if its calls before are not compared.
    pub(crate) count: Option<Count>,
}

/// The numbers of calls of a rank and of all others in groups of a kind, or of records in all, before a call of the rank and those that meet it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) rank: Rank,
    pub(crate) kind: Option<u32>,
    pub(crate) own: usize,
    pub(crate) usual: usize,
    pub(crate) at: Call,
}

/// The number of ranks with which one is compared.
const MAX_COMPARED: usize = 64;

/// The number of ranks above which logs are not aligned.
const MAX_RANKS: usize = 2048;

/// The number of calls that are taken from earlier rounds behind the end of a log.
const MAX_AHEAD: usize = 4;

/// The number of calls that a rank leaves out, adds or exchanges at most.
const MAX_SHIFT: usize = 16;

/// The number of calls in another order that are likelier than one call that is left out or added.
const MAX_NEAR: usize = 4;

/// Finds the one rank that departs, if it takes part in something that does not proceed.
pub(crate) fn find(job: &Job<'_>, stalls: &[Stall]) -> Option<Departure> {
    let logs = &job.records.ranks;
    if logs.len() > MAX_RANKS {
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

/// Of ranks that wait for each other, finds the only one whose open calls do not follow as in its earlier rounds. A call that it has never made may be
/// the first one of its kind.
pub(crate) fn by_habit(job: &Job<'_>, suspects: &[Rank]) -> Option<Departure> {
    let departure = |rank: &Rank| {
        let own = lane(job, *rank, false);
        let open = own.calls.iter().position(|it| !job.record(*it).done)?;
        // All before a collective that the suspects have completed is paired.
        let others = || suspects.iter().filter(|it| *it != rank);
        let is_shared = |it: &Call| {
            let is_done =
                |other: &Rank| same_collective(job, *it, *other).is_some_and(|it| job.record(it).done);
            job.record(*it).done && others().all(is_done)
        };
        let shared = own.calls[..open].iter().rposition(is_shared).map_or(open, |it| it + 1);
        let mut from = (shared.max(open.saturating_sub(MAX_OPEN))..own.calls.len()).take(2 * MAX_OPEN);
        let other = |at: usize| earlier_round(job, &own, at).filter(|it| own.tokens[*it] != own.tokens[at]);
        from.find_map(|at| Some((at, other(at)?))).map(|(at, before)| (own, at, before, at <= open))
    };
    let mut found: Vec<_> = suspects.iter().filter_map(departure).collect();
    // What is behind a call in which a rank waits may be a part of the program that it seldom has.
    if found.len() > 1 {
        found.retain(|it| it.3);
    }
    if found.len() != 1 {
        return by_likeness(job, suspects);
    }
    let (own, at, before, _) = found.remove(0);
    let is_known = own.tokens[before..at].contains(&own.tokens[at])
        || is_moved(&own.tokens[at], &own.tokens[before])
        || own.tokens[at].gap > 1 && own.tokens[at].gap == own.tokens[before].gap;
    let how = how(job, (&own, at), (&own, before));
    // Without stacks, a call behind a loop may look like one of it.
    let has_stacks = job.records.log(own.calls[at].rank).is_some_and(|it| it.has_stacks);
    let goes_on = own.tokens.len() >= at + MIN_OPEN && !matches!(how, How::Other);
    (is_known && (has_stacks || goes_on)).then(|| Departure {
        call: own.calls[at],
        usual: own.calls[before],
        like: Vec::new(),
        how,
        count: None,
    })
}

/// Of ranks that wait for each other, finds the only one that makes another call than the rank whose calls were the same, if each of the others has one that
/// goes on like it.
fn by_likeness(job: &Job<'_>, suspects: &[Rank]) -> Option<Departure> {
    if job.records.ranks.len() > MAX_RANKS || suspects.iter().any(|it| !is_whole(job, *it)) {
        return None;
    }
    let others = job.records.ranks.iter().map(|it| it.rank).filter(|it| !suspects.contains(it));
    let others: Vec<Lane> =
        others.filter(|it| is_whole(job, *it)).take(MAX_COMPARED).map(|it| lane(job, it, false)).collect();
    let mut departs = Vec::new();
    for rank in suspects {
        let own = lane(job, *rank, false);
        let open = own.calls.iter().position(|it| !job.record(*it).done)?;
        let agreed = others.iter().filter(|it| !it.calls.is_empty());
        let agreed = agreed.map(|it| (agreement(job, (&own, 0), (it, 0)), it));
        let ((ends, is_other), like) = agreed.max_by_key(|it| it.0)?;
        if ends.0 <= open && is_other && ends.0 > 1 {
            departs.push((own, like, ends));
        } else if ends.0 <= open {
            return None;
        }
    }
    let [(own, like, (at, place))] = departs.as_slice() else { return None };
    Some(Departure {
        call: own.calls[*at],
        usual: like.calls[*place],
        like: vec![like.calls[0].rank],
        how: how(job, (own, *at), (like, *place)),
        count: None,
    })
}

/// The number of open calls that are compared with earlier rounds.
const MAX_OPEN: usize = 32;

/// Finds where a rank departs from those that made the same calls until then.
fn departs(job: &Job<'_>, lanes: &[Lane], at: usize) -> Option<Departure> {
    let own = &lanes[at];
    // The nearest ranks first: in groups of neighbours, roles are alike.
    let mut others: Vec<usize> = (0..lanes.len()).filter(|it| *it != at).collect();
    others.sort_by_key(|it| it.abs_diff(at));
    let mut differ: Vec<(usize, usize, usize, usize)> = Vec::new();
    let mut agreed = Vec::new();
    for other in others.into_iter().take(MAX_COMPARED) {
        let Some((mine, theirs)) = anchor(job, own, &lanes[other]) else { continue };
        let (ends, is_other) = agreement(job, (own, mine), (&lanes[other], theirs));
        if is_other {
            differ.push((ends.0, other, ends.1, ends.0 - mine));
        } else {
            agreed.push((ends.0, other));
        }
    }
    let place = differ.iter().map(|it| it.0).max()?;
    // Another rank makes the same call, unless its dump leaves it out.
    let number = job.record(own.calls[place]).number;
    let has_it = |other: &Lane| other.calls.iter().any(|it| job.record(*it).number == number);
    let only_active = job.records.log(own.calls[place].rank).is_some_and(|it| it.only_active);
    if agreed.iter().any(|it| it.0 > place && (!only_active || has_it(&lanes[it.1]))) {
        return None;
    }
    differ.retain(|it| it.0 == place);
    let same = differ.iter().map(|it| it.3).min().unwrap_or(0);
    let like: Vec<(usize, usize)> = differ.iter().map(|it| (it.1, it.2)).collect();
    let usual = |it: &(usize, usize)| lanes[it.0].tokens[it.1];
    let first = usual(like.first()?);
    if like.iter().any(|it| usual(it) != first) {
        return None;
    }
    let is_cut = !is_whole(job, own.calls[place].rank);
    let habit = earlier_round(job, own, place).map(|it| own.tokens[it]);
    let is_habit = habit == Some(first);
    let was_made = |token: &Token| own.tokens[..place].contains(token);
    // Of cut logs, the begin of rounds may be lost, in which roles differ.
    let follows =
        || place > 0 && own.tokens[..place].windows(2).any(|it| it == [own.tokens[place - 1], first]);
    let keeps_group = keeps_group(&own.tokens[..=place], &first);
    let is_usual = is_habit || keeps_group || like.len() > 1 && (!is_cut || same >= MIN_CONTEXT || follows());
    // What has completed may be left out; messages differ by the place in a pipeline.
    let may_be_first = only_active && like.len() > 1 && first.peer.is_none();
    if !is_usual || !may_be_first && !was_made(&first) || habit == Some(own.tokens[place]) {
        return None;
    }
    // The longest log shows best what follows.
    let longest = like.iter().max_by_key(|it| lanes[it.0].tokens.len() - it.1)?;
    let theirs = &lanes[longest.0];
    let how = how(job, (own, place), (theirs, longest.1));
    // Of two ranks, the one that leaves a loop for the first time may be right.
    let goes_on = own.tokens.get(place + 1).is_some() && !matches!(how, How::Other);
    let has_place = !job.records.stack(job.record(own.calls[place]).stack).frames.is_empty();
    let is_known = has_place && (was_made(&own.tokens[place]) || is_moved(&own.tokens[place], &first));
    if like.len() == 1 && (is_cut && !is_habit && !keeps_group || !is_known && !goes_on) {
        return None;
    }
    Some(Departure {
        call: own.calls[place],
        usual: theirs.calls[longest.1],
        like: like.iter().filter_map(|it| Some(lanes[it.0].calls.first()?.rank)).collect(),
        how,
        count: None,
    })
}

/// Explains numbers of calls that differ: from a collective back, the calls of the rank and those of one that has the usual number agree, but for the last one that
/// is left out or added.
pub(crate) fn aligned_before(job: &Job<'_>, count: Count, like: &[Call]) -> Option<Departure> {
    let own = lane(job, count.rank, false);
    let end = own.calls.binary_search(&count.at).ok()?;
    let is_less = count.own < count.usual;
    let by = count.own.abs_diff(count.usual) as u32;
    let candidate = |at: &Call| {
        let theirs = lane(job, at.rank, false);
        let place = theirs.calls.binary_search(at).ok()?;
        // A rank that has not come to the collective ends with what it adds.
        let same = |(a, b): &(&Token, &Token)| a.without_gap() == b.without_gap();
        let back = own.tokens[..=end].iter().rev().zip(theirs.tokens[..=place].iter().rev());
        let steps = back.take_while(same).count();
        let (mine, usual) = match (steps, is_less) {
            (0, true) => return None,
            (_, true) => (end + 1 - steps, place.checked_sub(steps)?),
            (_, false) => ((end + 1).checked_sub(steps + 1)?, place + 1 - steps.min(place + 1).max(1)),
        };
        let (one, lane) = if is_less { (usual, &theirs) } else { (mine, &own) };
        let is_it = Some(lane.tokens[one].group) == count.kind;
        // A call that only changes its place is behind the collective on one side.
        let after =
            |of: &Lane, from: usize| of.tokens[from + 1..].iter().map(Token::without_gap).collect::<Vec<_>>();
        let (behind, theirs_behind) = (after(&own, end), after(&theirs, place));
        let goes_on = behind.iter().zip(&theirs_behind).all(|(a, b)| a == b);
        let side = if is_less { &behind } else { &theirs_behind };
        let is_moved = !goes_on && side.iter().take(MIN_OPEN).any(|it| *it == lane.tokens[one].without_gap());
        is_it.then(|| (steps, own.calls[mine], theirs.calls[usual], is_moved))
    };
    let (_, call, usual, is_moved) =
        like.iter().take(MAX_COMPARED).filter_map(candidate).max_by_key(|it| it.0)?;
    let how = match (is_moved, is_less) {
        (true, _) => How::Reordered(2),
        (false, true) => How::Skipped(by),
        (false, false) => How::Added(by),
    };
    let like = like.iter().map(|it| it.rank).collect();
    Some(Departure { call, usual, like, how, count: Some(count) })
}

/// Determines how the calls of a rank from a position on differ from those of another one.
fn how(job: &Job<'_>, (own, at): (&Lane, usize), (theirs, place): (&Lane, usize)) -> How {
    // A log that ends goes on as in earlier rounds.
    let without_gaps = |of: &[Token]| of.iter().map(Token::without_gap).collect::<Vec<_>>();
    let mut theirs_on = theirs.tokens.clone();
    while theirs_on.len() < place + MAX_AHEAD
        && let Some(next) = predicted(&theirs_on, theirs_on.len())
    {
        theirs_on.push(next);
    }
    let (a, b) = (without_gaps(&own.tokens[at..]), without_gaps(&theirs_on[place..]));
    let (a, b) = (a.as_slice(), b.as_slice());
    // The number of calls that agree, if it is all that there are and at least one.
    let agree = |a: &[Token], b: &[Token]| {
        let count = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        (count > 0 && count == a.len().min(b.len())).then_some(count)
    };
    let tail = |of: &[Token], from: usize| from.min(of.len());
    if (a[0].site, a[0].group, a[0].peer) == (b[0].site, b[0].group, b[0].peer) && a[0].key != b[0].key {
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
    let most = if best.is_some() { MAX_NEAR } else { MAX_SHIFT };
    for width in least.max(2)..=most.min(a.len()).min(b.len()) {
        let (mut x, mut y) = (a[..width].to_vec(), b[..width].to_vec());
        x.sort_unstable();
        y.sort_unstable();
        let rest = (&a[tail(a, width)..], &b[tail(b, width)..]);
        if x == y && (rest.0.is_empty() || rest.1.is_empty() || agree(rest.0, rest.1).is_some()) {
            return How::Reordered(width as u32);
        }
    }
    best.map_or(How::Other, |it| it.1)
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
