//! Writes down what reading guessed, and corrects what has one correction: applies the edits that diagnostics carry.
//!
//! Invariant: a text that nothing was guessed about stays as it is, to the byte.

use std::borrow::Cow;

use crate::{
    codes::Severity,
    diagnostic::{Diagnostic, Fix, has_errors},
    dump_cleanup,
    read::read_clean,
};

/// The text with the edits of all its diagnostics. The traces of pasting (prefixes, logs, broken lines) are gone from a
/// text that is edited or was wrapped; everything else, layout included, stays.
pub fn fix(source: &str) -> Cow<'_, str> {
    fix_rounds(source, MAX_ROUNDS)
}

/// An error can hide others: so many times a text is read again, without those that have an edit.
const MAX_ROUNDS: usize = 16;

/// Whether a text is rejected for errors that all have an edit, or not at all.
pub fn is_fixable(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|it| it.severity() != Severity::Error || !it.fixes.is_empty())
}

fn fix_rounds(source: &str, rounds: usize) -> Cow<'_, str> {
    let clean = dump_cleanup::clean(source);
    let (_, mut diagnostics) = read_clean(&clean.text);
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
