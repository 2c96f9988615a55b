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
const BRANCH_KIND: &str = crate::ir::If::MANUAL;

impl TokenStreamBuilder<'_, '_> {
    /// Reports and corrects the keywords of loops and branches that are not in upper case.
    pub(super) fn correct_keywords(&mut self) {
        for at in 0..self.input.len() {
            let it = self.input[at];
            // `elseif` is the longest one.
            if it.first && it.kind == TokenKind::Word && it.end - it.start <= 6 {
                self.correct_keyword(at);
            }
        }
    }

    fn correct_keyword(&mut self, at: usize) {
        let Some(first) = self.input.get(at).copied() else { return };
        let word = self.text(first);
        let next = self.input.get(at + 1).map(|it| it.kind);
        let kind = match word.to_ascii_uppercase().as_str() {
            // A loop of Python is no loop with another keyword.
            "FOR" if next == Some(TokenKind::Word) && !self.is_over_values(at + 2) => TokenKind::For,
            "IF" if matches!(next, Some(TokenKind::Word | TokenKind::ParenOpen)) => TokenKind::If,
            "ELSE" if next == Some(TokenKind::Colon) => TokenKind::Else,
            "ELIF" | "ELSEIF" if matches!(next, Some(TokenKind::Word | TokenKind::ParenOpen)) => {
                TokenKind::If
            }
            _ => return,
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
        self.input[at].kind = kind;
    }

    /// Returns whether `in` and a value follow, and no axis.
    fn is_over_values(&self, at: usize) -> bool {
        let kind = |at: usize| self.input.get(at).map(|it| it.kind);
        kind(at) == Some(TokenKind::In) && matches!(kind(at + 1), Some(TokenKind::Word | TokenKind::Tensor))
    }

    /// Reports an `IF` without the word before its condition.
    pub(super) fn check_branch_kind(&mut self) {
        let Some(next) = self.peek() else { return };
        let missing = match next.kind {
            TokenKind::Word if self.text(next) == BRANCH_KIND => false,
            TokenKind::Word => self.kind(1).is_some_and(|it| it.is_operator() || it == TokenKind::Colon),
            TokenKind::ParenOpen | TokenKind::Int => true,
            TokenKind::Prefix => self.text(next) == "!",
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
        let meant = match (header, next.kind) {
            (TokenKind::If, TokenKind::Assign) => "==",
            (TokenKind::If, TokenKind::Word)
                if self.last_ends_value() && self.kind(1) != Some(TokenKind::ParenOpen) =>
            {
                match text {
                    "and" => "&&",
                    "or" => "||",
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
        let message = match meant {
            "==" => "a condition compares with `==`; `=` assigns".to_owned(),
            _ => format!("the operator `{text}` is written `{meant}`"),
        };
        let it = Diagnostic::new(Code::Syntax, next.span(), message, format!("expected `{meant}`"));
        self.diagnostics.push(it.fix(next.span(), meant));
        self.position += 1;
        self.output.push(Lexeme { kind: TokenKind::Infix, ..next });
        true
    }

    /// Corrects an operator whose operands, up to the end of the line, are not in parentheses: `T1 = relu T0`.
    /// Returns whether it did.
    pub(super) fn correct_bare_call(&mut self, operator: Lexeme) -> bool {
        let follows_assign = self.output.last().is_some_and(|it| it.kind == TokenKind::Assign);
        let name = self.text(operator);
        let is_call = |format: AsmFormat| {
            use AsmFormat::{Call, Function, Padded, Wrapped};
            matches!(format, Call | Function | Padded | Wrapped)
        };
        let is_operand = |it: &&Lexeme| !it.first && matches!(it.kind, TokenKind::Tensor | TokenKind::Word);
        if !follows_assign
            || operator.kind != TokenKind::Word
            || !self.open_brackets.is_empty()
            || !OPS.iter().any(|row| row.mnemonic == name && is_call(row.format))
        {
            return false;
        }
        // Only one operand: what commas mean between several is not clear.
        let Some(operand) = self.input.get(self.position + 1).filter(is_operand).copied() else {
            return false;
        };
        let ends = |it: &Lexeme| it.first || it.kind == TokenKind::Semicolon || it.kind.ends_block();
        if !self.input.get(self.position + 2).is_none_or(ends) {
            return false;
        }
        let tensor = self.text(operand);
        let shown = tensor.split(['_', '[', ' ', '\n']).next().unwrap_or(tensor);
        let place = Span { start: operator.end, end: operator.end };
        let label = format!("expected `(` here, as in `{name}({shown})`");
        let it = Diagnostic::new(
            Code::Syntax,
            place,
            format!("`{name}` needs its operands in parentheses"),
            label,
        );
        let it = it.fix(Span { start: operator.end, end: operand.end }, format!("({tensor})"));
        self.diagnostics.push(it);
        let [open, close] = [(TokenKind::ParenOpen, operand.start), (TokenKind::ParenClose, operand.end)]
            .map(|(kind, place)| Lexeme::virtual_at(kind, place));
        self.output.extend([operator, open, operand, close]);
        self.position += 2;
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

    /// Skips a brace around the body of a loop or branch; reports the opening one. Returns whether it did.
    pub(super) fn skip_stray_brace(&mut self) -> bool {
        let Some(next) = self.peek() else { return false };
        // Only the brace directly behind the colon: a text of braces would be reported brace by brace.
        let previous = self.position.checked_sub(1).and_then(|at| self.input.get(at));
        let follows_header = previous.is_some_and(|it| it.kind == TokenKind::Colon);
        match next.kind {
            TokenKind::BraceOpen if follows_header => {
                let message = "the body of a loop or branch has no braces";
                let label = "expected the end of the line: the indentation marks the body";
                self.diagnostics.push(Diagnostic::new(Code::Syntax, next.span(), message, label));
                self.stray_braces += 1;
            }
            TokenKind::BraceClose if self.stray_braces > 0 => self.stray_braces -= 1,
            _ => return false,
        }
        self.position += 1;
        true
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
            Some(
                TokenKind::ParenOpen
                    | TokenKind::Int
                    | TokenKind::BraceOpen
                    | TokenKind::Stream
                    | TokenKind::Word
            )
        );
        let name = self.text(next);
        let is_stmt = |format: AsmFormat| {
            use AsmFormat::{Bare, Block, Launch, Numbered, Post, Statement};
            matches!(format, Bare | Block | Launch | Numbered | Post | Statement)
        };
        operand && OPS.iter().any(|row| row.mnemonic == name && is_stmt(row.format))
    }
}
