//! Joins lines that a terminal or an editor broke inside of a word.
//!
//! A terminal breaks every long line at its width. Where the container's own header is broken, and lines of exactly the
//! longest length are followed by text, that length is the width. Without one, only words that are none when broken and
//! known when joined are.
//!
//! Invariant: a join never adds a character.

use rustc_hash::FxHashSet;

use super::{Line, marker};
use crate::{codes::Code, diagnostic::Diagnostic, dtype::DType, ops::OPS, span::Span};

/// A narrower terminal than this is none.
const NARROWEST: usize = 40;

/// A byte that a word goes on with.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a word or a sign may be broken between two bytes.
pub(super) fn may_break(last: u8, first: u8) -> bool {
    let word = |it: u8| is_word(it) || it == b'.';
    let sign = |it: u8| matches!(it, b'=' | b'&' | b'|' | b'<' | b'>' | b'-' | b':' | b'/' | b'%');
    word(last) && word(first) || sign(last) && sign(first) || last == b'%' && is_word(first)
}

/// Marks the lines of every container that go on in the next one.
pub(super) fn join(lines: &mut [Line<'_>], diagnostics: &mut Vec<Diagnostic>) {
    let starts: Vec<usize> =
        (0..lines.len()).filter(|at| marker(lines[*at].text.trim_start()) == Some(0)).collect();
    let mut known = None;
    for (number, start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(lines.len());
        let Some(lines) = lines.get_mut(*start..end) else { continue };
        let length = lines.iter().position(|it| closes(it.text)).map_or(lines.len(), |at| at + 1);
        let Some(lines) = lines.get_mut(..length) else { continue };
        match width(lines) {
            Some(width) => join_at(lines, width, diagnostics),
            None => join_words(lines, known.get_or_insert_with(words), diagnostics),
        }
    }
}

fn closes(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("} // %HostIrContainer") || line.starts_with("END.")
}

/// The terminal's width, where the lines show one.
fn width(lines: &[Line<'_>]) -> Option<usize> {
    let header = lines.iter().find(|it| it.text.contains('('))?.text.len();
    let longest = lines.iter().map(|it| it.text.len()).max()?;
    // A whole header ends in a colon.
    let broken = lines.iter().find(|it| it.text.contains('('))?.text;
    let full = lines.iter().filter(|it| it.text.len() == longest).count();
    let whole = broken.trim_end().ends_with(':') && broken.contains("->");
    (header == longest && !whole && longest >= NARROWEST && full >= 2).then_some(longest)
}

fn join_at(lines: &mut [Line<'_>], width: usize, diagnostics: &mut Vec<Diagnostic>) {
    let mut first = None;
    for at in 1..lines.len() {
        let next = lines[at].text;
        let line = &mut lines[at - 1];
        if line.text.len() == width && !next.is_empty() {
            line.joined = true;
            first.get_or_insert(Span::new(line.at + width - 1, line.at + width));
        }
    }
    if let Some(span) = first {
        let message = format!("lines are broken after {width} characters");
        diagnostics.push(
            Diagnostic::new(
                Code::LossyWrap,
                span,
                message,
                "joined with the next line, and all of this length",
            )
            .help("the canonical text has whole lines"),
        );
    }
}

fn join_words(lines: &mut [Line<'_>], known: &FxHashSet<&'static str>, diagnostics: &mut Vec<Diagnostic>) {
    for at in 1..lines.len() {
        let (before, after) = (lines[at - 1].text, lines[at].text);
        let tail = before.bytes().rev().take_while(|it| is_word(*it)).count();
        let head = after.bytes().take_while(|it| is_word(*it)).count();
        if tail == 0 || head == 0 || tail + head > 64 {
            continue;
        }
        let (tail, head) = (before.get(before.len() - tail..).unwrap_or(""), after.get(..head).unwrap_or(""));
        let whole = format!("{tail}{head}");
        let word = known.contains(whole.as_str()) && !known.contains(head);
        if word || is_tensor(&whole) && !is_tensor(tail) && tail.starts_with('T') {
            let line = &mut lines[at - 1];
            line.joined = true;
            let end = line.at + before.len();
            let message = format!("`{tail}` and `{head}` stand on two lines");
            diagnostics.push(
                Diagnostic::new(
                    Code::LossyWrap,
                    Span::new(end - tail.len(), end),
                    message,
                    format!("read as `{whole}`"),
                )
                .help(format!("write `{whole}` on one line")),
            );
        }
    }
}

/// `T4_g_float`.
fn is_tensor(word: &str) -> bool {
    let rest = word.strip_prefix('T').map(|it| it.trim_start_matches(|it: char| it.is_ascii_digit()));
    let parts = rest.and_then(|it| it.strip_prefix('_')).and_then(|it| it.split_once('_'));
    parts.is_some_and(|(memory, dtype)| {
        matches!(memory, "g" | "l" | "s" | "t" | "sym") && DType::from_name(dtype).is_some()
    })
}

/// The words that a broken line is joined to: names of operators, keys and their values.
fn words() -> FxHashSet<&'static str> {
    const OTHERS: [&str; 13] = [
        "true",
        "false",
        "streamIdx",
        "StreamIdx",
        "numberOfStreams",
        "rank",
        "DeviceMesh",
        "Stream",
        "Manual",
        "initial",
        "value",
        "HostIrContainer",
        "kernel",
    ];
    let mut words: FxHashSet<&'static str> = OTHERS.into_iter().collect();
    for row in OPS {
        words.insert(row.mnemonic);
        for param in row.attrs {
            words.insert(param.name);
            if let crate::ops::Kind::Word(choices) = param.kind {
                words.extend(choices);
            }
        }
    }
    words
}
