//! Explains where the members of a group stop making the same calls.

use grammar::{codes::Code, count_text, list_text, ordinal};
use rustc_hash::FxHashSet;

use super::{Finding, Label, call_text, callers_note, empty, in_order_of_lines, label};
use crate::{
    divergence::{Basis, Divergence, How},
    queues::{Call, Job},
    record::Rank,
    wording::{operands, place, places, position, ranks_of, ranks_text, tensors, verb, what},
};

pub(super) fn diverged(job: &Job<'_>, found: &Divergence) -> Finding {
    let Some(sides) = Sides::of(job, found) else { return empty(Code::HangDiverged) };
    let all: Vec<Rank> = found.diverged.iter().flatten().map(|it| it.rank).collect();
    Finding {
        code: sides.code(),
        message: sides.message(),
        labels: sides.labels(),
        notes: sides.notes(&all),
        help: sides.help(&all),
        ranks: if found.basis == Basis::Undecided { Vec::new() } else { all },
    }
}

/// The two sides of a divergence: the members that make the expected call, and the first ones that make another call.
struct Sides<'a, 'j> {
    job: &'a Job<'j>,
    found: &'a Divergence,
    /// The calls of those that diverged first, and the calls of those that diverged otherwise.
    diverged: (&'a [Call], &'a [Vec<Call>]),
    /// The first call of each side.
    theirs: Call,
    mine: Call,
    ranks: Vec<Rank>,
    others: Vec<Rank>,
}

impl<'a, 'j> Sides<'a, 'j> {
    fn of(job: &'a Job<'j>, found: &'a Divergence) -> Option<Self> {
        let (first, further) = found.diverged.split_first()?;
        let (theirs, mine) = (*found.expected.first()?, *first.first()?);
        let (ranks, others) = (ranks_of(first), ranks_of(&found.expected));
        Some(Self { job, found, diverged: (first, further), theirs, mine, ranks, others })
    }

    fn code(&self) -> Code {
        match self.found.how {
            _ if self.found.is_before_records => Code::HangUndecided,
            How::Elements | How::ElementType => Code::HangSizes,
            How::Skipped(_) | How::SkippedByHistory | How::Added(_) | How::Reordered(_) | How::Other => {
                Code::HangDiverged
            }
        }
    }

    fn message(&self) -> String {
        let Self { job, found, theirs, mine, ranks, others, .. } = self;
        if found.is_before_records {
            return self.before_records();
        }
        let (who, they) = (ranks_text(ranks), ranks_text(others));
        let (their, own) = (|stem: &str| verb(others, stem), |stem: &str| verb(ranks, stem));
        let call =
            |call: Call| what(job, call) + &place(job, call).map(|it| format!(" ({it})")).unwrap_or_default();
        let (their_call, my_call) =
            (all_distinct(job, &found.expected, *mine), all_distinct(job, self.diverged.0, *theirs));
        let is_open = found.basis == Basis::Undecided;
        let both = ranks_text(&[ranks.as_slice(), others.as_slice()].concat());
        let other_calls =
            || format!("{who} {} {my_call} where {they} {} {their_call}", own("call"), their("call"));
        let how = match is_open {
            true => found.how.clone(),
            false => in_order_of_lines(job, &found.how, *mine, *theirs),
        };
        match &how {
            // A shift that holds for few calls may be the other way round.
            How::Skipped(1) | How::SkippedByHistory | How::Added(1) if is_open => {
                format!("{}: either side may skip a call, or make one too many", other_calls())
            }
            How::Skipped(_) | How::Added(_) if is_open => {
                format!("{}: either side may skip some calls, or make some too many", other_calls())
            }
            How::Elements | How::ElementType if is_open => format!(
                "{both} pass different {} to {}: {who} {} {}, {they} {} {}",
                if found.how == How::Elements { "sizes" } else { "element types" },
                call(*mine),
                own("pass"),
                values(job, self.diverged.0),
                their("pass"),
                values(job, &found.expected),
            ),
            How::Reordered(_) if is_open => {
                format!("{both} make the same calls in different orders: {}", other_calls())
            }
            How::Skipped(1) | How::SkippedByHistory => format!(
                "{who} {} the {their_call} that {they} {}, and {} on to the {my_call}",
                own("skip"),
                their("call"),
                own("go"),
            ),
            How::Skipped(by) => format!(
                "{who} {} {by} calls that {they} {}, beginning with the {their_call}, and {} on to the {my_call}",
                own("skip"),
                their("make"),
                own("go"),
            ),
            How::Added(by) => format!(
                "{who} {} {} that {they} {} not make: the {my_call}; the others go on to the {their_call}",
                own("make"),
                if *by == 1 { "a call".to_owned() } else { format!("{by} calls") },
                their("do"),
            ),
            How::Reordered(_) => format!(
                "{who} {} the calls of {they} in another order: {} {} where {} {}",
                own("make"),
                if ranks.len() == 1 { "it calls" } else { "they call" },
                my_call,
                match others.as_slice() {
                    [one] => format!("rank {one} calls"),
                    _ => "the others call".to_owned(),
                },
                their_call,
            ),
            How::Elements => format!(
                "{who} {} {} to {}, {they} {} {}",
                own("pass"),
                values(job, self.diverged.0),
                call(*mine),
                their("pass"),
                tensors(job.records.signature(job.record(*theirs).signature))
            ),
            How::ElementType => format!(
                "{who} {} {} to {}, {they} {} {}",
                own("pass"),
                operands(job, *mine),
                call(*mine),
                their("pass"),
                operands(job, *theirs),
            ),
            How::Other => other_calls(),
        }
    }

    /// Writes that the records begin with the call: what was before is not known, and calls that repeat are alike in several shifts.
    fn before_records(&self) -> String {
        let Self { job, theirs, ranks, others, .. } = self;
        format!(
            "{} {} not make the call of {} at {}, the oldest position that all dumps hold: whether {} made the same calls before is not in the records",
            ranks_text(ranks),
            verb(ranks, "do"),
            ranks_text(others),
            position(job, *theirs),
            if ranks.len() == 1 { "it" } else { "they" },
        )
    }

    fn notes(&self, all: &[Rank]) -> Vec<String> {
        let Self { job, found, theirs, mine, .. } = *self;
        let mut notes = Vec::new();
        if !found.is_before_records {
            let at = position(job, theirs);
            let is_cut = found.calls().any(|it| job.records.log(it.rank).is_some_and(|log| log.is_cut()));
            let all = if is_cut { "all calls that the records of all members hold" } else { "all calls" };
            notes.push(format!("this is {at}; {all} of the group before it agree"));
        }
        notes.extend(how_note(job, found, theirs, mine));
        if found.how == How::Skipped(1) && !found.is_before_records {
            notes.extend(calls_note(job, found, theirs, mine));
        }
        notes.extend(further_notes(job, self.diverged.1));
        notes.push(basis_note(job, found, all, &self.others));
        notes.extend([callers_note(job, mine), callers_note(job, theirs)].into_iter().flatten());
        let is_done = found.calls().any(|it| job.record(*it).done);
        if is_done && !found.is_before_records {
            notes.push("the calls were paired nevertheless and completed, with wrong results".to_owned());
        }
        notes
    }

    fn labels(&self) -> Vec<Label> {
        let of = |call: Call, ranks: &[Rank]| {
            let text = call_text(self.job, call);
            label(self.job, call, format!("{} {} {text}", ranks_text(ranks), verb(ranks, "call")))
        };
        let by_place = |calls: &[Call]| {
            let mut sides: Vec<(Option<String>, Vec<Call>)> = Vec::new();
            for call in calls {
                let at = place(self.job, *call);
                match sides.iter_mut().find(|it| it.0 == at) {
                    Some(side) => side.1.push(*call),
                    None => sides.push((at, vec![*call])),
                }
            }
            sides.into_iter().take(3).map(|it| it.1).collect::<Vec<_>>()
        };
        let sides = by_place(self.diverged.0).into_iter().chain(by_place(&self.found.expected));
        sides.filter_map(|it| Some(of(*it.first()?, &ranks_of(&it)))).collect()
    }

    fn help(&self, all: &[Rank]) -> String {
        match &self.found.how {
            _ if self.found.is_before_records => {
                "set `TORCH_FR_BUFFER_SIZE` to a larger number than the calls of the whole run and run again".to_owned()
            }
            How::Elements => "all members of the group must pass equal sizes here: pad the shorter ones, or exchange the sizes first".to_owned(),
            How::ElementType => "all members of the group must pass one element type here".to_owned(),
            How::Skipped(_) | How::SkippedByHistory | How::Added(_) | How::Reordered(_) | How::Other => {
                match self.found.basis {
                    Basis::Majority | Basis::History | Basis::Sizes | Basis::OtherGroups => format!(
                        "look for a condition, a loop bound or an order that has another value on {} before this call",
                        ranks_text(all)
                    ),
                    Basis::Undecided => {
                        "every member of a group must make the same calls in the same order".to_owned()
                    }
                }
            }
        }
    }
}

/// Explains calls that were paired although they differ, in a group that proceeds.
pub(crate) fn explain_completed(job: &Job<'_>, found: &Divergence) -> Finding {
    let finding = diverged(job, found);
    Finding {
        code: Code::HangPairedCalls,
        message: format!("{}, and all of it completed: the results are wrong", finding.message),
        ..finding
    }
}

/// As `distinct`, with the places of all calls.
fn all_distinct(job: &Job<'_>, calls: &[Call], other: Call) -> String {
    let Some(first) = calls.first().copied() else { return String::new() };
    let name = distinct(job, first, other);
    match (place(job, first), places(job, calls)) {
        (Some(one), Some(all)) => name.replace(&format!(" ({one})"), &format!(" ({all})")),
        _ => name,
    }
}

/// Writes a call with its place, and with its tensors if nothing else tells it from another call.
fn distinct(job: &Job<'_>, call: Call, other: Call) -> String {
    let is_same = what(job, call) == what(job, other) && place(job, call) == place(job, other);
    let name =
        if is_same { format!("{} of {}", what(job, call), operands(job, call)) } else { what(job, call) };
    match place(job, call) {
        Some(at) => format!("{name} ({at})"),
        None => name,
    }
}

/// Writes a call with its place, or else with its tensors.
fn named(job: &Job<'_>, call: Call) -> String {
    match place(job, call) {
        Some(at) => format!("{} ({at})", what(job, call)),
        None => format!("{} of {}", what(job, call), operands(job, call)),
    }
}

/// Writes the tensors of ranks that do not pass the same: up to three of them.
pub(super) fn values(job: &Job<'_>, calls: &[Call]) -> String {
    let mut seen = FxHashSet::default();
    let shown = calls.iter().map(|it| operands(job, *it)).filter(|it| seen.insert(it.clone()));
    list_text(shown.collect::<Vec<_>>().iter(), 3, "and")
}

fn how_note(job: &Job<'_>, found: &Divergence, theirs: Call, mine: Call) -> Option<String> {
    let (lane, reference) = (job.queues[found.queue].lane(mine.rank)?, found.reference(job)?);
    // If nothing decides, or what was before is lost, that calls are alike may be chance.
    let is_open = found.basis == Basis::Undecided || found.is_before_records;
    match &found.how {
        How::Skipped(by) => {
            let last = job.last_seq(lane)?.min(job.last_seq(reference)?.checked_sub(*by)?);
            Some(alike_note(is_open, (mine.rank, found.seq, last), (reference.rank, found.seq + by)))
        }
        How::Added(by) if is_open => {
            let last = job.last_seq(lane)?.min(job.last_seq(reference)? + by);
            Some(alike_note(is_open, (mine.rank, found.seq + by, last), (reference.rank, found.seq)))
        }
        How::SkippedByHistory => Some(format!(
            "earlier in the records, the {} follows the {}",
            distinct(job, mine, theirs),
            distinct(job, theirs, mine)
        )),
        How::Added(by) => Some(format!(
            "after {} more, its calls are those of rank {} again",
            count_text(*by as usize, "call"),
            reference.rank
        )),
        How::Reordered(count) if is_open => {
            Some(format!("the next {count} calls of both are alike, in another order"))
        }
        How::Reordered(count) => Some(format!("the next {count} calls of both are the same ones")),
        How::Other => calls_note(job, found, theirs, mine),
        How::Elements => elsewhere_note(job, found, theirs, mine),
        How::ElementType => None,
    }
}

/// Says which calls of a rank, from one position to another, are those of another rank from some position on.
fn alike_note(
    is_open: bool,
    (rank, first, last): (Rank, u32, u32),
    (other, other_first): (Rank, u32),
) -> String {
    let (is, are, its) = match is_open {
        true => ("is like", "are like", format!("rank {rank}: its")),
        false => ("is", "are", "its".to_owned()),
    };
    if last == first {
        return format!("{its} call #{first} {is} call #{other_first} of rank {other}");
    }
    let other_last = other_first + last - first;
    format!("{its} calls #{first} to #{last} {are} calls #{other_first} to #{other_last} of rank {other}")
}

/// Says how often each side has made the call of the others. Calls that are lost cannot be counted.
fn calls_note(job: &Job<'_>, found: &Divergence, theirs: Call, mine: Call) -> Option<String> {
    let count = |rank: Rank| {
        job.records.log(rank).filter(|it| it.lost == 0)?;
        let lane = job.queues[found.queue].lane(rank)?;
        let calls = lane.calls.iter().map(|at| Call { rank, at: *at });
        let same = calls.filter(|it| job.token(*it) == job.token(theirs));
        Some(same.filter(|it| job.record(*it).seq <= found.seq).count())
    };
    let (own, other) = (count(mine.rank)?, count(theirs.rank)?);
    (own > 0).then(|| {
        format!(
            "up to here, rank {} has called the {} {}, rank {} calls it for the {} time",
            mine.rank,
            named(job, theirs),
            if own == 1 { "once".to_owned() } else { format!("{own} times") },
            theirs.rank,
            ordinal(other)
        )
    })
}

/// Says that other ranks pass the sizes of this call elsewhere: it may be another call of theirs, too early or too late.
fn elsewhere_note(job: &Job<'_>, found: &Divergence, theirs: Call, mine: Call) -> Option<String> {
    let lane = job.queues[found.queue].lane(theirs.rank)?;
    let calls = lane.calls.iter().map(|at| Call { rank: lane.rank, at: *at });
    let same = calls.rev().find(|it| job.token(*it) == job.token(mine))?;
    Some(format!(
        "rank {} passes {}, too, in its call {}: rank {} may make the calls in another order, or skip some, with right sizes",
        theirs.rank,
        operands(job, mine),
        position(job, same),
        mine.rank
    ))
}

/// Says what other ranks call that diverged in another way.
fn further_notes(job: &Job<'_>, further: &[Vec<Call>]) -> Vec<String> {
    let note = |calls: &Vec<Call>| {
        let ranks = ranks_of(calls);
        let call = *calls.first()?;
        let at = place(job, call).map(|it| format!(" ({it})")).unwrap_or_default();
        Some(format!("{} {} {}{at}", ranks_text(&ranks), verb(&ranks, "call"), call_text(job, call)))
    };
    let mut notes: Vec<String> = further.iter().take(MAX_FURTHER).filter_map(note).collect();
    let more: Vec<Rank> = further.iter().skip(MAX_FURTHER).flatten().map(|it| it.rank).collect();
    if !more.is_empty() {
        notes.push(format!("{} {} something else again", ranks_text(&more), verb(&more, "call")));
    }
    notes
}

/// The number of parts of a group whose calls are listed beside those of the first one.
const MAX_FURTHER: usize = 4;

fn basis_note(job: &Job<'_>, found: &Divergence, ranks: &[Rank], others: &[Rank]) -> String {
    match found.basis {
        Basis::Majority => {
            let members = job.queues[found.queue].members.len();
            format!("{} of {members} members make the other call", others.len())
        }
        Basis::History => format!(
            "earlier in the records, the call of {} follows the one before it, too; that of {} never does",
            ranks_text(others),
            ranks_text(ranks)
        ),
        Basis::Sizes => format!(
            "the calls at the line of {} have other sizes or element types elsewhere in the records",
            ranks_text(ranks)
        ),
        Basis::OtherGroups => {
            format!("the other groups of this kind make the call of {} at this position", ranks_text(others))
        }
        Basis::Undecided => format!(
            "the records do not show whether {} or {} should have called something else",
            ranks_text(ranks),
            ranks_text(others)
        ),
    }
}
