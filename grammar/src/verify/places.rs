//! Positions inside statements and sections. The program has the span of each statement; with the source text,
//! the verifier finds the operand, the attribute or the axis that a diagnostic is about.

use crate::{
    ir::{Program, TensorId},
    span::Span,
};

/// Which occurrence of a tensor in a statement is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occurrence {
    /// The first one: a result.
    First,
    /// The last one: an operand.
    Last,
}

/// Returns the position of a tensor in a statement; without the source text, or if the statement does not
/// contain it, the statement.
pub(super) fn tensor_place(
    program: &Program,
    source: Option<&str>,
    tensor: TensorId,
    stmt: Span,
    which: Occurrence,
) -> Span {
    numbered_tensor_place(source, program.tensors[tensor].number, stmt, which)
}

/// Like `tensor_place`, for the tensor with a number.
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

/// Returns the position of `part` in a span, or else the span.
pub(super) fn part_place(source: Option<&str>, part: &str, whole: Span) -> Span {
    let at = source.and_then(|it| whole.text(it).find(part));
    at.map_or(whole, |at| Span {
        start: whole.start + at as u32,
        end: whole.start + (at + part.len()) as u32,
    })
}

/// Returns the position of a part of a tensor's line in `Domains:`, of the line without the part, or `None` if
/// the text has no such line.
pub(super) fn domain_place(
    program: &Program,
    source: Option<&str>,
    tensor: TensorId,
    part: &str,
) -> Option<Span> {
    let text = source?;
    let from = program.spans.header.end as usize;
    let section = from + text.get(from..)?.find("\nDomains:")?;
    let mark = format!("T{}:", program.tensors[tensor].number);
    let mut at = section + 1;
    for line in text.get(section + 1..)?.split_inclusive('\n') {
        let start = at + line.len() - line.trim_start().len();
        if line.trim_start().starts_with(&mark) {
            let whole = Span::new(start, at + line.trim_end().len());
            return Some(part_place(source, part, whole));
        }
        at += line.len();
    }
    None
}
