//! Tokens of the language and their positions in the source.
//!
//! A tensor with all its axes, positions and mesh is one token, and so is an iteration domain: dumps repeat
//! the complete text of a tensor at each use, and `tensor` parses only its first occurrence.
//!
//! Invariant: tokens own no text, and scanning takes linear time even if brackets are unbalanced.

mod extent;

use logos::Logos;

use self::extent::{axis, tensor};
use crate::{comment::Comment, span::Span};

/// The kind of a token. Virtual tokens have no text; `indentation` inserts them.
#[derive(Logos, Clone, Copy, PartialEq, Eq, Debug)]
#[logos(error = ScanError)]
#[logos(skip r"[ \t\r\n\f]+")]
#[logos(extras = Vec<Comment>)]
#[logos(skip(r"#[^\n]*", extent::hash_comment, allow_greedy = true))]
#[logos(skip(r"//", extent::comment))]
pub enum TokenKind {
    /// `T0_g___bfloat[ideviceIdx.x0{8}, iS1{128}] ca_pos( 1 ) (DeviceMesh{0 1})`.
    #[regex(r"T[0-9]+_[A-Za-z0-9_:]*(<[A-Za-z0-9_:, \t\r\n*]*(<[A-Za-z0-9_:, \t\r\n*]*>[A-Za-z0-9_:, \t\r\n*]*)?>)?[ \t\r\n*]*\[", tensor)]
    #[regex(r"T[0-9]+_[a-z]+_struct[ \t\r\n]*\{[A-Za-z0-9_:,;<> \t\r\n*]*\}[ \t\r\n*]*\[", tensor)]
    /// `T0`: the tensor with this number that is declared before.
    #[regex(r"T[0-9]+", priority = 20)]
    Tensor,
    /// `istreamIdx10{8}`, `iS7Ragged{extents=i3}`, `rS6{4}rf`.
    #[regex(r"[irbsngv?][A-Za-z][A-Za-z.]*[0-9]+(Ragged)?\{", axis)]
    Axis,
    /// An integer without a sign.
    #[regex(r"[0-9]+")]
    Int,
    /// `1.5`, `1e-05`.
    #[regex(r"[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")]
    Float,
    /// A name, which may contain dots, or an address.
    #[regex(r"[A-Za-z_][A-Za-z0-9_]*((\.|::)[A-Za-z_][A-Za-z0-9_]*)*")]
    #[regex(r"std::complex<(float|double)>")]
    #[regex(r"0x[0-9a-fA-F]*")]
    Word,
    /// `.logical_size`.
    #[regex(r"\.[A-Za-z_][A-Za-z0-9_]*")]
    Field,
    /// The key on the continuation line of a long ALLOCATE.
    #[token(".alias")]
    Alias,
    /// `[...]`: the body of a HostUnit that the source omits.
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
    /// `%tensor`.
    #[token("%tensor")]
    DeclarationStart,
    /// `END.`, which closed a container in 2024.
    #[token("END.")]
    EndDot,
    /// The phrase before the inputs of a posted operation, in the syntax of May 2024.
    #[regex(r"Execute[ \t\r\n]+the[ \t\r\n]+following[ \t\r\n]+Fusion,[ \t\r\n]+taking[ \t\r\n]+inputs[ \t\r\n]*:[ \t\r\n]*\{")]
    #[regex(r"\},[ \t\r\n]*taking[ \t\r\n]+inputs[ \t\r\n]*:[ \t\r\n]*\{")]
    PostInputsPhrase,
    /// The phrase before the outputs of a posted operation.
    #[regex(r"\}[ \t\r\n]*and[ \t\r\n]+outputs[ \t\r\n]*:[ \t\r\n]*\{")]
    PostOutputsPhrase,
    /// The phrase before a posted operation.
    #[regex(r"\}\.[ \t\r\n]*Fusion[ \t\r\n]+to[ \t\r\n]+execute[ \t\r\n]*:[ \t\r\n]*\{")]
    #[regex(r"PostOnStream[ \t\r\n]+the[ \t\r\n]+operation[ \t\r\n]*:[ \t\r\n]*\{")]
    PostPhrase,
    /// The phrase before a communication that a statement waits for.
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
    /// An operator that is always infix.
    #[token("+")]
    #[token("/")]
    #[token("%")]
    #[token("<<")]
    #[token(">>")]
    #[token("==")]
    #[token("!=")]
    #[token("<=")]
    #[token(">=")]
    #[token("<")]
    #[token(">")]
    #[token("&&")]
    #[token("||")]
    #[token("|")]
    #[token("^")]
    Infix,
    /// `-`, infix or prefix.
    #[token("-")]
    Minus,
    /// `*`, infix or prefix.
    #[token("*")]
    Star,
    /// `&`, infix or prefix.
    #[token("&")]
    And,
    /// An operator that is always prefix.
    #[token("!")]
    #[token("~")]
    Prefix,
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
    /// A type in parentheses before another parenthesis, `(double)`. `indentation` combines its three tokens.
    Cast,
    /// Virtual: the beginning of a block.
    Open,
    /// Virtual: the end of a block.
    Close,
    /// Virtual: the end of a statement.
    End,
    /// Virtual: an expression without a container follows.
    Alone,
    /// The heading `Index definitions:`, which `indentation` recognizes.
    Definitions,
    /// The heading `Domains:`, which `indentation` recognizes.
    Domains,
}

impl TokenKind {
    /// Returns the closing bracket of an opening bracket.
    pub const fn closer(self) -> Option<TokenKind> {
        match self {
            Self::ParenOpen => Some(Self::ParenClose),
            Self::BraceOpen => Some(Self::BraceClose),
            Self::BracketOpen => Some(Self::BracketClose),
            _ => None,
        }
    }

    /// Returns whether the token is a closing bracket.
    pub const fn is_closer(self) -> bool {
        matches!(self, Self::ParenClose | Self::BraceClose | Self::BracketClose)
    }

    /// Returns whether the token is an infix or prefix operator of scalar expressions.
    pub const fn is_operator(self) -> bool {
        matches!(self, Self::Infix | Self::Minus | Self::Star | Self::And | Self::Prefix)
    }

    /// Returns whether the token is a phrase of a statement in the syntax of May 2024.
    pub const fn is_post_or_wait_phrase(self) -> bool {
        matches!(self, Self::PostInputsPhrase | Self::PostOutputsPhrase | Self::PostPhrase | Self::WaitPhrase)
    }

    /// Returns whether the token ends the block before it.
    pub const fn ends_block(self) -> bool {
        matches!(self, Self::BraceClose | Self::EndDot)
    }

    /// Returns whether the token begins the header of a loop or a branch.
    pub const fn is_header(self) -> bool {
        matches!(self, Self::For | Self::If | Self::Else)
    }
}

/// The reason why scanning a token fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScanError {
    /// No token begins with this text.
    #[default]
    Unknown,
    /// A tensor or an axis without its closing bracket.
    Unclosed(UnclosedToken),
}

/// A token without its closing bracket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnclosedToken {
    /// The kind of the token.
    pub kind: TokenKind,
    /// Whether the end of the text was reached inside the token.
    pub at_end: bool,
}

/// A text that begins at offset `base` of the whole source.
#[derive(Clone, Copy, Debug)]
pub struct Source<'s> {
    /// The text.
    pub text: &'s str,
    /// Byte offset of the text in the whole source.
    pub base: u32,
}

impl<'s> Source<'s> {
    /// Returns the text between two offsets in the whole source; empty if they are outside this text.
    pub fn slice(self, start: u32, end: u32) -> &'s str {
        let range = start.wrapping_sub(self.base) as usize..end.wrapping_sub(self.base) as usize;
        self.text.get(range).unwrap_or("")
    }
}

/// A token without its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lexeme {
    /// The kind of the token.
    pub kind: TokenKind,
    /// Whether the token is the first one on its line.
    pub first: bool,
    /// Zero-based column; set only for the first token of a line.
    pub column: u16,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset one past the last byte.
    pub end: u32,
}

impl Lexeme {
    /// Returns a virtual token at offset `place`.
    pub const fn virtual_at(kind: TokenKind, place: u32) -> Self {
        Self { kind, first: false, column: 0, start: place, end: place }
    }

    /// Returns the span of the token.
    pub const fn span(self) -> Span {
        Span { start: self.start, end: self.end }
    }
}

/// A token with its text, as the grammar consumes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token<'s> {
    /// The kind of the token.
    pub kind: TokenKind,
    /// The text; empty for virtual tokens.
    pub text: &'s str,
}

/// The point at which scanning stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanLimit {
    /// After the closing brace of the container, or before the next container.
    ContainerEnd,
    /// At the end of the text.
    TextEnd,
}
