//! When each rank, stream and communicator works, and what it waits for.
//!
//! | module | contents |
//! |---|---|
//! | `estimate` | a timeline from the plans, with estimated or measured times |
//! | `cost`, `fused`, `misses` | the cost model of estimates, what a kernel of several instructions reads and writes, and what of that no cache holds |
//! | `machine`, `table`, `work`, `shipped` | the measured times of a machine, their tables, the terms in which work is looked up in them, and the machines of hir |
//! | `estimator` | what a tool estimates with: a machine, how programs are lowered, what an executor fuses |
//! | `links` | how much longer communications take that share the links of a GPU |
//! | `hosts` | communication between hosts |
//! | `items`, `times`, `slices` | the instructions on their rows, their times, and the slices made of both |
//! | `overlap` | how much communication is hidden behind computation, and why the rest is not |
//! | `gain` | how long the program would take without a communication |
//! | `chrome` | the Chrome trace format, which Perfetto reads |
//! | `svg`, `html`, `markdown` | pictures |
//! | `file` | selects one of these formats by the name of a file |

mod attention_gradient;
mod chrome;
pub mod cost;
pub mod estimate;
pub mod estimator;
pub mod file;
mod fused;
pub mod gain;
pub mod hosts;
pub mod html;
mod items;
mod links;
pub mod machine;
mod markdown;
mod misses;
pub mod overlap;
pub mod shipped;
mod slices;
pub mod svg;
pub mod table;
mod times;
pub mod work;
mod work_kind;

use std::{collections::BTreeMap, fmt};

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
    /// Why what never ends does not; empty if all of it ends.
    pub diagnosis: Diagnosis,
    /// By the line of a communication: how long the run takes if it is free, or hidden, or with an edit, where that was estimated.
    pub what_if: BTreeMap<u32, String>,
}

/// Why a run or a job does not proceed.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// What happened, in one line, and what is known about it.
    pub lines: Vec<String>,
    /// The ranks that are named as the cause.
    pub ranks: Vec<usize>,
    /// Their instructions that are.
    pub calls: Vec<InstRef>,
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

grammar::named_enum! {
    /// A kind of slice.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SliceKind {
        /// Arithmetic.
        Compute = "compute",
        /// Moves data within a rank's memory.
        DataMovement = "memory",
        /// Moves data between ranks.
        Communication = "communication",
        /// Waits.
        Wait = "wait",
    }
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

    /// Returns whether each row is shown: those with slices, and one of each rank that is named as the cause.
    pub(crate) fn shown_rows(&self) -> Vec<bool> {
        let mut shown = vec![false; self.rows.len()];
        self.slices.iter().for_each(|it| shown[it.row] = true);
        for rank in &self.diagnosis.ranks {
            let mut own = (0..shown.len()).filter(|it| self.rows[*it].rank == *rank);
            if let (Some(first), false) = (own.clone().next(), own.any(|it| shown[it])) {
                shown[first] = true;
            }
        }
        shown
    }

    /// Returns whether a slice is named as the cause of what does not proceed.
    pub(crate) fn is_named(&self, slice: &Slice) -> bool {
        self.diagnosis.calls.contains(&slice.inst_ref)
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

    /// However long the names of a file, a row and a machine are, all lines of a picture are as wide as it at most, and no character is
    /// missing.
    #[test]
    fn no_line_of_a_picture_is_cut() {
        let long = "a-name-without-blanks-".repeat(20)
            + "and some words of 自然 language behind it. ".repeat(9).as_str();
        let rows = (0..3).map(|rank| Row { rank, lane: Lane::Group(long.clone()) }).collect();
        let slices = vec![
            Slice { label: long.clone(), ..slice(0, SliceKind::Compute, 0.0, Some(1e9), None) },
            slice(1, SliceKind::Communication, 3.0, None, None),
        ];
        let diagnosis =
            Diagnosis { lines: vec![long.clone()], ranks: vec![2], calls: vec![slices[1].inst_ref] };
        let timeline = Timeline { rows, slices, source: long.clone(), diagnosis, ..Timeline::default() };
        let picture = svg::picture(&timeline, &long).unwrap_or_default();
        let number = |text: &str, key: &str| -> f64 {
            let rest = text.split(key).nth(1).unwrap_or_default();
            rest.split(['"', ' ']).next().and_then(|it| it.parse().ok()).unwrap_or(f64::NAN)
        };
        let width = number(&picture, "viewBox=\"0 0 ");
        let (mut count, mut characters) = (0, 0);
        for it in picture.split("<text ").skip(1) {
            let shown = it.split("</text>").next().unwrap_or_default();
            let text: String =
                shown.split('<').filter_map(|it| it.split('>').nth(1)).collect::<Vec<_>>().concat();
            let columns: f64 = text.trim_end().chars().map(|it| if it.is_ascii() { 1.0 } else { 2.0 }).sum();
            let part = if it.contains("text-anchor=\"middle\"") { 0.5 } else { 1.0 };
            assert!(number(it, "x=\"") + part * columns * 6.7 <= width, "{text}");
            (count, characters) = (count + 1, characters + text.chars().filter(|it| *it != ' ').count());
        }
        let blanks = long.matches(' ').count();
        // The title, the cause, the source and three rows.
        assert!(characters >= 6 * (long.chars().count() - blanks), "{count} lines");
        assert!(picture.contains("class=\"open named\"") && picture.matches(">► rank 2").count() == 1);
    }

    /// WCAG 2.1: texts have a contrast of 4.5 at least, on what is behind them, and bars of 3.
    #[test]
    fn colours_have_enough_contrast_in_both_schemes() {
        let (light, dark) = svg::STYLE.split_once("@media").unwrap_or_default();
        for style in [light, dark] {
            let luminance = |class: &str| {
                let rule = style.split(&format!("{class}{{")).nth(1).unwrap_or_default();
                let rule = rule.split('}').next().unwrap_or_default();
                let hex = rule.split("fill:#").nth(1).unwrap_or_default();
                let hex: Vec<char> = hex.chars().take_while(char::is_ascii_hexdigit).collect();
                let digits = |at: usize| match hex.len() {
                    3 => [hex[at], hex[at]],
                    _ => [hex[2 * at], hex[2 * at + 1]],
                };
                let part = |at: usize| {
                    let value =
                        f64::from(u8::from_str_radix(&String::from_iter(digits(at)), 16).unwrap_or(0))
                            / 255.0;
                    if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
                };
                0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
            };
            let contrast = |a: &str, b: &str| {
                let (a, b) = (luminance(a), luminance(b));
                (a.max(b) + 0.05) / (a.min(b) + 0.05)
            };
            for text in ["text", ".c", ".n"] {
                assert!(contrast(text, ".b") >= 4.5, "{text}: {}", contrast(text, ".b"));
            }
            for bar in [".compute", ".memory", ".communication", ".wait", ".open"] {
                assert!(contrast(bar, ".b") >= 3.0, "{bar}: {}", contrast(bar, ".b"));
                assert!(bar == ".wait" || contrast(bar, ".l") >= 4.5, "{bar}: {}", contrast(bar, ".l"));
            }
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
