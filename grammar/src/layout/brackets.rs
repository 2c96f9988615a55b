//! Takes tokens one by one, keeping brackets balanced and supplying the commas and closers that dumps leave out.

use super::{DEEPEST, Layout, NEVER_CLOSED, Opened};
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Kind, Lexeme},
};

impl Layout<'_, '_> {
    /// Moves the next token to the output.
    pub(super) fn take(&mut self) {
        let Some(next) = self.peek() else { return };
        if self.wants_comma(next) {
            self.report_missing_comma(next);
            self.put(Lexeme::virtual_at(Kind::Comma, next.start));
            self.comma();
        }
        if self.is_cast(next) {
            let end = self.raw.get(self.at + 2).map_or(next.end, |it| it.end);
            self.put(Lexeme { kind: Kind::Cast, end, ..next });
            self.at += 3;
            return;
        }
        self.at += 1;
        match next.kind {
            Kind::Comma if self.separates_nothing(next) => return,
            Kind::Comma => self.comma(),
            Kind::BracketOpen | Kind::ParenOpen | Kind::BraceOpen => {
                let never_closed = next.kind == Kind::ParenOpen
                    && self.open.is_empty()
                    && self
                        .out
                        .last()
                        .is_some_and(|it| it.kind == Kind::Word && self.text(*it) == NEVER_CLOSED);
                if next.kind == Kind::BracketOpen {
                    self.operator(next);
                }
                let list = self.list_at(next);
                let is_call = self.out.last().is_some_and(|it| matches!(it.kind, Kind::Word | Kind::Int));
                self.open.push(Opened {
                    kind: next.kind,
                    span: next.span(),
                    operators: 0,
                    never_closed,
                    list,
                    is_call,
                });
                self.check_depth(next);
            }
            // nvFuser puts a comma behind the only result of `embedding`.
            Kind::Assign
                if self.open.is_empty() && self.peek().is_none_or(|it| self.text(it) != "embedding") =>
            {
                self.check_trailing_comma();
            }
            kind if kind.is_closer() => {
                self.check_trailing_comma();
                self.close(next);
                return;
            }
            kind if kind.is_operator() || kind == Kind::Field => self.operator(next),
            _ => (),
        }
        self.put(next);
    }

    fn put(&mut self, lexeme: Lexeme) {
        // Of a statement that nests too deep, only the last token is of use: the next one is judged by it.
        if self.too_deep && self.out.len() > self.begin {
            self.out.truncate(self.begin);
        }
        self.out.push(lexeme);
    }

    fn operator(&mut self, at: Lexeme) {
        match self.open.last_mut() {
            Some(open) => open.operators += 1,
            None => self.operators += 1,
        }
        self.depth += 1;
        self.check_depth(at);
    }

    fn comma(&mut self) {
        let counted = self.open.last_mut().map_or(&mut self.operators, |it| &mut it.operators);
        self.depth = self.depth.saturating_sub(std::mem::take(counted));
    }

    fn check_depth(&mut self, at: Lexeme) {
        if !self.too_deep && self.depth + self.open.len() > DEEPEST {
            self.too_deep = true;
            let message = format!("more than {DEEPEST} brackets and operators inside each other");
            self.diagnostics.push(
                Diagnostic::new(Code::Syntax, at.span(), message, "too deep here")
                    .help("give parts of the expression names, in scalar statements before it"),
            );
        }
    }

    fn close(&mut self, closer: Lexeme) {
        let fits = |it: &Opened| it.kind.closer() == Some(closer.kind);
        if self.open.last().is_some_and(fits) {
            self.pop(closer);
        } else if let Some(at) = self.open.iter().rposition(fits) {
            while self.open.len() > at + 1 {
                self.report_unclosed(closer.start);
            }
            self.pop(closer);
        } else {
            // The grammar says what it expected instead.
            self.put(closer);
        }
    }

    fn pop(&mut self, closer: Lexeme) {
        if let Some(open) = self.open.pop() {
            self.depth = self.depth.saturating_sub(open.operators);
        }
        self.put(closer);
    }

    /// Closes the innermost bracket in the text's stead, with an error.
    fn report_unclosed(&mut self, place: u32) {
        let Some(open) = self.open.last() else { return };
        let (opener, closer) = spelling(open.kind);
        let message = format!("`{opener}` is never closed");
        let diagnostic = Diagnostic::new(Code::Syntax, open.span, message, "opened here");
        self.diagnostics.push(
            diagnostic.label(Span { start: place, end: place }, format!("expected `{closer}` before here")),
        );
        self.supply(place);
    }

    fn supply(&mut self, place: u32) {
        let Some(closer) = self.open.last().and_then(|it| it.kind.closer()) else { return };
        self.pop(Lexeme::virtual_at(closer, place));
    }

    /// Closes what is open, with one error for the innermost bracket.
    pub(super) fn close_missing(&mut self, place: u32) {
        if !self.open.is_empty() && !self.open.iter().all(|it| it.never_closed) && !self.too_deep {
            self.report_unclosed(place);
        }
        self.close_missing_silently(place);
    }

    /// Closes what is open and need not be closed.
    pub(super) fn close_missing_silently(&mut self, place: u32) {
        while !self.open.is_empty() {
            self.supply(place);
        }
    }

    /// Drops the statement in which the text ends.
    pub(super) fn close_truncated(&mut self, place: u32) {
        if !self.breaks_off()
            && let Some(open) = self.open.first()
        {
            let (opener, closer) = spelling(open.kind);
            let message = format!("the text ends inside `{opener}`");
            self.diagnostics.push(
                Diagnostic::new(Code::Truncated, open.span, message, "opened here")
                    .label(Span { start: place, end: place }, format!("expected `{closer}`")),
            );
        }
        self.truncated = Some(place);
        self.out.truncate(self.begin);
        self.open.clear();
    }

    /// `(double)` before `(`.
    fn is_cast(&self, next: Lexeme) -> bool {
        let calls = self.out.last().is_some_and(|it| {
            matches!(it.kind, Kind::Word | Kind::Int | Kind::Tensor | Kind::ParenClose | Kind::Cast)
        }) && self.out.len() > self.begin;
        !calls
            && next.kind == Kind::ParenOpen
            && self.kind(1) == Some(Kind::Word)
            && self.kind(2) == Some(Kind::ParenClose)
            && self.kind(3) == Some(Kind::ParenOpen)
    }
}

/// A bracket and its closer.
fn spelling(open: Kind) -> (char, char) {
    match open {
        Kind::BraceOpen => ('{', '}'),
        Kind::BracketOpen => ('[', ']'),
        _ => ('(', ')'),
    }
}
