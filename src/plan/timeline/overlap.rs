//! How much communication is hidden behind computation, and what the rest waits for.
//!
//! Communication is *hidden* while a kernel of the same rank computes, and *exposed* otherwise. Each wait for
//! communication or for another rank names the work that it waited for, and what held up that work.

use std::{collections::BTreeMap, fmt::Write as _};

use grammar::count_text;

use super::{Lane, Slice, SliceKind, Timeline};
use crate::{PlanStream, sync::ranks_text};

/// The overlap of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlap {
    /// When the last piece of work of any rank ends, in microseconds.
    pub total: f64,
    /// The ranks that have rows, ascending.
    pub ranks: Vec<RankOverlap>,
    /// The waits of the rank with the most exposed communication, the longest first.
    pub waits: Vec<WaitSummary>,
}

/// The overlap of a rank, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankOverlap {
    /// The rank.
    pub rank: usize,
    /// How long at least one communication is in progress.
    pub communication: f64,
    /// How long a kernel computes meanwhile.
    pub hidden: f64,
}

/// The waits of a line for the work of another line.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitSummary {
    /// The line that waits.
    pub line: u32,
    /// How often it waits.
    pub count: usize,
    /// How long it waits in total, in microseconds.
    pub microseconds: f64,
    /// What it waits for and why that is late, in words.
    pub reason: String,
    /// The line of the work that it waits for.
    pub cause_line: Option<u32>,
    /// What holds that work up.
    pub cause: WaitCause,
}

grammar::named_enum! {
    /// What holds work up for which a line waits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WaitCause {
        /// Other work whose result it needs, or that is ordered before it.
        Dependency = "dependency",
        /// Work before it on its stream, or on the stream that posts it.
        StreamOrder = "stream order",
        /// A communication before it in the queue of its communicator.
        QueueOrder = "queue order",
        /// Another rank, which begins it later.
        Peer = "peer",
        /// A kernel, which occupies the multiprocessors.
        Multiprocessors = "multiprocessors",
        /// Nothing: a copy engine takes this long.
        CopyEngine = "copy engine",
        /// Nothing: the communication takes this long.
        Link = "link",
        /// Nothing on the GPU: the host issued it late.
        Host = "host",
    }
}

/// The number of waits that are printed.
const PRINTED_WAITS: usize = 10;

impl RankOverlap {
    /// Returns how long communication is in progress while no kernel computes.
    pub fn exposed(&self) -> f64 {
        (self.communication - self.hidden).max(0.0)
    }
}

impl Overlap {
    /// Computes the overlap of each rank of a timeline.
    pub fn of(timeline: &Timeline) -> Self {
        let mut intervals: BTreeMap<usize, [Vec<(f64, f64)>; 2]> = BTreeMap::new();
        for it in &timeline.rows {
            intervals.entry(it.rank).or_default();
        }
        for it in &timeline.slices {
            let kind = match it.kind {
                SliceKind::Communication => 0,
                SliceKind::Compute => 1,
                SliceKind::DataMovement | SliceKind::Wait => continue,
            };
            let of_rank = intervals.entry(timeline.rows[it.row].rank).or_default();
            of_rank[kind].extend(it.end.map(|end| (it.begin, end)));
        }
        let ranks: Vec<RankOverlap> =
            intervals.into_iter().map(|(rank, it)| rank_overlap(rank, it)).collect();
        // Of equal ranks, the first.
        let worst = ranks.iter().rev().max_by(|a, b| a.exposed().total_cmp(&b.exposed())).map(|it| it.rank);
        let waits = worst.map_or_else(Vec::new, |rank| waits_of(timeline, rank));
        Self { total: timeline.end(), ranks, waits }
    }

    /// Returns the report, one line a string.
    pub fn report(&self, timeline: &Timeline) -> Vec<String> {
        let interval = timeline.interval().map(|[least, most]| {
            format!("; nine of ten measured programs took {least:.1} to {most:.1} µs for such an estimate")
        });
        let mut lines = vec![
            format!("overlap; times are {}:", timeline.source),
            if timeline.slices.iter().any(|it| it.end.is_none()) {
                format!("  the run never ends, `--check` says why; what runs takes {:.1} µs", self.total)
            } else {
                format!("  the whole run takes {:.1} µs{}", self.total, interval.unwrap_or_default())
            },
        ];
        if !timeline.classes.is_empty() {
            let ranks: usize = timeline.classes.iter().map(Vec::len).sum();
            let kinds = count_text(timeline.classes.len(), "kind");
            lines.push(format!(
                "  {ranks} ranks are of {kinds}: ranks of a kind do the same at the same times, and one of each is estimated"
            ));
        }
        let mut groups: Vec<(RankOverlap, Vec<usize>)> = Vec::new();
        for it in &self.ranks {
            let same =
                |other: &RankOverlap| (other.communication, other.hidden) == (it.communication, it.hidden);
            let alike = timeline.ranks_like(it.rank);
            match groups.iter_mut().find(|(other, _)| same(other)) {
                Some((_, ranks)) => ranks.extend(alike),
                None => groups.push((*it, alike)),
            }
        }
        groups.iter_mut().for_each(|it| it.1.sort_unstable());
        let mut endless: Vec<(String, Vec<usize>)> = Vec::new();
        for it in timeline.slices.iter().filter(|it| it.end.is_none() && it.kind == SliceKind::Communication)
        {
            let (what, rank) = (it.title(), timeline.rows[it.row].rank);
            match endless.iter_mut().find(|(other, _)| *other == what) {
                Some((_, ranks)) => ranks.push(rank),
                None => endless.push((what, vec![rank])),
            }
        }
        for (what, ranks) in &endless {
            lines.push(format!("  {}: {what} never ends", ranks_text(ranks)));
        }
        for (it, ranks) in &groups {
            if !endless.is_empty() && it.communication == 0.0 {
                continue;
            }
            let who = ranks_text(ranks);
            lines.push(if it.communication > 0.0 { format!(
                    "  {who}: communication {:.1} µs, of which {:.1} µs ({:.0}%) hidden behind computation and {:.1} µs exposed",
                    it.communication,
                    it.hidden,
                    100.0 * it.hidden / it.communication,
                    it.exposed()
                ) } else { format!("  {who}: no communication") });
        }
        for it in self.waits.iter().take(PRINTED_WAITS) {
            // Waits of several streams overlap, so that their sum may be longer than the run.
            let together = if it.microseconds > self.total { ", on several streams" } else { "" };
            let times = if it.count > 1 { format!(" ({} times{together})", it.count) } else { String::new() };
            let who =
                if it.line == 0 { "the end of the program".to_owned() } else { format!("line {}", it.line) };
            lines.push(format!("  {who} waits {:.1} µs{times} {}", it.microseconds, it.reason));
        }
        if let Some(more) = self.waits.len().checked_sub(PRINTED_WAITS).filter(|it| *it > 0) {
            lines.push(format!("  {more} shorter waits are not listed"));
        }
        lines
    }
}

/// Returns the overlap of a rank from the times in which it communicates and in which it computes.
fn rank_overlap(rank: usize, intervals: [Vec<(f64, f64)>; 2]) -> RankOverlap {
    let [communication, compute] = intervals.map(union);
    RankOverlap {
        rank,
        communication: length(&communication),
        hidden: length(&intersection(&communication, &compute)),
    }
}

/// Returns how long disjoint intervals are together.
pub fn length(all: &[(f64, f64)]) -> f64 {
    // An empty sum of floats is -0.0.
    all.iter().map(|it| it.1 - it.0).sum::<f64>() + 0.0
}

/// Returns disjoint intervals in ascending order that cover the same times.
pub fn union(mut intervals: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut all: Vec<(f64, f64)> = Vec::new();
    for (begin, end) in intervals {
        match all.last_mut().filter(|it| it.1 >= begin) {
            Some(last) => last.1 = last.1.max(end),
            None => all.push((begin, end)),
        }
    }
    all
}

/// Returns the times that are in both lists of disjoint ascending intervals.
pub fn intersection(a: &[(f64, f64)], b: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (mut i, mut j, mut both) = (0, 0, Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (begin, end) = (x.0.max(y.0), x.1.min(y.1));
        if begin < end {
            both.push((begin, end));
        }
        if x.1 < y.1 { i += 1 } else { j += 1 }
    }
    both
}

/// Returns the waits of a rank for communication and for other ranks, by line and reason.
fn waits_of(timeline: &Timeline, rank: usize) -> Vec<WaitSummary> {
    let rank_of = |it: &Slice| timeline.rows[it.row].rank;
    let mut all: Vec<WaitSummary> = Vec::new();
    for it in timeline.slices.iter().filter(|it| rank_of(it) == rank) {
        let Some(cause) = it.cause.map(|cause| &timeline.slices[cause]) else { continue };
        let is_remote = rank_of(cause) != rank;
        let microseconds = match (it.kind, it.end) {
            (SliceKind::Wait, Some(end)) if is_remote || cause.kind == SliceKind::Communication => {
                end - it.begin
            }
            // A communication has begun and waits for the other rank to begin. The clocks of the two ranks may
            // differ by more than it takes.
            (SliceKind::Communication, Some(end)) if is_remote => cause.begin.min(end) - it.begin,
            _ => continue,
        };
        if microseconds <= 0.0 {
            continue;
        }
        let (line, reason) = (it.line.unwrap_or(0), reason(timeline, it, cause));
        let (cause_line, cause) = (cause.line, cause_of(timeline, cause));
        match all.iter_mut().find(|other| (other.line, &other.reason) == (line, &reason)) {
            Some(other) => {
                other.count += 1;
                other.microseconds += microseconds;
            }
            None => all.push(WaitSummary { line, count: 1, microseconds, reason, cause_line, cause }),
        }
    }
    all.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
    all
}

/// The part of the time of work from which on it is said that other work slows it down.
const SLOWED: f64 = 0.05;
/// Work that begins later than this, in microseconds, without anything before it was issued late.
const LATE: f64 = 10.0;

/// Returns what held up a slice for which another one waits.
fn cause_of(timeline: &Timeline, it: &Slice) -> WaitCause {
    let Some(earlier) = it.cause.map(|it| &timeline.slices[it]) else {
        return if timeline.is_measured && it.begin > LATE {
            WaitCause::Host
        } else if it.is_copy {
            WaitCause::CopyEngine
        } else {
            WaitCause::Link
        };
    };
    let (row, of) = (&timeline.rows[it.row], &timeline.rows[earlier.row]);
    if row.rank != of.rank {
        return WaitCause::Peer;
    }
    if it.is_crowded && it.row != earlier.row {
        return WaitCause::Multiprocessors;
    }
    match (matches!(row.lane, Lane::Queue { .. }), it.row == earlier.row) {
        (true, true) => WaitCause::QueueOrder,
        (true, false) | (false, true) => WaitCause::StreamOrder,
        (false, false) => WaitCause::Dependency,
    }
}

/// Says what a slice waits for, and what held that up. Iterations are not named, so that the waits of a loop
/// are counted together.
fn reason(timeline: &Timeline, wait: &Slice, cause: &Slice) -> String {
    let place = |it: &Slice| {
        let row = &timeline.rows[it.row];
        let rank = if row.rank == timeline.rows[wait.row].rank {
            String::new()
        } else {
            format!(" on rank {}", row.rank)
        };
        let line = it.line.filter(|it| *it > 0).map(|it| format!(" (line {it})")).unwrap_or_default();
        format!("{}{line}{rank}", it.label)
    };
    let mut text = format!("for {}", place(cause));
    if cause.end.is_some_and(|end| cause.slowed > SLOWED * (end - cause.begin)) {
        text += if cause.shares_link {
            ", which shares a link with other communications"
        } else if cause.is_copy {
            ", which kernels beside it slow down (memory)"
        } else {
            ", which kernels beside it slow down (multiprocessors)"
        };
    }
    let Some(earlier) = cause.cause.map(|it| &timeline.slices[it]) else { return text };
    let (row, of) = (&timeline.rows[cause.row], &timeline.rows[earlier.row]);
    let stream = match &of.lane {
        Lane::Stream(it @ PlanStream::Indexed(_)) => it.to_string(),
        lane => format!("stream `{lane}`"),
    };
    let is_queue = matches!(row.lane, Lane::Queue { .. });
    // Writing to a string does not fail.
    let _ = match cause_of(timeline, cause) {
        WaitCause::Peer if is_queue => write!(text, ", which waits for rank {} to begin it", of.rank),
        WaitCause::Multiprocessors => {
            write!(text, ", which begins when {} frees the multiprocessors", place(earlier))
        }
        WaitCause::QueueOrder => write!(text, ", which is queued behind {}", place(earlier)),
        WaitCause::StreamOrder if is_queue => {
            write!(text, ", which is posted after {} on {stream}", place(earlier))
        }
        WaitCause::StreamOrder => write!(text, ", which runs after {} on {stream}", place(earlier)),
        WaitCause::Dependency
        | WaitCause::Peer
        | WaitCause::CopyEngine
        | WaitCause::Link
        | WaitCause::Host => write!(text, ", which begins after {}", place(earlier)),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Communicator, sync::InstRef, timeline::Row};

    /// A slice of a row that begins late, and what it waited for.
    fn slice(row: usize, label: &str, cause: Option<usize>, is_crowded: bool) -> Slice {
        Slice {
            row,
            kind: SliceKind::Communication,
            inst_ref: InstRef { rank: 0, inst: 0 },
            line: None,
            iteration: String::new(),
            label: label.to_owned(),
            is_copy: label == "copy",
            begin: 2.0 * LATE,
            end: None,
            slowed: 0.0,
            shares_link: false,
            cause,
            is_crowded,
        }
    }

    #[test]
    fn each_cause_of_a_wait_is_named() {
        let communicator = Communicator { backend: Backend::Nccl, team: [0, 1].into(), pair_of: None };
        let queue = || Lane::Queue { communicator: communicator.clone(), number: None };
        let lanes = [
            (0, Lane::Stream(PlanStream::Entry)),
            (0, Lane::Stream(PlanStream::Indexed(1))),
            (0, queue()),
            (1, queue()),
        ];
        // Work of each row, which begins after nothing.
        let before: Vec<Slice> = (0..4).map(|row| slice(row, "work", None, false)).collect();
        let cases = [
            ("dependency", false, slice(1, "gemm", Some(0), false)),
            ("stream order", false, slice(0, "gemm", Some(0), false)),
            ("stream order", false, slice(2, "Allgather", Some(0), false)),
            ("queue order", false, slice(2, "Allgather", Some(2), false)),
            ("peer", false, slice(2, "Allgather", Some(3), false)),
            ("multiprocessors", false, slice(1, "gemm", Some(0), true)),
            ("copy engine", false, slice(1, "copy", None, false)),
            ("link", false, slice(2, "Allgather", None, false)),
            ("host", true, slice(2, "Allgather", None, false)),
        ];
        for (name, is_measured, it) in cases {
            let timeline = Timeline {
                rows: lanes.iter().map(|(rank, lane)| Row { rank: *rank, lane: lane.clone() }).collect(),
                slices: before.clone(),
                is_measured,
                ..Timeline::default()
            };
            assert_eq!(cause_of(&timeline, &it).name(), name, "{it:?}");
        }
    }

    #[test]
    fn intervals_are_merged_and_intersected() {
        let merged = union(vec![(4.0, 5.0), (0.0, 2.0), (1.0, 3.0)]);
        assert_eq!(merged, [(0.0, 3.0), (4.0, 5.0)]);
        assert_eq!(intersection(&merged, &[(2.0, 4.5), (4.75, 9.0)]), [(2.0, 3.0), (4.0, 4.5), (4.75, 5.0)]);
        assert_eq!(intersection(&merged, &[]), []);
    }
}
