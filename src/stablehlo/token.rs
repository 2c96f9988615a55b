//! Tokens of MLIR's text.
//!
//! A tensor type is one token: its shape, `8x16xf32`, is not a sequence of numbers and names.

use grammar::{Code, Diagnostic, Span};
use logos::Logos;

/// The kind of a token.
#[derive(Logos, Clone, Copy, PartialEq, Eq, Debug)]
#[logos(skip r"[ \t\r\n\f\u{FEFF}]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
pub(crate) enum TokenKind {
    /// `%arg0`, `%7#1`.
    #[regex(r"%[A-Za-z0-9_$.\-]+(#[0-9]+)?")]
    Value,
    /// `@main`, `@"a name"`.
    #[regex(r#"@[A-Za-z_][A-Za-z0-9_$.\-]*|@"[^"\n]*""#)]
    Symbol,
    /// `#sdy.sharding`, `#loc3`.
    #[regex(r"#[A-Za-z_][A-Za-z0-9_$.]*")]
    Alias,
    /// `!stablehlo.token`.
    #[regex(r"![A-Za-z_][A-Za-z0-9_$.]*")]
    OtherType,
    /// `^bb0`.
    #[regex(r"\^[A-Za-z0-9_$.]+")]
    BlockName,
    /// `tensor<8x16xf32>`, with at most one level of brackets inside.
    #[regex(r"tensor<([^<>\n]|<[^<>\n]*>)*>")]
    Tensor,
    /// `stablehlo.add`, `dense`, `x`.
    #[regex(r"[A-Za-z_][A-Za-z0-9_$.]*")]
    Word,
    /// `-1.5e+00`, `0x7FC00000`.
    #[regex(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|-?0x[0-9A-Fa-f]+")]
    Number,
    /// `"tp"`.
    #[regex(r#""([^"\\\n]|\\[^\n])*""#)]
    String,
    /// `->`.
    #[token("->")]
    Arrow,
    /// `(`.
    #[token("(")]
    OpenRound,
    /// `)`.
    #[token(")")]
    CloseRound,
    /// `{`.
    #[token("{")]
    OpenBrace,
    /// `}`.
    #[token("}")]
    CloseBrace,
    /// `[`.
    #[token("[")]
    OpenSquare,
    /// `]`.
    #[token("]")]
    CloseSquare,
    /// `<`.
    #[token("<")]
    Less,
    /// `>`.
    #[token(">")]
    Greater,
    /// `=`.
    #[token("=")]
    Equal,
    /// `,`.
    #[token(",")]
    Comma,
    /// `:`.
    #[token(":")]
    Colon,
    /// `?`.
    #[token("?")]
    Question,
    /// `*`.
    #[token("*")]
    Star,
}

/// A token and its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) span: Span,
    /// Whether it is the first token of its line.
    pub(crate) begins_line: bool,
}

/// Splits a text into tokens.
///
/// # Errors
/// Returns an error for the first character that begins no token.
pub(crate) fn scan(text: &str) -> Result<Vec<Token>, Box<Diagnostic>> {
    let mut tokens = Vec::new();
    let mut last_end = 0;
    for (kind, range) in TokenKind::lexer(text).spanned() {
        let span = Span::new(range.start, range.end);
        let Ok(kind) = kind else {
            let message = "this character does not begin any token of MLIR";
            let it = Diagnostic::new(Code::BadToken, span, message, "expected a StableHLO operation");
            return Err(Box::new(it.help("write the module with `as_text()`, and copy all of it")));
        };
        let begins_line =
            last_end == 0 || text.get(last_end..range.start).is_some_and(|it| it.contains('\n'));
        tokens.push(Token { kind, span, begins_line });
        last_end = range.end;
    }
    Ok(tokens)
}
