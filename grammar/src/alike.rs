//! Summarises errors that are alike: one mistake, such as a wrong mesh or a misspelled operator, often occurs in
//! many statements.
//!
//! Invariant: the first error of a text stays as it is, and no error is left out without a note.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::{
    codes::Code,
    diagnostic::{Diagnostic, Fix},
    span::LineIndex,
    suggest::{count_text, list_text},
};

/// Maximum number of errors that are reported one by one.
const MAX_ERRORS: usize = 3;

/// Maximum number of lines that a note names.
const MAX_LINES: usize = 8;

/// Of many errors, keeps the first one of each kind, with a note that names the lines of the others. Errors are
/// of one kind if they differ only in numbers.
pub fn summarise(diagnostics: &mut Vec<Diagnostic>, source: &str) {
    if diagnostics.iter().filter(|it| it.is_error()).count() <= MAX_ERRORS {
        return;
    }
    let lines = LineIndex::new(source);
    let mut kinds: FxHashMap<(Code, String), Kind> = FxHashMap::default();
    let mut kept = 0;
    diagnostics.retain_mut(|it| {
        if it.is_error() {
            match kinds.entry(kind(it)) {
                Entry::Occupied(known) => {
                    let known = known.into_mut();
                    known.count += 1;
                    known.lines.push(lines.line(it.span().start));
                    known.fixes.append(&mut it.fixes);
                    return false;
                }
                Entry::Vacant(new) => drop(new.insert(Kind { first: kept, ..Kind::default() })),
            }
        }
        kept += 1;
        true
    });
    for kind in kinds.into_values().filter(|it| it.count > 0) {
        if let Some(first) = diagnostics.get_mut(kind.first) {
            first.alike = u32::try_from(kind.count).unwrap_or(u32::MAX);
            first.notes.push(note(kind.count, kind.lines));
            first.fixes.extend(kind.fixes);
        }
    }
}

/// The errors of one kind.
#[derive(Default)]
struct Kind {
    /// The index of the first one.
    first: usize,
    /// The number of the others, and their lines and edits.
    count: usize,
    lines: Vec<u32>,
    fixes: Vec<Fix>,
}

/// Returns what errors of one kind have in common. The help for a name that a statement determines is a line to paste, a
/// different one for each name, and that for a syntax error is for its line, so these errors are not alike.
fn kind(it: &Diagnostic) -> (Code, String) {
    let help = it.help.as_deref().filter(|help| match it.code {
        Code::UnknownTensor => help.contains(": `%tensor"),
        it => matches!(it, Code::Syntax | Code::BadToken),
    });
    (it.code, shape(&it.message) + help.unwrap_or_default())
}

/// Returns a message with `#` for each number.
fn shape(message: &str) -> String {
    let mut shape = String::with_capacity(message.len());
    for letter in message.chars() {
        if !letter.is_ascii_digit() {
            shape.push(letter);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

fn note(count: usize, mut lines: Vec<u32>) -> String {
    lines.dedup();
    let names: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let names = list_text(names.iter().map(String::as_str), MAX_LINES, "and");
    let (errors, line) = (count_text(count, "more error"), if lines.len() == 1 { "line" } else { "lines" });
    format!("{errors} of this kind: {line} {names}")
}
