//! Joins lines that a terminal or an editor broke inside a word.
//!
//! A terminal breaks each long line at its width: if all continued lines have the same length, and one of
//! them ends inside a word, that length is the width. If no width is found, two parts are joined only if they
//! form a known word, a tensor or an axis that is incomplete without the other part.
//!
//! Invariant: joining never adds a character.

use rustc_hash::FxHashSet;

use super::{Line, container_start};
use crate::{codes::Code, diagnostic::Diagnostic, dtype::DType, ops::OPS, span::Span};

/// Minimum width of a terminal in columns.
const MIN_TERMINAL_WIDTH: usize = 40;

/// Returns whether a word can contain `byte`.
pub(super) fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns whether a line break between the two bytes can split a token.
pub(super) fn may_split_token(last: u8, first: u8) -> bool {
    let word = |it: u8| is_word_byte(it) || it == b'.';
    let sign = |it: u8| matches!(it, b'=' | b'&' | b'|' | b'<' | b'>' | b'-' | b':' | b'/' | b'%');
    word(last) && word(first)
        || sign(last) && sign(first)
        || last == b'%' && is_word_byte(first)
        || last == b'(' && first == b'D'
}

/// Marks the lines of all containers that continue on the next line.
pub(super) fn mark_joined_lines(lines: &mut [Line<'_>], diagnostics: &mut Vec<Diagnostic>) {
    let starts: Vec<usize> =
        (0..lines.len()).filter(|at| container_start(lines[*at].text.trim_start()) == Some(0)).collect();
    let mut known = None;
    for (number, start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(lines.len());
        let Some(lines) = lines.get_mut(*start..end) else { continue };
        let length = lines.iter().position(|it| closes_container(it.text)).map_or(lines.len(), |at| at + 1);
        let Some(lines) = lines.get_mut(..length) else { continue };
        match terminal_width(lines) {
            Some(width) => join_at_width(lines, width, diagnostics),
            None => join_split_words(lines, known.get_or_insert_with(known_words), diagnostics),
        }
    }
}

pub(crate) fn closes_container(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("} // %HostIrContainer") || line.starts_with("END.")
}

/// Returns the width of the terminal if the lines show it: each line that ends inside brackets and continues
/// in the first column has this length, or one less if a trailing blank was lost.
fn terminal_width(lines: &[Line<'_>]) -> Option<usize> {
    let longest = lines.iter().map(|it| it.text.len()).max().filter(|it| *it >= MIN_TERMINAL_WIDTH)?;
    let (mut cuts, mut inside_word) = (0usize, false);
    for pair in lines.windows(2) {
        let [line, next] = pair else { continue };
        let (Some(last), Some(first)) = (line.text.bytes().last(), next.text.bytes().next()) else {
            continue;
        };
        inside_word |= line.text.len() == longest && may_split_token(last, first);
        if first.is_ascii_whitespace() || !ends_inside_brackets(line.text) {
            continue;
        }
        let whole = line.text.len() + 1 >= longest;
        // In a text without indentation, operands are on separate lines.
        if !whole && last != b',' {
            return None;
        }
        cuts += usize::from(whole);
    }
    (cuts >= 2 && inside_word).then_some(longest)
}

/// Returns whether a line ends inside parentheses or brackets that it opens.
fn ends_inside_brackets(line: &str) -> bool {
    let depth = line.bytes().fold(0usize, |depth, byte| match byte {
        b'(' | b'[' => depth + 1,
        b')' | b']' => depth.saturating_sub(1),
        _ => depth,
    });
    depth > 0
}

fn join_at_width(lines: &mut [Line<'_>], width: usize, diagnostics: &mut Vec<Diagnostic>) {
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
        let message = format!("lines are wrapped after {width} characters");
        diagnostics.push(
            Diagnostic::new(
                Code::LossyWrap,
                span,
                message,
                "this line and all others of this length are joined with the next line",
            )
            .help("use the canonical text, which has unwrapped lines"),
        );
    }
}

fn join_split_words(lines: &mut [Line<'_>], known: &FxHashSet<String>, diagnostics: &mut Vec<Diagnostic>) {
    for at in 1..lines.len() {
        let (before, after) = (lines[at - 1].text, lines[at].text);
        let tail = before.bytes().rev().take_while(|it| is_word_byte(*it)).count();
        let head = after.bytes().take_while(|it| is_word_byte(*it)).count();
        let mesh = before.ends_with('(') && after.starts_with("DeviceMesh");
        if tail == 0 && !mesh || tail + head > 64 {
            continue;
        }
        let next = after.as_bytes().get(head).copied();
        let (tail, head) = (before.get(before.len() - tail..).unwrap_or(""), after.get(..head).unwrap_or(""));
        let whole = format!("{tail}{head}");
        let word = known.contains(whole.to_ascii_lowercase().as_str()) && !known.contains(head);
        let tensor = is_tensor(&whole) && !is_tensor(tail);
        let axis = next == Some(b'{') && is_axis(&whole) && !known.contains(tail);
        if !head.is_empty() && (word || tensor) || axis || mesh {
            let line = &mut lines[at - 1];
            line.joined = true;
            let end = line.at + before.len();
            let message = format!("`{tail}` and `{head}` are on two lines");
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

/// Returns whether `word` is the beginning of a tensor, such as `T4_g_float`.
fn is_tensor(word: &str) -> bool {
    let rest = word.strip_prefix('T').map(|it| it.trim_start_matches(|it: char| it.is_ascii_digit()));
    let parts = rest.and_then(|it| it.strip_prefix('_')).and_then(|it| it.split_once('_'));
    parts.is_some_and(|(memory, dtype)| {
        matches!(memory, "g" | "l" | "s" | "t" | "sym") && DType::from_name(dtype).is_some()
    })
}

/// Returns whether `word` is the part of an axis before its brace, such as `iS10` or `rS6`.
fn is_axis(word: &str) -> bool {
    let rest = word
        .strip_prefix(['i', 'r', 'b', 's', 'n', 'v'])
        .and_then(|it| it.strip_prefix(|it: char| it.is_ascii_alphabetic()));
    rest.is_some_and(|it| {
        it.trim_start_matches(|it: char| it.is_ascii_alphabetic()).bytes().all(|it| it.is_ascii_digit())
            && it.ends_with(|it: char| it.is_ascii_digit())
    })
}

/// Returns the words, in lower case, that split parts may be joined to: names of operators, keys and values.
fn known_words() -> FxHashSet<String> {
    const OTHERS: [&str; 12] = [
        "true",
        "false",
        "streamIdx",
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
    let mut words: Vec<&str> = OTHERS.to_vec();
    for row in OPS {
        words.push(row.mnemonic);
        for param in row.attrs {
            words.push(param.name);
            if let crate::attr::OperandKind::Word(choices) = param.kind {
                words.extend(choices.iter().map(|it| it.text()));
            }
        }
    }
    words.into_iter().map(str::to_ascii_lowercase).collect()
}
