//! Diagnostics as workflow commands of GitHub Actions, which become annotations of a commit:
//! `::error file=a.hir,line=3,col=5,endColumn=9,title=E0701::message`.
//!
//! The format is that of "Workflow commands for GitHub Actions": data escapes `%` and ends of lines, properties also `:` and `,`.

use std::io;

use super::visible_text;
use crate::{codes::Severity, diagnostic::Diagnostic, files::TextFiles, span::LineIndex};

/// Writes a diagnostic as one command. The related places, the notes and the help are lines of its message.
pub(super) fn render_github(
    it: &Diagnostic,
    files: &TextFiles<'_>,
    lines: &LineIndex,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let span = it.span();
    let (file, line) = files.place_of(span, lines);
    let mut message = visible_text(&it.message).into_owned();
    for (at, (span, label)) in it.labels.iter().enumerate().filter(|it| !it.1.1.is_empty()) {
        let (own_file, line) = files.place_of(*span, lines);
        message += &match (at, own_file == file) {
            (0, _) => format!("\n{label}"),
            (_, true) => format!("\nline {line}: {label}"),
            (_, false) => format!("\n{own_file}, line {line}: {label}"),
        };
    }
    it.help.iter().for_each(|help| message += &format!("\nhelp: {help}"));
    it.notes.iter().for_each(|note| message += &format!("\nnote: {note}"));
    it.remedy.iter().for_each(|flags| message += &format!("\nadd to the command line: {flags}"));
    let column = lines.column(span.start);
    // An end has to be on the same line.
    let end = if lines.line(span.end) == lines.line(span.start) && span.end > span.start {
        format!(",endColumn={}", lines.column(span.end))
    } else {
        String::new()
    };
    let name = property(&visible_text(file));
    let place = match (it.labels.is_empty(), file) {
        (false, _) => format!("file={name},line={line},col={column}{end},"),
        (true, "") => String::new(),
        (true, _) => format!("file={name},"),
    };
    writeln!(out, "::{} {place}title={}::{}", command(it.severity()), it.code.text(), data(&message))
}

/// Returns the command of an error that does not refer to a place in a text, but possibly to a file.
pub fn github_error(tool: &str, file: Option<&str>, message: &str) -> String {
    let file = file.map_or(String::new(), |it| format!("file={},", property(it)));
    format!("::error {file}title={}::{}", property(tool), data(&visible_text(message)))
}

fn command(severity: Severity) -> &'static str {
    if severity == Severity::Remark { "notice" } else { severity.name() }
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
