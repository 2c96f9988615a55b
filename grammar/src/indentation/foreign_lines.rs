//! Skips lines inside a container that cannot belong to a program, such as those of a log that was printed between
//! the statements. Each is reported once, at its own place, and the statement that it interrupts continues.

use super::TokenStreamBuilder;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    nearest,
    ops::OPS,
    span::Span,
    token::{Lexeme, TokenKind},
};

/// Words that begin lines of HostUnits.
const UNIT_WORDS: [&str; 3] = ["Inputs", "Outputs", "TransformPrinter"];

impl TokenStreamBuilder<'_, '_> {
    /// Skips the next line if it is foreign; returns whether it did. `is_between`: no statement is incomplete.
    pub(super) fn skip_foreign_line(&mut self, is_between: bool) -> bool {
        let length = self.line_length();
        let line = self.input.get(self.position..self.position + length).unwrap_or(&[]);
        let [first, _, ..] = line else { return false };
        if !is_between && !self.last_ends_value() || !self.is_foreign(line) {
            return false;
        }
        let rest = self.source.slice(first.start, self.source.base + self.source.text.len() as u32);
        let text = rest.lines().next().unwrap_or("").trim_end();
        let span = Span { start: first.start, end: first.start + text.len() as u32 };
        self.foreign_lines.push(span);
        self.position += length;
        true
    }

    /// Reports the foreign lines, and drops the errors in their characters.
    pub(super) fn report_foreign_lines(&mut self) {
        let lines = std::mem::take(&mut self.foreign_lines);
        if lines.is_empty() {
            return;
        }
        let is_on_one = |at: u32| {
            let before = lines.partition_point(|it| it.start <= at);
            before.checked_sub(1).is_some_and(|line| at < lines[line].end)
        };
        self.diagnostics.retain(|it| !is_on_one(it.span().start));
        let error = |span| {
            let message = "this line is not Host IR";
            let it = Diagnostic::new(Code::Syntax, span, message, "expected a statement, or the rest of one");
            it.help("remove the line if a log printed it; otherwise correct its first words")
        };
        self.diagnostics.extend(lines.iter().copied().map(error));
    }

    /// Returns the number of tokens on the line that begins with the next token; 0 if that is within a line.
    fn line_length(&self) -> usize {
        let rest = self.input.get(self.position..).unwrap_or(&[]);
        match rest.first() {
            Some(first) if first.first => 1 + rest[1..].iter().take_while(|it| !it.first).count(),
            Some(_) | None => 0,
        }
    }

    /// Returns whether a line, of at least two tokens, neither is a statement, even a misspelled one, nor continues
    /// the current statement.
    fn is_foreign(&self, line: &[Lexeme]) -> bool {
        use TokenKind::{
            Assign, Axis, BraceOpen, Colon, Comma, Float, From, In, Infix, Int, Into, ParenOpen, Stream,
            Tensor, To, Word,
        };
        let is_own = |it: &Lexeme| {
            matches!(it.kind, Tensor | Axis | Stream | Assign)
                || it.kind.ends_block()
                || it.kind.is_header()
                || it.kind.is_post_or_wait_phrase()
                || matches!(it.kind, TokenKind::KernelStart | TokenKind::ContainerStart)
        };
        if line.iter().any(is_own) {
            return false;
        }
        let kind = |at: usize| line.get(at).map(|it| it.kind);
        let text = self.text(line[0]);
        match line[0].kind {
            Word if text.starts_with('T') && text[1..].starts_with(|it: char| it.is_ascii_digit()) => false,
            Word if UNIT_WORDS.contains(&text) || text.starts_with("HostUnit") || self.at_unit() => false,
            Word => {
                let is_form = match kind(1) {
                    Some(ParenOpen | BraceOpen | Comma | To | Into | In | From) => true,
                    Some(Int) => kind(2) == Some(ParenOpen),
                    Some(Colon) => return true,
                    _ => false,
                };
                let names = || OPS.iter().map(|it| it.mnemonic);
                !is_form && names().all(|it| it != text) && nearest(text, names()).is_none()
            }
            Int | Float => true,
            // A path.
            Infix => {
                text == "/" && kind(1) == Some(Word) && line.get(2).is_some_and(|it| self.text(*it) == "/")
            }
            _ => false,
        }
    }
}
