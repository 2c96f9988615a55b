//! Decides whether a token begins a statement, by the tokens around it.

use rustc_hash::FxHashSet;

use super::{OpenBracket, TokenStreamBuilder, WAIT_KEYWORD};
use crate::token::{Lexeme, TokenKind};

impl<'s> TokenStreamBuilder<'s, '_> {
    /// Returns whether the next token is the last one on its line.
    pub(super) fn ends_line(&self) -> bool {
        self.input.get(self.position + 1).is_none_or(|it| it.first)
    }

    /// Returns whether `next` begins a statement although the current header has no colon yet.
    pub(super) fn begins_after_header(&self, next: Lexeme) -> bool {
        let written = self.output.len() - self.stmt_start;
        let begins = matches!(next.kind, TokenKind::Tensor | TokenKind::Word | TokenKind::Stream);
        next.first && begins && written > 2 && self.last_ends_value()
    }

    /// Returns whether `next`, which is outside brackets, cannot continue the current statement.
    pub(super) fn begins_statement(&self, next: Lexeme) -> bool {
        let Some(previous) = self.output.last().map(|it| it.kind) else { return true };
        let word = previous == TokenKind::Word;
        match next.kind {
            _ if !self.last_ends_value() => false,
            TokenKind::Tensor => true,
            TokenKind::Word if !word => true,
            TokenKind::Word if next.first => !self.is_lone_wait(),
            TokenKind::Word => match self.kind(1) {
                Some(TokenKind::Assign | TokenKind::ParenOpen | TokenKind::BraceOpen) => true,
                Some(TokenKind::Stream | TokenKind::To | TokenKind::Into) => true,
                Some(TokenKind::Word) => self.kind(2) == Some(TokenKind::Int),
                Some(TokenKind::Int) => {
                    self.kind(2) == Some(TokenKind::ParenOpen) && !self.is_result_tuple(self.position + 2)
                }
                _ => false,
            },
            TokenKind::Stream if !word => true,
            TokenKind::Stream => self.is_stream_result(),
            TokenKind::ParenOpen
                if previous == TokenKind::Tensor
                    && !next.first
                    && self.kind(2) == Some(TokenKind::ParenClose) =>
            {
                false
            }
            // A call's parenthesis may have no closing one, so only a new line begins a tuple here.
            TokenKind::ParenOpen if matches!(previous, TokenKind::Word | TokenKind::Int) && !next.first => {
                false
            }
            TokenKind::ParenOpen => self.is_result_tuple(self.position),
            _ => false,
        }
    }

    /// Returns whether a value can end with the last token.
    pub(super) fn last_ends_value(&self) -> bool {
        use TokenKind::{Axis, Float, Int, Tensor, Word};
        let last = self.output.last().map(|it| it.kind);
        last.is_some_and(|it| it.is_closer() || matches!(it, Tensor | Axis | Word | Int | Float))
    }

    /// Returns whether the current statement consists only of the word `Wait`, which needs an operand.
    fn is_lone_wait(&self) -> bool {
        let last = self.output.last().filter(|_| self.output.len() == self.stmt_start + 1);
        last.is_some_and(|it| self.text(*it) == WAIT_KEYWORD)
    }

    /// Returns whether `Stream x =` begins here.
    fn is_stream_result(&self) -> bool {
        match self.kind(1) {
            Some(TokenKind::ParenOpen) => self.is_result_tuple(self.position + 1),
            _ => self.kind(2) == Some(TokenKind::Assign),
        }
    }

    /// Returns whether `=` directly follows the parenthesized group at token `at`.
    fn is_result_tuple(&self, at: usize) -> bool {
        self.kind_after_group(at) == Some(TokenKind::Assign)
    }

    /// Returns the kind of the token after the bracketed group that opens at token `at`.
    fn kind_after_group(&self, at: usize) -> Option<TokenKind> {
        let mut depth = 0usize;
        for (offset, lexeme) in self.input.get(at..)?.iter().enumerate() {
            if self.begins_result(at + offset) {
                return None;
            }
            if lexeme.kind.closer().is_some() {
                depth += 1;
            } else if lexeme.kind.is_closer() {
                depth -= 1;
                if depth == 0 {
                    return self.input.get(at + offset + 1).map(|it| it.kind);
                }
            } else if lexeme.kind.is_header() {
                return None;
            }
        }
        None
    }

    /// Returns whether `next` is not an element of the list whose closing parenthesis nvFuser omits.
    pub(super) fn ends_unclosed_list(&self, next: Lexeme, listed: &mut FxHashSet<&'s str>) -> bool {
        let [OpenBracket { closer_omitted: true, .. }] = self.open_brackets.as_slice() else { return false };
        let Some(previous) = self.output.last().map(|it| it.kind) else { return false };
        match previous {
            TokenKind::Comma | TokenKind::ParenOpen => {
                let element = next.kind == TokenKind::Word
                    && self.kind(1) == Some(TokenKind::Int)
                    && self.kind(2) == Some(TokenKind::ParenOpen);
                let number =
                    self.input.get(self.position + 1).map_or("", |it| self.source.slice(it.start, it.end));
                let fresh = element && listed.insert(number);
                // A number that is listed already begins the statement that posts the transfer, unless the list goes on behind it.
                let goes_on = fresh && !next.first
                    || element
                        && matches!(
                            self.kind_after_group(self.position + 2),
                            Some(TokenKind::Comma | TokenKind::ParenClose)
                        );
                !goes_on && next.kind != TokenKind::ParenClose
            }
            TokenKind::ParenClose => !matches!(next.kind, TokenKind::Comma | TokenKind::ParenClose),
            _ => false,
        }
    }

    /// Returns whether a line beginning with `T3 =` starts at token `at`. Such a line never continues an open
    /// bracket.
    pub(super) fn begins_result(&self, at: usize) -> bool {
        let tensor = self.input.get(at).is_some_and(|it| it.kind == TokenKind::Tensor && it.first);
        tensor && self.input.get(at + 1).is_some_and(|it| it.kind == TokenKind::Assign)
    }

    /// Returns whether a HostUnit section, or a list of one, begins here.
    pub(super) fn at_section(&self) -> bool {
        self.kind(0) == Some(TokenKind::Word) && self.kind(1) == Some(TokenKind::Colon)
    }

    /// Returns whether a HostUnit section begins here, or the last part of one. Lines of logs begin with other words and a colon.
    pub(super) fn at_unit(&self) -> bool {
        use TokenKind::{Elided, KernelStart, Word};
        let word = |ahead: usize| self.input.get(self.position + ahead).map_or("", |it| self.text(*it));
        self.at_section()
            && (word(0).starts_with("HostUnit")
                || word(0) == "TransformPrinter"
                || self.kind(2) == Some(Word) && matches!(word(3), "=" | ":")
                || matches!(self.kind(2), Some(Elided | KernelStart)))
    }
}
