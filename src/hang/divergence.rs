//! Where the members of a group stop calling the same collectives, which of them diverged, and how.
//!
//! A communicator pairs by position, so one call too few on a member makes all of its later calls meet other ones. The first position
//! that differs is the cause; what is paired after it is a consequence.

use rustc_hash::FxHashMap;

use crate::{
    agreement::Key,
    peers::usual_size,
    queues::{Call, Job, Lane, Queue},
    record::{Batch, Kind},
};

/// The largest number of calls that a rank can have left out or added.
const MAX_SHIFT: u32 = 16;

/// The largest number of calls in which a rank can have another order.
const MAX_REORDERED: u32 = 64;

/// The sequence number of the first collective of a group.
const FIRST_SEQ: u32 = 1;

/// The place of a call in the program with what it does.
type Token = (Key, u32);

/// Why some members, and not the others, are said to have diverged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Basis {
    /// More than half of all members make the other call, also if some have no dump or have not come to it.
    Majority,
    /// The other call follows its predecessor elsewhere in the records, too; theirs never does.
    History,
    /// The groups of the same description make the other call at this position.
    OtherGroups,
    /// The calls at its line have other sizes elsewhere in the records.
    Sizes,
    /// Nothing decides.
    Undecided,
}

/// How a rank diverged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// It left out this many calls of the others.
    Skipped(u32),
    /// The same, in the records before: its call follows the one that it left out.
    SkippedByHistory,
    /// It makes this many calls that the others do not make.
    Added(u32),
    /// It makes this many calls in another order.
    Reordered(u32),
    /// The same call, with another number of elements.
    Elements,
    /// The same call, with another element type.
    ElementType,
    /// Another call.
    Other,
}

/// The first position at which the members of a group do not make the same call.
#[derive(Clone, Debug)]
pub(crate) struct Divergence {
    pub(crate) queue: usize,
    pub(crate) seq: u32,
    /// The calls that the others make; if nothing decides, those of one side.
    pub(crate) expected: Vec<Call>,
    /// The calls of the ranks that diverged, by what they call instead: the largest part first. It is never empty.
    pub(crate) diverged: Vec<Vec<Call>>,
    /// How the first part diverged.
    pub(crate) how: How,
    pub(crate) basis: Basis,
    /// Whether it is at the first position that all logs have, and they do not show whether the calls before agreed: the cause may be lost.
    pub(crate) is_before_records: bool,
}

impl Divergence {
    /// Returns the calls of all members at the position.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.expected.iter().chain(self.diverged.iter().flatten())
    }

    /// Returns the lane of the others with which that of the first rank that diverged was compared.
    pub(crate) fn reference<'q>(&self, job: &'q Job<'_>) -> Option<&'q Lane> {
        longest_lane(&job.queues[self.queue], &self.expected)
    }
}

/// Returns the first position from which all lanes have their records, and whole groups of calls.
fn window(job: &Job<'_>, queue: &Queue) -> u32 {
    let cut = queue.lanes.iter().filter(|it| !it.calls.is_empty());
    // What dumps of active calls leave out has completed.
    let cut = cut.filter(|it| job.records.log(it.rank).is_some_and(|log| log.is_cut() && !log.only_active));
    let is_partial = |it: &Lane| job.record(Call { rank: it.rank, at: it.calls[0] }).batch == Batch::CutEnd;
    cut.map(|it| it.first + u32::from(is_partial(it))).max().unwrap_or(0)
}

/// Finds the first divergence of a group: of what the calls do, or else of where they are in the program, if one member is behind or ahead
/// from there on.
pub(crate) fn find(job: &Job<'_>, at: usize) -> Option<Divergence> {
    let queue = &job.queues[at];
    let by_key = first_difference(job, queue, |call| (job.key(call), 0));
    let by_place = first_difference(job, queue, |call| job.token(call));
    let apart = by_place.filter(|it| by_key.is_none_or(|key| *it < key));
    let shifted = apart.and_then(|seq| {
        let found = classify(job, at, seq, Compared::Places)?;
        // Members may call one collective from several lines, such as the branches of the root and of the others.
        let is_shift =
            matches!(found.how, How::Skipped(_) | How::Added(_)) && found.basis != Basis::Undecided;
        // Calls that agree and completed were one communication, wherever they are in the program.
        let is_open = found.calls().all(|it| !job.record(*it).done);
        (is_shift && is_open && overlap_is_long(job, queue, &found)).then_some(found)
    });
    shifted.or_else(|| classify(job, at, by_key?, Compared::Calls { is_first: apart.is_none() }))
}

/// What of the calls of members differs.
#[derive(Clone, Copy, PartialEq)]
enum Compared {
    /// Where they are in the program.
    Places,
    /// What they do; `is_first` if the places of all calls before agree.
    Calls { is_first: bool },
}

/// Returns the first sequence number at which two lanes differ.
fn first_difference(job: &Job<'_>, queue: &Queue, token: impl Fn(Call) -> Token) -> Option<u32> {
    let begin = window(job, queue);
    let longest = queue.lanes.iter().max_by_key(|it| it.calls.len())?;
    let mut first: Option<u32> = None;
    for lane in queue.lanes.iter().filter(|it| it.rank != longest.rank) {
        for at in &lane.calls {
            let call = Call { rank: lane.rank, at: *at };
            let seq = job.record(call).seq;
            if seq < begin {
                continue;
            }
            if first.is_some_and(|it| seq >= it) {
                break;
            }
            if job.call_at(longest, seq).is_some_and(|other| token(other) != token(call)) {
                first = Some(seq);
                break;
            }
        }
    }
    first
}

/// Whether a shift holds for two calls at least: one may be chance.
fn overlap_is_long(job: &Job<'_>, queue: &Queue, found: &Divergence) -> bool {
    let lasts = found
        .diverged
        .iter()
        .flatten()
        .filter_map(|it| queue.lane(it.rank).and_then(|lane| job.last_seq(lane)));
    lasts.min().is_some_and(|last| last > found.seq)
}

/// Determines who diverged at a position, and how.
fn classify(job: &Job<'_>, at: usize, seq: u32, compared: Compared) -> Option<Divergence> {
    let queue = &job.queues[at];
    let mut parts: FxHashMap<Token, Vec<Call>> = FxHashMap::default();
    for lane in &queue.lanes {
        if let Some(call) = job.call_at(lane, seq) {
            let token = if compared == Compared::Places { job.token(call) } else { (job.key(call), 0) };
            parts.entry(token).or_default().push(call);
        }
    }
    let mut parts: Vec<Vec<Call>> = parts.into_values().collect();
    parts.sort_by_key(|it| (std::cmp::Reverse(it.len()), it[0]));
    if parts.len() < 2 {
        return None;
    }
    let (chosen, basis) = vote(job, at, seq, &parts, compared);
    let mut expected = parts.remove(chosen);
    let mut diverged = parts;
    let reference = longest_lane(queue, &expected)?;
    let mine = queue.lane(diverged.first()?.first()?.rank)?;
    let mut how = compare(job, reference, mine, seq);
    // Sizes tell only about one call of the program.
    let is_size = matches!(how, How::Elements | How::ElementType);
    let basis = if basis == Basis::Sizes && !is_size { Basis::Undecided } else { basis };
    if let (Basis::Undecided, How::Added(count), Some(first)) = (basis, &how, diverged.first_mut()) {
        // Of two sides, the one with fewer calls is said to have left them out.
        how = How::Skipped(*count);
        std::mem::swap(&mut expected, first);
    }
    let begin = window(job, queue);
    let is_lost = begin > FIRST_SEQ && seq == begin;
    // One call of the program with other sizes, behind which all agree, is no consequence.
    let is_before_records =
        is_lost && !is_complete_before(job, queue, seq) && !is_changed(job, reference, mine, seq);
    Some(Divergence { queue: at, seq, expected, diverged, how, basis, is_before_records })
}

/// Returns the first lane of some calls that has the most calls: it shows best what follows.
fn longest_lane<'q>(queue: &'q Queue, calls: &[Call]) -> Option<&'q Lane> {
    calls.iter().filter_map(|it| queue.lane(it.rank)).min_by_key(|it| std::cmp::Reverse(it.calls.len()))
}

/// Whether the call at the first common position is the first one that did not finish: then all before it agreed.
fn is_complete_before(job: &Job<'_>, queue: &Queue, seq: u32) -> bool {
    queue.lanes.iter().any(|lane| {
        let before = seq.checked_sub(1).and_then(|it| job.call_at(lane, it));
        before.is_some_and(|it| job.record(it).done)
    })
}

/// Chooses the part of the members that makes the expected call.
fn vote(job: &Job<'_>, at: usize, seq: u32, parts: &[Vec<Call>], compared: Compared) -> (usize, Basis) {
    let queue = &job.queues[at];
    if parts[0].len() * 2 > queue.members.len() {
        return (0, Basis::Majority);
    }
    if let Some(chosen) = like_other_groups(job, queue, seq, parts) {
        return (chosen, Basis::OtherGroups);
    }
    // Two sides of one call at its line.
    if let [one, two] = parts
        && is_one_function(job, one[0], two[0])
        && let Some(rank) = usual_size(job, one[0], two[0])
    {
        return (usize::from(one.iter().any(|it| it.rank == rank)), Basis::Sizes);
    }
    let seen: Vec<bool> = parts.iter().map(|part| is_habit(job, queue, part[0], seq)).collect();
    // A call that is seldom made follows nothing before.
    let is_known = |part: &Vec<Call>| is_made_before(job, queue, part[0], seq);
    match (seen.iter().filter(|it| **it).count(), seen.iter().position(|it| *it)) {
        // What follows calls that do not agree is a consequence.
        (1, Some(_)) if compared == (Compared::Calls { is_first: false }) => (0, Basis::Undecided),
        (1, Some(chosen)) if parts.iter().all(is_known) && is_repeated(job, queue, (parts, chosen), seq) => {
            (chosen, Basis::History)
        }
        _ => (0, Basis::Undecided),
    }
}

/// Whether a log that has lost records shows a whole round of the program that ends with the call of the chosen part; a log that is whole need
/// not. Where a loop was left before may be lost, so that the call only repeats the loop. The round begins with the last call like that of
/// another part.
fn is_repeated(job: &Job<'_>, queue: &Queue, (parts, chosen): (&[Vec<Call>], usize), seq: u32) -> bool {
    let call = parts[chosen][0];
    if job.records.log(call.rank).is_none_or(|it| it.lost == 0) {
        return true;
    }
    let Some(lane) = queue.lane(call.rank) else { return false };
    let calls = lane.calls.iter().map(|at| Call { rank: lane.rank, at: *at });
    let before: Vec<Token> =
        calls.take_while(|it| job.record(*it).seq < seq).map(|it| job.token(it)).collect();
    let mut others = parts.iter().enumerate().filter(|(at, _)| *at != chosen).map(|(_, it)| it[0]);
    others.all(|other| {
        let Some(last) = before.iter().rposition(|it| *it == job.token(other)) else { return false };
        let round = &before[last..];
        before
            .windows(round.len() + 1)
            .any(|it| it.split_last().is_some_and(|(next, it)| it == round && *next == job.token(call)))
    })
}

/// Whether the rank has made the call at an earlier position of the group.
fn is_made_before(job: &Job<'_>, queue: &Queue, call: Call, seq: u32) -> bool {
    let calls = queue.lane(call.rank).into_iter().flat_map(|lane| &lane.calls);
    let mut before =
        calls.map(|at| Call { rank: call.rank, at: *at }).take_while(|it| job.record(*it).seq < seq);
    before.any(|it| job.token(it) == job.token(call))
}

/// Whether all members of another group of the same description make the call at this position.
pub(crate) fn is_made_by_other_groups(job: &Job<'_>, at: usize, seq: u32, call: Call) -> bool {
    like_other_groups(job, &job.queues[at], seq, &[vec![call]]).is_some()
}

/// Looks for a group of the same description whose members all make the call of one part at this position.
fn like_other_groups(job: &Job<'_>, queue: &Queue, seq: u32, parts: &[Vec<Call>]) -> Option<usize> {
    let description = job.records.group(queue.group).own_description()?;
    let mut votes = vec![0_usize; parts.len()];
    for other in &job.queues {
        if other.group == queue.group || job.records.group(other.group).description != description {
            continue;
        }
        let mut tokens = other.lanes.iter().map(|it| Some(job.token(job.call_at(it, seq)?)));
        let Some(Some(first)) = tokens.next() else { continue };
        if tokens.all(|it| it == Some(first)) {
            let same = parts.iter().position(|it| job.token(it[0]) == first);
            same.into_iter().for_each(|it| votes[it] += 1);
        }
    }
    let best = (0..votes.len()).max_by_key(|it| votes[*it])?;
    let is_clear = votes[best] > 0 && votes.iter().filter(|it| **it == votes[best]).count() == 1;
    is_clear.then_some(best)
}

/// Whether the call is the one that followed the call before it at all earlier positions of the group, two at least: a loop or a condition may be
/// left for the first time. Without stacks, calls of several places look alike.
fn is_habit(job: &Job<'_>, queue: &Queue, call: Call, seq: u32) -> bool {
    let Some(lane) = queue.lane(call.rank) else { return false };
    let Some(before) = seq.checked_sub(1).and_then(|it| job.call_at(lane, it)) else { return false };
    if job.records.stack(job.record(call).stack).frames.is_empty() {
        return false;
    }
    let token = |at: u32| job.token(Call { rank: lane.rank, at });
    let is_earlier = |at: u32| job.record(Call { rank: lane.rank, at }).seq < seq;
    let pairs = lane.calls.windows(2).take_while(|it| is_earlier(it[1]));
    let mut after = pairs.filter(|it| token(it[0]) == job.token(before)).map(|it| token(it[1]));
    after.by_ref().take(2).filter(|it| *it == job.token(call)).count() == 2
        && after.all(|it| it == job.token(call))
}

/// Whether a call with the token `second` directly follows one with `first` before a position.
fn follows_before(job: &Job<'_>, lane: &Lane, first: Token, second: Token, seq: u32) -> bool {
    let call = |at: u32| Call { rank: lane.rank, at };
    let mut pairs = lane.calls.windows(2).take_while(|it| job.record(call(it[1])).seq < seq);
    pairs.any(|it| job.token(call(it[0])) == first && job.token(call(it[1])) == second)
}

/// Finds how the calls of a member from a position on differ from those of another one. Members may make the same calls at other
/// places of the program, so that what the calls do is compared if the places explain nothing.
fn compare(job: &Job<'_>, reference: &Lane, mine: &Lane, seq: u32) -> How {
    if is_changed(job, reference, mine, seq) {
        return replaced(job, reference, mine, seq);
    }
    let by_place = rearranged(reference, mine, seq, |lane, at| Some(job.token(job.call_at(lane, at)?)));
    let by_key = || rearranged(reference, mine, seq, |lane, at| Some((job.key(job.call_at(lane, at)?), 0)));
    by_place.or_else(by_key).unwrap_or_else(|| replaced(job, reference, mine, seq))
}

/// Whether two members make one call of the program with other sizes or element types: it is at one place, and what follows agrees. Calls that repeat
/// then also agree if they are shifted.
fn is_changed(job: &Job<'_>, reference: &Lane, mine: &Lane, seq: u32) -> bool {
    let (Some(a), Some(b)) = (job.call_at(mine, seq), job.call_at(reference, seq)) else { return false };
    let mut after =
        (seq + 1..).map_while(|at| Some((job.call_at(mine, at)?, job.call_at(reference, at)?))).peekable();
    // Without places, members that have made as many calls as the others have added none.
    let has_as_many = job.last_seq(mine) == job.last_seq(reference) && after.peek().is_some();
    let is_one = is_one_place(job, (reference, b), (mine, a), seq).unwrap_or(has_as_many);
    is_one && is_one_function(job, a, b) && after.all(|(a, b)| job.key(a) == job.key(b))
}

fn is_one_function(job: &Job<'_>, a: Call, b: Call) -> bool {
    let [a, b] = [a, b].map(|it| job.records.signature(job.record(it).signature));
    a.kind == b.kind && a.name == b.name && a.kind != Kind::Coalesced
}

/// Whether the calls of two members are at one place of the program, or at two places whose calls met before, such as the branches of the root and of the
/// others; `None` without stacks.
fn is_one_place(
    job: &Job<'_>,
    (reference, theirs): (&Lane, Call),
    (mine, own): (&Lane, Call),
    seq: u32,
) -> Option<bool> {
    let place = |it: Call| job.token(it).1;
    let has_stack = |it: Call| !job.records.stack(job.record(it).stack).frames.is_empty();
    if !has_stack(theirs) || !has_stack(own) {
        return None;
    }
    let met = |at: u32| {
        let (a, b) = (job.call_at(mine, at)?, job.call_at(reference, at)?);
        Some(place(a) == place(own) && place(b) == place(theirs))
    };
    let earlier = mine.calls.iter().map(|at| job.record(Call { rank: mine.rank, at: *at }).seq);
    Some(place(theirs) == place(own) || earlier.take_while(|it| *it < seq).any(|at| met(at).unwrap_or(false)))
}

/// Finds calls that a member left out, added or exchanged.
fn rearranged(
    reference: &Lane,
    mine: &Lane,
    seq: u32,
    token: impl Fn(&Lane, u32) -> Option<Token>,
) -> Option<How> {
    let is_shifted = |early: &Lane, late: &Lane, by: u32| {
        let mut count = 0;
        let mut at = seq;
        while let (Some(a), Some(b)) = (token(early, at), token(late, at + by)) {
            if a != b {
                return false;
            }
            (count, at) = (count + 1, at + 1);
        }
        count > 0
    };
    let agrees_from = |start: u32| {
        let both = |at| Some((token(mine, at)?, token(reference, at)?));
        (start..).map_while(both).all(|(a, b)| a == b)
    };
    let (mut balance, mut open): (FxHashMap<Token, i32>, i32) = (FxHashMap::default(), 0);
    for width in 1..=MAX_REORDERED {
        let (Some(a), Some(b)) = (token(mine, seq + width - 1), token(reference, seq + width - 1)) else {
            break;
        };
        for (token, by) in [(a, 1), (b, -1)] {
            let entry = balance.entry(token).or_insert(0);
            open += (*entry + by).abs() - entry.abs();
            *entry += by;
        }
        // From there on, both make the same calls; else it is a shift of calls that repeat.
        if open == 0 && width > 1 && agrees_from(seq + width) {
            return Some(How::Reordered(width));
        }
    }
    // A shift by n also holds by chance if calls repeat with period n: the smallest one is meant.
    for by in 1..=MAX_SHIFT {
        if is_shifted(mine, reference, by) {
            return Some(How::Skipped(by));
        }
        if is_shifted(reference, mine, by) {
            return Some(How::Added(by));
        }
    }
    None
}

/// Compares the calls of two members at a position.
fn replaced(job: &Job<'_>, reference: &Lane, mine: &Lane, seq: u32) -> How {
    let (Some(a), Some(b)) = (job.call_at(mine, seq), job.call_at(reference, seq)) else { return How::Other };
    if follows_before(job, reference, job.token(b), job.token(a), seq) {
        return How::SkippedByHistory;
    }
    // Its last call repeats the one before, which the other member never does.
    let repeats = |it: Call| {
        let is_one =
            |a: Call, b: Call| job.token(a) == job.token(b) && job.record(a).group == job.record(b).group;
        job.before(it).is_some_and(|before| is_one(before, it) && is_one(it, a))
    };
    let count = job.records.log(b.rank).map_or(0, |it| it.records.len() as u32);
    let is_usual = (1..count).any(|at| repeats(Call { rank: b.rank, at }));
    let has_place = !job.records.stack(job.record(a).stack).frames.is_empty();
    if repeats(a) && job.last_seq(mine) == Some(seq) && has_place && !is_usual {
        return How::Added(1);
    }
    if !is_one_function(job, a, b) || is_one_place(job, (reference, b), (mine, a), seq) == Some(false) {
        return How::Other;
    }
    let [mine, theirs] = [a, b].map(|it| job.records.signature(job.record(it).signature));
    if mine.element_type() != theirs.element_type() { How::ElementType } else { How::Elements }
}
