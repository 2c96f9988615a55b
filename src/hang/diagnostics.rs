//! Turns a finding into a diagnostic of hir, on the text of the program.
//!
//! The text is that of the file if it is at hand: under the name that Python knows it by, or beside the dumps. Else the line of a call shows what the record holds of it.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use grammar::{codes::Code, diagnostic::Diagnostic, source::Source, span::Span};

use crate::{
    explain::{Finding, Label},
    files::Skipped,
};

/// The largest program file that is read, and the largest line number for which a text is made.
const MAX_PROGRAM: u64 = 4 << 20;
const MAX_LINE: u32 = 200_000;

/// Returns the diagnostic of a finding with its source. `folders` are those of the dumps.
pub fn diagnostic(finding: &Finding, folders: &[PathBuf]) -> (Source, Diagnostic) {
    let file = finding.labels.iter().find_map(|it| Some(it.site.as_ref()?.file.clone()));
    let here = |label: &&Label| {
        label.site.as_ref().is_some_and(|it| Some(&it.file) == file.as_ref() && it.line <= MAX_LINE)
    };
    let (here, elsewhere): (Vec<&Label>, Vec<&Label>) = finding.labels.iter().partition(here);
    let line = |label: &Label| label.site.as_ref().map_or(1, |it| it.line.max(1));
    let last = here.iter().map(|it| line(it)).max().unwrap_or(1);
    let text = file.as_ref().and_then(|it| program(it, folders));
    // The file may be another one by now.
    let is_right = |text: &String| {
        here.iter().all(|it| text.lines().nth(line(it) as usize - 1).is_some_and(|it| !it.trim().is_empty()))
    };
    let text = text.filter(is_right).unwrap_or_else(|| {
        let mut lines = vec![String::new(); last as usize];
        for label in here.iter().rev() {
            lines[line(label) as usize - 1] = label.call.clone();
        }
        if here.is_empty() {
            lines[0] = finding.labels.first().map(|it| it.call.clone()).unwrap_or_else(|| "dumps".to_owned());
        }
        lines.join("\n")
    });
    let source = Source::new(file.unwrap_or_else(|| "<no stacks>".to_owned()), text);
    let span = |label: &Label| source.line_span(line(label)).unwrap_or_default();
    let mut labels: Vec<(Span, String)> = here.iter().map(|it| (span(it), it.text.clone())).collect();
    let mut notes: Vec<String> = Vec::new();
    if labels.is_empty() {
        let whole = source.line_span(1).unwrap_or_default();
        labels.push((whole, finding.labels.first().map(|it| it.text.clone()).unwrap_or_default()));
        notes.extend(elsewhere.iter().skip(1).map(|it| it.text.clone()));
    } else {
        notes.extend(elsewhere.iter().map(|it| match &it.site {
            Some(site) => format!("{}:{}: {}", site.file, site.line, it.text),
            None => it.text.clone(),
        }));
    }
    notes.extend(finding.notes.iter().cloned());
    let mut found = Diagnostic::new(finding.code, Span::default(), finding.message.clone(), "");
    found.labels = labels;
    found.notes = notes;
    let found = if finding.help.is_empty() { found } else { found.help(finding.help.clone()) };
    (source, found)
}

/// Returns the warning about a dump that cannot be read.
pub fn unreadable(skipped: &Skipped) -> (Source, Diagnostic) {
    let source = Source::new(skipped.file.clone(), "dump".to_owned());
    let message = format!("the dump of rank {} cannot be read: {}", skipped.rank, skipped.why);
    let found = Diagnostic::new(
        Code::UnreadableDump,
        Span::new(0, 4),
        message,
        "this rank counts as one without a dump",
    );
    (source, found)
}

/// Reads a program file: only a Python file of a usual size.
fn program(file: &str, folders: &[PathBuf]) -> Option<String> {
    let path = Path::new(file);
    if path.extension().is_none_or(|it| it != "py") {
        return None;
    }
    let beside = folders.iter().flat_map(|it| [it.join(path), it.join("..").join(path)]);
    let places = std::iter::once(path.to_owned()).chain(beside.filter(|_| path.is_relative()));
    let found = places
        .into_iter()
        .find(|it| fs::metadata(it).is_ok_and(|it| it.is_file() && it.len() <= MAX_PROGRAM))?;
    let mut text = String::new();
    fs::File::open(found).ok()?.take(MAX_PROGRAM).read_to_string(&mut text).ok()?;
    Some(text)
}
