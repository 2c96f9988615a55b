//! What the check says about a program as a whole: the verdict, and the estimated times.

use grammar::{Span, count_text};
use hir_plan::{
    World,
    timeline::{SliceKind, Timeline, gain::Gain, overlap::Overlap},
};
use rustc_hash::FxHashMap;

/// The least part of the time of a program for which a communication has a lens.
const LEAST_GAIN: f64 = 0.01;

/// What the check says about a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    /// The header of the program.
    pub(crate) header: Span,
    /// The number of ranks.
    pub(crate) ranks: usize,
    /// The verdict in one line.
    pub(crate) verdict: String,
    /// The report on overlap, with estimated times, one line a string.
    pub(crate) overlap: Vec<String>,
    /// How long the work of each line takes, in microseconds: that of the rank on which it takes longest, all iterations
    /// together.
    pub(crate) times: FxHashMap<u32, f64>,
    /// What the communications cost that are worth hiding, by line: those that gain most come first.
    pub(crate) gains: Vec<(u32, String)>,
}

impl Summary {
    /// Describes a program from its plans. `faults` is the number of errors that the check has found, and `is_proven` whether it
    /// was complete. `timeline` estimates its times, and what
    /// its communications cost.
    pub(crate) fn of(
        world: &World,
        header: Span,
        faults: usize,
        is_proven: bool,
        timeline: impl FnOnce() -> Option<(Timeline, Vec<Gain>)>,
    ) -> Self {
        let proven = match (faults, is_proven) {
            (0, true) => "no race, no deadlock, every output written".to_owned(),
            (0, false) => "no fault in what could be checked".to_owned(),
            (_, _) => count_text(faults, "fault"),
        };
        let mut verdict = format!("{}: {proven}", count_text(world.len(), "rank"));
        let (mut overlap, mut times, mut gains) = (Vec::new(), FxHashMap::default(), Vec::new());
        // A program that deadlocks has no end, and one with too many streams no estimate.
        if world.deadlock().is_none()
            && let Some((timeline, costs)) = timeline()
        {
            let found = Overlap::of(&timeline);
            let (all, hidden) =
                found.ranks.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.communication, sum.1 + it.hidden));
            verdict += &format!(" · {:.1} µs", found.total);
            if all > 0.0 {
                verdict += &format!(", {:.0}% of the communication hidden", 100.0 * hidden / all);
            }
            verdict += " (estimated)";
            overlap = found.report(&timeline);
            let gain = |it: &Gain| found.total - it.least(found.total);
            let worth = costs.iter().filter(|it| gain(it) > LEAST_GAIN * found.total);
            let saved = |without: Option<f64>| without.map_or(0.0, |it| (found.total - it).max(0.0));
            let title = |it: &Gain| {
                let (time, exposed) = (it.time, it.exposed());
                let (hidden, free) = (saved(it.if_hidden), saved(it.if_free));
                let name = &it.label;
                format!(
                    "{name}: {time:.1} µs, {exposed:.1} exposed · saves {hidden:.1} µs if hidden, {free:.1} µs if free"
                )
            };
            gains.extend(worth.map(|it| (it.line, title(it))));
            let mut by_rank: FxHashMap<(u32, usize), f64> = FxHashMap::default();
            for it in timeline.slices.iter().filter(|it| it.kind != SliceKind::Wait) {
                let rank = timeline.rows[it.row].rank;
                let Some(line) = it.line else { continue };
                *by_rank.entry((line, rank)).or_default() += it.end.unwrap_or(it.begin) - it.begin;
            }
            for ((line, _), time) in by_rank {
                let longest = times.entry(line).or_insert(time);
                *longest = f64::max(*longest, time);
            }
        }
        Self { header, ranks: world.len(), verdict, overlap, times, gains }
    }
}
