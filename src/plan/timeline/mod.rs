//! When each rank, stream and communicator works, and what it waits for.
//!
//! | module | contents |
//! |---|---|
//! | `estimate` | a timeline from the plans, with estimated or measured times |
//! | `cost`, `fused` | the cost model of estimates, and what a kernel of several instructions reads and writes |
//! | `machine`, `work`, `shipped` | the measured times of a machine, the terms in which work is looked up in them, and the machines of hir |
//! | `estimator` | what a tool estimates with: a machine, how programs are lowered, what an executor fuses |
//! | `links` | how much longer communications take that share the links of a GPU |
//! | `hosts` | communication between hosts |
//! | `items`, `times`, `slices` | the instructions on their rows, their times, and the slices made of both |
//! | `overlap` | how much communication is hidden behind computation, and why the rest is not |
//! | `chrome` | the Chrome trace format, which Perfetto reads |
//! | `svg`, `html`, `markdown` | pictures |
//! | `file` | selects one of these formats by the name of a file |

mod chrome;
pub mod cost;
pub mod estimate;
pub mod estimator;
pub mod file;
mod fused;
pub mod hosts;
mod html;
mod items;
mod links;
pub mod machine;
mod markdown;
pub mod overlap;
pub mod shipped;
mod slices;
mod svg;
mod times;
pub mod work;
mod work_kind;

use std::fmt;

use crate::{Communicator, CostClass, ExecutionSite, Inst, InstKind, Plan, PlanStream, sync::InstRef};

/// What ran where and when. Times are in microseconds from the beginning of the run.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The rows, by rank.
    pub rows: Vec<Row>,
    /// The slices, by the time at which they begin.
    pub slices: Vec<Slice>,
    /// Where the times come from, in a sentence.
    pub source: String,
    /// Whether the times were measured.
    pub is_measured: bool,
    /// The relative error that nine of ten estimates do not exceed, where it is known.
    pub error: Option<f64>,
    /// The ranks that do the same at the same times: the first of each class has rows, and stands for the others. Empty if each
    /// rank has rows.
    pub classes: Vec<Vec<usize>>,
}

/// A place where work executes, one piece after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The rank.
    pub rank: usize,
    /// What executes the work.
    pub lane: Lane,
}

/// What executes the work of a row. Its text is unique among the rows of the rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The host, which issues instructions.
    Host,
    /// A stream.
    Stream(PlanStream),
    /// The queue of a communicator.
    Queue {
        /// The communicator.
        communicator: Communicator,
        /// Its number, if another communicator of the rank has the same text.
        number: Option<usize>,
    },
    /// A process group of a job that was recorded, by its text.
    Group(String),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Stream(stream) => stream.fmt(f),
            Self::Group(text) => f.write_str(text),
            Self::Queue { communicator, number: None } => communicator.fmt(f),
            Self::Queue { communicator, number: Some(number) } => write!(f, "{communicator} #{number}"),
        }
    }
}

/// A piece of work, or a wait for one.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The row, an index into `Timeline::rows`.
    pub row: usize,
    /// The kind of work.
    pub kind: SliceKind,
    /// The instruction.
    pub inst_ref: InstRef,
    /// The line of its statement: 0 for the end of the program, `None` if it is not known.
    pub line: Option<u32>,
    /// The iteration of its loops: `i=0 j=3`; empty outside loops.
    pub iteration: String,
    /// What it does: `gemm`, `Allgather`, `wait`.
    pub label: String,
    /// Whether a copy engine executes it.
    pub is_copy: bool,
    /// When it begins.
    pub begin: f64,
    /// When it ends; `None` if it never ends.
    pub end: Option<f64>,
    /// The microseconds that it takes longer because other work runs beside it.
    pub slowed: f64,
    /// Whether that is communication over the same link, and not kernels.
    pub shares_link: bool,
    /// The slice that this one had to wait for before it could begin or, for a wait and a communication,
    /// before it could end.
    pub cause: Option<usize>,
    /// Whether it had to wait because the kernel of `cause`, on another stream, occupied the multiprocessors.
    pub is_crowded: bool,
}

/// A kind of slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceKind {
    /// Arithmetic.
    Compute,
    /// Moves data within a rank's memory.
    DataMovement,
    /// Moves data between ranks.
    Communication,
    /// Waits.
    Wait,
}

impl Timeline {
    /// Returns the time at which the last slice begins or ends.
    pub fn end(&self) -> f64 {
        self.slices.iter().map(|it| it.end.unwrap_or(it.begin)).fold(0.0, f64::max)
    }

    /// Returns the ranks that do what a rank with rows does, at the same times.
    pub fn ranks_like(&self, rank: usize) -> Vec<usize> {
        let class = self.classes.iter().find(|it| it.first() == Some(&rank));
        class.cloned().unwrap_or_else(|| vec![rank])
    }

    /// Returns the times between which the end is in nine of ten programs, where the error is known.
    pub fn interval(&self) -> Option<[f64; 2]> {
        self.error.map(|it| [self.end() / (1.0 + it), self.end() * (1.0 + it)])
    }

    /// Returns what each row does: the labels of its work, those that take the most time first, at most `MAX_CARRIED`.
    pub(crate) fn carried(&self) -> Vec<String> {
        let mut times: Vec<Vec<(&str, f64)>> = vec![Vec::new(); self.rows.len()];
        for it in self.slices.iter().filter(|it| it.kind != SliceKind::Wait) {
            let time = it.end.map_or(f64::INFINITY, |end| end - it.begin);
            match times[it.row].iter_mut().find(|known| known.0 == it.label) {
                Some(known) => known.1 += time,
                None => times[it.row].push((&it.label, time)),
            }
        }
        let text = |mut all: Vec<(&str, f64)>| {
            all.sort_by(|a, b| b.1.total_cmp(&a.1));
            let more = if all.len() > MAX_CARRIED { ", …" } else { "" };
            let first: Vec<&str> = all.iter().take(MAX_CARRIED).map(|it| it.0).collect();
            first.join(", ") + more
        };
        times.into_iter().map(text).collect()
    }
}

/// An arrow from work to the slice that waited for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrow {
    /// The slice that was waited for.
    pub from: usize,
    /// Where it leaves that slice: at its end or, if the wait was over before that, at its beginning.
    pub from_time: f64,
    /// The slice that waited.
    pub to: usize,
    /// When the wait was over.
    pub to_time: f64,
}

impl Timeline {
    /// Returns the arrow that leads to a slice, if it waited for another one. Both ends of it lie in their
    /// slices, and it never leads back in time: where measured times contradict the order of the program, because
    /// the clocks of two ranks differ by more than the work takes, there is no arrow.
    pub fn arrow_to(&self, slice: usize) -> Option<Arrow> {
        let it = &self.slices[slice];
        let from = it.cause?;
        let cause = &self.slices[from];
        // Work that follows other work, or computes after another kernel of its rank, does not wait for it.
        let is_sequence = it.row == cause.row || it.kind == SliceKind::Compute;
        if it.kind != SliceKind::Wait && is_sequence && self.rows[it.row].rank == self.rows[cause.row].rank {
            return None;
        }
        let reached = if it.kind == SliceKind::Wait { it.end? } else { it.begin };
        let (from_time, to_time) = match cause.end {
            Some(end) if end <= reached => (end, reached),
            // A communication waits for a peer to begin, which may be after its own beginning.
            _ if it.end.is_none_or(|end| cause.begin < end) => (cause.begin, reached.max(cause.begin)),
            _ => return None,
        };
        Some(Arrow { from, from_time, to: slice, to_time })
    }
}

/// The number of labels that say what a row does.
const MAX_CARRIED: usize = 2;

impl SliceKind {
    /// Returns the kind in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::DataMovement => "memory",
            Self::Communication => "communication",
            Self::Wait => "wait",
        }
    }
}

impl Slice {
    /// Returns the label with the line and the iteration: `gemm (line 14, i=3)`.
    pub fn title(&self) -> String {
        match self.line {
            Some(_) => format!("{} ({})", self.label, self.location()),
            None => self.label.clone(),
        }
    }

    /// Returns the line and the iteration: `line 14, i=3`; nothing if the line is not known.
    pub fn location(&self) -> String {
        match (self.line, self.iteration.is_empty()) {
            (None, _) => String::new(),
            (Some(0), _) => "end of program".to_owned(),
            (Some(line), true) => format!("line {line}"),
            (Some(line), false) => format!("line {line}, {}", self.iteration),
        }
    }
}

/// Returns the kind of an instruction's work.
fn kind_of(plan: &Plan, inst: &Inst) -> SliceKind {
    if let InstKind::Reshard(_) = inst.kind {
        return SliceKind::Communication;
    }
    let touches_peer = || inst.kind.accesses(plan.rank).iter().any(|it| it.rank != plan.rank);
    match (inst.kind.effect().execution_site(), inst.kind.cost_info().class) {
        (ExecutionSite::Queue(_), _) => SliceKind::Communication,
        (ExecutionSite::Host, _) => SliceKind::Wait,
        (ExecutionSite::Stream, CostClass::Compute) => SliceKind::Compute,
        (ExecutionSite::Stream, CostClass::DataMovement) if touches_peer() => SliceKind::Communication,
        (ExecutionSite::Stream, CostClass::DataMovement) => SliceKind::DataMovement,
        (ExecutionSite::Stream, CostClass::PeerAccess) if touches_peer() => SliceKind::Communication,
        (ExecutionSite::Stream, CostClass::PeerAccess | CostClass::Ordering) => SliceKind::Wait,
    }
}

/// Returns the label of an instruction's work.
fn label_of(inst: &Inst) -> &'static str {
    match inst.kind {
        InstKind::Reshard(_) => "reshard",
        _ => inst.kind.cost_info().label.unwrap_or("wait"),
    }
}

/// Returns the rows of a rank: its host, its streams, and the queues of its communicators.
fn rows_of(plan: &Plan) -> Vec<Row> {
    let mut lanes = vec![Lane::Host];
    lanes.extend(plan.streams.iter().cloned().map(Lane::Stream));
    for (number, it) in plan.communicators.iter().enumerate() {
        let is_known = lanes.iter().any(|lane| lane.to_string() == it.to_string());
        lanes.push(Lane::Queue { communicator: it.clone(), number: is_known.then_some(number) });
    }
    lanes.into_iter().map(|lane| Row { rank: plan.rank, lane }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A slice that begins and ends at these times.
    fn slice(row: usize, kind: SliceKind, begin: f64, end: Option<f64>, cause: Option<usize>) -> Slice {
        let inst_ref = InstRef { rank: row, inst: 0 };
        let (line, iteration, label) = (Some(1), String::new(), String::new());
        let (is_copy, is_crowded) = (false, false);
        Slice {
            row,
            kind,
            inst_ref,
            line,
            iteration,
            label,
            is_copy,
            begin,
            end,
            slowed: 0.0,
            shares_link: false,
            cause,
            is_crowded,
        }
    }

    /// Times that may contradict the order of the program, as those of two clocks do.
    fn times() -> impl Strategy<Value = (f64, Option<f64>)> {
        let begin_and_length = (0u8..9, proptest::option::of(0u8..4));
        begin_and_length.prop_map(|(begin, length)| {
            (f64::from(begin), length.map(|length| f64::from(begin) + f64::from(length)))
        })
    }

    proptest! {
        /// For all times of work and of what waits for it.
        #[test]
        fn arrows_touch_their_slices_and_do_not_lead_back(
            before in times(),
            after in times(),
            kind in proptest::sample::select(vec![SliceKind::Communication, SliceKind::Wait]),
        ) {
            let row = |rank| Row { rank, lane: Lane::Host };
            let slices = vec![
                slice(0, SliceKind::Communication, before.0, before.1, None),
                slice(1, kind, after.0, after.1, Some(0)),
            ];
            let timeline = Timeline { rows: vec![row(0), row(1)], slices, ..Timeline::default() };
            let is_inside = |time: f64, (begin, end): (f64, Option<f64>)| begin <= time && end.is_none_or(|end| time <= end);
            let reached = if kind == SliceKind::Wait { after.1 } else { Some(after.0) };
            let follows = reached.is_some_and(|it| before.1.is_some_and(|end| end <= it));
            let contradicts = !follows && after.1.is_some_and(|end| end <= before.0);
            match timeline.arrow_to(1) {
                Some(it) => {
                    prop_assert!(is_inside(it.from_time, before) && is_inside(it.to_time, after), "{it:?}");
                    prop_assert!(it.from_time <= it.to_time, "{it:?}");
                    prop_assert!(!contradicts);
                }
                None => prop_assert!(contradicts || kind == SliceKind::Wait && after.1.is_none()),
            }
        }
    }
}
