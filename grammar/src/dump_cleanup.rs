//! How people paste dumps: behind comment prefixes and mpirun tags, between log lines, wrapped by terminals.
//!
//! `clean` takes that away before the first token is read. A text with nothing to take away is not copied; of another
//! one, a map leads every place back to where it stood.
//!
//! Invariant: the cleaned text holds lines of the source, in order but for tags, and nothing else; the work is linear.

mod normalize_chars;
mod strip_log_prefix;
mod unwrap_lines;

use std::borrow::Cow;

use crate::{codes::Code, diagnostic::Diagnostic, ir::Program, span::Span};

/// So many times log lines are dropped and broken words joined, each of which can show more of the other.
const MAX_ROUNDS: usize = 8;

/// A text without the traces of pasting.
#[derive(Debug)]
pub struct CleanedText<'s> {
    /// The text to read.
    pub text: Cow<'s, str>,
    source: &'s str,
    /// Where its lines stood in the text without odd characters. Empty: the same places.
    line_offsets: Vec<OffsetPair>,
    /// Where the pieces of that text stood in the source. Empty: the same places.
    char_offsets: Vec<OffsetPair>,
    /// What was guessed, by places in the source.
    pub diagnostics: Vec<Diagnostic>,
}

/// A place in the text made of another one, and the place in that one.
type OffsetPair = (u32, u32);

/// A line of the source, or what is left of it, without its line end.
#[derive(Clone, Copy, Debug)]
struct Line<'s> {
    text: &'s str,
    /// Its first byte in the source.
    at: usize,
    /// Whether the next line goes on in the middle of its last word.
    joined: bool,
}

/// Takes the traces of pasting away.
pub fn clean(source: &str) -> CleanedText<'_> {
    let mut clean = CleanedText {
        text: Cow::Borrowed(source),
        source,
        line_offsets: Vec::new(),
        char_offsets: Vec::new(),
        diagnostics: Vec::new(),
    };
    if let Some((text, pieces)) = normalize_chars::normalize(source) {
        (clean.text, clean.char_offsets) = (Cow::Owned(text), pieces);
    }
    if is_clean(&clean.text) {
        return clean;
    }
    let mut lines = strip_log_prefix::strip_prefixes(split_lines(&clean.text));
    let mut dropped = Vec::new();
    let mut diagnostics = Vec::new();
    // A log line can stand inside of a broken word: the lines around it are joined once it is gone.
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
    let (text, pieces) = join_lines(clean.text.len(), &lines);
    // What was guessed stands in the text that the lines were cut from.
    for (span, _) in diagnostics.iter_mut().flat_map(|it| &mut it.labels) {
        *span = clean.source_span(*span);
    }
    (clean.text, clean.line_offsets, clean.diagnostics) = (Cow::Owned(text), pieces, diagnostics);
    clean
}

impl CleanedText<'_> {
    /// Brings places of the cleaned text back to the source.
    pub fn restore_spans(&self, programs: &mut [Program], diagnostics: &mut [Diagnostic]) {
        if self.line_offsets.is_empty() && self.char_offsets.is_empty() {
            return;
        }
        // Edits are made to the cleaned text: behind a prefix, a new line would not be one of the program.
        diagnostics.iter_mut().for_each(|it| it.fixes.clear());
        for (span, _) in diagnostics.iter_mut().flat_map(|it| &mut it.labels) {
            *span = self.source_span(*span);
        }
        for spans in programs.iter_mut().map(|it| &mut it.spans) {
            spans.header = self.source_span(spans.header);
            let lists = [&mut spans.stmts, &mut spans.tensors, &mut spans.symbols];
            lists.into_iter().flatten().for_each(|span| *span = self.source_span(*span));
        }
    }

    fn source_span(&self, span: Span) -> Span {
        let start = self.source_offset(span.start);
        let end = if span.end > span.start { self.source_offset(span.end - 1) + 1 } else { start };
        // A sign may have been made of one that takes more bytes.
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

/// Where a container begins; the last two where its first line was lost, as in dumps of 2024.
const MARKERS: [&str; 3] = ["%HostIrContainer", "HOST IRS:", "HOST FUSION ("];

/// Where in a line a container begins.
fn container_start(line: &str) -> Option<usize> {
    let at = MARKERS.iter().filter_map(|it| line.find(it)).min()?;
    // The closer names the container too.
    (!line.get(..at)?.trim_end().ends_with("} //")).then_some(at)
}

/// Whether nothing has to be taken away: looks at the first bytes of every line.
fn is_clean(source: &str) -> bool {
    let (mut begun, mut last) = (false, None);
    for line in source.split('\n') {
        let trimmed = line.trim_start_matches([' ', '\t']);
        if is_log_line(trimmed) {
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

/// Whether a container's first line is not broken off: it ends in a colon, or, in 2024, in its brace.
fn is_whole_header(line: &str) -> bool {
    let line = line.trim_end();
    line.ends_with([':', '{']) || line.len() > 2 && line.contains(") :")
}

fn split_lines(source: &str) -> Vec<Line<'_>> {
    let mut at = 0;
    let mut lines = Vec::new();
    for line in source.split('\n') {
        lines.push(Line { text: line.trim_end_matches('\r'), at, joined: false });
        at += line.len() + 1;
    }
    lines
}

/// Whether a line, without the blanks before it, belongs to a log and to no program.
fn is_log_line(line: &str) -> bool {
    match line.as_bytes().first() {
        // `[ RUN      ]`, `[----------]`, `[W1203 …]`, `[rank0]:`; the axes of a tensor begin with small letters.
        Some(b'[') => {
            let inner = line.bytes().skip(1).find(|it| *it != b' ');
            line.starts_with("[rank")
                || inner.is_some_and(|it| {
                    it.is_ascii_uppercase() || it.is_ascii_digit() || matches!(it, b'-' | b'=')
                })
        }
        Some(b'`') => line.starts_with("```"),
        Some(b'~') => line.starts_with("~~~"),
        Some(b'P') => line.starts_with("Posting "),
        _ => false,
    }
}

/// Drops log lines; `dropped` gets those inside of a container.
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

/// What is said of log lines inside of containers.
fn log_lines_warning(dropped: &[Span]) -> Option<Diagnostic> {
    let first = dropped.iter().min()?;
    let message = match dropped.len() {
        1 => "a line of a log stands between the statements".to_owned(),
        count => format!("{count} lines of a log stand between the statements"),
    };
    let it = Diagnostic::new(Code::LossyText, *first, message, "dropped");
    Some(it.help("they are not part of the program; take them out of the text"))
}

/// The lines in one text of about `length` bytes.
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

#[cfg(test)]
mod tests;
