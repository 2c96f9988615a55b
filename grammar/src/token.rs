//! The words of the language: a source text cut into tokens that remember where they stand.
//!
//! A tensor with all its axes, positions and mesh is one token, and so is an iteration domain: dumps spell the same
//! tensor in full at every use, and only its first spelling is worth taking apart (`tensor` does).
//!
//! Invariant: tokens hold no text of their own, and scanning is linear in the text, also where brackets do not close.

use logos::{Lexer, Logos};

use crate::{codes::Code, diagnostic::Diagnostic, span::Span};

/// What a token is. Virtual ones stand in no text: `layout` adds them.
#[derive(Logos, Clone, Copy, PartialEq, Eq, Debug)]
#[logos(error = Fault)]
#[logos(skip r"[ \t\r\n\f]+")]
#[logos(skip(r"(//|#)[^\n]*", allow_greedy = true))]
pub enum Kind {
    /// `T0_g___bfloat[ideviceIdx.x0{8}, iS1{128}] ca_pos( 1 ) (DeviceMesh{0 1})`.
    #[regex(r"T[0-9]+_[A-Za-z0-9_:]*(<[A-Za-z0-9_:, ]*>)?\**[ \t\r\n]*\[", tensor)]
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

impl Kind {
    /// The closer of an opening bracket.
    pub const fn closer(self) -> Option<Kind> {
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

    /// Whether it begins a loop or a branch.
    pub const fn is_header(self) -> bool {
        matches!(self, Self::For | Self::If | Self::Else)
    }
}

/// Why a stretch of text is no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    /// No token begins so.
    #[default]
    Unknown,
    /// A tensor or an axis whose bracket does not close.
    Unclosed(Unclosed),
}

/// A token that should have been one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unclosed {
    /// What it would have been.
    pub kind: Kind,
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
    pub kind: Kind,
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
    pub const fn virtual_at(kind: Kind, place: u32) -> Self {
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
    pub kind: Kind,
    /// What was written; empty for virtual tokens.
    pub text: &'s str,
}

/// Where scanning stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After the brace that closes the first one, or before the next container.
    ContainerEnd,
    /// At the end of the text.
    TextEnd,
}

/// Cuts `source` into tokens; faults go to `diagnostics`. Returns where scanning stopped, relative to the text.
pub fn scan(source: Source<'_>, until: Until, diagnostics: &mut Vec<Diagnostic>) -> (Vec<Lexeme>, usize) {
    let mut lexer = Kind::lexer(source.text);
    let mut res: Vec<Lexeme> = Vec::with_capacity(source.text.len().min(1 << 28) / 16);
    let (mut previous, mut depth, mut opened, mut bad_until) = (0, 0usize, false, None);
    while let Some(item) = lexer.next() {
        let range = lexer.span();
        let span = Span { start: source.base + range.start as u32, end: source.base + range.end as u32 };
        let kind = match item {
            Ok(kind) => kind,
            Err(Fault::Unknown) => {
                // A run of bad characters is one error.
                if bad_until != Some(range.start) {
                    diagnostics.push(unknown(lexer.slice(), span));
                }
                bad_until = Some(range.end);
                continue;
            }
            Err(Fault::Unclosed(fault)) => {
                diagnostics.push(unclosed(fault, lexer.slice(), span));
                fault.kind
            }
        };
        let gap = source.text.get(previous..range.start).unwrap_or("");
        let newline = gap.rfind('\n');
        let first = newline.is_some() || res.is_empty();
        let blanks = newline.map_or(gap, |at| gap.get(at + 1..).unwrap_or(""));
        let column = if first { width(blanks) } else { 0 };
        if until == Until::ContainerEnd {
            match kind {
                Kind::ContainerStart if opened => return (res, range.start),
                Kind::BraceOpen => (depth, opened) = (depth + 1, true),
                Kind::BraceClose => depth = depth.saturating_sub(1),
                _ => (),
            }
        }
        if kind == Kind::Int {
            let negative = res.last().is_some_and(|it| it.kind == Kind::Minus);
            check_number(lexer.slice(), negative, span, diagnostics);
        }
        res.push(Lexeme { kind, first, column, start: span.start, end: span.end });
        previous = range.end;
        if until == Until::ContainerEnd && kind == Kind::BraceClose && opened && depth == 0 {
            // A brace too many inside a line is not the closer.
            let rest = lexer.remainder().trim_start_matches([' ', '\t', '\r']);
            if first || rest.is_empty() || rest.starts_with("//") {
                return (res, range.end);
            }
            depth = 1;
        }
    }
    (res, source.text.len())
}

fn width(blanks: &str) -> u16 {
    let columns =
        blanks.bytes().fold(0usize, |at, byte| if byte == b'\t' { (at / 8 + 1) * 8 } else { at + 1 });
    u16::try_from(columns).unwrap_or(u16::MAX)
}

fn check_number(text: &str, negative: bool, span: Span, diagnostics: &mut Vec<Diagnostic>) {
    let limit = i64::MAX as u64 + u64::from(negative);
    if !text.parse::<u64>().is_ok_and(|it| it <= limit) {
        diagnostics.push(Diagnostic::new(
            Code::BadNumber,
            span,
            "number does not fit 64 bits",
            "expected a value below 2^63",
        ));
    }
}

fn unknown(text: &str, span: Span) -> Diagnostic {
    let shown: String = text.chars().take(8).flat_map(char::escape_debug).collect();
    let res = Diagnostic::new(Code::BadToken, span, format!("`{shown}` begins no token"), "expected a token");
    if text.is_ascii() {
        res
    } else {
        res.help("dumps hold plain ASCII: was the text pasted through an editor?")
    }
}

fn unclosed(fault: Unclosed, text: &str, span: Span) -> Diagnostic {
    let (noun, bracket) =
        if fault.kind == Kind::Tensor { ("tensor", '[') } else { ("iteration domain", '{') };
    let at = span.start + text.find(bracket).unwrap_or(0) as u32;
    let place = Span { start: at, end: at + 1 };
    let code = if fault.at_end { Code::Truncated } else { Code::BadTensor };
    let message = format!("the {noun}'s `{bracket}` is never closed");
    Diagnostic::new(code, place, message, "opened here")
}

fn tensor(lexer: &mut Lexer<'_, Kind>) -> Result<(), Fault> {
    let rest = lexer.remainder().as_bytes();
    let (taken, closed) = balanced(rest, b'[');
    if !closed {
        lexer.bump(whole(lexer.remainder(), taken));
        return Err(Fault::Unclosed(Unclosed { kind: Kind::Tensor, at_end: taken == rest.len() }));
    }
    let mut end = taken;
    while let Some(next) = group(rest, end, POSITIONS) {
        end = next;
    }
    let end = group(rest, end, &["(DeviceMesh"]).unwrap_or(end);
    lexer.bump(whole(lexer.remainder(), end));
    Ok(())
}

const POSITIONS: &[&str] = &["ca_pos(", "compute_with(", "produce_pos(", "maybe_produce_pos("];

/// The end of a parenthesised group after `from` that begins with one of `heads`.
fn group(rest: &[u8], from: usize, heads: &[&str]) -> Option<usize> {
    let blanks = rest.get(from..)?.iter().take_while(|it| it.is_ascii_whitespace()).count();
    let tail = rest.get(from + blanks..)?;
    let head = heads.iter().find(|it| tail.starts_with(it.as_bytes()))?;
    let inner = head.find('(').map_or(head.len(), |at| at + 1);
    let (taken, closed) = balanced(tail.get(inner..)?, b'(');
    closed.then_some(from + blanks + inner + taken)
}

fn axis(lexer: &mut Lexer<'_, Kind>) -> Result<(), Fault> {
    let rest = lexer.remainder().as_bytes();
    let (mut end, closed) = balanced(rest, b'{');
    if !closed {
        lexer.bump(whole(lexer.remainder(), end));
        return Err(Fault::Unclosed(Unclosed { kind: Kind::Axis, at_end: end == rest.len() }));
    }
    for suffix in ["rf", "_p", "_c"] {
        if rest.get(end..).is_some_and(|it| it.starts_with(suffix.as_bytes())) {
            end += suffix.len();
        }
    }
    lexer.bump(whole(lexer.remainder(), end));
    Ok(())
}

/// Rounds `at` up to the next character boundary.
fn whole(text: &str, at: usize) -> usize {
    (at..text.len()).find(|it| text.is_char_boundary(*it)).unwrap_or(text.len())
}

/// The number of bytes up to and including the closer of `open`, or up to where it can no longer come.
fn balanced(rest: &[u8], open: u8) -> (usize, bool) {
    const DEEPEST: usize = 256;
    let mut stack = [0u8; DEEPEST];
    stack[0] = open;
    let mut depth = 1;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' if depth == 1 && open == b'[' && *byte != b'{' => return (at, false),
            b'(' | b'[' | b'{' if depth == DEEPEST => return (at, false),
            b'(' | b'[' | b'{' => {
                stack[depth] = *byte;
                depth += 1;
            }
            b')' | b']' | b'}' => {
                let matching = match byte {
                    b')' => b'(',
                    b']' => b'[',
                    _ => b'{',
                };
                if stack[depth - 1] != matching {
                    return (at, false);
                }
                depth -= 1;
                if depth == 0 {
                    return (at + 1, true);
                }
            }
            b';' => return (at, false),
            b'=' | b'+' | b'-' | b'*' | b'%' | b'<' | b'>' if depth == 1 && open == b'[' => {
                return (at, false);
            }
            _ => (),
        }
    }
    (rest.len(), false)
}
