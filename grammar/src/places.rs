//! Positions of tensors and attributes inside statements, found in the source text.

use crate::span::Span;

/// Which occurrence of a tensor in a statement is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occurrence {
    /// The first one: a result.
    First,
    /// The last one: an operand.
    Last,
}

/// Returns the position of the tensor with a number in a statement; without the source text, or if the statement
/// does not contain it, the statement.
pub(crate) fn numbered_tensor_place(
    source: Option<&str>,
    number: u32,
    stmt: Span,
    which: Occurrence,
) -> Span {
    let text = source.map_or("", |it| stmt.text(it));
    let name = format!("T{number}");
    let is_name = |at: &usize| {
        let before = text.get(..*at).and_then(|it| it.chars().next_back());
        let behind = text.get(at + name.len()..).and_then(|it| it.chars().next());
        before.is_none_or(|it| !it.is_ascii_alphanumeric() && it != '_')
            && behind.is_none_or(|it| !it.is_ascii_digit())
    };
    let mut all = text.match_indices(&name).map(|(at, _)| at).filter(is_name);
    let found = match which {
        Occurrence::First => all.next(),
        Occurrence::Last => all.last(),
    };
    found.map_or(stmt, |at| {
        let length = tensor_length(text.get(at..).unwrap_or(""));
        Span { start: stmt.start + at as u32, end: stmt.start + (at + length) as u32 }
    })
}

/// Returns the length of the tensor that `text` begins with: a short name, or all up to its mesh.
fn tensor_length(text: &str) -> usize {
    let word = text.bytes().take_while(|it| it.is_ascii_alphanumeric() || *it == b'_').count();
    let open = text.get(word..).is_some_and(|it| it.starts_with(['[', '<', ':']));
    let Some(close) = text.find(']').filter(|_| open) else { return word };
    let mesh = text.get(close + 1..).unwrap_or("");
    match mesh.trim_start().starts_with("(DeviceMesh").then(|| mesh.find(')')).flatten() {
        Some(end) => close + 1 + end + 1,
        None => close + 1,
    }
}

/// Returns the position of an attribute, `key=value`, in a statement, or else the statement.
pub(crate) fn attr_place(source: Option<&str>, key: &str, stmt: Span) -> Span {
    let text = source.map_or("", |it| stmt.text(it));
    let found = text.match_indices(key).map(|(at, _)| at).find(|at| {
        let before = text.get(..*at).and_then(|it| it.chars().next_back());
        let behind = text.get(at + key.len()..).unwrap_or("").trim_start();
        before.is_some_and(|it| matches!(it, '(' | ',' | ' ' | '\n')) && behind.starts_with(['=', ':'])
    });
    let Some(at) = found else { return stmt };
    let mut depth = 0usize;
    let rest = text.get(at..).unwrap_or("");
    let end = rest.char_indices().find(|(_, it)| {
        match it {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return true,
            ')' | ']' | '}' => depth -= 1,
            ',' => return depth == 0,
            _ => (),
        }
        false
    });
    let end = end.map_or(rest.len(), |(at, _)| at);
    let end = rest.get(..end).map_or(end, |it| it.trim_end().len());
    Span { start: stmt.start + at as u32, end: stmt.start + (at + end) as u32 }
}
