//! Cleans up pasted dumps: removes comment prefixes, mpirun tags and log lines, and joins lines that a
//! terminal wrapped.
//!
//! `clean` runs before the first token is scanned. A text that needs no cleanup is not copied; for any other
//! text, a map translates each offset back to its offset in the source.
//!
//! Invariant: apart from normalized characters, the cleaned text consists only of source lines. Their order
//! changes only if lines of several ranks are separated by their tags. Cleanup takes linear time.

mod json_lines;
mod normalize_chars;
mod rank_shapes;
mod strip_log_prefix;
mod unwrap_lines;

pub(crate) use unwrap_lines::closes_container;

use std::borrow::Cow;

use crate::{codes::Code, diagnostic::Diagnostic, files::FILE_MARK, ir::Program, span::Span};

/// Maximum number of rounds of dropping log lines and joining split words. Each step can expose more work for
/// the other.
const MAX_ROUNDS: usize = 8;

/// A text after cleanup.
#[derive(Debug, Default)]
pub struct CleanedText<'s> {
    /// The text to parse.
    pub text: Cow<'s, str>,
    source: &'s str,
    /// Maps offsets of `text` to offsets in the text after character normalization. Empty: identity.
    line_offsets: Vec<OffsetPair>,
    /// Maps offsets in the text after character normalization to offsets in the source. Empty: identity.
    char_offsets: Vec<OffsetPair>,
    /// Warnings about the cleanup, with spans in the source.
    pub diagnostics: Vec<Diagnostic>,
    /// Where the lines of a rank begin in `text`, with its number from 1, in the order of the text; 0 for lines without a tag. A
    /// rank whose two output streams have tags occurs twice. Empty: no line has a tag.
    pub ranks: Vec<(u32, usize)>,
}

/// An offset in a derived text, and the corresponding offset in the text it was derived from.
type OffsetPair = (u32, u32);

/// A line of the source, or the rest of it after cleanup, without its line ending.
#[derive(Clone, Copy, Debug)]
struct Line<'s> {
    text: &'s str,
    /// Byte offset of `text` in the source.
    at: usize,
    /// Whether the next line continues this one without a line break.
    joined: bool,
    /// The number of the rank whose tag the line had; 0 without a tag.
    rank: usize,
}

/// Removes the traces of pasting from `source`.
pub fn clean(source: &str) -> CleanedText<'_> {
    let mut clean = CleanedText { text: Cow::Borrowed(source), source, ..CleanedText::default() };
    let texts = json_lines::texts(source).or_else(|| normalize_chars::normalize(source));
    if let Some((text, pieces)) = texts {
        (clean.text, clean.char_offsets) = (Cow::Owned(text), pieces);
    }
    if is_clean(&clean.text) {
        return clean;
    }
    let mut lines = Vec::new();
    // A file with fusions has prefixes of its own.
    let mut rest = split_lines(&clean.text);
    while !rest.is_empty() {
        let is_mark = |it: &Line<'_>| it.text.starts_with(FILE_MARK);
        let end = rest.iter().skip(1).position(is_mark).map_or(rest.len(), |at| at + 1);
        let behind = rest.split_off(end);
        // The line that names the file has none.
        if let Some(mark) = rest.first().copied().filter(is_mark) {
            lines.push(mark);
            rest.remove(0);
        }
        lines.extend(strip_log_prefix::strip_prefixes(std::mem::replace(&mut rest, behind)));
    }
    let mut dropped = Vec::new();
    let (mut diagnostics, missing) = (Vec::new(), missing_lines(&lines));
    // A log line can interrupt a split word: the lines around it can be joined once it is dropped.
    for _ in 0..MAX_ROUNDS {
        lines.iter_mut().for_each(|it| it.joined = false);
        diagnostics.clear();
        unwrap_lines::mark_joined_lines(&mut lines, &mut diagnostics);
        let count = lines.len();
        drop_log_lines(&mut lines, &mut dropped);
        if lines.len() == count {
            break;
        }
    }
    diagnostics.extend(log_lines_warning(&dropped));
    diagnostics.extend(missing);
    let (text, pieces) = join_lines(clean.text.len(), &lines);
    let mut last = 0;
    for (line, (at, _)) in lines.iter().zip(&pieces) {
        if line.rank != last {
            clean.ranks.push((*at, line.rank));
            last = line.rank;
        }
    }
    // The diagnostics refer to the text after character normalization.
    for (span, _) in diagnostics.iter_mut().flat_map(|it| &mut it.labels) {
        *span = clean.source_span(*span);
    }
    (clean.text, clean.line_offsets, clean.diagnostics) = (Cow::Owned(text), pieces, diagnostics);
    clean
}

impl CleanedText<'_> {
    /// Translates all spans from the cleaned text to the source.
    pub fn restore_spans(&self, programs: &mut [Program], diagnostics: &mut [Diagnostic]) {
        if self.line_offsets.is_empty() && self.char_offsets.is_empty() {
            return;
        }
        // Fixes apply to the cleaned text only: in the source, a new line would lack the prefix and would not
        // be part of the program.
        diagnostics.iter_mut().for_each(|it| it.fixes.clear());
        for (span, _) in diagnostics.iter_mut().flat_map(|it| &mut it.labels) {
            *span = self.source_span(*span);
        }
        for spans in programs.iter_mut().map(|it| &mut it.spans) {
            spans.map(|span| self.source_span(span));
        }
    }

    fn source_span(&self, span: Span) -> Span {
        let start = self.source_offset(span.start);
        let end = if span.end > span.start { self.source_offset(span.end - 1) + 1 } else { start };
        // A character may replace one with more bytes: extend the span to the next character boundary.
        let whole = (end as usize..self.source.len()).find(|it| self.source.is_char_boundary(*it));
        Span { start, end: whole.map_or(end, |it| it as u32).max(start) }
    }

    fn source_offset(&self, at: u32) -> u32 {
        map_offset(&self.char_offsets, map_offset(&self.line_offsets, at))
    }
}

fn map_offset(pieces: &[OffsetPair], at: u32) -> u32 {
    let piece = pieces.partition_point(|(made, _)| *made <= at).saturating_sub(1);
    pieces.get(piece).map_or(at, |(made, from)| from + (at - made))
}

/// Returns the rank that a launcher has printed before a line in which a container begins: 1 for `[1,1]<stdout>: %Host…`.
pub fn rank_of_container(line: &str) -> Option<usize> {
    let tag = strip_log_prefix::container_tag(&Line { text: line, at: 0, joined: false, rank: 0 })?;
    let digits = tag.split(|it: char| !it.is_ascii_digit()).rfind(|it| !it.is_empty())?;
    digits.parse().ok()
}

/// Texts that begin a container. The last two are for dumps of 2024 that lost their first line.
const MARKERS: [&str; 3] = ["%HostIrContainer", "HOST IRS:", "HOST FUSION ("];

/// Returns the offset in `line` at which a container begins.
pub(crate) fn container_start(line: &str) -> Option<usize> {
    let at = MARKERS.iter().filter_map(|it| line.find(it)).min()?;
    // The comment after the closing brace also contains the name of the container.
    (!line.get(..at)?.trim_end().ends_with("} //")).then_some(at)
}

/// Returns whether the text needs no cleanup. Inspects the beginning and the end of each line.
fn is_clean(source: &str) -> bool {
    let (mut begun, mut last) = (false, None);
    let has_fusions = source.contains("Segmented_Fusion");
    // A part of a split file begins with as many empty lines as are before it.
    for line in source.trim_start_matches('\n').split('\n') {
        let trimmed = line.trim_start_matches([' ', '\t']);
        if is_log_line(trimmed)
            || begun && is_gap(trimmed.trim_end())
            || has_fusions && strip_log_prefix::fusion_tag(line).is_some()
        {
            return false;
        }
        if !begun || trimmed.starts_with('%') {
            match container_start(trimmed) {
                Some(0) if is_whole_header(trimmed) => begun = true,
                Some(_) => return false,
                None => (),
            }
        }
        if begun
            && let (Some(last), Some(first)) = (last, line.bytes().next())
            && (unwrap_lines::may_split_token(last, first)
                || first == b'{' && unwrap_lines::is_word_byte(last))
        {
            return false;
        }
        last = line.bytes().rev().find(|it| *it != b'\r');
    }
    true
}

/// Returns whether the first line of a container is complete: it ends with a colon, or, in 2024, with its
/// brace.
fn is_whole_header(line: &str) -> bool {
    let line = line.trim_end();
    line.ends_with([':', '{']) || line.len() > 2 && line.contains(") :")
}

fn split_lines(source: &str) -> Vec<Line<'_>> {
    let mut at = 0;
    let mut lines = Vec::new();
    for line in source.split('\n') {
        lines.push(Line { text: line.trim_end_matches('\r'), at, joined: false, rank: 0 });
        at += line.len() + 1;
    }
    lines
}

/// Returns whether a line, given without leading blanks, belongs to a log and not to a program.
fn is_log_line(line: &str) -> bool {
    match line.as_bytes().first() {
        // `[ RUN      ]`, `[----------]`, `[W1203 …]`, `[rank0]:`. The axes of a tensor begin with lower-case
        // letters.
        Some(b'[') => {
            let inner = line.bytes().skip(1).find(|it| *it != b' ');
            line.starts_with("[rank")
                || inner.is_some_and(|it| {
                    it.is_ascii_uppercase() || it.is_ascii_digit() || matches!(it, b'-' | b'=')
                })
        }
        Some(b'`') => line.starts_with("```"),
        Some(b'~') => line.starts_with("~~~"),
        Some(b'P') if line.starts_with("Posting ") => true,
        Some(b'*' | b'=' | b'-') => is_rule(line),
        // Most statements have no colon, and these forms of lines need none.
        Some(first) if !line.as_bytes().contains(&b':') => {
            first.is_ascii_digit() && is_progress_bar(line)
                || line.starts_with("warnings.warn(")
                || is_note(line)
        }
        _ => is_library_message(line) || is_logger_message(line) || is_progress_bar(line) || is_note(line),
    }
}

/// Returns whether a line consists of one sign, like those around the notes of torchrun.
fn is_rule(line: &str) -> bool {
    let line = line.trim_end();
    line.len() > 4 && line.bytes().all(|it| Some(it) == line.bytes().next())
}

/// The beginnings of lines that libraries print without a logger.
const NOTES: [&str; 2] = ["Setting OMP_NUM_THREADS", "NCCL version "];

fn is_note(line: &str) -> bool {
    NOTES.iter().any(|it| line.starts_with(it))
}

/// Returns whether a line is a progress bar of tqdm: `Epoch 1:  5%|▌         | 1/20 [00:00<00:05,  3.5it/s]`.
fn is_progress_bar(line: &str) -> bool {
    // Statements have no such sign at their beginning.
    (line.starts_with(|it: char| it.is_ascii_digit()) || line.contains(": "))
        && line.split_once("%|").is_some_and(|(before, _)| before.ends_with(|it: char| it.is_ascii_digit()))
}

/// Returns whether a line is a message with its level or its date: `WARNING: …`,
/// `2026-11-25 03:00:00,123 INFO …`.
fn is_logger_message(line: &str) -> bool {
    let word = line.split([' ', '\t']).next().unwrap_or("");
    let rest = line.get(word.len()..).unwrap_or("").trim_start();
    let digits = |it: &str, count: usize| it.len() == count && it.bytes().all(|it| it.is_ascii_digit());
    let is_level = || ["DEBUG:", "INFO:", "WARNING:", "ERROR:", "CRITICAL:"].contains(&word);
    let is_date = || {
        let parts: Vec<&str> = word.split('-').collect();
        matches!(parts[..], [year, month, day] if digits(year, 4) && digits(month, 2) && digits(day, 2))
            && rest.get(..3).is_some_and(|it| it.ends_with(':') && digits(&it[..2], 2))
    };
    is_level() || is_date()
}

/// Returns whether a line is a message of NCCL, of Python's warnings or of glog:
/// `node1:123:456 [0] NCCL INFO …`, `/usr/lib/site.py:10: UserWarning: …`, `W1125 10:11:12.131415 …`.
fn is_library_message(line: &str) -> bool {
    let word = line.split([' ', '\t']).next().unwrap_or("");
    let rest = line.get(word.len()..).unwrap_or("").trim_start();
    let digits = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    let is_nccl = || {
        let message = rest.strip_prefix('[').and_then(|it| it.split_once("] NCCL "));
        word.split(':').count() > 2 && message.is_some_and(|(rank, _)| digits(rank))
    };
    let is_python = || {
        let place = word.strip_suffix(':').and_then(|it| it.rsplit_once(".py:"));
        let kind = rest.split(':').next().unwrap_or("");
        place.is_some_and(|(_, number)| digits(number)) && kind.ends_with("Warning")
            || word.starts_with("warnings.warn(")
    };
    let is_glog = || {
        let date = word.strip_prefix(['I', 'W', 'E', 'F']).filter(|it| it.len() == 4 && digits(it));
        let time = rest.split([' ', '.']).next().unwrap_or("");
        date.is_some() && time.contains(':') && time.split(':').all(digits)
    };
    is_nccl() || is_python() || is_glog()
}

/// Returns the error about lines in a container that a tool has left out: `[12 lines truncated]`, `... (5 more lines) ...`, `[...]`.
fn missing_lines(lines: &[Line<'_>]) -> Option<Diagnostic> {
    let mut inside = false;
    let line = lines.iter().find(|line| {
        let trimmed = line.text.trim_start();
        inside = container_start(trimmed) == Some(0) || inside && !closes_container(trimmed);
        inside && is_gap(trimmed.trim_end())
    })?;
    let (text, at) = (line.text.trim(), line.at + line.text.len() - line.text.trim_start().len());
    let message = format!("lines of the program are missing: `{text}`");
    let it = Diagnostic::new(Code::Truncated, Span::new(at, at + text.len()), message, "left out here");
    Some(it.help("copy the whole dump, such as with `NVFUSER_DUMP=host_ir ... > dump.txt 2>&1`"))
}

/// Returns whether a line stands for others, which were left out.
fn is_gap(line: &str) -> bool {
    if line.len() > 80 || line.starts_with("//") {
        return false;
    }
    let words = line.trim_matches(|it: char| !it.is_ascii_alphanumeric()).to_ascii_lowercase();
    let is_sign = words.is_empty() && (line.contains("...") || line == "..");
    let says_so = ["truncated", "omitted", "more lines", "lines skipped", "snip", "snipped"]
        .iter()
        .any(|it| words.ends_with(it) || words.starts_with(it));
    is_sign || line.starts_with("--More--") || !words.contains('=') && says_so
}

/// Drops log lines. Appends the spans of those inside containers to `dropped`.
fn drop_log_lines(lines: &mut Vec<Line<'_>>, dropped: &mut Vec<Span>) {
    let (mut inside, mut joined) = (false, false);
    lines.retain(|line| {
        let trimmed = line.text.trim_start();
        let noise = !joined && is_log_line(trimmed);
        joined = line.joined;
        if inside && noise {
            let at = line.at + line.text.len() - trimmed.len();
            dropped.push(Span::new(at, at + trimmed.trim_end().len()));
        }
        let closes = trimmed.starts_with("} // %HostIrContainer") || trimmed.starts_with("END.");
        inside = !closes && (inside || container_start(trimmed) == Some(0));
        !noise
    });
}

/// Returns the warning about log lines inside containers.
fn log_lines_warning(dropped: &[Span]) -> Option<Diagnostic> {
    let first = dropped.iter().min()?;
    let message = match dropped.len() {
        1 => "a line of a log is between the statements".to_owned(),
        count => format!("{count} log lines are between the statements"),
    };
    let it = Diagnostic::new(Code::LossyText, *first, message, "ignored");
    Some(it.help("remove them from the text; they are not part of the program"))
}

/// Concatenates the lines into a text of about `length` bytes, and returns it with its offset map.
fn join_lines(length: usize, lines: &[Line<'_>]) -> (String, Vec<OffsetPair>) {
    let mut text = String::with_capacity(length);
    let mut pieces = Vec::with_capacity(lines.len());
    for line in lines {
        pieces.push((text.len() as u32, line.at as u32));
        text.push_str(line.text);
        if !line.joined {
            text.push('\n');
        }
    }
    (text, pieces)
}
