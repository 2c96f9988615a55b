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
        let newlines = memchr::memchr_iter(b'\n', source.as_bytes());
        Self { starts: std::iter::once(0).chain(newlines.map(|at| at as u32 + 1)).collect() }
    }

    /// Returns the line of a byte offset, from 1.
    pub fn line(&self, offset: u32) -> u32 {
        self.starts.partition_point(|start| *start <= offset) as u32
    }

    /// Returns the byte offset at which a line, from 1, begins; for a line that does not exist, that of the
    /// first line.
    pub fn start(&self, line: u32) -> usize {
        self.starts.get((line as usize).saturating_sub(1)).copied().unwrap_or(0) as usize
    }

    /// Returns the number of lines. An empty line after the last line end counts.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// Returns the text of a line, from 1, without its line end. `source` is the text of the index.
    pub fn line_text<'s>(&self, line: u32, source: &'s str) -> &'s str {
        let end = self.starts.get(line as usize).map_or(source.len(), |it| *it as usize);
        source.get(self.start(line)..end).unwrap_or("").trim_end_matches(['\n', '\r'])
    }

    /// Returns the column of a byte offset in bytes, from 1.
    pub fn column(&self, offset: u32) -> u32 {
        let line = self.line(offset) as usize;
        offset - self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0) + 1
    }
}
