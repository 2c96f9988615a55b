//! A text as it was read: the programs in it, and what the reader and the verifier report.

use grammar::{Diagnostic, NO_DOMAINS, Place, Program, Source, Span, has_errors};

use crate::positions::Positions;

/// A text as it was read: the programs in it, and what the reader and the verifier report.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The version that the editor gave to the text.
    pub(crate) version: i32,
    /// The text.
    pub(crate) source: Source,
    /// The lines of the text as the protocol counts them.
    pub(crate) positions: Positions,
    /// The programs that could be read; none of a text in another format. If there are errors, some may be incomplete.
    pub(crate) programs: Vec<Program>,
    /// What the reader and the verifier report.
    pub(crate) diagnostics: Vec<Diagnostic>,
}

impl Snapshot {
    /// Reads a text.
    pub(crate) fn read(name: &str, version: i32, text: String, positions: Positions) -> Self {
        let source = hir_front::source(name, text);
        // In a new file there is nothing to report yet.
        let (mut programs, diagnostics) =
            if source.text.trim().is_empty() { Default::default() } else { source.programs() };
        // All answers about programs name or edit Host IR text.
        if !source.is_host_ir() {
            programs.clear();
        }
        Self { version, source, positions, programs, diagnostics }
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> &str {
        &self.source.text
    }

    /// Returns whether the text has an error, so that its programs cannot be checked.
    pub(crate) fn is_rejected(&self) -> bool {
        has_errors(&self.diagnostics)
    }

    /// Returns the range of a span.
    pub(crate) fn range(&self, span: Span) -> lsp_types::Range {
        self.positions.range(&self.source.text, span)
    }

    /// Returns the program that the text states at an offset: the last one that begins before it, or the first one.
    pub(crate) fn program_at(&self, offset: u32) -> Option<&Program> {
        let before = self.programs.iter().rev().find(|it| it.spans.header.start <= offset);
        // `%options` and `%tensor` lines precede the header.
        let owner = self.programs.iter().find(|it| it.at(offset).is_some());
        owner.or(before).or(self.programs.first())
    }

    /// Returns the offsets between which a program is: whole lines, from its first part to the bracket that closes it or to the end of
    /// the sections behind it.
    pub(crate) fn extent(&self, program: &Program) -> (usize, usize) {
        let text = self.text();
        let parts = program.places().filter(|(place, _)| !matches!(place, Place::Comment(_)));
        let whole = parts.map(|it| it.1).reduce(|a, b| a.join(b)).unwrap_or_default();
        let start = text.get(..whole.start as usize).and_then(|it| it.rfind('\n')).map_or(0, |at| at + 1);
        let line_end =
            |at: usize| text.get(at..).and_then(|it| it.find('\n')).map_or(text.len(), |len| at + len + 1);
        let mut end = line_end(whole.end as usize);
        let (mut next, mut is_in_domains) = (end, false);
        while let Some(line) = text.get(next..line_end(next)).filter(|it| !it.is_empty()) {
            next += line.len();
            match line.trim() {
                "" => continue,
                // A section without domains is no part of the program.
                "Domains:" => is_in_domains = true,
                NO_DOMAINS if is_in_domains => (),
                line if line.starts_with('}') || line.starts_with("END.") => (),
                _ => break,
            }
            end = next;
        }
        (start, end)
    }
}
