//! The text of a program file and the programs in it.

use std::sync::Arc;

use crate::{
    diagnostic::Diagnostic,
    files::{self, FILE_MARK},
    ir::Program,
    span::{LineIndex, Span},
};

/// A front end.
#[derive(Debug)]
pub struct Reader {
    /// The name of the format.
    pub name: &'static str,
    /// Returns whether the front end reads a text, by the name of its file and the text.
    pub accepts: fn(&str, &str) -> bool,
    /// Makes programs of a text, with positions in it.
    pub read: fn(&str) -> (Vec<Program>, Vec<Diagnostic>),
}

/// The reader of Host IR.
pub static HOST_IR: Reader = Reader { name: "Host IR", accepts: |_, _| true, read: crate::read };

/// A text with the name of its file.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the file; `<stdin>` for `-`.
    pub name: String,
    /// The text. Shared, because it may be long.
    pub text: Arc<String>,
    /// The index of its lines.
    pub lines: LineIndex,
    /// How the text becomes programs.
    pub reader: &'static Reader,
}

impl Source {
    /// Creates a source from a Host IR text in memory.
    pub fn new(name: String, text: String) -> Self {
        let lines = LineIndex::new(&text);
        Self { name, text: Arc::new(text), lines, reader: &HOST_IR }
    }

    /// Returns a source that another front end reads.
    pub fn with_reader(self, reader: &'static Reader) -> Self {
        Self { reader, ..self }
    }

    /// Returns whether the text is Host IR, so that its lines can be edited as such.
    pub fn is_host_ir(&self) -> bool {
        std::ptr::eq(self.reader, &HOST_IR)
    }

    /// Returns the source with the text of a file with fusions behind its own text. The containers of the file are not read.
    pub fn with_fusions(self, file: &Source) -> Self {
        let Self { name, text, reader, .. } = self;
        let mut text = Arc::unwrap_or_clone(text);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{FILE_MARK}{}\n{}", file.name, file.text));
        Self::new(name, text).with_reader(reader)
    }

    /// Returns the text without the files with fusions.
    pub fn own_text(text: &str) -> &str {
        files::fusions_start(text).and_then(|at| text.get(..at)).unwrap_or(text)
    }

    /// Returns the span of a line (from 1) without surrounding blanks, or `None` if the line does not exist
    /// or is blank.
    pub fn line_span(&self, line: u32) -> Option<Span> {
        if !(1..=self.lines.count()).contains(&(line as usize)) {
            return None;
        }
        let (start, text) = (self.lines.start(line), self.lines.line_text(line, &self.text));
        let indent = text.len() - text.trim_start().len();
        let len = text.trim().len();
        (len > 0).then(|| Span::new(start + indent, start + indent + len))
    }

    /// Returns the span of a line or, for a statement without a line because a pass created it, of the
    /// container's header.
    pub fn line_or_header(&self, line: u32) -> Span {
        let marker = "%HostIrContainer";
        let header = self.text.find(marker).unwrap_or(0);
        let span = self.line_span(line).filter(|it| it.start as usize >= header);
        span.unwrap_or_else(|| Span::new(header, (header + marker.len()).min(self.text.len())))
    }

    /// Reads and verifies all containers. If there are errors, returns also the programs that could be read. Of many
    /// errors that are alike, the first one is returned.
    pub fn programs(&self) -> (Vec<Program>, Vec<Diagnostic>) {
        let (programs, mut diagnostics) = (self.reader.read)(&self.text);
        if !crate::diagnostic::has_errors(&diagnostics) {
            programs.iter().for_each(|program| diagnostics.extend(crate::verify(program)));
        }
        crate::summarise(&mut diagnostics, &self.text);
        (programs, diagnostics)
    }
}
