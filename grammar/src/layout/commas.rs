//! The commas of bracketed lists: each one that is missing, doubled or trailing is an error at its place, unless nvFuser
//! prints the list so.

use super::{GROUP, Layout, List};
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Kind, Lexeme},
};

impl Layout<'_, '_> {
    /// Which commas the list that `opener` begins may leave out or add.
    pub(super) fn list_at(&self, opener: Lexeme) -> List {
        let outer = self.open.last().map_or(List::Separated, |it| it.list);
        let written = self.out.get(self.begin..).unwrap_or(&[]);
        let Some(last) = written.last() else { return List::Separated };
        let before = written.len().checked_sub(2).map_or("", |at| self.text(written[at]));
        let is_list = matches!(before, "Inputs" | "Outputs");
        match (opener.kind, last.kind) {
            // `Inputs={a, b, }`, `Outputs:{a, }`.
            (Kind::BraceOpen, Kind::Assign | Kind::Colon) if is_list => List::Terminated,
            // `Communication Allgather: { team: 0 1, }` of May 2024.
            (Kind::BraceOpen, Kind::Colon) if outer == List::Lines => List::Lines,
            (Kind::ParenOpen, Kind::Word) => match self.text(*last) {
                "LaunchKernel" => List::Terminated,
                GROUP => List::Lines,
                "sdpa" | "sdpa_bwd" => List::Broken,
                _ => List::Separated,
            },
            _ => List::Separated,
        }
    }

    /// Reports a comma that has no element before it; true: it is left out of the output.
    pub(super) fn separates_nothing(&mut self, comma: Lexeme) -> bool {
        let Some(last) = self.out.get(self.begin..).and_then(<[_]>::last).copied() else { return false };
        let doubled = last.kind == Kind::Comma;
        let leading = last.kind.closer().is_some() && !self.open.is_empty();
        // nvFuser ends an operand's line with one and begins the next line with another one.
        let printed = doubled && comma.first;
        if (doubled || leading) && !printed {
            let message = if doubled { "two commas in a row" } else { "the list begins with a comma" };
            self.report_comma(comma.span(), message, "expected a value before this comma");
        }
        doubled || leading
    }

    /// Reports a comma between the last element of a list and its end.
    pub(super) fn check_trailing_comma(&mut self) {
        let written = self.out.get(self.begin..).unwrap_or(&[]);
        let Some(last) = written.last().copied().filter(|it| it.kind == Kind::Comma) else { return };
        if self.open.last().is_none_or(|it| it.list == List::Separated && !it.never_closed) {
            self.report_comma(
                last.span(),
                "the list ends with a comma",
                "expected no comma behind the last value",
            );
        }
    }

    fn report_comma(&mut self, place: Span, message: &str, label: &str) {
        if !self.too_deep {
            self.diagnostics.push(Diagnostic::new(Code::Syntax, place, message, label).fix(place, ""));
        }
    }

    pub(super) fn report_missing_comma(&mut self, next: Lexeme) {
        let Some(last) = self.out.last().copied().filter(|_| !self.too_deep) else { return };
        let list = self.open.last().map_or(List::Separated, |it| it.list);
        // `slice( T0, { {0, 8, 1} {0, 3, 1} } )`: nvFuser puts no comma between ranges.
        let ranges = last.kind == Kind::BraceClose && next.kind == Kind::BraceOpen;
        if list == List::Lines || list == List::Broken && next.first || ranges {
            return;
        }
        let gap = Span { start: last.end, end: last.end };
        let what = |this: &Self, it: Lexeme| {
            let text = this.text(it);
            match it.kind {
                Kind::Tensor => text.split(['_', '[']).next().unwrap_or(text).to_owned(),
                _ => text.to_owned(),
            }
        };
        let message = format!("a comma is missing between `{}` and `{}`", what(self, last), what(self, next));
        let comma = if last.end == next.start { ", " } else { "," };
        self.diagnostics
            .push(Diagnostic::new(Code::Syntax, gap, message, "expected `,` here").fix(gap, comma));
    }

    /// Whether a comma was left out before `next`.
    pub(super) fn wants_comma(&self, next: Lexeme) -> bool {
        let (Some(open), [.., before, last]) = (self.open.last(), self.out.as_slice()) else { return false };
        let in_braces = open.kind == Kind::BraceOpen;
        let operand = matches!(before.kind, Kind::Assign | Kind::Colon) || before.kind.is_operator();
        let first = matches!(before.kind, Kind::Comma) || before.kind.closer().is_some();
        let ends = |kind: Option<Kind>| kind.is_some_and(|it| it == Kind::Comma || it.is_closer());
        // `rank`, `i0`, `true`: the words that can be followed by a number or a parenthesis begin in upper case.
        let is_name = self.text(*last).starts_with(|it: char| it.is_ascii_lowercase());
        match (last.kind, next.kind) {
            (Kind::Word, Kind::Int | Kind::Float) => {
                (in_braces || is_name) && (first || operand) && self.kind(1) != Some(Kind::ParenOpen)
            }
            (Kind::Word, Kind::Word | Kind::In | Kind::From | Kind::To | Kind::Into) => {
                // A key can have two words; a symbol or a HostUnit ends in its number.
                let is_numbered = self.text(*last).ends_with(|it: char| it.is_ascii_digit());
                operand || first && (in_braces || is_numbered || ends(self.kind(1)))
            }
            (Kind::Word, Kind::Tensor | Kind::Axis | Kind::Stream) => {
                operand || first && (in_braces || is_name)
            }
            (Kind::Word, Kind::BraceOpen) => operand || in_braces && first,
            // `{i7 ( i5 - 5 )}`: a scalar's name, one letter and a number, is no function.
            (Kind::Word, Kind::ParenOpen) => {
                let number = self.text(*last).strip_prefix(|it: char| it.is_ascii_lowercase());
                number.is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
            }
            // A team: `(0 1)`.
            (Kind::Int, Kind::Int) => in_braces || open.is_call,
            (
                Kind::Tensor
                | Kind::Axis
                | Kind::Float
                | Kind::Int
                | Kind::ParenClose
                | Kind::BraceClose
                | Kind::BracketClose,
                Kind::Tensor
                | Kind::Axis
                | Kind::Word
                | Kind::Stream
                | Kind::Int
                | Kind::Float
                | Kind::BraceOpen,
            ) => true,
            (Kind::ParenClose | Kind::BraceClose | Kind::BracketClose, Kind::ParenOpen) => true,
            _ => false,
        }
    }
}
