//! Where a piece of the program stands in its source text.

/// A half-open byte range of the source text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The range from `start` up to, not including, `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The smallest span that holds both.
    pub fn join(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// The text that the span covers; empty when the span is not one of `source`.
    pub fn text(self, source: &str) -> &str {
        source.get(self.start as usize..self.end as usize).unwrap_or("")
    }
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Byte offsets to line numbers, in logarithmic time.
#[derive(Clone, Debug, Default)]
pub struct LineIndex {
    starts: Vec<u32>,
}

impl LineIndex {
    /// Scans `source` once for its line starts.
    pub fn new(source: &str) -> Self {
        let newlines = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { starts: std::iter::once(0).chain(newlines.map(|(at, _)| at as u32 + 1)).collect() }
    }

    /// One-based line of a byte offset.
    pub fn line(&self, offset: u32) -> u32 {
        self.starts.partition_point(|start| *start <= offset) as u32
    }

    /// Length of the line of a byte offset in a text of `len` bytes, its line end included.
    pub fn line_width(&self, offset: u32, len: usize) -> u32 {
        let line = self.line(offset) as usize;
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        self.starts.get(line).copied().unwrap_or(len as u32).saturating_sub(start)
    }

    /// One-based column, in bytes, of a byte offset.
    pub fn column(&self, offset: u32) -> u32 {
        let line = self.line(offset) as usize;
        offset - self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0) + 1
    }
}
