//! Applies the edits of diagnostics: corrects errors that have a unique correction, and states inferred facts
//! explicitly.
//!
//! Invariant: a text without inferred facts is returned unchanged, byte by byte.

use std::borrow::Cow;

use rustc_hash::FxHashSet;

use crate::{
    diagnostic::{Diagnostic, Fix, has_errors},
    dump_cleanup::{self, CleanedText, container_start},
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
    if pasted || diagnostics.iter().any(|it| !it.fixes.is_empty()) {
        Cow::Owned(apply(&clean, &diagnostics))
    } else {
        Cow::Borrowed(source)
    }
}

fn apply(clean: &CleanedText<'_>, diagnostics: &[Diagnostic]) -> String {
    let unread = lines_of_other_ranks(clean);
    edited(&clean.text, diagnostics.iter().flat_map(|it| &it.fixes).chain(&unread))
}

/// Returns a text with edits. Of edits that overlap, the first one is made.
pub fn edited<'f>(text: &str, fixes: impl IntoIterator<Item = &'f Fix>) -> String {
    let mut fixes: Vec<&Fix> = fixes.into_iter().collect();
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
    let tagged = clean.ranks.iter().zip(ends).filter(|((_, rank), _)| *rank != 0);
    let pieces: Vec<(usize, Span)> =
        tagged.map(|((start, rank), end)| (*rank, Span::new(*start as usize, end as usize))).collect();
    let has_container = |it: &Span| {
        let piece = clean.text.get(it.start as usize..it.end as usize).unwrap_or("");
        piece.lines().any(|line| container_start(line).is_some())
    };
    let read: FxHashSet<usize> = pieces.iter().filter(|it| has_container(&it.1)).map(|it| it.0).collect();
    if read.is_empty() {
        return Vec::new();
    }
    let unread = pieces.into_iter().filter(|(rank, _)| !read.contains(rank));
    unread.map(|(_, span)| Fix { span, text: String::new() }).collect()
}
