//! Turns a finding into a diagnostic of hir, on the text of the program.
//!
//! The text is that of the file if it is at hand: under the name that Python knows it by, or beside the dumps. Else the line of a call shows what the
//! record holds of it. Without stacks there is no file, and the diagnostic has no place.

use std::{
    cmp::Reverse,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use grammar::{codes::Code, diagnostic::Diagnostic, source::Source};

use crate::{
    dumps::{Dumps, Skipped, is_program},
    explain::{Finding, Label},
};

/// The largest program file that is read, and the largest line number for which a text is made.
const MAX_PROGRAM: u64 = 4 << 20;
const MAX_LINE: u32 = 200_000;

/// Returns the diagnostic of a finding with its source.
pub fn diagnostic(finding: &Finding, dumps: &Dumps) -> (Source, Diagnostic) {
    let file = finding.labels.iter().find_map(|it| Some(it.site.as_ref()?.file.clone()));
    let Some(file) = file else {
        let mut found = Diagnostic::without_place(finding.code, finding.message.clone());
        found.notes = finding.labels.iter().map(note).chain(finding.notes.iter().cloned()).collect();
        return (Source::new(String::new(), String::new()), with_help(found, finding));
    };
    let here = |label: &&Label| label.site.as_ref().is_some_and(|it| it.file == file && it.line <= MAX_LINE);
    let (here, elsewhere): (Vec<&Label>, Vec<&Label>) = finding.labels.iter().partition(here);
    let line = |label: &Label| label.site.as_ref().map_or(1, |it| it.line.max(1));
    let last = here.iter().map(|it| line(it)).max().unwrap_or(1);
    let text = program(&file, dumps);
    // The file may be another one by now.
    let is_right = |text: &String| {
        here.iter().all(|it| text.lines().nth(line(it) as usize - 1).is_some_and(|it| !it.trim().is_empty()))
    };
    let text = text.filter(is_right).unwrap_or_else(|| {
        let mut lines = vec![String::new(); last as usize];
        for label in here.iter().rev() {
            lines[line(label) as usize - 1] = label.call.clone();
        }
        lines.join("\n")
    });
    let source = Source::new(file, text);
    let span = |label: &Label| source.line_span(line(label)).unwrap_or_default();
    let labels = here.iter().map(|it| (span(it), it.text.clone())).collect();
    let mut found = Diagnostic::without_place(finding.code, finding.message.clone());
    found.labels = labels;
    found.notes = elsewhere.into_iter().map(note).chain(finding.notes.iter().cloned()).collect();
    (source, with_help(found, finding))
}

fn with_help(found: Diagnostic, finding: &Finding) -> Diagnostic {
    if finding.help.is_empty() { found } else { found.help(finding.help.clone()) }
}

/// Returns the note that says what the label of a call in another file, or without a place, says.
fn note(label: &Label) -> String {
    match &label.site {
        Some(site) => format!("{}:{}: {}", site.file, site.line, label.text),
        None if label.text.contains(&label.call) => label.text.clone(),
        None => format!("{}: {}", label.call, label.text),
    }
}

/// Returns the warning about a dump that cannot be read.
pub fn unreadable(skipped: &Skipped) -> (Source, Diagnostic) {
    let message = format!(
        "`{}`, the dump of rank {}, cannot be read, so that this rank counts as one without a dump: {}",
        skipped.file, skipped.rank, skipped.why
    );
    let source = Source::new(skipped.file.clone(), String::new());
    (source, Diagnostic::without_place(Code::UnreadableDump, message))
}

/// Returns the text of a program file, of those in memory the one whose path has the most folders in common, or reads it: only a Python
/// file of a usual size.
fn program(file: &str, dumps: &Dumps) -> Option<String> {
    let path = Path::new(file);
    if !is_program(path) {
        return None;
    }
    let alike = |it: &Path| it.iter().rev().zip(path.iter().rev()).take_while(|it| it.0 == it.1).count();
    // Of equal ones, the one in the outermost folder.
    let known = dumps.sources.iter().max_by_key(|it| (alike(&it.0), Reverse(it.0.iter().count())));
    let known = known.filter(|it| alike(&it.0) > 0);
    if let Some((_, text)) = known {
        return Some(text.clone());
    }
    // Dumps have absolute paths of another machine: of their ends, the longest that is there.
    let parts: Vec<_> = path.iter().collect();
    let ends: Vec<PathBuf> =
        (1..parts.len().max(2)).map(|it| parts[it.min(parts.len() - 1)..].iter().collect()).collect();
    let names = if path.is_absolute() { ends } else { vec![path.to_owned()] };
    let beside = dumps.folders.iter().flat_map(|folder| {
        names.iter().map(|it| folder.join(it)).chain(names.iter().map(|it| folder.join("..").join(it)))
    });
    let places = std::iter::once(path.to_owned()).chain(beside);
    let found = places
        .into_iter()
        .find(|it| fs::metadata(it).is_ok_and(|it| it.is_file() && it.len() <= MAX_PROGRAM))?;
    let mut text = String::new();
    fs::File::open(found).ok()?.take(MAX_PROGRAM).read_to_string(&mut text).ok()?;
    Some(text)
}
