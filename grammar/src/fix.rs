//! Writes down what reading guessed, and corrects what has one correction: applies the edits that diagnostics carry.
//!
//! Invariant: a text that nothing was guessed about stays as it is, to the byte.

use std::borrow::Cow;

use crate::{
    codes::Severity,
    diagnostic::{Diagnostic, Fix, has_errors},
    ir::Program,
    layout, paste,
    span::Span,
};

/// The text with the edits of all its diagnostics. The traces of pasting (prefixes, logs, broken lines) are gone from a
/// text that is edited or was wrapped; everything else, layout included, stays.
pub fn fix(source: &str) -> Cow<'_, str> {
    fix_rounds(source, ROUNDS)
}

/// An error can hide others: so many times a text is read again, without those that have an edit.
const ROUNDS: usize = 16;

/// Whether a text is rejected for errors that all have an edit, or not at all.
pub fn is_fixable(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|it| it.severity() != Severity::Error || !it.fixes.is_empty())
}

fn fix_rounds(source: &str, rounds: usize) -> Cow<'_, str> {
    let clean = paste::clean(source);
    let (_, mut diagnostics) = crate::read_clean(&clean.text);
    if rounds > 0 && has_errors(&diagnostics) && is_fixable(&diagnostics) {
        // What is guessed about a text with errors need not be what is guessed about the right one.
        diagnostics.retain(|it| it.severity() == Severity::Error);
        return Cow::Owned(fix_rounds(&apply(&clean.text, &diagnostics), rounds - 1).into_owned());
    }
    let pasted = !clean.diagnostics.is_empty();
    match diagnostics.iter().all(|it| it.fixes.is_empty()) {
        true if pasted => Cow::Owned(clean.text.into_owned()),
        true => Cow::Borrowed(source),
        false => Cow::Owned(apply(&clean.text, &diagnostics)),
    }
}

fn apply(text: &str, diagnostics: &[Diagnostic]) -> String {
    let mut fixes: Vec<&Fix> = diagnostics.iter().flat_map(|it| &it.fixes).collect();
    fixes.sort_by_key(|it| it.span);
    let mut fixed = String::with_capacity(text.len());
    let mut done = 0;
    let mut before: Option<&Fix> = None;
    for fix in fixes {
        let start = fix.span.start as usize;
        // Several guesses can have one answer.
        if start < done || before == Some(fix) {
            continue;
        }
        fixed.push_str(text.get(done..start).unwrap_or(""));
        fixed.push_str(&fix.text);
        (done, before) = (fix.span.end as usize, Some(fix));
    }
    fixed.push_str(text.get(done..).unwrap_or(""));
    fixed
}

/// An edit that puts a line in before the one at `at`, which it shares where something else stands before.
pub(crate) fn line_before(source: &str, at: u32, line: &str) -> Fix {
    let begins = source.get(..at as usize).is_none_or(|it| it.is_empty() || it.ends_with('\n'));
    let newline = if begins { "" } else { "\n" };
    Fix { span: Span { start: at, end: at }, text: format!("{newline}{line}\n") }
}

/// An edit that puts a section in behind the container that ends at `end`.
pub(crate) fn section_after(source: &str, end: u32, section: &str) -> Fix {
    let at = behind_closer(source, end) as usize;
    let newline = if source.get(..at).is_some_and(|it| it.ends_with('\n')) { "" } else { "\n" };
    // A blank line ends the section where anything follows.
    let blank = if source.len() > at { "\n" } else { "" };
    Fix { span: Span::new(at, at), text: format!("{newline}{section}{blank}") }
}

/// Makes the canonical text the one edit of all guesses of the container at `place`, unless it has errors: what those
/// hide would be lost.
pub(crate) fn write_anew(source: &str, place: Span, program: &Program, mut own: Vec<&mut Diagnostic>) {
    if own.iter().any(|it| it.severity() == Severity::Error) {
        return;
    }
    let end = behind_closer(source, place.end);
    let fix = Fix { span: Span { end, ..place }, text: crate::print(program) };
    for it in own.iter_mut().filter(|it| it.code.text().starts_with("lossy")) {
        it.fixes = vec![fix.clone()];
    }
}

/// Where the comment behind the brace at `end`, and its line, are over.
fn behind_closer(source: &str, end: u32) -> u32 {
    let rest = source.get(end as usize..).unwrap_or("");
    let comment = rest.trim_start_matches([' ', '\t']);
    let blanks = rest.len() - comment.len();
    let length = match comment.strip_prefix("\r\n").or_else(|| comment.strip_prefix('\n')) {
        Some(behind) => rest.len() - behind.len(),
        None if comment.starts_with("//") => blanks + layout::comment(comment),
        None => 0,
    };
    end + length as u32
}
