//! The words of the language: a source text cut into tokens that remember where they stand.
//!
//! A tensor with all its axes, positions and mesh is one token, and so is an iteration domain: dumps spell the same
//! tensor in full at every use, and only its first spelling is worth taking apart (`tensor` does).
//!
//! Invariant: tokens hold no text of their own, and scanning is linear in the text, also where brackets do not close.

mod scan;

use logos::Logos;

pub use self::scan::scan;
use self::scan::{axis, tensor};
use crate::span::Span;

/// What a token is. Virtual ones stand in no text: `layout` adds them.
#[derive(Logos, Clone, Copy, PartialEq, Eq, Debug)]
#[logos(error = ScanError)]
#[logos(skip r"[ \t\r\n\f]+")]
#[logos(skip(r"#[^\n]*", allow_greedy = true))]
#[logos(skip(r"//", scan::comment))]
pub enum TokenKind {
    /// `T0_g___bfloat[ideviceIdx.x0{8}, iS1{128}] ca_pos( 1 ) (DeviceMesh{0 1})`.
    #[regex(r"T[0-9]+_[A-Za-z0-9_:]*(<[A-Za-z0-9_:, \t\r\n*]*(<[A-Za-z0-9_:, \t\r\n*]*>[A-Za-z0-9_:, \t\r\n*]*)?>)?[ \t\r\n*]*\[", tensor)]
    #[regex(r"T[0-9]+_[a-z]+_struct[ \t\r\n]*\{[A-Za-z0-9_:,;<> \t\r\n*]*\}[ \t\r\n*]*\[", tensor)]
    Tensor,
    /// `istreamIdx10{8}`, `iS7Ragged{extents=i3}`, `rS6{4}rf`.
    #[regex(r"[irbsngv?][A-Za-z][A-Za-z.]*[0-9]+(Ragged)?\{", axis)]
    Axis,
    /// An integer without sign.
    #[regex(r"[0-9]+")]
    Int,
    /// `1.5`, `1e-05`.
    #[regex(r"[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")]
    Float,
    /// A name, dots included, or an address.
    #[regex(r"[A-Za-z_][A-Za-z0-9_]*((\.|::)[A-Za-z_][A-Za-z0-9_]*)*")]
    #[regex(r"std::complex<(float|double)>")]
    #[regex(r"0x[0-9a-fA-F]+")]
    Word,
    /// `.logical_size`.
    #[regex(r"\.[A-Za-z_][A-Za-z0-9_]*")]
    Field,
    /// The continuation line of a long ALLOCATE.
    #[token(".alias")]
    Alias,
    /// `[...]`: a HostUnit's body that the source left out.
    #[regex(r"\[[ ]*\.\.\.[ ]*\]")]
    Elided,
    /// `%HostIrContainer`.
    #[token("%HostIrContainer")]
    ContainerStart,
    /// `%kernel`, `%kernel_math`.
    #[regex(r"%kernel(_math)?")]
    KernelStart,
    /// `%options`.
    #[token("%options")]
    OptionsStart,
    /// `END.`: what closed a container in 2024.
    #[token("END.")]
    EndDot,
    /// Before the inputs of a posted operation, in the words of May 2024.
    #[regex(r"Execute[ \t\r\n]+the[ \t\r\n]+following[ \t\r\n]+Fusion,[ \t\r\n]+taking[ \t\r\n]+inputs[ \t\r\n]*:[ \t\r\n]*\{")]
    #[regex(r"\},[ \t\r\n]*taking[ \t\r\n]+inputs[ \t\r\n]*:[ \t\r\n]*\{")]
    PostInputsPhrase,
    /// Before its outputs.
    #[regex(r"\}[ \t\r\n]*and[ \t\r\n]+outputs[ \t\r\n]*:[ \t\r\n]*\{")]
    PostOutputsPhrase,
    /// Before the operation itself.
    #[regex(r"\}\.[ \t\r\n]*Fusion[ \t\r\n]+to[ \t\r\n]+execute[ \t\r\n]*:[ \t\r\n]*\{")]
    #[regex(r"PostOnStream[ \t\r\n]+the[ \t\r\n]+operation[ \t\r\n]*:[ \t\r\n]*\{")]
    PostPhrase,
    /// Before the communication that is waited for.
    #[regex(r"Wait[ \t\r\n]+the[ \t\r\n]+communication[ \t\r\n]*:[ \t\r\n]*\{")]
    WaitPhrase,
    /// `FOR`.
    #[token("FOR")]
    For,
    /// `IF`.
    #[token("IF")]
    If,
    /// `ELSE`.
    #[token("ELSE")]
    Else,
    /// `in`.
    #[token("in")]
    In,
    /// `from`.
    #[token("from")]
    From,
    /// `to`.
    #[token("to")]
    To,
    /// `into`.
    #[token("into")]
    Into,
    /// `Stream`.
    #[token("Stream")]
    Stream,
    /// `+`.
    #[token("+")]
    Plus,
    /// `-`.
    #[token("-")]
    Minus,
    /// `*`.
    #[token("*")]
    Star,
    /// `/`.
    #[token("/")]
    Slash,
    /// `%`.
    #[token("%")]
    Percent,
    /// `<<`.
    #[token("<<")]
    ShiftLeft,
    /// `>>`.
    #[token(">>")]
    ShiftRight,
    /// `==`.
    #[token("==")]
    Equal,
    /// `!=`.
    #[token("!=")]
    NotEqual,
    /// `<=`.
    #[token("<=")]
    AtMost,
    /// `>=`.
    #[token(">=")]
    AtLeast,
    /// `<`.
    #[token("<")]
    Less,
    /// `>`.
    #[token(">")]
    Greater,
    /// `&&`.
    #[token("&&")]
    AndAnd,
    /// `||`.
    #[token("||")]
    OrOr,
    /// `&`.
    #[token("&")]
    And,
    /// `|`.
    #[token("|")]
    Or,
    /// `^`.
    #[token("^")]
    Xor,
    /// `!`.
    #[token("!")]
    Not,
    /// `~`.
    #[token("~")]
    Tilde,
    /// `=`.
    #[token("=")]
    Assign,
    /// `:`.
    #[token(":")]
    Colon,
    /// `;`.
    #[token(";")]
    Semicolon,
    /// `,`.
    #[token(",")]
    Comma,
    /// `->`.
    #[token("->")]
    Arrow,
    /// `(`.
    #[token("(")]
    ParenOpen,
    /// `)`.
    #[token(")")]
    ParenClose,
    /// `{`.
    #[token("{")]
    BraceOpen,
    /// `}`.
    #[token("}")]
    BraceClose,
    /// `[`.
    #[token("[")]
    BracketOpen,
    /// `]`.
    #[token("]")]
    BracketClose,
    /// Virtual: `(double)` before a parenthesis.
    Cast,
    /// Virtual: a block begins.
    Open,
    /// Virtual: a block ends.
    Close,
    /// Virtual: a statement ends.
    End,
    /// Virtual: the heading `Index definitions:`.
    Definitions,
    /// Virtual: the heading `Domains:`.
    Domains,
}

impl TokenKind {
    /// The closer of an opening bracket.
    pub const fn closer(self) -> Option<TokenKind> {
        match self {
            Self::ParenOpen => Some(Self::ParenClose),
            Self::BraceOpen => Some(Self::BraceClose),
            Self::BracketOpen => Some(Self::BracketClose),
            _ => None,
        }
    }

    /// Whether it closes a bracket.
    pub const fn is_closer(self) -> bool {
        matches!(self, Self::ParenClose | Self::BraceClose | Self::BracketClose)
    }

    /// Whether it is an operator of scalar expressions, infix or prefix.
    pub const fn is_operator(self) -> bool {
        (self as u8) >= (Self::Plus as u8) && (self as u8) <= (Self::Tilde as u8)
    }

    /// Whether it begins a statement in the words of May 2024.
    pub const fn is_post_or_wait_phrase(self) -> bool {
        matches!(self, Self::PostInputsPhrase | Self::PostOutputsPhrase | Self::PostPhrase | Self::WaitPhrase)
    }

    /// Whether it ends the statements before it.
    pub const fn ends_block(self) -> bool {
        matches!(self, Self::BraceClose | Self::EndDot)
    }

    /// Whether it begins a loop or a branch.
    pub const fn is_header(self) -> bool {
        matches!(self, Self::For | Self::If | Self::Else)
    }
}

/// Why a stretch of text is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScanError {
    /// No token begins so.
    #[default]
    Unknown,
    /// A tensor or an axis whose bracket does not close.
    Unclosed(UnclosedToken),
}

/// A token that should have been one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnclosedToken {
    /// What it would have been.
    pub kind: TokenKind,
    /// Whether the text ended inside it.
    pub at_end: bool,
}

/// A text that stands at `base` in the whole source.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    /// The text.
    pub text: &'s str,
    /// Its first byte in the whole source.
    pub base: u32,
}

impl<'s> Source<'s> {
    /// The text between two places of the whole source; empty when they are none of this text.
    pub fn slice(self, start: u32, end: u32) -> &'s str {
        let range = start.wrapping_sub(self.base) as usize..end.wrapping_sub(self.base) as usize;
        self.text.get(range).unwrap_or("")
    }
}

/// A token by place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lexeme {
    /// What it is.
    pub kind: TokenKind,
    /// Whether it is the first one on its line.
    pub first: bool,
    /// Its column, counted from 0; known for the first token of a line only.
    pub column: u16,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Lexeme {
    /// A virtual token.
    pub const fn virtual_at(kind: TokenKind, place: u32) -> Self {
        Self { kind, first: false, column: 0, start: place, end: place }
    }

    /// Its place.
    pub const fn span(self) -> Span {
        Span { start: self.start, end: self.end }
    }
}

/// A token with its text, as the grammar takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token<'s> {
    /// What it is.
    pub kind: TokenKind,
    /// What was written; empty for virtual tokens.
    pub text: &'s str,
}

/// Where scanning stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanLimit {
    /// After the brace that closes the first one, or before the next container.
    ContainerEnd,
    /// At the end of the text.
    TextEnd,
}
