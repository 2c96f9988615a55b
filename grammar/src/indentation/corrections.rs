//! Recognizes frequent mistakes in the syntax of statements, reports each with what to write instead, and
//! continues as if that had been written, so that nothing that follows from the mistake is reported.

use super::TokenStreamBuilder;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ops::{AsmFormat, OPS},
    span::Span,
    token::{Lexeme, TokenKind},
};

/// The keyword of branches that the host evaluates.
const BRANCH_KIND: &str = "Manual";

impl TokenStreamBuilder<'_, '_> {
    /// Returns the first token of a statement. A keyword in lower case is reported and corrected.
    pub(super) fn corrected_keyword(&mut self, first: Lexeme) -> Lexeme {
        if first.kind != TokenKind::Word || !first.first {
            return first;
        }
        let word = self.text(first);
        let next = self.kind(1);
        let kind = match word.to_ascii_uppercase().as_str() {
            "FOR" if next == Some(TokenKind::Word) => TokenKind::For,
            "IF" if matches!(next, Some(TokenKind::Word | TokenKind::ParenOpen)) => TokenKind::If,
            "ELSE" if next == Some(TokenKind::Colon) => TokenKind::Else,
            "ELIF" | "ELSEIF" if matches!(next, Some(TokenKind::Word | TokenKind::ParenOpen)) => TokenKind::If,
            _ => return first,
        };
        let upper = word.to_ascii_uppercase();
        let it = if matches!(kind, TokenKind::If) && upper != "IF" {
            let message = format!("`{word}` is not a keyword");
            Diagnostic::new(Code::Syntax, first.span(), message, "expected `ELSE:`")
                .help("write `ELSE:`, and an `IF` on the next line, indented as the body of the `ELSE`")
        } else {
            let message = format!("the keyword `{upper}` is written in upper case");
            let it = Diagnostic::new(Code::Syntax, first.span(), message, format!("expected `{upper}`"));
            it.fix(first.span(), upper)
        };
        self.diagnostics.push(it);
        let corrected = Lexeme { kind, ..first };
        if let Some(it) = self.input.get_mut(self.position) {
            *it = corrected;
        }
        corrected
    }

    /// Reports an `IF` without the word before its condition.
    pub(super) fn check_branch_kind(&mut self) {
        let Some(next) = self.peek() else { return };
        let missing = match next.kind {
            TokenKind::Word => self.kind(1).is_some_and(|it| it.is_operator() || it == TokenKind::Colon),
            TokenKind::ParenOpen | TokenKind::Int | TokenKind::Not => true,
            _ => false,
        };
        if !missing {
            return;
        }
        let place = Span { start: next.start, end: next.start };
        let message = format!("`IF` needs the word `{BRANCH_KIND}` before its condition");
        let label = format!("expected `{BRANCH_KIND}` here, as in `IF {BRANCH_KIND} ( rank == 0 ):`");
        let it = Diagnostic::new(Code::Syntax, place, message, label);
        self.diagnostics.push(it.fix(place, format!("{BRANCH_KIND} ")));
        self.output.push(Lexeme::virtual_at(TokenKind::Word, next.start));
    }

    /// Corrects a token in the header of a loop or a branch; returns whether it did.
    pub(super) fn correct_in_header(&mut self, header: TokenKind, next: Lexeme) -> bool {
        let text = self.text(next);
        let (kind, meant) = match (header, next.kind) {
            (TokenKind::If, TokenKind::Assign) => (TokenKind::Equal, "=="),
            (TokenKind::If, TokenKind::Word) if self.last_ends_value() && self.kind(1) != Some(TokenKind::ParenOpen) => {
                match text {
                    "and" => (TokenKind::AndAnd, "&&"),
                    "or" => (TokenKind::OrOr, "||"),
                    _ => return false,
                }
            }
            (TokenKind::For, TokenKind::To) => {
                let own = self.output.get_mut(self.stmt_start..).unwrap_or(&mut []);
                if let Some(keyword) = own.iter_mut().find(|it| it.kind == TokenKind::In) {
                    keyword.kind = TokenKind::From;
                    let span = keyword.span();
                    let message = "the bounds of a loop follow `from`, and its axis follows `in`";
                    let it = Diagnostic::new(Code::Syntax, span, message, "expected `from`");
                    self.diagnostics.push(it.fix(span, "from"));
                }
                return false;
            }
            _ => return false,
        };
        let message = match kind {
            TokenKind::Equal => "a condition compares with `==`; `=` assigns".to_owned(),
            _ => format!("the operator `{text}` is written `{meant}`"),
        };
        let it = Diagnostic::new(Code::Syntax, next.span(), message, format!("expected `{meant}`"));
        self.diagnostics.push(it.fix(next.span(), meant));
        self.position += 1;
        self.output.push(Lexeme { kind, ..next });
        true
    }

    /// Handles a `;` inside brackets: at the end of a line, a closing bracket is missing; elsewhere it stands for
    /// a comma.
    pub(super) fn recover_semicolon(&mut self, semicolon: Lexeme) {
        if self.ends_line() {
            return self.close_missing(semicolon.start);
        }
        let span = semicolon.span();
        let message = "commas separate the values of a list";
        self.diagnostics.push(Diagnostic::new(Code::Syntax, span, message, "expected `,`").fix(span, ","));
        if let Some(it) = self.input.get_mut(self.position) {
            it.kind = TokenKind::Comma;
        }
    }

    /// Returns whether `next` begins a statement although a bracket is open: the name of a statement at the
    /// beginning of a line, not indented more than the statement before it.
    pub(super) fn begins_next_statement(&self, next: Lexeme) -> bool {
        let first = self.output.get(self.stmt_start);
        let outer = first.is_some_and(|it| it.first && next.column <= it.column);
        if !next.first || !outer || !self.last_ends_value() || next.kind != TokenKind::Word {
            return false;
        }
        let operand = matches!(
            self.kind(1),
            Some(TokenKind::ParenOpen | TokenKind::Int | TokenKind::BraceOpen | TokenKind::Stream | TokenKind::Word)
        );
        let name = self.text(next);
        let is_stmt = |format: AsmFormat| {
            use AsmFormat::{Bare, Block, Launch, Numbered, Post, Statement};
            matches!(format, Bare | Block | Launch | Numbered | Post | Statement)
        };
        operand && OPS.iter().any(|row| row.mnemonic == name && is_stmt(row.format))
    }
}
