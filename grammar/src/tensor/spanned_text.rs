//! A part of a token's text with its span, split outside brackets.

use crate::{codes::Code, diagnostic::Diagnostic, span::Span};

/// A part of a token's text, with its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpannedText<'s> {
    /// The text.
    pub text: &'s str,
    /// Span in the whole source.
    pub span: Span,
}

impl<'s> SpannedText<'s> {
    pub(super) fn slice(self, from: usize, to: usize) -> Self {
        let text = self.text.get(from..to).unwrap_or("");
        let start = self.span.start + from as u32;
        Self { text, span: Span { start, end: start + text.len() as u32 } }
    }

    pub(super) fn trimmed(self) -> Self {
        let from = self.text.len() - self.text.trim_start().len();
        self.slice(from, from + self.text.trim().len())
    }

    /// Splits the text at the first `mark` outside brackets.
    pub(super) fn split_once(self, mark: &str) -> Option<(Self, Self)> {
        let at = find_outside_brackets(self.text, mark)?;
        Some((self.slice(0, at), self.slice(at + mark.len(), self.text.len())))
    }

    /// Splits the text at each `mark` outside brackets and trims the parts. An empty last part is dropped.
    pub(super) fn split(self, mark: &str) -> Vec<Self> {
        let mut res = Vec::new();
        let mut rest = self;
        while let Some((part, tail)) = rest.split_once(mark) {
            res.push(part.trimmed());
            rest = tail;
        }
        let last = rest.trimmed();
        res.extend((!last.text.is_empty()).then_some(last));
        res
    }
}

pub(super) fn unreadable(piece: SpannedText<'_>, label: &str) -> Diagnostic {
    let message = if piece.text.is_empty() {
        "the text is empty here".to_owned()
    } else {
        format!("cannot read `{}`", shortened(piece.text))
    };
    Diagnostic::new(Code::BadTensor, piece.span, message, label)
}

pub(crate) fn shortened(text: &str) -> String {
    let mut res: String =
        text.chars().take(40).map(|it| if it.is_ascii_whitespace() { ' ' } else { it }).collect();
    if res.len() < text.len() {
        res.push('…');
    }
    res
}

/// Returns the offset of the closing bracket of the bracket at `open`.
pub(super) fn matching_bracket(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => (),
        }
    }
    None
}

/// Returns the offset of the first `mark` outside brackets. The `::` of a type does not match `:`.
fn find_outside_brackets(text: &str, mark: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            b':' if bytes.get(at + 1) == Some(&b':') || at > 0 && bytes.get(at - 1) == Some(&b':') => (),
            _ if bytes.get(at..).is_some_and(|it| it.starts_with(mark.as_bytes())) => return Some(at),
            _ => (),
        }
    }
    None
}
