//! Finds statements and blocks in the tokens of one container, so that the grammar needs no whitespace.
//!
//! Newlines mean nothing inside brackets. Outside, a token that can begin a statement and does not continue the one
//! before begins a new one, on whichever line it stands; the column of a line's first token decides how deep it is.
//! Layout also supplies what dumps leave out: commas between ranges and in the lists of May 2024, ShareMemHandles'
//! parenthesis, lost indentation where the nesting is certain.
//!
//! Invariant: the tokens it returns have balanced brackets and nest no deeper than `DEEPEST`.

mod brackets;
mod commas;
mod nesting;
mod sections;

pub(crate) use sections::comment_length;

use rustc_hash::FxHashSet;

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Lexeme, ScanLimit, Source, Token, TokenKind, scan},
};

/// The deepest nesting of brackets and operators, or of blocks, that is read.
pub const MAX_NESTING: usize = 200;

/// So many tokens are forgotten at once.
const SHRINK_INTERVAL: u32 = 1 << 16;

/// The call whose closing parenthesis nvFuser never prints.
const UNCLOSED_CALL: &str = "ShareMemHandles";

/// The call whose members stand on lines of their own, without commas.
const GROUPED_REDUCTION: &str = "GroupedReductionOp";

/// The statement that ends with a word and a number, on whichever line those stand.
const WAIT_KEYWORD: &str = "Wait";

/// A text ready for the grammar.
#[derive(Debug)]
pub struct TokenStream<'s> {
    source: Source<'s>,
    tokens: Vec<Lexeme>,
    /// Block tokens, each with the index of the token that it stands before.
    blocks: Vec<(u32, TokenKind)>,
    /// Where reading goes on, relative to the text.
    pub end: usize,
    /// Where the text ended inside of something that was to be closed.
    pub truncated_at: Option<u32>,
}

impl<'s> TokenStream<'s> {
    /// The text that was laid out.
    pub fn source(&self) -> Source<'s> {
        self.source
    }

    /// The tokens of the text, without virtual ones between blocks.
    pub fn lexemes(&self) -> &[Lexeme] {
        &self.tokens
    }

    /// Where reading goes on, in the whole source.
    pub fn end_offset(&self) -> u32 {
        self.source.base + self.end as u32
    }

    /// The tokens with their places, virtual ones included. Those that were taken are forgotten: what is made of them
    /// takes their room.
    pub fn into_tokens(self) -> impl Iterator<Item = (u32, Token<'s>, u32)> {
        let Self { source, mut tokens, blocks, end, .. } = self;
        let mut blocks = blocks.into_iter().peekable();
        let mut at = 0u32;
        tokens.reverse();
        std::iter::from_fn(move || {
            if let Some((_, kind)) = blocks.next_if(|(index, _)| *index <= at) {
                let place = tokens.last().map_or(source.base + end as u32, |it| it.start);
                return Some((place, Token { kind, text: "" }, place));
            }
            let lexeme = tokens.pop()?;
            at += 1;
            if at.is_multiple_of(SHRINK_INTERVAL) {
                tokens.shrink_to_fit();
            }
            let token = Token { kind: lexeme.kind, text: source.slice(lexeme.start, lexeme.end) };
            Some((lexeme.start, token, lexeme.end))
        })
    }
}

/// Lays out the container that begins at the start of `source`, with its trailing sections.
pub fn container_tokens<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> TokenStream<'s> {
    let (raw, mut end) = scan(source, ScanLimit::ContainerEnd, diagnostics);
    let mut layout = TokenStreamBuilder::new(source, raw, diagnostics);
    layout.container();
    while let Some(section) = sections::find_section(source.text, end) {
        layout.section(section.kind, section.heading, section.start, section.end);
        end = section.end;
    }
    layout.finish(end)
}

/// Lays out one scalar expression.
pub fn expression_tokens<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> TokenStream<'s> {
    let (raw, end) = scan(source, ScanLimit::TextEnd, diagnostics);
    let mut layout = TokenStreamBuilder::new(source, raw, diagnostics);
    while layout.peek().is_some() {
        layout.emit_next();
    }
    layout.close_missing(source.base + end as u32);
    layout.finish_statement();
    layout.finish(end)
}

/// A bracket that is open.
struct OpenBracket {
    kind: TokenKind,
    span: Span,
    /// Operators so far at this level, since the last comma.
    operators: usize,
    /// Whether nvFuser leaves out its closer.
    closer_omitted: bool,
    /// Where its commas stand.
    comma_style: CommaStyle,
    /// Whether it holds the arguments of a call.
    is_call: bool,
}

/// Where nvFuser prints the commas of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommaStyle {
    /// Between elements.
    Separated,
    /// Between elements, and behind the last one in some dialects.
    TrailingAllowed,
    /// One element a line, with commas or without; a line can have been joined to the one before.
    OptionalBetweenLines,
    /// Between elements of one line; between lines, and behind the last element, in some dialects.
    OptionalAtLineEnd,
}

/// One statement, or the header line of a loop or branch.
#[derive(Clone, Copy)]
struct StmtTokens {
    /// Its tokens.
    start: u32,
    end: u32,
    /// `End` for a simple statement, else the header's keyword.
    kind: TokenKind,
    /// Its column, when it begins a line of the text.
    column: Option<u16>,
}

struct TokenStreamBuilder<'s, 'd> {
    source: Source<'s>,
    input: Vec<Lexeme>,
    position: usize,
    output: Vec<Lexeme>,
    blocks: Vec<(u32, TokenKind)>,
    open_brackets: Vec<OpenBracket>,
    /// Operators outside of brackets in this statement.
    operators: usize,
    /// All operators that count for the depth.
    nesting_depth: usize,
    too_deep: bool,
    /// Where the statement begins in `out`.
    stmt_start: usize,
    truncated_at: Option<u32>,
    diagnostics: &'d mut Vec<Diagnostic>,
}

impl<'s, 'd> TokenStreamBuilder<'s, 'd> {
    fn new(source: Source<'s>, raw: Vec<Lexeme>, diagnostics: &'d mut Vec<Diagnostic>) -> Self {
        let out = Vec::with_capacity(raw.len() + raw.len() / 4);
        Self {
            source,
            input: raw,
            position: 0,
            output: out,
            blocks: Vec::new(),
            open_brackets: Vec::new(),
            operators: 0,
            nesting_depth: 0,
            too_deep: false,
            stmt_start: 0,
            truncated_at: None,
            diagnostics,
        }
    }

    fn finish(self, end: usize) -> TokenStream<'s> {
        let Self { source, output: tokens, blocks, truncated_at: truncated, .. } = self;
        TokenStream { source, tokens, blocks, end, truncated_at: truncated }
    }

    /// Statements up to a closing brace or a section, between block tokens.
    fn block(&mut self, home: Option<u16>) {
        let mut lines = Vec::new();
        let start = self.output.len();
        let inside = self.blocks.len();
        while self.peek().is_some_and(|it| !it.kind.ends_block())
            && (!self.at_section() || self.at_transform())
        {
            if self.at_transform() {
                self.skip_transform();
            } else if self.peek().is_some_and(|it| it.kind.is_post_or_wait_phrase()) {
                self.phrase_statement(&mut lines);
            } else {
                self.statement(&mut lines);
            }
        }
        let nested = self.blocks.len() > inside;
        self.blocks.push((start as u32, TokenKind::Open));
        nesting::insert_block_tokens(self, &lines, home);
        self.blocks.push((self.output.len() as u32, TokenKind::Close));
        if nested {
            // Kernels inside of statements: their blocks came first, and close first where two close.
            self.blocks[inside..].sort_by_key(|(at, _)| *at);
        }
    }

    fn statement(&mut self, lines: &mut Vec<StmtTokens>) {
        let Some(first) = self.peek() else { return };
        self.begin_statement();
        let start = self.stmt_start as u32;
        let header = first.kind.is_header();
        self.emit_next();
        let mut listed = FxHashSet::default();
        while let Some(next) = self.peek() {
            if self.open_brackets.is_empty() {
                let ends = match next.kind {
                    TokenKind::KernelStart | TokenKind::ContainerStart => true,
                    kind if kind.ends_block() || kind.is_post_or_wait_phrase() => true,
                    TokenKind::For | TokenKind::If | TokenKind::Else => true,
                    _ if header => self.begins_after_header(next),
                    _ => self.at_section() && next.first || self.begins_statement(next),
                };
                if ends {
                    break;
                }
                if next.kind == TokenKind::Semicolon {
                    self.position += 1;
                    break;
                }
            } else if self.ends_unclosed_list(next, &mut listed) {
                self.close_missing_silently(next.start);
                continue;
            } else if self.recover_missing_closer(next) {
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
                let message = "the line of a loop or branch has no `:`";
                self.diagnostics.push(Diagnostic::new(Code::Syntax, span, message, "expected `:`"));
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

    /// Whether `next` shows that a header's colon is missing.
    fn begins_after_header(&self, next: Lexeme) -> bool {
        let written = self.output.len() - self.stmt_start;
        let begins = matches!(next.kind, TokenKind::Tensor | TokenKind::Word | TokenKind::Stream);
        next.first && begins && written > 2 && self.last_ends_value()
    }

    /// Whether `next`, outside of brackets, cannot continue the statement before it.
    fn begins_statement(&self, next: Lexeme) -> bool {
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
            // A call's parenthesis may be one that never closes: only a new line begins a tuple there.
            TokenKind::ParenOpen if matches!(previous, TokenKind::Word | TokenKind::Int) && !next.first => {
                false
            }
            TokenKind::ParenOpen => self.is_result_tuple(self.position),
            _ => false,
        }
    }

    /// Whether the last token can end a value.
    fn last_ends_value(&self) -> bool {
        use TokenKind::{Axis, Float, Int, Tensor, Word};
        let last = self.output.last().map(|it| it.kind);
        last.is_some_and(|it| it.is_closer() || matches!(it, Tensor | Axis | Word | Int | Float))
    }

    /// Whether the statement so far is a word that is none on its own.
    fn is_lone_wait(&self) -> bool {
        let last = self.output.last().filter(|_| self.output.len() == self.stmt_start + 1);
        last.is_some_and(|it| self.text(*it) == WAIT_KEYWORD)
    }

    /// `Stream x =`.
    fn is_stream_result(&self) -> bool {
        match self.kind(1) {
            Some(TokenKind::ParenOpen) => self.is_result_tuple(self.position + 1),
            _ => self.kind(2) == Some(TokenKind::Assign),
        }
    }

    /// Whether the parenthesis at `at` closes right before `=`.
    fn is_result_tuple(&self, at: usize) -> bool {
        self.kind_after_group(at) == Some(TokenKind::Assign)
    }

    /// What follows the bracket that opens at `at`.
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

    /// Whether `next` is no element of the list that nvFuser does not close.
    fn ends_unclosed_list(&self, next: Lexeme, listed: &mut FxHashSet<&'s str>) -> bool {
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
                let goes_on = fresh
                    && (!next.first
                        || matches!(
                            self.kind_after_group(self.position + 2),
                            Some(TokenKind::Comma | TokenKind::ParenClose)
                        ));
                !goes_on && next.kind != TokenKind::ParenClose
            }
            TokenKind::ParenClose => !matches!(next.kind, TokenKind::Comma | TokenKind::ParenClose),
            _ => false,
        }
    }

    /// Whether `next` shows that a bracket before it was not closed; closes it then.
    fn recover_missing_closer(&mut self, next: Lexeme) -> bool {
        let result = self.begins_result(self.position);
        let outside = next.kind == TokenKind::BraceClose
            && !self.open_brackets.iter().any(|it| it.kind == TokenKind::BraceOpen);
        // The members of a GroupedReductionOp stand so.
        let result = result
            && self.open_brackets.last().is_none_or(|it| it.comma_style != CommaStyle::OptionalBetweenLines);
        let fatal = matches!(
            next.kind,
            TokenKind::KernelStart | TokenKind::ContainerStart | TokenKind::Arrow | TokenKind::EndDot
        ) || next.kind.is_header()
            || next.kind.is_post_or_wait_phrase();
        if self.open_brackets.is_empty() || !(result || outside || fatal) {
            return false;
        }
        self.close_missing(next.start);
        true
    }

    /// A line that begins `T3 =`: it never continues an open bracket.
    fn begins_result(&self, at: usize) -> bool {
        let tensor = self.input.get(at).is_some_and(|it| it.kind == TokenKind::Tensor && it.first);
        tensor && self.input.get(at + 1).is_some_and(|it| it.kind == TokenKind::Assign)
    }

    /// Whether a HostUnit section begins here.
    fn at_section(&self) -> bool {
        self.kind(0) == Some(TokenKind::Word) && self.kind(1) == Some(TokenKind::Colon)
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

    /// Whether it was said already that the text breaks off in this container.
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
