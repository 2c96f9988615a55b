//! The files of a text: the file of the program, and those with fusions behind it.

use crate::span::{LineIndex, Span};

/// Begins the line before the text of a file with fusions that the command line gives.
pub(crate) const FILE_MARK: &str = "%fusions ";

/// Returns the offset at which the files with fusions begin.
pub(crate) fn fusions_start(source: &str) -> Option<usize> {
    let mut found = source.match_indices(FILE_MARK).map(|(at, _)| at);
    found.find(|at| source.get(..*at).is_some_and(|it| it.is_empty() || it.ends_with('\n')))
}

/// The files of a text, by the line before their first one.
pub(crate) struct TextFiles<'t> {
    files: Vec<(u32, &'t str)>,
}

impl<'t> TextFiles<'t> {
    /// Finds the files of `source`; `name` is that of the program.
    pub(crate) fn new(name: &'t str, source: &'t str, lines: &LineIndex) -> Self {
        let mut files = vec![(0, name)];
        for (at, _) in source.match_indices(FILE_MARK) {
            let line = lines.line(at as u32);
            if lines.start(line) == at {
                let text = lines.line_text(line, source);
                files.push((line, text.get(FILE_MARK.len()..).unwrap_or("").trim()));
            }
        }
        Self { files }
    }

    /// Returns the line of the text behind which the file of a line begins.
    pub(crate) fn line_before(&self, line: u32) -> u32 {
        self.file(line).0
    }

    /// Returns the file of a line of the text, and the number that the line has there.
    pub(crate) fn place(&self, line: u32) -> (&'t str, u32) {
        let (before, name) = self.file(line);
        (name, line - before)
    }

    /// Returns the file of a position, and the number that its line has there.
    pub(crate) fn place_of(&self, span: Span, lines: &LineIndex) -> (&'t str, u32) {
        self.place(lines.line(span.start))
    }

    /// Returns the offset at which the file of a position begins.
    pub(crate) fn begin_of(&self, span: Span, lines: &LineIndex) -> u32 {
        match self.line_before(lines.line(span.start)) {
            0 => 0,
            before => lines.start(before + 1) as u32,
        }
    }

    fn file(&self, line: u32) -> (u32, &'t str) {
        let before = self.files.iter().rev().find(|it| it.0 < line);
        before.or(self.files.first()).copied().unwrap_or_default()
    }
}
