//! Copies tokens to the output, balances brackets, and inserts the commas and closing brackets that dumps
//! omit.

use super::{MAX_NESTING, OpenBracket, TokenStreamBuilder, UNCLOSED_CALL};
use crate::{
    codes::Code,
    diagnostic::{Diagnostic, TRUNCATED_HELP},
    span::Span,
    token::{Lexeme, TokenKind},
};

impl TokenStreamBuilder<'_, '_> {
    /// Moves the next token to the output and updates the bracket state.
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
                    errors_before: self.diagnostics.len(),
                    missing_comma: None,
                });
                self.check_depth(next);
            }
            // nvFuser prints a comma after the only result of `embedding`.
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
        // Only the last token of a statement that nests too deep is kept: the code that handles the next
        // token inspects it.
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
            let message = format!("more than {MAX_NESTING} nested brackets and operators");
            self.diagnostics.push(
                Diagnostic::new(Code::Syntax, at.span(), message, "the nesting exceeds the limit here")
                    .help("define parts of the expression in scalar statements before it"),
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
            // The grammar reports what it expected instead.
            self.emit(closer);
        }
    }

    fn pop_bracket(&mut self, closer: Lexeme) {
        if let Some(open) = self.open_brackets.pop() {
            self.nesting_depth = self.nesting_depth.saturating_sub(open.operators);
        }
        self.emit(closer);
    }

    /// Reports that the innermost bracket is not closed, and closes it.
    fn report_unclosed(&mut self, place: u32) {
        let Some(open) = self.open_brackets.last() else { return };
        let (opener, closer) = bracket_chars(open.kind);
        self.drop_errors_of_next_lines(open.errors_before, open.span);
        let Some(open) = self.open_brackets.last() else { return };
        let message = format!("`{opener}` is never closed");
        let diagnostic = Diagnostic::new(Code::Syntax, open.span, message, "opened here");
        self.diagnostics
            .push(diagnostic.label(Span { start: place, end: place }, format!("expected `{closer}` here")));
        self.insert_closer(place);
    }

    /// Drops the errors from an index on that are on other lines than the bracket at `opener`: these lines are read
    /// as elements of the bracket only because it is not closed.
    fn drop_errors_of_next_lines(&mut self, from: usize, opener: Span) {
        let mut inside = self.diagnostics.split_off(from.min(self.diagnostics.len()));
        if let Some(last) = inside.iter().map(|it| it.span().start).max() {
            let behind = self.source.slice(opener.end, last.max(opener.end));
            let line_end = behind.find('\n').map_or(u32::MAX, |at| opener.end + at as u32);
            inside.retain(|it| it.span().start <= line_end);
            self.diagnostics.append(&mut inside);
        }
    }

    fn insert_closer(&mut self, place: u32) {
        let Some(closer) = self.open_brackets.last().and_then(|it| it.kind.closer()) else { return };
        self.pop_bracket(Lexeme::virtual_at(closer, place));
    }

    /// Closes all open brackets and reports the innermost one. Brackets whose closing bracket nvFuser omits
    /// are not reported.
    pub(super) fn close_missing(&mut self, place: u32) {
        if !self.open_brackets.is_empty()
            && !self.open_brackets.iter().all(|it| it.closer_omitted)
            && !self.too_deep
        {
            self.report_unclosed(place);
        }
        self.close_missing_silently(place);
    }

    /// Closes all open brackets without a diagnostic.
    pub(super) fn close_missing_silently(&mut self, place: u32) {
        while !self.open_brackets.is_empty() {
            self.insert_closer(place);
        }
    }

    /// Reports that the text ends inside the current statement and drops the statement.
    pub(super) fn close_truncated(&mut self, place: u32) {
        if let Some(open) = self.open_brackets.first() {
            self.drop_errors_of_next_lines(open.errors_before, open.span);
        }
        if !self.is_truncation_reported()
            && let Some(open) = self.open_brackets.first()
        {
            let (opener, closer) = bracket_chars(open.kind);
            let message = format!("the text ends inside `{opener}`");
            self.diagnostics.push(
                Diagnostic::new(Code::Truncated, open.span, message, "opened here")
                    .label(Span { start: place, end: place }, format!("expected `{closer}`"))
                    .help(TRUNCATED_HELP),
            );
        }
        self.truncated_at = Some(place);
        self.output.truncate(self.stmt_start);
        self.open_brackets.clear();
    }

    /// Returns whether a cast such as `(double)` followed by `(` begins at `next`.
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

/// Returns the characters of an opening bracket and of its closing bracket.
fn bracket_chars(open: TokenKind) -> (char, char) {
    match open {
        TokenKind::BraceOpen => ('{', '}'),
        TokenKind::BracketOpen => ('[', ']'),
        _ => ('(', ')'),
    }
}
