//! Positions inside statements and sections. The program has the span of each statement; with the source text,
//! the verifier finds the operand, the attribute or the axis that a diagnostic is about.

pub(super) use crate::places::{Occurrence, attr_place};
use crate::{
    ir::{Program, TensorId},
    places::numbered_tensor_place,
    span::Span,
};

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
