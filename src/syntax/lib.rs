//! The syntax of Host IR: tokens, the syntax tree, and the parser that LALRPOP generates.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `hir-grammar` scans a text into tokens, repairs what it can, and passes the tokens to `TextParser`, which calls
//! `ParseEvents` for each part of the container. This package knows no operator and reports no diagnostic. It is separate
//! from `hir-grammar` so that an edit of that package, or a build of its unit tests, does not compile the parser.
//!
//! ```
//! use hir_syntax::{TextParser, ast::{Container, ExprKind}, token::{Source, Token, TokenKind}};
//!
//! // The tokens of an expression alone, with their places.
//! let source = Source { text: "i0", base: 0 };
//! let tokens = [(0, TokenKind::Alone, 0), (0, TokenKind::Word, 2)];
//! let tokens = tokens.map(|(from, kind, to)| (from, Token { kind, text: source.slice(from, to) }, to));
//! let (mut errors, mut container) = (Vec::new(), Container::default());
//! let found = TextParser::new().parse(source, &mut errors, &mut container, tokens);
//! assert!(matches!(found, Ok(Some(it)) if matches!(it.kind, ExprKind::Word("i0"))));
//! assert!(errors.is_empty());
//! ```

pub mod ast;
mod comment;
mod events;
mod nodes;
pub mod span;
// Generated from `syntax.lalrpop`; `grammar/generate-parser` writes it. It is committed, so that a build of hir
// does not build the parser generator first.
#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::match_wildcard_for_single_variants,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    unused,
    reason = "generated from `syntax.lalrpop`"
)]
mod syntax;
pub mod token;

use lalrpop_util::ParseError;

pub use comment::Comment;
pub use events::ParseEvents;
pub use syntax::TextParser;

/// An error of the parser: byte offsets in the whole source, and the token.
pub type GrammarError<'s> = ParseError<u32, token::Token<'s>, ()>;
