//! Explains causes: the message, the places with what each rank does there, and what is known beside it.

mod absent;
mod cycle;
mod departed;
mod diverged;
mod group;
mod waiting;

use grammar::codes::Code;

use crate::{
    cause::{Analysis, Cause},
    divergence::How,
    queues::{Call, Job},
    record::{Group, Rank},
    site::{Site, callers, site},
    stall::Stall,
    wording::{named_at, operands, place, position, ranks_of, ranks_text, verb, what, what_at},
};

pub(crate) use self::diverged::explain_completed;
use self::{
    absent::{late, lost, missing, unknown},
    cycle::{cycle, possible_cycle},
    departed::departed,
    diverged::diverged,
    group::{crosswise, membership, uneven},
    waiting::{crossed, message, passed, wrong_peer},
};

/// A place of the program with what ranks do there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The place; `None` if the dump has no stacks.
    pub site: Option<Site>,
    /// The call at this place, as `all_reduce(float32 [64])`, for a program whose text is not at hand.
    pub call: String,
    /// What is said about it.
    pub text: String,
    /// The call: its rank, and its position among the records of that.
    pub record: (Rank, usize),
}

/// A cause with its explanation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its code.
    pub code: Code,
    /// What happened, in one sentence without a full stop.
    pub message: String,
    /// The ranks that are named as the ones that diverged, left or are late; empty if the records do not show them.
    pub ranks: Vec<Rank>,
    /// The places: the one that matters most comes first.
    pub labels: Vec<Label>,
    /// What is known beside it.
    pub notes: Vec<String>,
    /// What to look at or change.
    pub help: String,
}

/// Explains a cause.
pub(crate) fn explain(job: &Job<'_>, analysis: &Analysis, cause: &Cause) -> Finding {
    let stall = |at: usize| &analysis.stalls[at];
    match cause {
        Cause::Membership { variants, waiting } => membership(job, variants, waiting),
        Cause::Crosswise { at, waiting } => crosswise(job, &job.records.crosswise[*at], waiting),
        Cause::Diverged(found) => diverged(job, found),
        Cause::Departed(found) => departed(job, found),
        Cause::Uneven { queue, seq, deviating } => uneven(job, *queue, *seq, deviating),
        Cause::Message { send, receive, deviating } => message(job, *send, *receive, *deviating),
        Cause::WrongPeer(found) => wrong_peer(job, *found),
        Cause::Passed { stall: at, ranks, later, deviant } => {
            passed(job, stall(*at), ranks, (*later, *deviant))
        }
        Cause::Cycle { edges, deviant, is_proven: true } => cycle(job, &analysis.stalls, edges, *deviant),
        Cause::Cycle { edges, .. } => possible_cycle(job, &analysis.stalls, edges),
        Cause::Missing { stall: at, ranks } => missing(job, stall(*at), ranks),
        Cause::Lost { stall: at, is_hang } => lost(job, stall(*at), *is_hang),
        Cause::Late { stall: at, ranks, is_proven } => late(job, stall(*at), ranks, *is_proven),
        Cause::Crossed(it) => crossed(job, it.one, it.two, (it.other, it.deviant)),
        Cause::Unknown { stall: at } => unknown(job, stall(*at)),
    }
}

fn label(job: &Job<'_>, call: Call, text: String) -> Label {
    let record = (call.rank, call.at as usize);
    Label { site: site(job.records, job.record(call)), call: call_text(job, call), text, record }
}

fn call_text(job: &Job<'_>, call: Call) -> String {
    format!("{}({})", what(job, call), operands(job, call))
}

/// Says from where a call was made, if that is more than its line.
fn callers_note(job: &Job<'_>, call: Call) -> Option<String> {
    let record = job.record(call);
    let frames = callers(job.records, record);
    let autograd = site(job.records, record).is_some_and(|it| it.autograd);
    let autograd = if autograd { "; autograd issues it, the line is that of `backward()`" } else { "" };
    let is_more = frames.len() > 1 || !autograd.is_empty();
    let shown = frames.iter().take(6).cloned().collect::<Vec<_>>().join(", called from ");
    is_more.then(|| format!("rank {}: {} in {shown}{autograd}", call.rank, what(job, call)))
}

/// Returns how a rank differs, for words. That it makes one call more or another one is that it skips the call of the others if the lines of a
/// function, or of a loop in it, lead from the call before over that one to its own one.
fn in_order_of_lines(job: &Job<'_>, how: &How, mine: Call, theirs: Call) -> How {
    let stack = |it: Call| &job.records.stack(job.record(it).stack).frames;
    // At the outermost line that differs, both are in one function.
    let is_behind = |one: Call, other: Call| {
        let differ = stack(one).iter().rev().zip(stack(other).iter().rev()).find(|(a, b)| a != b);
        differ.is_some_and(|(a, b)| (a.file, a.function) == (b.file, b.function) && a.line > b.line)
    };
    let before = mine.at.checked_sub(1).map(|at| Call { at, ..mine });
    let skips = match before {
        Some(before) if is_behind(theirs, mine) => is_behind(theirs, before) && is_behind(before, mine),
        before => is_behind(mine, theirs) && before.is_none_or(|it| is_behind(theirs, it)),
    };
    match how {
        How::Added(_) | How::Other if skips => How::Skipped(1),
        how => how.clone(),
    }
}

fn group_of<'j>(job: &'j Job<'_>, call: Call) -> &'j Group {
    job.records.group(job.record(call).group)
}

/// Writes who waits: `ranks 0, 1 and 3 wait`.
fn waiters_text(stall: &Stall) -> String {
    let ranks = ranks_of(&stall.waiting);
    format!("{} {}", ranks_text(&ranks), verb(&ranks, "wait"))
}

/// As `located`, with the places of all calls that wait.
fn waiting_at(job: &Job<'_>, stall: &Stall) -> String {
    let Some(call) = stall.waiting.first().copied() else { return String::new() };
    let at = if place(job, call).is_some() { format!(", {}", position(job, call)) } else { String::new() };
    format!("{}{at}", named_at(job, &stall.waiting))
}

/// Writes a call with all that is known of where it is: `all_reduce (train.py:14), #15 of group 0`.
fn located(job: &Job<'_>, call: Call) -> String {
    let at = if place(job, call).is_some() { format!(", {}", position(job, call)) } else { String::new() };
    format!("{}{at}", what_at(job, call))
}

fn empty(code: Code) -> Finding {
    Finding {
        code,
        message: String::new(),
        ranks: Vec::new(),
        labels: Vec::new(),
        notes: Vec::new(),
        help: String::new(),
    }
}
