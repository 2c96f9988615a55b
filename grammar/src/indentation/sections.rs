//! Processes the parts of a container: options, header, body, HostUnits, and the sections after the closing
//! brace.

use super::{CommaStyle, OpenBracket, StmtTokens, TokenStreamBuilder};
use crate::{
    codes::Code,
    diagnostic::{Diagnostic, TRUNCATED_HELP},
    scan::scan,
    span::Span,
    token::{Lexeme, ScanLimit, Source, TokenKind},
};

impl TokenStreamBuilder<'_, '_> {
    pub(super) fn container(&mut self) {
        self.correct_keywords();
        let is_entry = |it: TokenKind| matches!(it, TokenKind::OptionsStart | TokenKind::DeclarationStart);
        if self.kind(0).is_some_and(is_entry) {
            // Also lines that begin with another token, which the grammar reports, if the first line follows.
            let header = self.input.iter().position(|it| it.kind == TokenKind::ContainerStart).unwrap_or(0);
            while self.position < header || self.kind(0).is_some_and(is_entry) {
                let is_own = self.kind(0).is_some_and(is_entry);
                self.options();
                // The lines behind such a line have the same error.
                while !is_own && self.position < header && !self.kind(0).is_some_and(is_entry) {
                    self.position += 1;
                }
            }
        }
        let container_column = self.peek().map_or(0, |it| it.column);
        self.header();
        self.block(Some(container_column));
        self.follows_from = self.follows_from.min(self.peek().map_or(u32::MAX, |it| it.start));
        while self.peek().is_some_and(|it| !it.kind.ends_block()) {
            let before = self.position;
            self.unit();
            if self.position == before {
                // No section begins here; the grammar reports the error.
                self.begin_statement();
                self.emit_next();
                self.end_statement();
            }
        }
        match self.peek() {
            Some(closer) => {
                self.output.push(Lexeme { kind: TokenKind::BraceClose, ..closer });
                self.check_text_after_closer(closer);
            }
            None => self.report_truncation(),
        }
    }

    /// Reports text that follows the closing brace of the container on the same line. Scanning continues
    /// after a brace in the middle of a line; if that brace closes the container nevertheless, the rest of
    /// the text would be lost.
    fn check_text_after_closer(&mut self, closer: Lexeme) {
        if closer.kind == TokenKind::BraceClose && self.position + 1 < self.input.len() {
            let message = "this `}` closes the container, and text follows it on its line";
            let it = Diagnostic::new(Code::Syntax, closer.span(), message, "the text after it is not read");
            self.diagnostics.push(it.help("remove it, or put it on a line of its own"));
        }
    }

    /// Returns whether `HOST FUSION` or `HOST IRS:` begins here; dumps of 2024 print it before the lists of
    /// the header.
    fn at_host_heading(&self) -> bool {
        let word = |ahead: usize| self.input.get(self.position + ahead).map_or("", |it| self.text(*it));
        word(0) == "HOST" && matches!(word(1), "FUSION" | "IRS")
    }

    /// Reports that the text ends before the closing brace of the container.
    fn report_truncation(&mut self) {
        let place = self.input.last().map_or(self.source.base, |it| it.end);
        let opened = self.input.iter().find(|it| it.kind == TokenKind::ContainerStart);
        self.truncated_at = self.truncated_at.or(Some(place));
        if !self.is_truncation_reported()
            && let Some((opener, end)) = self.opener_closed_by_last_brace()
        {
            let it = Diagnostic::new(Code::Syntax, opener, "`{` is never closed", "opened here");
            self.diagnostics.push(it.label(Span { start: end, end }, "expected `}` here"));
        } else if !self.is_truncation_reported() {
            let span = opened.map_or(Span { start: place, end: place }, |it| it.span());
            self.diagnostics.push(
                Diagnostic::new(Code::Truncated, span, "the container is never closed", "opened here")
                    .label(Span { start: place, end: place }, "expected `}` here")
                    .help(TRUNCATED_HELP),
            );
        }
        self.output.push(Lexeme::virtual_at(TokenKind::BraceClose, place));
    }

    /// Returns the brace of a statement that the brace of the container closes, because the statement does not
    /// close it, and where the statement ends.
    fn opener_closed_by_last_brace(&self) -> Option<(Span, u32)> {
        let (closer, before) = self.input.split_last()?;
        if closer.kind != TokenKind::BraceClose || !closer.first {
            return None;
        }
        let mut depth = 0usize;
        let opener = before.iter().rposition(|it| match it.kind {
            TokenKind::BraceClose => {
                depth += 1;
                false
            }
            TokenKind::BraceOpen if depth == 0 => true,
            TokenKind::BraceOpen => {
                depth -= 1;
                false
            }
            _ => false,
        })?;
        let owner = before.get(opener.checked_sub(1)?)?;
        let is_block = matches!(owner.kind, TokenKind::ContainerStart | TokenKind::KernelStart);
        (!is_block).then_some((before[opener].span(), before.last()?.end))
    }

    /// Processes a line before the first line of the container. Its brackets can continue on the next lines.
    fn options(&mut self) {
        self.begin_statement();
        self.emit_next();
        let is_next_entry = |it: Lexeme| {
            use TokenKind::{ContainerStart, DeclarationStart, OptionsStart};
            it.first && matches!(it.kind, ContainerStart | DeclarationStart | OptionsStart)
        };
        while self.peek().is_some_and(|it| !it.first || !self.open_brackets.is_empty() && !is_next_entry(it))
        {
            self.emit_next();
        }
        self.check_trailing_comma();
        self.end_statement();
    }

    fn header(&mut self) {
        self.begin_statement();
        // The brace of the container is closed by its own closer, so it is not one of the header's brackets.
        let place = self.peek().map_or(self.source.base, |it| it.start);
        let headless = self.at_host_heading();
        for kind in [TokenKind::ContainerStart, TokenKind::BraceOpen] {
            if self.kind(0) == Some(kind) {
                self.output.extend(self.peek());
                self.position += 1;
            } else if headless {
                self.output.push(Lexeme::virtual_at(kind, place));
            }
        }
        if self.at_host_heading() {
            self.follows_from = place;
            self.position += 2;
            self.position += usize::from(self.kind(0) == Some(TokenKind::Colon));
        }
        while let Some(next) = self.peek() {
            let fresh = next.first && self.open_brackets.is_empty();
            if next.kind == TokenKind::BraceClose && self.open_brackets.is_empty() || next.kind.is_header() {
                break;
            }
            if fresh && matches!(next.kind, TokenKind::Tensor | TokenKind::Word | TokenKind::Stream) {
                break;
            }
            let last = self.input.get(self.position + 1).is_none_or(|it| it.first);
            if next.kind == TokenKind::Colon && last && !self.open_brackets.is_empty() {
                self.close_missing(next.start);
            }
            if self.recover_missing_closer(next) && next.kind != TokenKind::Arrow {
                break;
            }
            self.emit_next();
            if next.kind == TokenKind::Colon && self.open_brackets.is_empty() {
                break;
            }
        }
        let place = self.output.last().map_or(self.source.base, |it| it.end);
        self.close_missing(place);
        let next = self.peek().filter(|it| it.first && !it.kind.is_closer());
        if next.is_some() && self.output.last().is_some_and(|it| it.kind == TokenKind::ParenClose) {
            let span = Span { start: place, end: place };
            let it = Diagnostic::new(
                Code::Syntax,
                span,
                "the header has no `:` after its outputs",
                "expected `:`",
            );
            self.diagnostics.push(it.fix(span, " :"));
            self.output.push(Lexeme::virtual_at(TokenKind::Colon, place));
        }
        self.finish_statement();
    }

    /// Processes a section `HostUnit0: Inputs={…} -> Outputs={…}` with its kernel.
    fn unit(&mut self) {
        self.begin_statement();
        let (mut lists, mut is_reported) = (0, false);
        while let Some(next) = self.peek() {
            let is_outside = self.open_brackets.is_empty();
            match next.kind {
                TokenKind::KernelStart | TokenKind::EndDot => break,
                TokenKind::BraceClose if is_outside => break,
                _ if is_outside && self.output.len() > self.stmt_start && self.at_section() => {
                    if lists < 2 || self.text(next).starts_with("HostUnit") {
                        break;
                    }
                    self.list_copy();
                    continue;
                }
                TokenKind::Word if is_outside && lists == 2 => {
                    let message = format!("unexpected `{}` after the lists of a HostUnit", self.text(next));
                    let label = "expected `%kernel {`";
                    if !std::mem::replace(&mut is_reported, true) {
                        self.diagnostics.push(Diagnostic::new(Code::Syntax, next.span(), message, label));
                    }
                    self.position += 1;
                    continue;
                }
                _ => (),
            }
            self.emit_next();
            if next.kind == TokenKind::BraceClose && self.open_brackets.is_empty() {
                lists += 1;
            }
        }
        if self.kind(0) != Some(TokenKind::KernelStart) {
            self.end_statement();
            return;
        }
        let place = self.output.last().map_or(self.source.base, |it| it.end);
        self.close_missing(place);
        self.finish_statement();
        self.kernel();
    }

    /// Processes a list that some dialects print again after the first line, `Inputs:` and one value per line,
    /// as `Inputs: {…}`.
    fn list_copy(&mut self) {
        self.emit_next();
        let Some(colon) = self.peek() else { return };
        self.emit_next();
        self.output.push(Lexeme::virtual_at(TokenKind::BraceOpen, colon.end));
        self.open_brackets.push(OpenBracket {
            kind: TokenKind::BraceOpen,
            span: colon.span(),
            operators: 0,
            closer_omitted: true,
            comma_style: CommaStyle::OptionalBetweenLines,
            is_call: false,
            errors_before: self.diagnostics.len(),
            missing_comma: None,
        });
        while let Some(next) = self.peek() {
            let is_outside = self.open_brackets.len() == 1;
            let ends = matches!(next.kind, TokenKind::KernelStart | TokenKind::EndDot)
                || is_outside && (next.kind == TokenKind::BraceClose || self.at_section());
            if ends {
                break;
            }
            self.emit_next();
        }
        let place = self.output.last().map_or(colon.end, |it| it.end);
        self.close_missing(place);
    }

    /// Processes `%kernel { … }`.
    fn kernel(&mut self) {
        self.output.extend(self.peek());
        self.position += 1;
        let opener = self.peek().filter(|it| it.kind == TokenKind::BraceOpen);
        self.position += usize::from(opener.is_some());
        self.block(None);
        // nvFuser also prints the transforms of a scheduled fusion. The domains of a HostUnit have no meaning
        // for the host.
        if let Some(heading) = self.peek().filter(|it| self.text(*it) == "TransformPrinter") {
            self.skip_until(|_, _| false);
            self.report_dropped(heading, "dropped from here on");
        }
        let closer = self.peek().filter(|it| it.kind == TokenKind::BraceClose);
        let behind = closer
            .map_or("", |it| self.source.text.get((it.end - self.source.base) as usize..).unwrap_or(""));
        // The comment shows that the brace closes the container.
        if let Some(opener) = opener.filter(|_| behind.trim_start().starts_with("// %HostIrContainer"))
            && self.input.len() == self.position + 1
        {
            let place = self.output.last().map_or(opener.end, |it| it.end);
            let it = Diagnostic::new(
                Code::Syntax,
                opener.span(),
                "the `{` of `%kernel` is never closed",
                "opened here",
            );
            self.diagnostics.push(it.label(Span { start: place, end: place }, "expected `}` after this"));
            return;
        }
        self.position += usize::from(closer.is_some());
    }

    /// Reports and skips a `%kernel { … }` that follows no first line of a HostUnit.
    pub(super) fn skip_stray_kernel(&mut self) {
        let Some(heading) = self.peek() else { return };
        let message = "this kernel belongs to no HostUnit";
        let it = Diagnostic::new(
            Code::Syntax,
            heading.span(),
            message,
            "the first line of its HostUnit is missing",
        );
        self.diagnostics.push(it.help("write `HostUnit0: Inputs={…} -> Outputs={…}` on the line before it"));
        self.position += 1;
        if self.kind(0) == Some(TokenKind::BraceOpen) {
            self.position += 1;
            self.skip_until(|_, _| false);
            self.position += usize::from(self.kind(0) == Some(TokenKind::BraceClose));
        }
    }

    /// Returns whether a transform such as `Resize: iS1{i0}rf by 0 and 2 -> …` is next; nvFuser prints these
    /// between the statements of a fusion.
    pub(super) fn at_transform(&self) -> bool {
        let heading = [Some(TokenKind::Word), Some(TokenKind::Colon), Some(TokenKind::Axis)];
        (0..3).map(|ahead| self.kind(ahead)).eq(heading)
    }

    /// Skips a transform, up to a token that can only begin a statement.
    pub(super) fn skip_transform(&mut self) {
        let Some(heading) = self.peek() else { return };
        self.position += 3;
        self.skip_until(|this, next| {
            let result = matches!(next.kind, TokenKind::Word | TokenKind::Tensor)
                && this.kind(1) == Some(TokenKind::Assign);
            result || this.at_transform()
        });
        self.report_dropped(heading, "dropped");
    }

    /// Skips tokens up to the end of the block, or until `stops` returns true.
    fn skip_until(&mut self, stops: impl Fn(&Self, Lexeme) -> bool) {
        let mut braces = 0usize;
        while let Some(next) = self.peek() {
            let ends = next.kind.ends_block() && (braces == 0 || next.kind == TokenKind::EndDot);
            if ends || stops(self, next) {
                break;
            }
            match next.kind {
                TokenKind::BraceOpen => braces += 1,
                TokenKind::BraceClose => braces -= 1,
                _ => (),
            }
            self.position += 1;
        }
    }

    /// Reports that the tokens from `heading` up to the next token are ignored. The fix removes them.
    fn report_dropped(&mut self, heading: Lexeme, label: &str) {
        let end = self.input.get(self.position.saturating_sub(1)).map_or(heading.end, |it| it.end);
        let message = "the transforms of a HostUnit are not preserved";
        let it = Diagnostic::new(Code::LossyText, heading.span(), message, label);
        self.diagnostics.push(it.fix(Span { start: heading.start, end }, ""));
    }

    /// Processes a statement in the syntax of May 2024:
    /// `Execute the following Fusion, taking inputs :{ … } …`.
    pub(super) fn phrase_statement(&mut self, lines: &mut Vec<StmtTokens>) {
        let Some(first) = self.peek() else { return };
        self.begin_statement();
        let start = self.stmt_start as u32;
        while let Some(next) = self.peek() {
            if next.kind.is_post_or_wait_phrase() {
                if self.output.len() > self.stmt_start && !self.lexeme_starts_with(next, '}') {
                    break;
                }
                self.output.push(next);
                self.position += 1;
                // The phrase contains an opening brace; the entry makes the operands get their commas.
                self.open_brackets.clear();
                self.open_brackets.push(OpenBracket {
                    kind: TokenKind::BraceOpen,
                    span: next.span(),
                    operators: 0,
                    closer_omitted: false,
                    comma_style: CommaStyle::OptionalBetweenLines,
                    is_call: false,
                    errors_before: self.diagnostics.len(),
                    missing_comma: None,
                });
            } else if next.kind == TokenKind::KernelStart {
                let open = std::mem::take(&mut self.open_brackets);
                let begin = self.stmt_start;
                self.kernel();
                (self.open_brackets, self.stmt_start) = (open, begin);
            } else if next.kind == TokenKind::EndDot || next.kind.is_header() {
                break;
            } else {
                let last = next.kind == TokenKind::BraceClose && self.open_brackets.len() == 1;
                self.emit_next();
                if last {
                    break;
                }
            }
        }
        self.end_statement();
        let column = first.first.then_some(first.column);
        lines.push(StmtTokens { start, end: self.output.len() as u32, kind: TokenKind::End, column });
    }

    fn lexeme_starts_with(&self, lexeme: Lexeme, mark: char) -> bool {
        self.text(lexeme).starts_with(mark)
    }

    /// Processes a trailing section, whose heading begins at `heading` and whose lines are `start..end`.
    pub(super) fn section(&mut self, kind: TokenKind, heading: usize, start: usize, end: usize) {
        let base = self.source.base;
        let text = self.source.text.get(start..end).unwrap_or("");
        let source = Source { text, base: base + start as u32 };
        (self.input, _) = scan(source, ScanLimit::TextEnd, &mut self.comments, self.diagnostics);
        self.position = 0;
        let span = Span { start: base + heading as u32, end: base + start as u32 };
        self.output.push(Lexeme { kind, first: true, column: 0, start: span.start, end: span.end });
        if kind == TokenKind::Definitions {
            let mut lines = Vec::new();
            while self.peek().is_some() {
                if !self.skip_foreign_line(true) {
                    self.statement(&mut lines);
                }
            }
            return;
        }
        while self.peek().is_some() {
            self.begin_statement();
            self.emit_next();
            while let Some(next) = self.peek() {
                let is_name = matches!(next.kind, TokenKind::Tensor | TokenKind::Word);
                if self.open_brackets.is_empty() && self.skip_foreign_line(false) {
                    continue;
                }
                if next.first && is_name && self.kind(1) == Some(TokenKind::Colon) {
                    break;
                }
                self.emit_next();
            }
            self.check_trailing_comma();
            self.end_statement();
        }
    }
}
