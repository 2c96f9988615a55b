//! Takes tokens one by one, keeping brackets balanced and supplying the commas and closers that dumps leave out.

use super::{MAX_NESTING, OpenBracket, TokenStreamBuilder, UNCLOSED_CALL};
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Lexeme, TokenKind},
};

impl TokenStreamBuilder<'_, '_> {
    /// Moves the next token to the output.
    pub(super) fn emit_next(&mut self) {
        let Some(next) = self.peek() else { return };
        if self.is_comma_missing(next) {
            self.report_missing_comma(next);
            self.emit(Lexeme::virtual_at(TokenKind::Comma, next.start));
            self.finish_element();
        }
        if self.is_cast(next) {
            let end = self.input.get(self.position + 2).map_or(next.end, |it| it.end);
            self.emit(Lexeme { kind: TokenKind::Cast, end, ..next });
            self.position += 3;
            return;
        }
        self.position += 1;
        match next.kind {
            TokenKind::Comma if self.report_redundant_comma(next) => return,
            TokenKind::Comma => self.finish_element(),
            TokenKind::BracketOpen | TokenKind::ParenOpen | TokenKind::BraceOpen => {
                let never_closed = next.kind == TokenKind::ParenOpen
                    && self.open_brackets.is_empty()
                    && self
                        .output
                        .last()
                        .is_some_and(|it| it.kind == TokenKind::Word && self.text(*it) == UNCLOSED_CALL);
                if next.kind == TokenKind::BracketOpen {
                    self.count_operator(next);
                }
                let list = self.comma_style_of(next);
                let is_call =
                    self.output.last().is_some_and(|it| matches!(it.kind, TokenKind::Word | TokenKind::Int));
                self.open_brackets.push(OpenBracket {
                    kind: next.kind,
                    span: next.span(),
                    operators: 0,
                    closer_omitted: never_closed,
                    comma_style: list,
                    is_call,
                });
                self.check_depth(next);
            }
            // nvFuser puts a comma behind the only result of `embedding`.
            TokenKind::Assign
                if self.open_brackets.is_empty()
                    && self.peek().is_none_or(|it| self.text(it) != "embedding") =>
            {
                self.check_trailing_comma();
            }
            kind if kind.is_closer() => {
                self.check_trailing_comma();
                self.close_bracket(next);
                return;
            }
            kind if kind.is_operator() || kind == TokenKind::Field => self.count_operator(next),
            _ => (),
        }
        self.emit(next);
    }

    fn emit(&mut self, lexeme: Lexeme) {
        // Of a statement that nests too deep, only the last token is of use: the next one is judged by it.
        if self.too_deep && self.output.len() > self.stmt_start {
            self.output.truncate(self.stmt_start);
        }
        self.output.push(lexeme);
    }

    fn count_operator(&mut self, at: Lexeme) {
        match self.open_brackets.last_mut() {
            Some(open) => open.operators += 1,
            None => self.operators += 1,
        }
        self.nesting_depth += 1;
        self.check_depth(at);
    }

    fn finish_element(&mut self) {
        let counted = self.open_brackets.last_mut().map_or(&mut self.operators, |it| &mut it.operators);
        self.nesting_depth = self.nesting_depth.saturating_sub(std::mem::take(counted));
    }

    fn check_depth(&mut self, at: Lexeme) {
        if !self.too_deep && self.nesting_depth + self.open_brackets.len() > MAX_NESTING {
            self.too_deep = true;
            let message = format!("more than {MAX_NESTING} brackets and operators inside each other");
            self.diagnostics.push(
                Diagnostic::new(Code::Syntax, at.span(), message, "too deep here")
                    .help("give parts of the expression names, in scalar statements before it"),
            );
        }
    }

    fn close_bracket(&mut self, closer: Lexeme) {
        let fits = |it: &OpenBracket| it.kind.closer() == Some(closer.kind);
        if self.open_brackets.last().is_some_and(fits) {
            self.pop_bracket(closer);
        } else if let Some(at) = self.open_brackets.iter().rposition(fits) {
            while self.open_brackets.len() > at + 1 {
                self.report_unclosed(closer.start);
            }
            self.pop_bracket(closer);
        } else {
            // The grammar says what it expected instead.
            self.emit(closer);
        }
    }

    fn pop_bracket(&mut self, closer: Lexeme) {
        if let Some(open) = self.open_brackets.pop() {
            self.nesting_depth = self.nesting_depth.saturating_sub(open.operators);
        }
        self.emit(closer);
    }

    /// Closes the innermost bracket in the text's stead, with an error.
    fn report_unclosed(&mut self, place: u32) {
        let Some(open) = self.open_brackets.last() else { return };
        let (opener, closer) = bracket_chars(open.kind);
        let message = format!("`{opener}` is never closed");
        let diagnostic = Diagnostic::new(Code::Syntax, open.span, message, "opened here");
        self.diagnostics.push(
            diagnostic.label(Span { start: place, end: place }, format!("expected `{closer}` before here")),
        );
        self.insert_closer(place);
    }

    fn insert_closer(&mut self, place: u32) {
        let Some(closer) = self.open_brackets.last().and_then(|it| it.kind.closer()) else { return };
        self.pop_bracket(Lexeme::virtual_at(closer, place));
    }

    /// Closes what is open, with one error for the innermost bracket.
    pub(super) fn close_missing(&mut self, place: u32) {
        if !self.open_brackets.is_empty()
            && !self.open_brackets.iter().all(|it| it.closer_omitted)
            && !self.too_deep
        {
            self.report_unclosed(place);
        }
        self.close_missing_silently(place);
    }

    /// Closes what is open and need not be closed.
    pub(super) fn close_missing_silently(&mut self, place: u32) {
        while !self.open_brackets.is_empty() {
            self.insert_closer(place);
        }
    }

    /// Drops the statement in which the text ends.
    pub(super) fn close_truncated(&mut self, place: u32) {
        if !self.is_truncation_reported()
            && let Some(open) = self.open_brackets.first()
        {
            let (opener, closer) = bracket_chars(open.kind);
            let message = format!("the text ends inside `{opener}`");
            self.diagnostics.push(
                Diagnostic::new(Code::Truncated, open.span, message, "opened here")
                    .label(Span { start: place, end: place }, format!("expected `{closer}`")),
            );
        }
        self.truncated_at = Some(place);
        self.output.truncate(self.stmt_start);
        self.open_brackets.clear();
    }

    /// `(double)` before `(`.
    fn is_cast(&self, next: Lexeme) -> bool {
        let calls = self.output.last().is_some_and(|it| {
            matches!(
                it.kind,
                TokenKind::Word
                    | TokenKind::Int
                    | TokenKind::Tensor
                    | TokenKind::ParenClose
                    | TokenKind::Cast
            )
        }) && self.output.len() > self.stmt_start;
        !calls
            && next.kind == TokenKind::ParenOpen
            && self.kind(1) == Some(TokenKind::Word)
            && self.kind(2) == Some(TokenKind::ParenClose)
            && self.kind(3) == Some(TokenKind::ParenOpen)
    }
}

/// A bracket and its closer.
fn bracket_chars(open: TokenKind) -> (char, char) {
    match open {
        TokenKind::BraceOpen => ('{', '}'),
        TokenKind::BracketOpen => ('[', ']'),
        _ => ('(', ')'),
    }
}
