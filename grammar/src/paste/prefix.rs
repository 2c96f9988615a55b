//! Takes away what stands before every line: mpirun's tags, comment signs, log prefixes.
//!
//! Invariant: a prefixed text is a program only where there is no container without a prefix.

use rustc_hash::FxHashMap;

use super::{Line, marker};

/// The lines without their tags, a rank's lines together, and without the prefix of a commented container.
pub(super) fn strip(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let lines = untag(lines);
    let first = |line: &Line<'_>| {
        let trimmed = line.text.trim_start_matches(|it: char| it.is_whitespace() || super::is_odd_blank(it));
        marker(trimmed) == Some(0)
    };
    if lines.iter().any(first) { lines } else { uncomment(lines) }
}

/// `[1,0]<stdout>:`.
fn tag(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('[')?;
    let close = rest.find("]<std")?;
    let numbers = rest.get(..close)?.bytes().all(|it| it.is_ascii_digit() || it == b',');
    let end = close + rest.get(close..)?.find(">:")? + 2;
    numbers.then(|| line.get(..=end)).flatten()
}

fn untag(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    if !lines.iter().any(|line| tag(line.text).is_some()) {
        return lines;
    }
    let mut order: FxHashMap<&str, usize> = FxHashMap::default();
    let mut streams: Vec<Vec<Line<'_>>> = vec![Vec::new()];
    for line in lines {
        let tag = tag(line.text).unwrap_or("");
        let next = order.len() + 1;
        let stream = if tag.is_empty() { 0 } else { *order.entry(tag).or_insert(next) };
        if stream == streams.len() {
            streams.push(Vec::new());
        }
        let text = line.text.get(tag.len()..).unwrap_or("");
        // Some launchers put one blank behind the tag; it shifts all lines alike.
        streams[stream].push(Line { text, at: line.at + tag.len(), ..line });
    }
    streams.into_iter().flatten().collect()
}

/// The lines of prefixed containers without their prefix; all other lines become empty.
fn uncomment(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let mut prefix: Option<&str> = None;
    let mut res = Vec::with_capacity(lines.len());
    for line in lines {
        if let Some(at) = marker(line.text) {
            let before = line.text.get(..at).unwrap_or("");
            if is_prefix(before) {
                prefix = Some(before);
            }
        }
        let taken = prefix.and_then(|it| taken(line.text, it));
        if taken.is_none() {
            prefix = None;
        }
        let from = taken.unwrap_or(line.text.len());
        res.push(Line { text: line.text.get(from..).unwrap_or(""), at: line.at + from, ..line });
    }
    res
}

/// Signs only, as before comments, or a log's prefix with its colon.
fn is_prefix(before: &str) -> bool {
    let trimmed = before.trim_end();
    before.len() <= 80
        && !trimmed.is_empty()
        && (!trimmed.contains(|it: char| it.is_alphanumeric() || it == '`')
            || trimmed.ends_with([':', ']', '>', '|']))
}

/// How much of a line is the prefix, so that columns stay as they were among the lines.
fn taken(line: &str, prefix: &str) -> Option<usize> {
    let sign = match prefix.trim() {
        "/*" | "/**" => "*",
        sign => sign,
    };
    let blanks = line.len() - line.trim_start().len();
    let rest = line.get(blanks..)?;
    let after = match rest.strip_prefix(prefix.trim()).or_else(|| rest.strip_prefix(sign)) {
        Some(after) => after,
        None if sign == "*" && !rest.starts_with("*/") => return Some(0),
        None => return None,
    };
    let gap = prefix.len() - prefix.trim_end().len();
    let own = after.len() - after.trim_start_matches([' ', '\t']).len();
    Some(line.len() - after.len() + gap.min(own))
}
