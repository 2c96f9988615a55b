//! The syntax of Host IR: tokens, the syntax tree, and the parser that LALRPOP generates.
//!
//! `hir-grammar` scans a text into tokens, repairs what it can, and passes the tokens to `TextParser`, which calls
//! `ParseEvents` for each part of the container. This package knows no operator and reports no diagnostic. It is separate
//! from `hir-grammar` so that an edit of that package, or a build of its unit tests, does not compile the parser.
//!
//! ```
//! use hir_syntax::token::{Source, Token, TokenKind};
//!
//! let source = Source { text: "T0", base: 0 };
//! assert_eq!(source.slice(0, 2), "T0");
//! assert!(TokenKind::Infix.is_operator());
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
