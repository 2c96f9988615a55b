//! The edits that write down what resolving guessed.

use crate::{
    canonical,
    codes::Severity,
    diagnostic::{Diagnostic, Fix},
    indentation,
    ir::Program,
    span::Span,
};

/// An edit that puts a line in before the one at `at`, which it shares where something else stands before.
pub(super) fn insert_line_before(source: &str, at: u32, line: &str) -> Fix {
    let begins = source.get(..at as usize).is_none_or(|it| it.is_empty() || it.ends_with('\n'));
    let newline = if begins { "" } else { "\n" };
    Fix { span: Span { start: at, end: at }, text: format!("{newline}{line}\n") }
}

/// An edit that puts a section in behind the container that ends at `end`.
pub(super) fn insert_section_after(source: &str, end: u32, section: &str) -> Fix {
    let at = closer_line_end(source, end) as usize;
    let newline = if source.get(..at).is_some_and(|it| it.ends_with('\n')) { "" } else { "\n" };
    // A blank line ends the section where anything follows.
    let blank = if source.len() > at { "\n" } else { "" };
    Fix { span: Span::new(at, at), text: format!("{newline}{section}{blank}") }
}

/// Makes the canonical text the one edit of all guesses of the container at `place`, unless it has errors: what those
/// hide would be lost.
pub(super) fn replace_with_canonical_text(
    source: &str,
    place: Span,
    program: &Program,
    mut own: Vec<&mut Diagnostic>,
) {
    if own.iter().any(|it| it.severity() == Severity::Error) {
        return;
    }
    let end = closer_line_end(source, place.end);
    let fix = Fix { span: Span { end, ..place }, text: canonical::print(program) };
    for it in own.iter_mut().filter(|it| it.code.text().starts_with("lossy")) {
        it.fixes = vec![fix.clone()];
    }
}

/// Where the comment behind the brace at `end`, and its line, are over.
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
