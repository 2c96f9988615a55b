//! Applies the edits of diagnostics: corrects errors that have a unique correction, and states inferred facts
//! explicitly.
//!
//! Invariant: a text without inferred facts is returned unchanged, byte by byte.

use std::borrow::Cow;

use crate::{
    diagnostic::{Diagnostic, Fix, has_errors},
    dump_cleanup::{self, CleanedText},
    read::read_clean,
    span::Span,
};

/// Returns the text with the edits of all its diagnostics applied.
///
/// If the text is edited or has broken lines, artifacts of pasting (log prefixes, other log output, broken
/// lines) are also removed. Everything else, including the indentation, is unchanged.
pub fn fix(source: &str) -> Cow<'_, str> {
    fix_rounds(source, MAX_ROUNDS)
}

/// Maximum number of rounds of reading and editing: one error can hide others, so an edited text is read
/// again.
const MAX_ROUNDS: usize = 16;

/// Returns whether each error among the diagnostics has an edit.
pub fn is_fixable(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|it| !it.is_error() || !it.fixes.is_empty())
}

fn fix_rounds(source: &str, rounds: usize) -> Cow<'_, str> {
    let clean = dump_cleanup::clean(source);
    let (_, mut diagnostics) = read_clean(&clean.text, &clean.ranks);
    if rounds > 0 && has_errors(&diagnostics) && is_fixable(&diagnostics) {
        // Facts inferred from a text with errors may differ from those inferred from the corrected text.
        diagnostics.retain(Diagnostic::is_error);
        return Cow::Owned(fix_rounds(&apply(&clean, &diagnostics), rounds - 1).into_owned());
    }
    let pasted = !clean.diagnostics.is_empty();
    if diagnostics.iter().any(|it| !it.fixes.is_empty()) {
        Cow::Owned(apply(&clean, &diagnostics))
    } else if pasted {
        Cow::Owned(apply(&clean, &[]))
    } else {
        Cow::Borrowed(source)
    }
}

fn apply(clean: &CleanedText<'_>, diagnostics: &[Diagnostic]) -> String {
    let (text, unread) = (&*clean.text, lines_of_other_ranks(clean));
    let mut fixes: Vec<&Fix> = diagnostics.iter().flat_map(|it| &it.fixes).chain(&unread).collect();
    fixes.sort_by_key(|it| it.span);
    let mut fixed = String::with_capacity(text.len());
    let mut done = 0;
    let mut before: Option<&Fix> = None;
    for fix in fixes {
        let start = fix.span.start as usize;
        // Several diagnostics may carry the same edit.
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

/// Returns edits that remove the lines of ranks that printed no container, if another rank printed one. Their fusions are not those of
/// its container, and without the tags nothing says so.
fn lines_of_other_ranks(clean: &CleanedText<'_>) -> Vec<Fix> {
    let ends = clean.ranks.iter().skip(1).map(|it| it.0).chain([clean.text.len() as u32]);
    let parts = clean.ranks.iter().zip(ends).filter(|(it, _)| it.1 != 0);
    let parts = parts.map(|(it, end)| Span::new(it.0 as usize, end as usize));
    let has_container = |it: &Span| {
        clean.text.get(it.start as usize..it.end as usize).is_some_and(|it| it.contains(CONTAINER))
    };
    let (read, unread): (Vec<Span>, Vec<Span>) = parts.partition(has_container);
    if read.is_empty() {
        return Vec::new();
    }
    unread.into_iter().map(|span| Fix { span, text: String::new() }).collect()
}

/// Begins a container.
const CONTAINER: &str = "%HostIrContainer {";
