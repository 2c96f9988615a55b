//! Finds the statements and blocks of one container in its tokens, so that the grammar does not depend on
//! whitespace.
//!
//! Newlines have no meaning inside brackets. Outside brackets, a token begins a new statement if it can begin
//! one and cannot continue the statement before it; the line it is on does not matter. The column of the
//! first token of a line determines the nesting depth. This module also inserts what dumps omit: commas
//! between ranges and in the lists of May 2024, the closing parenthesis of ShareMemHandles, and lost
//! indentation where the nesting is certain.
//!
//! Invariant: the returned tokens have balanced brackets and nest at most `MAX_NESTING` deep.

mod brackets;
mod commas;
mod corrections;
mod foreign_lines;
mod grouped_welford;
mod headings;
mod nesting;
mod sections;
mod statement_start;
mod token_stream;

pub(crate) use headings::{comment_length, comments_outside};
pub use token_stream::TokenStream;

use rustc_hash::FxHashSet;

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::Comment,
    scan::scan,
    span::Span,
    token::{Lexeme, ScanLimit, Source, TokenKind},
};

/// Maximum nesting depth of brackets and operators, and of blocks.
pub const MAX_NESTING: usize = 200;

/// The call whose closing parenthesis nvFuser never prints.
const UNCLOSED_CALL: &str = "ShareMemHandles";

/// The call whose elements are printed on separate lines, without commas.
const GROUPED_REDUCTION: &str = "GroupedReductionOp";

/// The statement whose operand, a word and a number, can be on the next line.
const WAIT_KEYWORD: &str = "Wait";

/// Returns the tokens of the container that begins at the start of `source`, with its trailing sections.
pub fn container_tokens<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> TokenStream<'s> {
    let mut comments = Vec::new();
    let (raw, mut end) = scan(source, ScanLimit::ContainerEnd, &mut comments, diagnostics);
    let mut builder = TokenStreamBuilder::new(source, raw, comments, diagnostics);
    builder.container();
    while let Some(section) = headings::find_section(source.text, end) {
        builder.comments.extend(comments_outside(source, end..section.heading));
        if let Some(meant) = section.meant {
            let heading =
                Span::new(source.base as usize + section.heading, source.base as usize + section.start);
            let found = source.text.get(section.heading..section.start).unwrap_or("");
            let it = Diagnostic::new(
                Code::Syntax,
                heading,
                format!("`{found}` is not a section"),
                "expected `Index definitions:` or `Domains:`",
            );
            builder.diagnostics.push(it.help(format!("did you mean `{meant}`?")).fix(heading, meant));
        }
        builder.section(section.kind, section.heading, section.start, section.end);
        end = section.end;
    }
    builder.finish(end)
}

/// Returns the tokens of the statements of a fusion in a log, in a container without inputs and outputs.
pub(crate) fn fusion_tokens<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> TokenStream<'s> {
    use TokenKind::{Arrow, BraceClose, BraceOpen, Colon, ContainerStart, ParenClose, ParenOpen};
    let mut comments = Vec::new();
    let (mut raw, end) = scan(source, ScanLimit::TextEnd, &mut comments, diagnostics);
    remove_statement_numbers(&mut raw);
    let mut builder = TokenStreamBuilder::new(source, raw, comments, diagnostics);
    let header = [ContainerStart, BraceOpen, ParenOpen, ParenClose, Arrow, ParenOpen, ParenClose, Colon];
    builder.output.extend(header.map(|kind| Lexeme::virtual_at(kind, source.base)));
    builder.block(None);
    if let Some(rest) = builder.peek() {
        let message = format!("unexpected `{}` between the statements of a fusion", builder.text(rest));
        builder.diagnostics.push(Diagnostic::new(Code::Syntax, rest.span(), message, "expected a statement"));
    }
    builder.output.push(Lexeme::virtual_at(BraceClose, source.base + end as u32));
    builder.finish(end)
}

/// Removes the lines `(4)` behind the statements of a group.
fn remove_statement_numbers(tokens: &mut Vec<Lexeme>) {
    const LINE: [TokenKind; 3] = [TokenKind::ParenOpen, TokenKind::Int, TokenKind::ParenClose];
    let mut kept = 0;
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let is_number = rest[0].first
            && rest.iter().map(|it| it.kind).take(LINE.len()).eq(LINE)
            && !rest[1].first
            && !rest[2].first
            && rest.get(LINE.len()).is_none_or(|it| it.first);
        if is_number {
            at += LINE.len();
        } else {
            tokens[kept] = tokens[at];
            (kept, at) = (kept + 1, at + 1);
        }
    }
    tokens.truncate(kept);
}

/// Returns the tokens of one scalar expression.
pub fn expression_tokens<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> TokenStream<'s> {
    let mut comments = Vec::new();
    let (raw, end) = scan(source, ScanLimit::TextEnd, &mut comments, diagnostics);
    let mut builder = TokenStreamBuilder::new(source, raw, comments, diagnostics);
    builder.blocks.push((0, TokenKind::Alone));
    while builder.peek().is_some() {
        builder.emit_next();
    }
    builder.close_missing(source.base + end as u32);
    builder.finish_statement();
    builder.finish(end)
}

/// An open bracket.
struct OpenBracket {
    kind: TokenKind,
    span: Span,
    /// Number of operators at this level since the last comma.
    operators: usize,
    /// Whether nvFuser omits its closing bracket.
    closer_omitted: bool,
    /// The placement of commas between its elements.
    comma_style: CommaStyle,
    /// Whether it encloses the arguments of a call.
    is_call: bool,
    /// The number of diagnostics before it.
    errors_before: usize,
    /// The place of the first comma that its list lacks.
    missing_comma: Option<Span>,
}

/// The placement of commas in a list, as nvFuser prints it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommaStyle {
    /// Commas between elements.
    Separated,
    /// Commas between elements, and after the last element in some dialects.
    TrailingAllowed,
    /// One element per line, with or without commas. A reflowed text can have several elements on one line.
    OptionalBetweenLines,
    /// Commas between elements on the same line; in some dialects also between lines and after the last
    /// element.
    OptionalAtLineEnd,
}

/// The tokens of one statement, or of the header line of a loop or branch.
#[derive(Clone, Copy)]
struct StmtTokens {
    /// Range of its tokens in the output.
    start: u32,
    end: u32,
    /// `End` for a simple statement; otherwise the keyword of the header.
    kind: TokenKind,
    /// The column of its first token if that token begins a line of the text.
    column: Option<u16>,
}

struct TokenStreamBuilder<'s, 'd> {
    source: Source<'s>,
    input: Vec<Lexeme>,
    position: usize,
    output: Vec<Lexeme>,
    blocks: Vec<(u32, TokenKind)>,
    open_brackets: Vec<OpenBracket>,
    /// Number of operators outside brackets in this statement.
    operators: usize,
    /// Number of operators that count toward the nesting depth.
    nesting_depth: usize,
    too_deep: bool,
    /// Index in the output at which the current statement begins.
    stmt_start: usize,
    truncated_at: Option<u32>,
    follows_from: u32,
    comments: Vec<Comment>,
    /// The foreign lines that were skipped.
    foreign_lines: Vec<Span>,
    /// Number of braces around bodies, which are reported and skipped.
    stray_braces: usize,
    missing_commas: FxHashSet<Span>,
    diagnostics: &'d mut Vec<Diagnostic>,
}

impl<'s, 'd> TokenStreamBuilder<'s, 'd> {
    fn new(
        source: Source<'s>,
        raw: Vec<Lexeme>,
        comments: Vec<Comment>,
        diagnostics: &'d mut Vec<Diagnostic>,
    ) -> Self {
        let out = Vec::with_capacity(raw.len() + raw.len() / 4);
        Self {
            source,
            input: grouped_welford::split_grouped_welford(source, raw),
            position: 0,
            output: out,
            blocks: Vec::new(),
            open_brackets: Vec::new(),
            operators: 0,
            nesting_depth: 0,
            too_deep: false,
            stmt_start: 0,
            truncated_at: None,
            follows_from: u32::MAX,
            comments,
            foreign_lines: Vec::new(),
            stray_braces: 0,
            missing_commas: FxHashSet::default(),
            diagnostics,
        }
    }

    fn finish(mut self, end: usize) -> TokenStream<'s> {
        self.report_foreign_lines();
        let Self {
            source, output: tokens, blocks, truncated_at, follows_from, comments, missing_commas, ..
        } = self;
        TokenStream { source, tokens, blocks, end, truncated_at, follows_from, comments, missing_commas }
    }

    /// Appends the statements up to a closing brace or a section, between block tokens.
    fn block(&mut self, container_column: Option<u16>) {
        let mut lines = Vec::new();
        let start = self.output.len();
        let inside = self.blocks.len();
        while self
            .peek()
            .is_some_and(|it| !it.kind.ends_block() || self.stray_braces > 0 && self.kind(1).is_some())
            && (!self.at_unit() || self.at_transform())
        {
            if self.at_transform() {
                self.skip_transform();
            } else if container_column.is_some() && self.kind(0) == Some(TokenKind::KernelStart) {
                self.skip_stray_kernel();
            } else if self.skip_stray_brace() || self.skip_foreign_line(true) {
                continue;
            } else if self.peek().is_some_and(|it| it.kind.is_post_or_wait_phrase()) {
                self.phrase_statement(&mut lines);
            } else {
                self.statement(&mut lines);
            }
        }
        let nested = self.blocks.len() > inside;
        self.blocks.push((start as u32, TokenKind::Open));
        nesting::insert_block_tokens(self, &lines, container_column);
        self.blocks.push((self.output.len() as u32, TokenKind::Close));
        if nested {
            // Statements can contain kernels, whose block tokens were pushed first. The stable sort keeps
            // inner closing tokens before outer ones.
            self.blocks[inside..].sort_by_key(|(at, _)| *at);
        }
    }

    fn statement(&mut self, lines: &mut Vec<StmtTokens>) {
        let Some(first) = self.peek() else { return };
        self.begin_statement();
        let start = self.stmt_start as u32;
        let header = first.kind.is_header();
        self.emit_next();
        if first.kind == TokenKind::If {
            self.check_branch_kind();
        }
        let mut listed = FxHashSet::default();
        while let Some(next) = self.peek() {
            if self.open_brackets.is_empty() {
                if !header && self.skip_foreign_line(false) {
                    continue;
                }
                let ends = match next.kind {
                    TokenKind::KernelStart | TokenKind::ContainerStart => true,
                    kind if kind.ends_block() || kind.is_post_or_wait_phrase() => true,
                    TokenKind::For | TokenKind::If | TokenKind::Else => true,
                    _ if header => self.begins_after_header(next),
                    _ => self.at_unit() && next.first || self.begins_statement(next),
                };
                if ends {
                    break;
                }
                if next.kind == TokenKind::Semicolon {
                    self.position += 1;
                    break;
                }
            } else if next.kind == TokenKind::Semicolon {
                self.recover_semicolon(next);
                continue;
            } else if header && next.kind == TokenKind::Colon && self.ends_line() {
                let place = self.output.last().map_or(next.start, |it| it.end);
                self.close_missing(place);
            } else if self.ends_unclosed_list(next, &mut listed) {
                self.close_missing_silently(next.start);
                continue;
            } else if self.recover_missing_closer(next) {
                continue;
            }
            if header && self.correct_in_header(first.kind, next) || self.correct_bare_call(next) {
                continue;
            }
            self.emit_next();
            if header && next.kind == TokenKind::Colon && self.open_brackets.is_empty() {
                break;
            }
        }
        let column = first.first.then_some(first.column);
        if header {
            let place = self.output.last().map_or(self.source.base, |it| it.end);
            self.close_missing(place);
            if !self.too_deep && self.output.last().is_some_and(|it| it.kind != TokenKind::Colon) {
                let span = Span { start: place, end: place };
                let else_if = first.kind == TokenKind::Else && self.kind(0) == Some(TokenKind::If);
                let it = if else_if {
                    Diagnostic::new(Code::Syntax, span, "`ELSE IF` is not a statement", "expected `:`").help(
                        "write `ELSE:`, and the `IF` on the next line, indented as the body of the `ELSE`",
                    )
                } else {
                    let message = "the line of a loop or branch has no `:`";
                    Diagnostic::new(Code::Syntax, span, message, "expected `:`").fix(span, ":")
                };
                self.diagnostics.push(it);
                self.output.push(Lexeme::virtual_at(TokenKind::Colon, place));
            }
            self.finish_statement();
        } else {
            self.end_statement();
        }
        let end = self.output.len() as u32;
        if end > start {
            let kind = if header { first.kind } else { TokenKind::End };
            lines.push(StmtTokens { start, end, kind, column });
        }
    }

    /// Closes all open brackets if `next` shows that a closing bracket is missing; returns whether it did.
    fn recover_missing_closer(&mut self, next: Lexeme) -> bool {
        let result = self.begins_result(self.position);
        let outside = next.kind == TokenKind::BraceClose
            && !self.open_brackets.iter().any(|it| it.kind == TokenKind::BraceOpen);
        // The elements of a GroupedReductionOp have this form.
        let result = result
            && self.open_brackets.last().is_none_or(|it| it.comma_style != CommaStyle::OptionalBetweenLines);
        let fatal = matches!(
            next.kind,
            TokenKind::KernelStart | TokenKind::ContainerStart | TokenKind::Arrow | TokenKind::EndDot
        ) || next.kind.is_header()
            || next.kind.is_post_or_wait_phrase();
        let statement = self.begins_next_statement(next) || next.first && self.at_unit();
        if self.open_brackets.is_empty() || !(result || outside || fatal || statement) {
            return false;
        }
        let place = self.output.last().map_or(next.start, |it| it.end);
        self.close_missing(place);
        true
    }

    fn peek(&self) -> Option<Lexeme> {
        self.input.get(self.position).copied()
    }

    fn kind(&self, ahead: usize) -> Option<TokenKind> {
        self.input.get(self.position + ahead).map(|it| it.kind)
    }

    fn text(&self, lexeme: Lexeme) -> &'s str {
        self.source.slice(lexeme.start, lexeme.end)
    }

    /// Returns whether a diagnostic already reports that this container is truncated.
    fn is_truncation_reported(&self) -> bool {
        let mut own = self.diagnostics.iter().rev().take_while(|it| it.span().start >= self.source.base);
        own.any(|it| it.code == Code::Truncated)
    }

    fn begin_statement(&mut self) {
        self.stmt_start = self.output.len();
        (self.operators, self.nesting_depth, self.too_deep) = (0, 0, false);
    }

    fn end_statement(&mut self) {
        let place = self.output.last().map_or(self.source.base, |it| it.end);
        if self.peek().is_none() && !self.open_brackets.is_empty() {
            self.close_truncated(place);
            return;
        }
        self.close_missing(place);
        let fine = !self.too_deep;
        self.finish_statement();
        if fine {
            self.output.push(Lexeme::virtual_at(TokenKind::End, place));
        }
    }

    fn finish_statement(&mut self) {
        if self.too_deep {
            self.output.truncate(self.stmt_start);
        }
        self.open_brackets.clear();
    }
}
