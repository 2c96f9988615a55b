//! Positions in the source text.

/// A half-open byte range of the source text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// Creates the range from `start` up to, but not including, `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the smallest span that contains both.
    pub fn join(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Returns the text of the span, or an empty string if the span is not valid in `source`.
    pub fn text(self, source: &str) -> &str {
        source.get(self.start as usize..self.end as usize).unwrap_or("")
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Maps byte offsets to line numbers in logarithmic time.
#[derive(Clone, Debug, Default)]
pub struct LineIndex {
    starts: Vec<u32>,
}

impl LineIndex {
    /// Creates the index of `source` in linear time.
    pub fn new(source: &str) -> Self {
        let newlines = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { starts: std::iter::once(0).chain(newlines.map(|(at, _)| at as u32 + 1)).collect() }
    }

    /// Returns the line of a byte offset, from 1.
    pub fn line(&self, offset: u32) -> u32 {
        self.starts.partition_point(|start| *start <= offset) as u32
    }

    /// Returns the length in bytes of the line that contains a byte offset, including its line end. `len` is
    /// the length of the text.
    pub fn line_width(&self, offset: u32, len: usize) -> u32 {
        let line = self.line(offset) as usize;
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        self.starts.get(line).copied().unwrap_or(len as u32).saturating_sub(start)
    }

    /// Returns the column of a byte offset in bytes, from 1.
    pub fn column(&self, offset: u32) -> u32 {
        let line = self.line(offset) as usize;
        offset - self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0) + 1
    }
}
