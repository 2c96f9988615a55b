//! Checks the commas of bracketed lists: reports each missing, doubled or trailing comma, unless nvFuser
//! prints the list in that form.

use super::{CommaStyle, GROUPED_REDUCTION, TokenStreamBuilder};
use crate::{
    codes::Code,
    diagnostic::{Diagnostic, Fix},
    span::Span,
    token::{Lexeme, TokenKind},
};

/// Maximum number of missing commas of a list that a diagnostic shows.
const MAX_COMMAS: usize = 4;

impl TokenStreamBuilder<'_, '_> {
    /// Returns the comma placement of the list that `opener` begins.
    pub(super) fn comma_style_of(&self, opener: Lexeme) -> CommaStyle {
        let outer = self.open_brackets.last().map_or(CommaStyle::Separated, |it| it.comma_style);
        let written = self.output.get(self.stmt_start..).unwrap_or(&[]);
        let Some(last) = written.last() else { return CommaStyle::Separated };
        let before = written.len().checked_sub(2).map_or("", |at| self.text(written[at]));
        let is_list = matches!(before, "Inputs" | "Outputs");
        match (opener.kind, last.kind) {
            // `Inputs={a, b, }`, `Outputs:{a, }`.
            (TokenKind::BraceOpen, TokenKind::Assign | TokenKind::Colon) if is_list => {
                CommaStyle::TrailingAllowed
            }
            // `Communication Allgather: { team: 0 1, }` of May 2024.
            (TokenKind::BraceOpen, TokenKind::Colon)
                if outer == CommaStyle::OptionalBetweenLines || self.is_communication_of_2024(written) =>
            {
                CommaStyle::OptionalBetweenLines
            }
            // A team or a mesh in braces has another kind, which the resolver reports.
            (TokenKind::BraceOpen, TokenKind::Assign) if before == "team" => CommaStyle::OptionalBetweenLines,
            (TokenKind::ParenOpen, TokenKind::Word) => match self.text(*last) {
                "LaunchKernel" => CommaStyle::TrailingAllowed,
                GROUPED_REDUCTION => CommaStyle::OptionalBetweenLines,
                "sdpa" | "sdpa_bwd" => CommaStyle::OptionalAtLineEnd,
                _ => CommaStyle::Separated,
            },
            _ => CommaStyle::Separated,
        }
    }

    /// Returns whether a list is that of `Communication Allgather:`, also if its statement has a fault.
    fn is_communication_of_2024(&self, written: &[Lexeme]) -> bool {
        let [.., word, _, _] = written else { return false };
        self.text(*word) == "Communication"
    }

    /// Reports a comma that has no element before it. Returns true if the caller must omit the comma from the
    /// output.
    pub(super) fn report_redundant_comma(&mut self, comma: Lexeme) -> bool {
        let Some(last) = self.output.get(self.stmt_start..).and_then(<[_]>::last).copied() else {
            return false;
        };
        let doubled = last.kind == TokenKind::Comma;
        let leading = last.kind.closer().is_some() && !self.open_brackets.is_empty();
        // nvFuser ends an operand's line with a comma and begins the next line with another comma.
        let printed = doubled && comma.first;
        if (doubled || leading) && !printed {
            let message = if doubled { "two commas in a row" } else { "the list begins with a comma" };
            self.report_comma(comma.span(), message, "expected a value before this comma");
        }
        doubled || leading
    }

    /// Reports a comma between the last element of a list and the end of the list.
    pub(super) fn check_trailing_comma(&mut self) {
        let written = self.output.get(self.stmt_start..).unwrap_or(&[]);
        let Some(last) = written.last().copied().filter(|it| it.kind == TokenKind::Comma) else { return };
        if self
            .open_brackets
            .last()
            .is_none_or(|it| it.comma_style == CommaStyle::Separated && !it.closer_omitted)
        {
            self.report_comma(
                last.span(),
                "the list ends with a comma",
                "expected no comma after the last value",
            );
        }
    }

    fn report_comma(&mut self, place: Span, message: &str, label: &str) {
        if !self.too_deep {
            self.diagnostics.push(Diagnostic::new(Code::Syntax, place, message, label).fix(place, ""));
        }
    }

    pub(super) fn report_missing_comma(&mut self, next: Lexeme) {
        let Some(last) = self.output.last().copied().filter(|_| !self.too_deep) else { return };
        let list = self.open_brackets.last().map_or(CommaStyle::Separated, |it| it.comma_style);
        // `slice( T0, { {0, 8, 1} {0, 3, 1} } )`: nvFuser prints no comma between ranges.
        let ranges = last.kind == TokenKind::BraceClose && next.kind == TokenKind::BraceOpen;
        if list == CommaStyle::OptionalBetweenLines
            || list == CommaStyle::OptionalAtLineEnd && next.first
            || ranges
        {
            return;
        }
        let gap = Span { start: last.end, end: last.end };
        let what = |this: &Self, it: Lexeme| {
            let text = this.text(it);
            match it.kind {
                TokenKind::Tensor => text.split(['_', '[']).next().unwrap_or(text).to_owned(),
                _ => text.to_owned(),
            }
        };
        let message = format!("a comma is missing between `{}` and `{}`", what(self, last), what(self, next));
        let comma = if last.end == next.start { ", " } else { "," };
        // One diagnostic for all commas that a list lacks.
        let first = self.open_brackets.last().and_then(|it| it.missing_comma);
        let is_first = |it: &&mut Diagnostic| Some(it.span()) == first && it.code == Code::Syntax;
        if let Some(it) = self.diagnostics.iter_mut().rev().find(is_first) {
            if it.labels.len() < MAX_COMMAS {
                it.labels.push((gap, "and here".to_owned()));
            }
            it.fixes.push(Fix { span: gap, text: comma.to_owned() });
            return;
        }
        if let Some(list) = self.open_brackets.last_mut() {
            list.missing_comma = Some(gap);
        }
        self.missing_commas.insert(gap);
        self.diagnostics
            .push(Diagnostic::new(Code::Syntax, gap, message, "expected `,` here").fix(gap, comma));
    }

    /// Returns whether a comma is missing before `next`.
    pub(super) fn is_comma_missing(&self, next: Lexeme) -> bool {
        let (Some(open), [.., before, last]) = (self.open_brackets.last(), self.output.as_slice()) else {
            return false;
        };
        let in_braces = open.kind == TokenKind::BraceOpen;
        let operand =
            matches!(before.kind, TokenKind::Assign | TokenKind::Colon) || before.kind.is_operator();
        let first = matches!(before.kind, TokenKind::Comma) || before.kind.closer().is_some();
        let ends = |kind: Option<TokenKind>| kind.is_some_and(|it| it == TokenKind::Comma || it.is_closer());
        // `rank`, `i0`, `true`: words that a number or a parenthesis may follow begin with an upper-case
        // letter.
        let is_name = self.text(*last).starts_with(|it: char| it.is_ascii_lowercase());
        match (last.kind, next.kind) {
            (TokenKind::Word, TokenKind::Int | TokenKind::Float) => {
                (in_braces || is_name) && (first || operand) && self.kind(1) != Some(TokenKind::ParenOpen)
            }
            (
                TokenKind::Word,
                TokenKind::Word | TokenKind::In | TokenKind::From | TokenKind::To | TokenKind::Into,
            ) => {
                // A key can consist of two words. A symbol or a HostUnit name ends with its number.
                let is_numbered = self.text(*last).ends_with(|it: char| it.is_ascii_digit());
                operand || first && (in_braces || is_numbered || ends(self.kind(1)))
            }
            (TokenKind::Word, TokenKind::Tensor | TokenKind::Axis | TokenKind::Stream) => {
                operand || first && (in_braces || is_name)
            }
            (TokenKind::Word, TokenKind::BraceOpen) => operand || in_braces && first,
            // `{i7 ( i5 - 5 )}`: the name of a scalar, one letter and a number, is not a function in a list.
            (TokenKind::Word, TokenKind::ParenOpen) => {
                let in_list = in_braces || open.is_call;
                let number = self.text(*last).strip_prefix(|it: char| it.is_ascii_lowercase());
                in_list && number.is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
            }
            // A team: `(0 1)`.
            (TokenKind::Int, TokenKind::Int) => in_braces || open.is_call,
            (
                TokenKind::Tensor
                | TokenKind::Axis
                | TokenKind::Float
                | TokenKind::Int
                | TokenKind::ParenClose
                | TokenKind::BraceClose
                | TokenKind::BracketClose,
                TokenKind::Tensor
                | TokenKind::Axis
                | TokenKind::Word
                | TokenKind::Stream
                | TokenKind::Int
                | TokenKind::Float
                | TokenKind::BraceOpen,
            ) => true,
            (
                TokenKind::ParenClose | TokenKind::BraceClose | TokenKind::BracketClose,
                TokenKind::ParenOpen,
            ) => true,
            _ => false,
        }
    }
}
