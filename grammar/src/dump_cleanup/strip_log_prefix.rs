//! Removes the prefixes of lines: rank tags, comment markers and logger prefixes.
//!
//! A logger prefix changes from line to line, but times, counters and line numbers consist of digits. Two
//! prefixes that differ only in the number and value of digits and in the number of blanks have the same
//! shape.
//!
//! Invariant: a prefixed text is treated as a program only if no container without a prefix exists.

use rustc_hash::FxHashMap;

use super::{Line, container_start, rank_shapes::group_by_shape, unwrap_lines::closes_container};

/// Begins a part of the dump of a fusion.
const FUSION: &str = "Segmented_Fusion";

/// Begin the first lines of a dump and of its segments.
const FUSION_MARKS: [&str; 2] = ["Segmented_Fusion Dump: --", "Segmented_Fusion{"];

/// Maximum length of a prefix in bytes.
const MAX_PREFIX_LENGTH: usize = 160;

/// Returns the lines without rank tags, grouped by rank, and without the prefixes of commented or logged
/// containers.
pub(super) fn strip_prefixes(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let lines = group_by_rank_tag(lines);
    let lines = group_by_shape(&lines).unwrap_or(lines);
    let is_plain = |line: &Line<'_>| container_start(line.text.trim_start()) == Some(0);
    let is_prefixed = |line: &Line<'_>| container_start(line.text).is_some();
    if lines.iter().any(is_plain) || !lines.iter().any(is_prefixed) {
        lines
    } else {
        strip_container_prefixes(lines)
    }
}

/// Returns the rank tag that `line` begins with: `[1,0]<stdout>:`, `[rank0]:`, `[default0]:`, `rank0:`,
/// ` 0:`.
fn rank_tag(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(' ');
    let bracketed = rest.strip_prefix('[');
    let rest = bracketed.unwrap_or(rest);
    let rest = rest.trim_start_matches(|it: char| it.is_ascii_alphabetic());
    let digits = rest.trim_start_matches(|it: char| it.is_ascii_digit() || it == ',');
    if digits.len() == rest.len() {
        return None;
    }
    let rest = if bracketed.is_some() { digits.strip_prefix(']')? } else { digits };
    let rest =
        ["<stdout>", "<stderr>", "<stddiag>"].iter().find_map(|it| rest.strip_prefix(it)).unwrap_or(rest);
    let rest = rest.strip_prefix(':')?;
    line.get(..line.len() - rest.len())
}

/// Returns the rank tag of a line in which a container begins. Any prefix may be between the tag and the
/// container.
pub(super) fn container_tag<'s>(line: &Line<'s>) -> Option<&'s str> {
    let tag = rank_tag(line.text)?;
    let rest = line.text.get(tag.len()..)?;
    // `12:00:01` is a time, not a tag.
    let time = !tag.contains(']') && rest.starts_with(|it: char| it.is_ascii_digit());
    container_start(rest).filter(|_| !time).map(|_| tag)
}

/// Returns the rank tag of a line in which the dump of a fusion begins.
pub(super) fn fusion_tag(line: &str) -> Option<&str> {
    // Most lines contain no such text.
    let at = line.find(FUSION)?;
    let tag = rank_tag(line)?;
    (line.get(tag.len()..at)?.trim().is_empty()).then_some(tag)
}

/// Groups the lines by rank and removes their tags, if a container or the dump of a fusion begins after a tag.
fn group_by_rank_tag(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let begins = |it: &Line<'_>| container_tag(it).is_some() || fusion_tag(it.text).is_some();
    let Some(first) = lines.iter().find(|it| begins(it)) else { return lines };
    let Some(shape) = container_tag(first).or_else(|| fusion_tag(first.text)) else { return lines };
    // A logger may print its prefix only before the first line of a message.
    let mut rest = lines.iter().skip_while(|it| !begins(it)).skip(1);
    let next = rest.find(|it| !it.text.trim().is_empty());
    if next.is_some_and(|it| !rank_tag(it.text).is_some_and(|it| is_same_launcher(it, shape))) {
        return lines;
    }
    let mut order: FxHashMap<&str, usize> = FxHashMap::default();
    let mut ranks: FxHashMap<&str, usize> = FxHashMap::default();
    let mut streams: Vec<Vec<Line<'_>>> = vec![Vec::new()];
    for line in lines {
        let tag = rank_tag(line.text).filter(|it| is_same_launcher(it, shape)).unwrap_or("");
        let next = order.len() + 1;
        let stream = if tag.is_empty() { 0 } else { *order.entry(tag.trim()).or_insert(next) };
        if stream == streams.len() {
            streams.push(Vec::new());
        }
        let text = line.text.get(tag.len()..).unwrap_or("");
        // Some launchers print a blank after the tag; it shifts all lines equally.
        // The two output streams of a rank have one number.
        let name = tag.trim().split('<').next().unwrap_or("");
        let next = ranks.len() + 1;
        let rank = if tag.is_empty() { 0 } else { *ranks.entry(name).or_insert(next) };
        streams[stream].push(Line { text, at: line.at + tag.len(), rank, ..line });
    }
    streams.into_iter().flatten().collect()
}

/// Returns whether two tags come from the same launcher, which may tag the two output streams of a rank
/// differently.
fn is_same_launcher(tag: &str, shape: &str) -> bool {
    let launcher =
        |it: &str| it.find('<').map_or(it.trim().len(), |at| it.get(..at).unwrap_or("").trim().len());
    let (tag, shape) = (tag.trim(), shape.trim());
    let (tag, shape) = (tag.get(..launcher(tag)).unwrap_or(""), shape.get(..launcher(shape)).unwrap_or(""));
    match_shape(tag, shape) == Some(tag.len())
}

/// Returns whether the dump of a fusion, or a part of one, begins with a line.
fn begins_fusion(line: &str) -> bool {
    let line = line.trim();
    line.starts_with(FUSION) || line.starts_with("g{") || line.starts_with("%kernel") || line == "Inputs:"
}

/// Returns for each line the offset behind its prefix, if the line belongs to a fusion before a container whose lines have that
/// prefix. A line of another process with the same logger is empty.
fn behind_fusion_prefixes(lines: &[Line<'_>]) -> Vec<Option<usize>> {
    let mut behind = vec![None; lines.len()];
    let mut start = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some(before) = container_start(line.text).and_then(|begin| line.text.get(..begin)) else {
            continue;
        };
        let range = start..at;
        start = at + 1;
        let PrefixScope::WholeContainer(prefix, _) = PrefixScope::of(before, &lines[at + 1..]) else {
            continue;
        };
        let begins = |line: &Line<'_>| {
            let own = prefix_length(line.text, prefix).map(|it| line.text.split_at(it));
            own.is_some_and(|(own, rest)| is_same_process(own, prefix) && begins_fusion(rest))
        };
        let first = lines[range.clone()].iter().position(begins).map_or(range.end, |it| range.start + it);
        for (offset, Line { text, .. }) in behind[first..at].iter_mut().zip(&lines[first..at]) {
            *offset = Some(match prefix_length(text, prefix) {
                Some(own) if is_same_process(&text[..own], prefix) => own,
                Some(_) => text.len(),
                None => 0,
            });
        }
    }
    behind
}

/// Returns whether two prefixes of one shape name the same process: `worker-0 | ` and `worker-1 | ` do not. Other numbers, such as
/// times, change from line to line.
fn is_same_process(a: &str, b: &str) -> bool {
    fn numbers(prefix: &str) -> impl Iterator<Item = &str> {
        let words = prefix.split(|it: char| !it.is_ascii_alphanumeric() && !matches!(it, '-' | '_' | '/'));
        words.filter_map(|word| {
            let digits = word.trim_start_matches(|it: char| !it.is_ascii_digit());
            let name = word.len() - digits.len();
            // `I1125` and `T03` are times.
            (name > 1 && word.starts_with(|it: char| it.is_ascii_alphabetic())).then_some(digits)
        })
    }
    numbers(a).eq(numbers(b))
}

/// Removes the prefixes of prefixed containers and of their fusions; makes all other lines empty, except those of fusions that have no
/// prefix, or one before their first line.
fn strip_container_prefixes(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let (mut state, mut is_in_fusion) = (PrefixScope::NoPrefix, false);
    let mut res = Vec::with_capacity(lines.len());
    let behind = behind_fusion_prefixes(&lines);
    for (at, line) in lines.iter().enumerate() {
        let begins = container_start(line.text).and_then(|begin| line.text.get(..begin));
        if let Some(before) = begins {
            let below = lines.get(at + 1..).unwrap_or(&[]);
            match PrefixScope::of(before, below) {
                PrefixScope::NoPrefix => (),
                PrefixScope::WholeContainer(prefix, length) => {
                    state = PrefixScope::WholeContainer(prefix, at + length)
                }
                first @ PrefixScope::FirstLine(_) => state = first,
            }
        }
        let from = match state {
            PrefixScope::NoPrefix => None,
            PrefixScope::WholeContainer(prefix, end) => {
                prefix_length(line.text, prefix).or((at <= end).then_some(0))
            }
            PrefixScope::FirstLine(prefix) => match (prefix_length(line.text, prefix), begins) {
                (Some(_), None) => None,
                (own, _) => Some(own.unwrap_or(0)),
            },
        };
        if from.is_none() && !line.text.trim().is_empty() {
            state = PrefixScope::NoPrefix;
        }
        let fusion = FUSION_MARKS.iter().find_map(|it| line.text.find(it)).filter(|_| from.is_none());
        is_in_fusion = fusion.is_some() || is_in_fusion && begins.is_none();
        let from = behind[at].or(from).or(fusion).or(is_in_fusion.then_some(0)).unwrap_or(line.text.len());
        res.push(Line { text: line.text.get(from..).unwrap_or(""), at: line.at + from, ..*line });
    }
    res
}

/// The lines to which the text before a container's marker applies as a prefix.
#[derive(Clone, Copy)]
enum PrefixScope<'s> {
    /// All lines of the container, the last of which is this number of lines below the marker. A line in that
    /// range without the prefix is kept whole; a later one ends the container.
    WholeContainer(&'s str, usize),
    /// The first line only, as loggers print a message of several lines.
    FirstLine(&'s str),
    /// The text is not a prefix.
    NoPrefix,
}

impl<'s> PrefixScope<'s> {
    fn of(before: &'s str, below: &[Line<'_>]) -> Self {
        let trimmed = before.trim();
        if trimmed.is_empty() || before.len() > MAX_PREFIX_LENGTH {
            return Self::NoPrefix;
        }
        let own = || below.iter().take_while(|it| container_start(it.text).is_none());
        let inner = |line: &Line<'_>| {
            prefix_length(line.text, before).and_then(|from| line.text.get(from..).map(closes_container))
        };
        if let Some(end) = own().position(|it| inner(it) == Some(true)) {
            return Self::WholeContainer(before, end + 1);
        }
        let next = own().find(|it| !it.text.trim().is_empty());
        let signs = !trimmed.contains(|it: char| it.is_alphanumeric() || it == '`');
        let is_next = next.is_some_and(|it| inner(it).is_some());
        let prefixed = is_next || signs && !own().any(|it| closes_container(it.text));
        if !prefixed && own().any(|it| closes_container(it.text)) {
            return Self::FirstLine(before);
        }
        if prefixed || trimmed.ends_with([':', ']', '>', '|']) {
            Self::WholeContainer(before, 0)
        } else {
            Self::NoPrefix
        }
    }
}

/// Returns the number of bytes of `line` that the prefix covers. The columns of the lines relative to each
/// other do not change.
pub(super) fn prefix_length(line: &str, prefix: &str) -> Option<usize> {
    let sign = match prefix.trim() {
        "/*" | "/**" => "*",
        sign => sign,
    };
    let blanks = line.len() - line.trim_start().len();
    let rest = line.get(blanks..)?;
    let after = match match_shape(rest, prefix.trim()).or_else(|| match_shape(rest, sign)) {
        Some(length) => rest.get(length..)?,
        None if sign == "*" && !rest.starts_with("*/") => return Some(0),
        None => return None,
    };
    let gap = prefix.len() - prefix.trim_end().len();
    let own = after.len() - after.trim_start_matches([' ', '\t']).len();
    Some(line.len() - after.len() + gap.min(own))
}

/// Returns the number of bytes of `text` that match the shape of `prefix`: a number matches any number, and a
/// run of blanks matches any run of blanks.
fn match_shape(text: &str, prefix: &str) -> Option<usize> {
    let class = |byte: u8| match byte {
        b'0'..=b'9' => b'0',
        b' ' | b'\t' => b' ',
        other => other,
    };
    let run = |bytes: &[u8], class_of: u8| bytes.iter().take_while(|it| class(**it) == class_of).count();
    let (text, prefix) = (text.as_bytes(), prefix.as_bytes());
    let (mut at, mut from) = (0, 0);
    while let Some(byte) = prefix.get(from) {
        let class_of = class(*byte);
        if text.get(at).map(|it| class(*it)) != Some(class_of) {
            return None;
        }
        let several = matches!(class_of, b'0' | b' ');
        at += if several { run(text.get(at..)?, class_of) } else { 1 };
        from += if several { run(prefix.get(from..)?, class_of) } else { 1 };
    }
    Some(at)
}
