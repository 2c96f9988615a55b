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

pub(crate) use sections::comment;

use rustc_hash::FxHashSet;

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    span::Span,
    token::{Kind, Lexeme, Source, Token, Until, scan},
};

/// The deepest nesting of brackets and operators, or of blocks, that is read.
pub const DEEPEST: usize = 200;

/// So many tokens are forgotten at once.
const FORGOTTEN: u32 = 1 << 16;

/// The call whose closing parenthesis nvFuser never prints.
const NEVER_CLOSED: &str = "ShareMemHandles";

/// The call whose members stand on lines of their own, without commas.
const GROUP: &str = "GroupedReductionOp";

/// The statement that ends with a word and a number, on whichever line those stand.
const NEVER_ALONE: &str = "Wait";

/// A text ready for the grammar.
#[derive(Debug)]
pub struct Laid<'s> {
    source: Source<'s>,
    tokens: Vec<Lexeme>,
    /// Block tokens, each with the index of the token that it stands before.
    blocks: Vec<(u32, Kind)>,
    /// Where reading goes on, relative to the text.
    pub end: usize,
    /// Where the text ended inside of something that was to be closed.
    pub truncated: Option<u32>,
}

impl<'s> Laid<'s> {
    /// The text that was laid out.
    pub fn source(&self) -> Source<'s> {
        self.source
    }

    /// The tokens of the text, without virtual ones between blocks.
    pub fn lexemes(&self) -> &[Lexeme] {
        &self.tokens
    }

    /// Where reading goes on, in the whole source.
    pub fn place_of_end(&self) -> u32 {
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
            if at.is_multiple_of(FORGOTTEN) {
                tokens.shrink_to_fit();
            }
            let token = Token { kind: lexeme.kind, text: source.slice(lexeme.start, lexeme.end) };
            Some((lexeme.start, token, lexeme.end))
        })
    }
}

/// Lays out the container that begins at the start of `source`, with its trailing sections.
pub fn container<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> Laid<'s> {
    let (raw, mut end) = scan(source, Until::ContainerEnd, diagnostics);
    let mut layout = Layout::new(source, raw, diagnostics);
    layout.container();
    while let Some(section) = sections::find(source.text, end) {
        layout.section(section.kind, section.heading, section.start, section.end);
        end = section.end;
    }
    layout.finish(end)
}

/// Lays out one scalar expression.
pub fn expression<'s>(source: Source<'s>, diagnostics: &mut Vec<Diagnostic>) -> Laid<'s> {
    let (raw, end) = scan(source, Until::TextEnd, diagnostics);
    let mut layout = Layout::new(source, raw, diagnostics);
    while layout.peek().is_some() {
        layout.take();
    }
    layout.close_missing(source.base + end as u32);
    layout.finish_statement();
    layout.finish(end)
}

/// A bracket that is open.
struct Opened {
    kind: Kind,
    span: Span,
    /// Operators so far at this level, since the last comma.
    operators: usize,
    /// Whether nvFuser leaves out its closer.
    never_closed: bool,
    /// Where its commas stand.
    list: List,
    /// Whether it holds the arguments of a call.
    is_call: bool,
}

/// Where nvFuser prints the commas of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    /// Between elements.
    Separated,
    /// Between elements, and behind the last one in some dialects.
    Terminated,
    /// One element a line, with commas or without; a line can have been joined to the one before.
    Lines,
    /// Between elements of one line; between lines, and behind the last element, in some dialects.
    Broken,
}

/// One statement, or the header line of a loop or branch.
#[derive(Clone, Copy)]
struct Line {
    /// Its tokens.
    start: u32,
    end: u32,
    /// `End` for a simple statement, else the header's keyword.
    kind: Kind,
    /// Its column, when it begins a line of the text.
    column: Option<u16>,
}

struct Layout<'s, 'd> {
    source: Source<'s>,
    raw: Vec<Lexeme>,
    at: usize,
    out: Vec<Lexeme>,
    blocks: Vec<(u32, Kind)>,
    open: Vec<Opened>,
    /// Operators outside of brackets in this statement.
    operators: usize,
    /// All operators that count for the depth.
    depth: usize,
    too_deep: bool,
    /// Where the statement begins in `out`.
    begin: usize,
    truncated: Option<u32>,
    diagnostics: &'d mut Vec<Diagnostic>,
}

impl<'s, 'd> Layout<'s, 'd> {
    fn new(source: Source<'s>, raw: Vec<Lexeme>, diagnostics: &'d mut Vec<Diagnostic>) -> Self {
        let out = Vec::with_capacity(raw.len() + raw.len() / 4);
        Self {
            source,
            raw,
            at: 0,
            out,
            blocks: Vec::new(),
            open: Vec::new(),
            operators: 0,
            depth: 0,
            too_deep: false,
            begin: 0,
            truncated: None,
            diagnostics,
        }
    }

    fn finish(self, end: usize) -> Laid<'s> {
        let Self { source, out: tokens, blocks, truncated, .. } = self;
        Laid { source, tokens, blocks, end, truncated }
    }

    /// Statements up to a closing brace or a section, between block tokens.
    fn block(&mut self, home: Option<u16>) {
        let mut lines = Vec::new();
        let start = self.out.len();
        let inside = self.blocks.len();
        while self.peek().is_some_and(|it| !it.kind.ends_block())
            && (!self.at_section() || self.at_transform())
        {
            if self.at_transform() {
                self.transform();
            } else if self.peek().is_some_and(|it| it.kind.is_phrase()) {
                self.posted(&mut lines);
            } else {
                self.statement(&mut lines);
            }
        }
        let nested = self.blocks.len() > inside;
        self.blocks.push((start as u32, Kind::Open));
        nesting::nest(self, &lines, home);
        self.blocks.push((self.out.len() as u32, Kind::Close));
        if nested {
            // Kernels inside of statements: their blocks came first, and close first where two close.
            self.blocks[inside..].sort_by_key(|(at, _)| *at);
        }
    }

    fn statement(&mut self, lines: &mut Vec<Line>) {
        let Some(first) = self.peek() else { return };
        self.begin_statement();
        let start = self.begin as u32;
        let header = first.kind.is_header();
        self.take();
        let mut listed = FxHashSet::default();
        while let Some(next) = self.peek() {
            if self.open.is_empty() {
                let ends = match next.kind {
                    Kind::KernelStart | Kind::ContainerStart => true,
                    kind if kind.ends_block() || kind.is_phrase() => true,
                    Kind::For | Kind::If | Kind::Else => true,
                    _ if header => self.header_ends(next),
                    _ => self.at_section() && next.first || self.begins_statement(next),
                };
                if ends {
                    break;
                }
                if next.kind == Kind::Semicolon {
                    self.at += 1;
                    break;
                }
            } else if self.list_ends(next, &mut listed) {
                self.close_missing_silently(next.start);
                continue;
            } else if self.missing_closer(next) {
                continue;
            }
            self.take();
            if header && next.kind == Kind::Colon && self.open.is_empty() {
                break;
            }
        }
        let column = first.first.then_some(first.column);
        if header {
            let place = self.out.last().map_or(self.source.base, |it| it.end);
            self.close_missing(place);
            if !self.too_deep && self.out.last().is_some_and(|it| it.kind != Kind::Colon) {
                let span = Span { start: place, end: place };
                let message = "the line of a loop or branch has no `:`";
                self.diagnostics.push(Diagnostic::new(Code::Syntax, span, message, "expected `:`"));
                self.out.push(Lexeme::virtual_at(Kind::Colon, place));
            }
            self.finish_statement();
        } else {
            self.end_statement();
        }
        let end = self.out.len() as u32;
        if end > start {
            let kind = if header { first.kind } else { Kind::End };
            lines.push(Line { start, end, kind, column });
        }
    }

    /// Whether `next` shows that a header's colon is missing.
    fn header_ends(&self, next: Lexeme) -> bool {
        let written = self.out.len() - self.begin;
        let begins = matches!(next.kind, Kind::Tensor | Kind::Word | Kind::Stream);
        next.first && begins && written > 2 && self.after_value()
    }

    /// Whether `next`, outside of brackets, cannot continue the statement before it.
    fn begins_statement(&self, next: Lexeme) -> bool {
        let Some(previous) = self.out.last().map(|it| it.kind) else { return true };
        let word = previous == Kind::Word;
        match next.kind {
            _ if !self.after_value() => false,
            Kind::Tensor => true,
            Kind::Word if !word => true,
            Kind::Word if next.first => !self.awaits(),
            Kind::Word => match self.kind(1) {
                Some(Kind::Assign | Kind::ParenOpen | Kind::BraceOpen) => true,
                Some(Kind::Stream | Kind::To | Kind::Into) => true,
                Some(Kind::Word) => self.kind(2) == Some(Kind::Int),
                Some(Kind::Int) => self.kind(2) == Some(Kind::ParenOpen) && !self.is_tuple(self.at + 2),
                _ => false,
            },
            Kind::Stream if !word => true,
            Kind::Stream => self.is_stream_result(),
            Kind::ParenOpen
                if previous == Kind::Tensor && !next.first && self.kind(2) == Some(Kind::ParenClose) =>
            {
                false
            }
            // A call's parenthesis may be one that never closes: only a new line begins a tuple there.
            Kind::ParenOpen if matches!(previous, Kind::Word | Kind::Int) && !next.first => false,
            Kind::ParenOpen => self.is_tuple(self.at),
            _ => false,
        }
    }

    /// Whether the last token can end a value.
    fn after_value(&self) -> bool {
        use Kind::{Axis, Float, Int, Tensor, Word};
        let last = self.out.last().map(|it| it.kind);
        last.is_some_and(|it| it.is_closer() || matches!(it, Tensor | Axis | Word | Int | Float))
    }

    /// Whether the statement so far is a word that is none on its own.
    fn awaits(&self) -> bool {
        let last = self.out.last().filter(|_| self.out.len() == self.begin + 1);
        last.is_some_and(|it| self.text(*it) == NEVER_ALONE)
    }

    /// `Stream x =`.
    fn is_stream_result(&self) -> bool {
        match self.kind(1) {
            Some(Kind::ParenOpen) => self.is_tuple(self.at + 1),
            _ => self.kind(2) == Some(Kind::Assign),
        }
    }

    /// Whether the parenthesis at `at` closes right before `=`.
    fn is_tuple(&self, at: usize) -> bool {
        self.after_group(at) == Some(Kind::Assign)
    }

    /// What follows the bracket that opens at `at`.
    fn after_group(&self, at: usize) -> Option<Kind> {
        let mut depth = 0usize;
        for (offset, lexeme) in self.raw.get(at..)?.iter().enumerate() {
            if self.is_result(at + offset) {
                return None;
            }
            if lexeme.kind.closer().is_some() {
                depth += 1;
            } else if lexeme.kind.is_closer() {
                depth -= 1;
                if depth == 0 {
                    return self.raw.get(at + offset + 1).map(|it| it.kind);
                }
            } else if lexeme.kind.is_header() {
                return None;
            }
        }
        None
    }

    /// Whether `next` is no element of the list that nvFuser does not close.
    fn list_ends(&self, next: Lexeme, listed: &mut FxHashSet<&'s str>) -> bool {
        let [Opened { never_closed: true, .. }] = self.open.as_slice() else { return false };
        let Some(previous) = self.out.last().map(|it| it.kind) else { return false };
        match previous {
            Kind::Comma | Kind::ParenOpen => {
                let element = next.kind == Kind::Word
                    && self.kind(1) == Some(Kind::Int)
                    && self.kind(2) == Some(Kind::ParenOpen);
                let number = self.raw.get(self.at + 1).map_or("", |it| self.source.slice(it.start, it.end));
                let fresh = element && listed.insert(number);
                let goes_on = fresh
                    && (!next.first
                        || matches!(self.after_group(self.at + 2), Some(Kind::Comma | Kind::ParenClose)));
                !goes_on && next.kind != Kind::ParenClose
            }
            Kind::ParenClose => !matches!(next.kind, Kind::Comma | Kind::ParenClose),
            _ => false,
        }
    }

    /// Whether `next` shows that a bracket before it was not closed; closes it then.
    fn missing_closer(&mut self, next: Lexeme) -> bool {
        let result = self.is_result(self.at);
        let outside = next.kind == Kind::BraceClose && !self.open.iter().any(|it| it.kind == Kind::BraceOpen);
        // The members of a GroupedReductionOp stand so.
        let result = result && self.open.last().is_none_or(|it| it.list != List::Lines);
        let fatal =
            matches!(next.kind, Kind::KernelStart | Kind::ContainerStart | Kind::Arrow | Kind::Finish)
                || next.kind.is_header()
                || next.kind.is_phrase();
        if self.open.is_empty() || !(result || outside || fatal) {
            return false;
        }
        self.close_missing(next.start);
        true
    }

    /// A line that begins `T3 =`: it never continues an open bracket.
    fn is_result(&self, at: usize) -> bool {
        let tensor = self.raw.get(at).is_some_and(|it| it.kind == Kind::Tensor && it.first);
        tensor && self.raw.get(at + 1).is_some_and(|it| it.kind == Kind::Assign)
    }

    /// Whether a HostUnit section begins here.
    fn at_section(&self) -> bool {
        self.kind(0) == Some(Kind::Word) && self.kind(1) == Some(Kind::Colon)
    }

    fn peek(&self) -> Option<Lexeme> {
        self.raw.get(self.at).copied()
    }

    fn kind(&self, ahead: usize) -> Option<Kind> {
        self.raw.get(self.at + ahead).map(|it| it.kind)
    }

    fn text(&self, lexeme: Lexeme) -> &'s str {
        self.source.slice(lexeme.start, lexeme.end)
    }

    /// Whether it was said already that the text breaks off in this container.
    fn breaks_off(&self) -> bool {
        let mut own = self.diagnostics.iter().rev().take_while(|it| it.span().start >= self.source.base);
        own.any(|it| it.code == Code::Truncated)
    }

    fn begin_statement(&mut self) {
        self.begin = self.out.len();
        (self.operators, self.depth, self.too_deep) = (0, 0, false);
    }

    fn end_statement(&mut self) {
        let place = self.out.last().map_or(self.source.base, |it| it.end);
        if self.peek().is_none() && !self.open.is_empty() {
            self.close_truncated(place);
            return;
        }
        self.close_missing(place);
        let fine = !self.too_deep;
        self.finish_statement();
        if fine {
            self.out.push(Lexeme::virtual_at(Kind::End, place));
        }
    }

    fn finish_statement(&mut self) {
        if self.too_deep {
            self.out.truncate(self.begin);
        }
        self.open.clear();
    }
}
