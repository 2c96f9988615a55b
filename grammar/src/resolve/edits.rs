//! Fixes that make inferred facts explicit in the text.

use crate::{
    canonical,
    diagnostic::{Diagnostic, Fix, has_errors},
    indentation,
    ir::Program,
    span::Span,
};

/// The last line of the canonical text of a container without sections.
const CONTAINER_END: &str = "} // %HostIrContainer";

/// Returns a fix that inserts `line` before offset `at`. If other text precedes `at` on its line, the fix
/// begins with a newline.
pub(super) fn insert_line_before(source: &str, at: u32, line: &str) -> Fix {
    let begins = source.get(..at as usize).is_none_or(|it| it.is_empty() || it.ends_with('\n'));
    let newline = if begins { "" } else { "\n" };
    Fix { span: Span { start: at, end: at }, text: format!("{newline}{line}\n") }
}

/// Returns a fix that inserts `section` after the container that ends at `end`.
pub(super) fn insert_section_after(source: &str, end: u32, section: &str) -> Fix {
    let at = closer_line_end(source, end) as usize;
    let newline = if source.get(..at).is_some_and(|it| it.ends_with('\n')) { "" } else { "\n" };
    // A blank line separates the section from the following text.
    let blank = if source.len() > at { "\n" } else { "" };
    Fix { span: Span::new(at, at), text: format!("{newline}{section}{blank}") }
}

/// Replaces the fixes of all warnings about inferred facts by one fix: the canonical text of the container at
/// `place`, whose diagnostics are `diagnostics`. Does nothing if the container has errors, because the canonical
/// text would lose the erroneous constructs.
pub(super) fn replace_with_canonical_text(
    source: &str,
    place: Span,
    program: &Program,
    diagnostics: &mut [Diagnostic],
) {
    if has_errors(diagnostics) {
        return;
    }
    let end = closer_line_end(source, place.end);
    let mut text = canonical::print(program);
    // Without a blank line, the following lines would be those of the last section.
    let rest = source.get(end as usize..).unwrap_or("");
    let follows_section = !text.trim_end().ends_with(CONTAINER_END);
    if follows_section && rest.lines().next().is_some_and(|line| !line.trim().is_empty()) {
        text.push('\n');
    }
    let fix = Fix { span: Span { end, ..place }, text };
    for it in diagnostics.iter_mut().filter(|it| it.code.text().starts_with("lossy")) {
        it.fixes = vec![fix.clone()];
    }
}

/// Returns the offset after the comment or the line ending that follows the brace at `end`; returns `end` if
/// neither follows.
fn closer_line_end(source: &str, end: u32) -> u32 {
    let rest = source.get(end as usize..).unwrap_or("");
    let comment = rest.trim_start_matches([' ', '\t']);
    let blanks = rest.len() - comment.len();
    let length = match comment.strip_prefix("\r\n").or_else(|| comment.strip_prefix('\n')) {
        Some(behind) => rest.len() - behind.len(),
        None if comment.starts_with("//") => blanks + indentation::comment_length(comment),
        None => 0,
    };
    end + length as u32
}
