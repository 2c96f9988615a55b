//! The tokens of a text, with the virtual tokens of blocks, as the grammar consumes them.

use rustc_hash::FxHashSet;

use crate::{
    ir::Comment,
    span::Span,
    token::{Lexeme, Source, Token, TokenKind},
};

/// Number of consumed tokens after which `TokenStream::into_tokens` releases their memory.
const SHRINK_INTERVAL: u32 = 1 << 16;

/// The tokens of a text, as the grammar consumes them.
#[derive(Debug)]
pub struct TokenStream<'s> {
    pub(super) source: Source<'s>,
    pub(super) tokens: Vec<Lexeme>,
    /// The virtual block tokens. Each has the index of the token that it precedes.
    pub(super) blocks: Vec<(u32, TokenKind)>,
    /// Byte offset, relative to the text, at which scanning for the next container resumes.
    pub end: usize,
    /// Byte offset in the source at which the text ends inside an unclosed construct, if it does.
    pub truncated_at: Option<u32>,
    /// Byte offset in the source from which on syntax errors follow from the first one: that of the HostUnits, or, in
    /// the syntax of 2024, whose statements end with braces, that of the container.
    pub(crate) follows_from: u32,
    /// The comments of the text.
    pub(crate) comments: Vec<Comment>,
    /// The places of the syntax errors about commas that a list lacks.
    pub(crate) missing_commas: FxHashSet<Span>,
}

impl<'s> TokenStream<'s> {
    /// Returns the source text of the tokens.
    pub fn source(&self) -> Source<'s> {
        self.source
    }

    /// Returns the source text up to the end of the container and its sections.
    pub(crate) fn own_source(&self) -> Source<'s> {
        Source { text: self.source.text.get(..self.end).unwrap_or(self.source.text), base: self.source.base }
    }

    /// Returns whether the text has the first line of a container. Without it, the parser finds an error in each part.
    pub(crate) fn has_header(&self) -> bool {
        self.tokens.iter().any(|it| it.kind == TokenKind::ContainerStart)
    }

    /// Returns the tokens of the text, without the virtual block tokens.
    pub fn lexemes(&self) -> &[Lexeme] {
        &self.tokens
    }

    /// Returns `end` as a byte offset in the whole source.
    pub fn end_offset(&self) -> u32 {
        self.source.base + self.end as u32
    }

    /// Returns all tokens with their spans, including virtual block tokens. Releases the memory of consumed
    /// tokens periodically, so that the program that is built from them can reuse it.
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
