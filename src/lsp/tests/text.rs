//! Positions in a text as the protocol defines them, by a definition of the tests: a text is lines of UTF-16 units.

use lsp_types::{Position, Range};

/// A line: its units, and what ends it.
type Line<'a> = (Vec<u16>, &'a str);

fn lines(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(['\n', '\r']) {
        let mark = if rest[end..].starts_with("\r\n") { "\r\n" } else { &rest[end..end + 1] };
        lines.push((rest[..end].encode_utf16().collect(), mark));
        rest = &rest[end + mark.len()..];
    }
    lines.push((rest.encode_utf16().collect(), ""));
    lines
}

/// Returns the number of units before a position. A place behind the end of its line is that end, a line behind the last one is the
/// end of the text, and the second half of a pair belongs to the character before it.
fn units_before(lines: &[Line<'_>], it: Position) -> usize {
    let before: usize = lines.iter().take(it.line as usize).map(|it| it.0.len() + it.1.len()).sum();
    let Some((line, _)) = lines.get(it.line as usize) else { return before };
    let at = line.len().min(it.character as usize);
    let is_half = line.get(at).is_some_and(|it| (0xdc00..0xe000).contains(it));
    before + at - usize::from(is_half && at > 0)
}

/// Returns what is before a range, in it, and behind it. A range that ends before it begins is empty.
fn parts(text: &str, range: Range) -> [String; 3] {
    let lines = lines(text);
    let all: Vec<u16> = text.encode_utf16().collect();
    let start = units_before(&lines, range.start);
    let end = units_before(&lines, range.end).max(start);
    [&all[..start], &all[start..end], &all[end..]].map(String::from_utf16_lossy)
}

/// Returns the text of a range.
pub(super) fn text_at(text: &str, range: Range) -> String {
    let [_, it, _] = parts(text, range);
    it
}

/// Replaces a range.
pub(super) fn replaced(text: &str, range: Range, new: &str) -> String {
    let [before, _, behind] = parts(text, range);
    before + new + &behind
}

/// Returns the range of the first occurrence of a part, which is not empty.
pub(super) fn range_of(text: &str, part: &str) -> Option<Range> {
    let at = text.find(part)?;
    let position = |end: usize| {
        let before = lines(&text[..end]);
        let last = before.last().map_or(0, |it| it.0.len());
        Position::new(before.len() as u32 - 1, last as u32)
    };
    Some(Range::new(position(at), position(at + part.len())))
}
