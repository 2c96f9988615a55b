//! A blocked wait, and the lines of a deadlock report about such waits. Waits of many ranks or iterations that differ only in the
//! numbers of ranks, streams and iterations share a line.

use std::{collections::BTreeSet, fmt, sync::Arc};

use super::InstRef;
use crate::iteration_text;

/// The maximum number of lines.
const MAX_LINES: usize = 16;

/// Fewer waits than this have a line each, with the numbers of all ranks.
const MIN_MERGED: usize = 3;

/// The maximum number of iterations that a line lists.
const MAX_ITERATIONS: usize = 8;

/// The wait of a blocked host, stream or communicator queue.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockedWait {
    /// The blocked instruction.
    pub inst_ref: InstRef,
    /// The line of the instruction; 0 for the end of the program.
    pub line: u32,
    /// The indices of the enclosing loops, with their values, outermost first.
    pub iteration: Vec<(Arc<str>, i64)>,
    /// The statement and the iteration: `line 19, streamIdx=1`.
    pub place: String,
    /// The stream or queue: `, on stream 1`, ` on NCCL (0 1)`. Empty for a host.
    pub site: String,
    /// What the instruction waits for, and what the awaited ranks are doing instead:
    /// `waits for rank 1 to receive; rank 1 is at line 3, waiting for rank 0`.
    pub wait: String,
    /// `place` and `wait` without the iteration and the numbers of ranks. Waits for which they are equal share a line.
    pub pattern: [String; 2],
    /// True if the instruction would not be blocked had the ranks posted what `Deadlock::skips` lists.
    pub follows_from_skips: bool,
}

/// Formats waits of a world with `world` ranks, in the order of the first wait of each line.
pub(super) fn wait_lines<'a>(waits: impl Iterator<Item = &'a BlockedWait>, world: usize) -> Vec<String> {
    let mut groups: Vec<Vec<&BlockedWait>> = Vec::new();
    for it in waits {
        match groups.iter_mut().find(|group| group[0].pattern == it.pattern) {
            Some(group) => group.push(it),
            None => groups.push(vec![it]),
        }
    }
    let mut lines = Vec::new();
    for waits in &groups {
        let texts = lines_by_rank(waits.iter().map(|it| (it.inst_ref.rank, it.text())));
        if texts.len() < MIN_MERGED { lines.extend(texts) } else { lines.push(merged_line(waits, world)) }
    }
    if let more @ 1.. = lines.len().saturating_sub(MAX_LINES) {
        lines.truncate(MAX_LINES);
        lines.push(format!("… and {more} more"));
    }
    lines
}

/// Formats waits with the same pattern: `each of the 8 ranks, streamIdx=1..4: line 24: waits for …`.
fn merged_line(waits: &[&BlockedWait], world: usize) -> String {
    let Some(first) = waits.first() else { return String::new() };
    let ranks: BTreeSet<usize> = waits.iter().map(|it| it.inst_ref.rank).collect();
    let who = match ranks.len() {
        1 => short_ranks(&ranks),
        count if count == world => format!("each of the {count} ranks"),
        _ => format!("each of {}", short_ranks(&ranks)),
    };
    let site = if waits.iter().all(|it| it.site == first.site) { first.site.as_str() } else { "" };
    let [place, wait] = &first.pattern;
    format!("{who}{}: {place}{site}: {wait}", iterations(waits))
}

/// Formats the iterations of waits: `, streamIdx=1..4`. Empty outside loops.
fn iterations(waits: &[&BlockedWait]) -> String {
    let around = || waits.iter().map(|it| &it.iteration);
    let all: BTreeSet<(i64, String)> =
        around().filter_map(|it| Some((it.last()?.1, iteration_text(it)))).collect();
    let texts: Vec<&str> = all.iter().map(|it| it.1.as_str()).collect();
    let values: Vec<i64> = all.iter().map(|it| it.0).collect();
    let is_one_loop = around().all(|it| it.len() <= 1);
    let is_range = is_one_loop && values.len() > 1 && values.windows(2).all(|it| it[0] + 1 == it[1]);
    match (values.last().filter(|_| is_range), texts.as_slice()) {
        (_, []) => String::new(),
        (Some(last), [first, ..]) => format!(", {first}..{last}"),
        (None, texts) => format!(", {}", grammar::list_text(texts.iter().copied(), MAX_ITERATIONS, "and")),
    }
}

impl BlockedWait {
    /// Formats the wait without its rank.
    fn text(&self) -> String {
        format!("{}{}: {}", self.place, self.site, self.wait)
    }
}

impl fmt::Display for BlockedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.inst_ref.rank, self.text())
    }
}

/// Merges equal texts of several ranks into one line each, `ranks 1 2 3: text`. Lines are in the order of
/// their first rank.
pub fn lines_by_rank(texts: impl Iterator<Item = (usize, String)>) -> Vec<String> {
    let mut lines: Vec<(Vec<usize>, String)> = Vec::new();
    for (rank, text) in texts {
        match lines.iter_mut().find(|(_, other)| *other == text) {
            Some((ranks, _)) => ranks.push(rank),
            None => lines.push((vec![rank], text)),
        }
    }
    lines.into_iter().map(|(ranks, text)| format!("{}: {text}", ranks_text(&ranks))).collect()
}

/// Formats ranks for a label: `rank 1`, `ranks 0, 1 and 6 more`.
pub(super) fn short_ranks(ranks: &BTreeSet<usize>) -> String {
    let texts: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", grammar::list_text(texts.iter().map(String::as_str), 8, "and"))
}

/// The largest number of ranks that `ranks_text` lists.
const MAX_LISTED_RANKS: usize = 16;

/// Formats ranks: `rank 1`, `ranks 1 2 3`; of many ranks, the first ones and the number of the others.
pub fn ranks_text(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().take(MAX_LISTED_RANKS).map(ToString::to_string).collect();
    let rest = match ranks.len().saturating_sub(MAX_LISTED_RANKS) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    format!("rank{} {}{rest}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(" "))
}
