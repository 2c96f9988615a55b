//! Comments of a text.

use crate::span::Span;

/// A comment. Canonical text has none: the printer writes programs, and a program is the same without its comments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comment {
    /// From its mark to the end of its line.
    pub span: Span,
    /// Whether nothing precedes it on its line.
    pub is_alone: bool,
}
