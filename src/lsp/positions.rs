//! Converts between the positions of the protocol, which are lines and UTF-16 code units, and byte offsets.
//!
//! The lines are those of the protocol: `\n`, `\r\n` and `\r` end a line. `grammar::span::LineIndex` counts `\n` only.

use grammar::Span;
use lsp_types::{Position, Range};

/// The lines of a text.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    /// The byte offset of the first character of each line.
    starts: Vec<u32>,
}

impl Positions {
    /// Finds the lines of a text in linear time.
    pub(crate) fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let ends_line = |at: usize| match bytes[at] {
            b'\n' => true,
            b'\r' => bytes.get(at + 1) != Some(&b'\n'),
            _ => false,
        };
        let ends = (0..bytes.len()).filter(|at| ends_line(*at)).map(|at| at as u32 + 1);
        Self { starts: std::iter::once(0).chain(ends).collect() }
    }

    /// Returns the position of a byte offset. One inside a character has the position of the character.
    pub(crate) fn position(&self, text: &str, offset: u32) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        let start = self.starts[line] as usize;
        let mut end = (offset as usize).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = text.get(start..end).unwrap_or("");
        // The end of a line is before the characters that end it.
        let before =
            if line + 1 < self.starts.len() { before.trim_end_matches(['\r', '\n']) } else { before };
        Position::new(line as u32, before.encode_utf16().count() as u32)
    }

    /// Returns the range of a span.
    pub(crate) fn range(&self, text: &str, span: Span) -> Range {
        Range::new(self.position(text, span.start), self.position(text, span.end))
    }

    /// Returns the byte offset of a position. As the protocol says, a character behind the end of its line is that end; a line
    /// behind the last one is the end of the text.
    pub(crate) fn offset(&self, text: &str, position: Position) -> usize {
        let line = position.line as usize;
        let Some(start) = self.starts.get(line).map(|it| *it as usize) else { return text.len() };
        let end = self.starts.get(line + 1).map_or(text.len(), |it| *it as usize);
        let line = text.get(start..end).unwrap_or("").trim_end_matches(['\r', '\n']);
        let mut units = 0;
        for (at, it) in line.char_indices() {
            units += it.len_utf16() as u32;
            if units > position.character {
                return start + at;
            }
        }
        start + line.len()
    }

    /// Returns the span of a range. One that ends before it begins is empty.
    pub(crate) fn span(&self, text: &str, range: Range) -> Span {
        let start = self.offset(text, range.start);
        Span::new(start, self.offset(text, range.end).max(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_utf16_units_and_every_kind_of_line_end() {
        let text = "aé😀b\r\nc\rd\ne";
        let positions = Positions::new(text);
        let at = |line, character| positions.offset(text, Position::new(line, character));
        assert_eq!([at(0, 0), at(0, 1), at(0, 2), at(0, 4), at(0, 5)], [0, 1, 3, 7, 8]);
        // Half of a surrogate pair, a column behind the line, and a line behind the text.
        assert_eq!([at(0, 3), at(0, 99), at(1, 99), at(2, 0), at(3, 1), at(9, 0)], [3, 8, 11, 12, 15, 15]);
        for (offset, it) in text.char_indices().filter(|it| !matches!(it.1, '\r' | '\n')) {
            let position = positions.position(text, offset as u32);
            assert_eq!(positions.offset(text, position), offset, "{it}");
        }
        assert_eq!(positions.position(text, 4), Position::new(0, 2));
        assert_eq!(positions.position(text, 99), Position::new(3, 1));
    }
}
