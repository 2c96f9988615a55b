//! Renders diagnostics: with source excerpts (ariadne), one line each, as JSON lines, as a SARIF log, or as annotations of GitHub.

mod excerpt;
mod github;
mod visible;

use crate::{
    InvalidOption, Named, codes::Severity, diagnostic::Diagnostic, files::TextFiles, raw_bytes, sarif::Log,
    span::LineIndex, suggest::count_text,
};
use std::{collections::HashMap, fmt, io, ops::Range, str::FromStr};

use ariadne::{Cache, Color, Config, IndexType, Label, Report, ReportKind, Source};

use self::excerpt::{Excerpt, excerpts};
pub use self::github::github_error;
pub use self::visible::{visible_name, visible_text};

/// How diagnostics with source excerpts look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Whether to use colors.
    pub color: bool,
    /// The number of columns; longer source lines are cut.
    pub width: usize,
}

impl Default for Style {
    fn default() -> Self {
        Self { color: false, width: DEFAULT_WIDTH }
    }
}

/// The number of columns if the output is not a terminal.
const DEFAULT_WIDTH: usize = 100;

crate::named_enum! {
    /// The output format of diagnostics.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub enum Format {
        /// With excerpts of the source text.
        #[default]
        Human = "human",
        /// `file:line:column: error[E0102]: message`.
        Short = "short",
        /// One JSON object per line.
        Json = "json",
        /// A SARIF log.
        Sarif = "sarif",
        /// Workflow commands of GitHub Actions, which become annotations.
        Github = "github",
    }
}

impl FromStr for Format {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let expected = "expected human, short, json, sarif or github";
        let unknown = || format!("`{text}` is not an error format: {expected}").into();
        Self::of_name(text).ok_or_else(unknown)
    }
}

/// Writes all diagnostics about `source`, which was read from `file`.
///
/// A SARIF log is written as a complete document; use `sarif::Log` to combine the diagnostics of several
/// texts.
///
/// # Errors
/// Returns the first error of `out`.
pub fn render(
    diagnostics: &[Diagnostic],
    file: &str,
    source: &str,
    format: Format,
    style: Style,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    if let Some((diagnostics, source)) = raw_bytes::in_file(diagnostics, source) {
        return render(&diagnostics, file, &source, format, style, out);
    }
    if format == Format::Sarif {
        let mut log = Log::new();
        log.add(diagnostics, file, source);
        return out.write_all(log.text("hir", env!("CARGO_PKG_VERSION"), None).as_bytes());
    }
    let lines = LineIndex::new(source);
    let files = &TextFiles::new(file, source, &lines);
    let shown = if format == Format::Human { diagnostics.len().min(MAX_DRAWN) } else { diagnostics.len() };
    let (shown, more) = diagnostics.split_at(shown);
    shown.iter().try_for_each(|it| match format {
        Format::Human => render_human(it, files, (source, &lines), style, out),
        Format::Short => render_short(it, files, &lines, out),
        Format::Json | Format::Sarif => render_json(it, files, &lines, out),
        Format::Github => github::render_github(it, files, &lines, out),
    })?;
    if !more.is_empty() {
        writeln!(out, "{} more: `--error-format=short` shows all of them", more.len())?;
    }
    let remedies = diagnostics.iter().filter_map(|it| it.remedy.as_ref());
    match format {
        Format::Human | Format::Short => remedies
            .into_iter()
            .try_for_each(|it| writeln!(out, "add to the command line: {}", visible_text(it))),
        Format::Json | Format::Sarif | Format::Github => Ok(()),
    }
}

/// Maximum number of diagnostics that are printed with source excerpts.
const MAX_DRAWN: usize = 100;

fn render_human(
    it: &Diagnostic,
    files: &TextFiles<'_>,
    (source, lines): (&str, &LineIndex),
    style: Style,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let (kind, paint) = match it.severity() {
        Severity::Error => (ReportKind::Error, Color::Red),
        Severity::Warning => (ReportKind::Warning, Color::Yellow),
        Severity::Remark => (ReportKind::Custom("Remark", Color::Cyan), Color::Cyan),
    };
    let excerpts = excerpts(&it.labels, (source, lines, files), style.width);
    // With byte indices, ariadne 0.6 takes the position of a second excerpt, which it has in characters, for
    // one in bytes, and slices inside of a character.
    let chars = |text: &str, range: &Range<usize>| {
        let count = |end: usize| text.get(..end).unwrap_or(text).chars().count();
        count(range.start)..count(range.end)
    };
    let main = excerpts.iter().find_map(|excerpt| {
        let label = excerpt.labels.iter().find(|it| it.is_main)?;
        Some(chars(&excerpt.text, &label.range))
    });
    let config = Config::default().with_color(style.color).with_index_type(IndexType::Char);
    let mut report = Report::build(kind, (0, main.unwrap_or(0..0)))
        .with_config(config)
        .with_code(it.code.text())
        .with_message(visible_text(&it.message));
    for (at, excerpt) in excerpts.iter().enumerate() {
        for label in &excerpt.labels {
            let paint = if label.is_main { paint } else { Color::Blue };
            let place: (usize, Range<usize>) = (at, chars(&excerpt.text, &label.range));
            let message = visible_text(label.message);
            report = report.with_label(Label::new(place).with_message(message).with_color(paint));
        }
    }
    for note in &it.notes {
        report.add_note(visible_text(note));
    }
    if let Some(help) = &it.help {
        report = report.with_help(visible_text(help));
    }
    let mut text = Vec::new();
    report.finish().write(Excerpts::new(&excerpts), &mut text)?;
    // ariadne colours a custom report kind even if colours are disabled.
    let text = if style.color { text } else { without_colors(&text) };
    out.write_all(with_places(&String::from_utf8_lossy(&text), &excerpts).as_bytes())?;
    if excerpts.is_empty() {
        // ariadne writes them into the frame of the last excerpt.
        it.help.iter().try_for_each(|help| writeln!(out, "  Help: {}", visible_text(help)))?;
        it.notes.iter().try_for_each(|note| writeln!(out, "  Note: {}", visible_text(note)))?;
    }
    Ok(())
}

/// The sources of a report, by the index of their excerpts.
struct Excerpts<'e> {
    sources: HashMap<usize, Source<&'e str>>,
}

impl<'e> Excerpts<'e> {
    fn new(excerpts: &'e [Excerpt<'_>]) -> Self {
        let sources = excerpts.iter().map(|it| Source::from(it.text.as_str())).enumerate();
        Self { sources: sources.collect() }
    }
}

impl<'e> Cache<usize> for Excerpts<'e> {
    type Storage = &'e str;

    fn fetch(&mut self, id: &usize) -> Result<&Source<&'e str>, impl fmt::Debug> {
        self.sources.get(id).ok_or("no such excerpt")
    }

    fn display<'a>(&self, id: &'a usize) -> Option<impl fmt::Display + 'a> {
        Some(placeholder(*id))
    }
}

/// Returns the text that stands for the file name of an excerpt until `with_places` replaces it.
fn placeholder(excerpt: usize) -> String {
    format!("\u{1}{excerpt}\u{1}")
}

/// Replaces the positions in the headers of excerpts by positions in the file: the columns of an excerpt are
/// not those of the file.
fn with_places(text: &str, excerpts: &[Excerpt<'_>]) -> String {
    let mut res = String::with_capacity(text.len());
    let mut rest = text;
    for (at, Excerpt { file, place: (line, column), .. }) in excerpts.iter().enumerate() {
        let mark = placeholder(at);
        let Some((before, behind)) = rest.split_once(&mark) else { continue };
        let position = |it: char| it == ':' || it == '?' || it.is_ascii_digit();
        res.push_str(before);
        res.push_str(&format!("{}:{line}:{column}", visible_name(file)));
        rest = behind.trim_start_matches(position);
    }
    res.push_str(rest);
    res
}

/// Removes the escape sequences of colours.
fn without_colors(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let sequence = rest.strip_prefix(b"[").filter(|_| *byte == 0x1b).and_then(|it| {
            let end = it.iter().position(|it| !it.is_ascii_digit() && *it != b';')?;
            (it[end] == b'm').then(|| &it[end + 1..])
        });
        match sequence {
            Some(behind) => rest = behind,
            None => plain.push(*byte),
        }
    }
    plain
}

fn render_short(
    it: &Diagnostic,
    files: &TextFiles<'_>,
    lines: &LineIndex,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let ((file, line), column) = (files.place_of(it.span(), lines), lines.column(it.span().start));
    let place = match (it.labels.is_empty(), file) {
        (false, _) => format!("{}:{line}:{column}: ", visible_name(file)),
        (true, "") => String::new(),
        (true, _) => format!("{}: ", visible_name(file)),
    };
    let alike = match it.alike {
        0 => String::new(),
        count => format!(" (and {} of this kind)", count_text(count as usize, "more error")),
    };
    writeln!(out, "{place}{}[{}]: {}{alike}", it.severity().name(), it.code.text(), visible_text(&it.message))
}

/// Returns the JSON object of a message that does not refer to a place in a text, but possibly to a file. It has the keys of a
/// diagnostic.
pub fn json_message(tool: &str, file: Option<&str>, message: &str, is_error: bool) -> String {
    let severity = (if is_error { Severity::Error } else { Severity::Remark }).name();
    let value = serde_json::json!({
        "tool": tool,
        "file": file,
        "severity": severity,
        "code": null,
        "message": message,
        "labels": [],
        "notes": [],
        "help": null,
        "fixes": [],
    });
    value.to_string()
}

fn render_json(
    it: &Diagnostic,
    files: &TextFiles<'_>,
    lines: &LineIndex,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let (file, _) = files.place_of(it.span(), lines);
    let label = |(span, text): &(crate::span::Span, String)| {
        let (own_file, line) = files.place_of(*span, lines);
        let begin = files.begin_of(*span, lines);
        let mut value = serde_json::json!({
            "line": line,
            "column": lines.column(span.start),
            "start": span.start - begin,
            "end": span.end - begin,
            "text": text,
        });
        if let Some(object) = value.as_object_mut().filter(|_| own_file != file) {
            object.insert("file".to_owned(), serde_json::json!(own_file));
        }
        value
    };
    let edit = |fix: &crate::diagnostic::Fix| serde_json::json!({ "start": fix.span.start, "end": fix.span.end, "text": fix.text });
    let mut value = serde_json::json!({
        "file": (!file.is_empty()).then_some(file),
        "severity": it.severity().name(),
        "code": it.code.text(),
        "message": it.message,
        "labels": it.labels.iter().map(label).collect::<Vec<_>>(),
        "notes": it.notes,
        "help": it.help,
        "fixes": it.fixes.iter().map(edit).collect::<Vec<_>>(),
    });
    if let (Some(remedy), Some(object)) = (&it.remedy, value.as_object_mut()) {
        object.insert("remedy".to_owned(), serde_json::json!(remedy));
    }
    writeln!(out, "{value}")
}
