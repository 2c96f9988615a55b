//! Renders diagnostics: with source excerpts (ariadne), one line each, as JSON lines, or as a SARIF log.

use std::{io, ops::Range, str::FromStr};

use ariadne::{Color, Config, IndexType, Label, Report, ReportKind, Source};

use crate::{codes::Severity, diagnostic::Diagnostic, sarif::Log, span::LineIndex};

/// The output format of diagnostics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// With excerpts of the source text.
    #[default]
    Human,
    /// `file:line:column: error[E0102]: message`.
    Short,
    /// One JSON object per line.
    Json,
    /// A SARIF log.
    Sarif,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "human" => Ok(Self::Human),
            "short" => Ok(Self::Short),
            "json" => Ok(Self::Json),
            "sarif" => Ok(Self::Sarif),
            _ => Err(format!("`{text}` is not an error format: expected human, short, json or sarif")),
        }
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
    color: bool,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    if format == Format::Sarif {
        let mut log = Log::new();
        log.add(diagnostics, file, source);
        return out.write_all(log.text("hir", env!("CARGO_PKG_VERSION"), None).as_bytes());
    }
    let lines = LineIndex::new(source);
    let text = Source::from(if format == Format::Human { source } else { "" });
    let shown = if format == Format::Human { diagnostics.len().min(MAX_DRAWN) } else { diagnostics.len() };
    let (shown, more) = diagnostics.split_at(shown);
    shown.iter().try_for_each(|it| match format {
        Format::Human if lines.line_width(it.span().start, source.len()) > MAX_LINE_WIDTH => {
            render_short(it, file, &lines, out)
        }
        Format::Human => render_human(it, file, (&text, &lines), color, out),
        Format::Short => render_short(it, file, &lines, out),
        Format::Json | Format::Sarif => render_json(it, file, &lines, out),
    })?;
    if !more.is_empty() {
        writeln!(out, "{} more: `--error-format=short` shows all of them", more.len())?;
    }
    let remedies = diagnostics.iter().filter_map(|it| it.remedy.as_ref());
    match format {
        Format::Human | Format::Short => {
            remedies.into_iter().try_for_each(|it| writeln!(out, "add to the command line: {it}"))
        }
        Format::Json | Format::Sarif => Ok(()),
    }
}

/// Maximum number of diagnostics that are printed with source excerpts.
const MAX_DRAWN: usize = 100;
/// Maximum length in bytes of a source line that is printed.
const MAX_LINE_WIDTH: u32 = 16 << 10;

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Remark => "remark",
    }
}

fn render_human(
    it: &Diagnostic,
    file: &str,
    (source, lines): (&Source<&str>, &LineIndex),
    color: bool,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let (kind, paint) = match it.severity() {
        Severity::Error => (ReportKind::Error, Color::Red),
        Severity::Warning => (ReportKind::Warning, Color::Yellow),
        Severity::Remark => (ReportKind::Custom("Remark", Color::Cyan), Color::Cyan),
    };
    let place = |span: crate::span::Span| (file.to_owned(), underlined_range(source.text(), span));
    let config = Config::default().with_color(color).with_index_type(IndexType::Byte);
    let mut report = Report::build(kind, place(it.span()))
        .with_config(config)
        .with_code(it.code.text())
        .with_message(&it.message);
    // ariadne repeats the header of the file for labels that are not in line order.
    let mut labels: Vec<_> =
        it.labels.iter().zip(std::iter::once(paint).chain(std::iter::repeat(Color::Blue))).collect();
    labels.sort_by_key(|((span, _), _)| lines.line(span.start));
    for ((span, label), paint) in labels {
        report = report.with_label(Label::new(place(*span)).with_message(label).with_color(paint));
    }
    for note in &it.notes {
        report.add_note(note);
    }
    if let Some(help) = &it.help {
        report = report.with_help(help);
    }
    let report = report.finish();
    if color {
        return report.write((file.to_owned(), source), out);
    }
    // ariadne colours a custom report kind even if colours are disabled.
    let mut text = Vec::new();
    report.write((file.to_owned(), source), &mut text)?;
    out.write_all(&without_colors(&text))
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

/// Returns the part of a span to underline: its first line, truncated so that the label stays visible.
///
/// Statements spell tensors in full and can be hundreds of columns wide.
fn underlined_range(source: &str, span: crate::span::Span) -> Range<usize> {
    const WIDEST: usize = 60;
    // The range must begin and end at character boundaries.
    let whole =
        |at: u32| (0..=(at as usize).min(source.len())).rfind(|it| source.is_char_boundary(*it)).unwrap_or(0);
    let (start, end) = (whole(span.start.min(span.end)), whole(span.end));
    let text = source.get(start..end).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default().trim_end();
    let width = line.char_indices().nth(WIDEST).map_or(line.len(), |(at, _)| at);
    start..start + width
}

fn render_short(it: &Diagnostic, file: &str, lines: &LineIndex, out: &mut dyn io::Write) -> io::Result<()> {
    let at = it.span().start;
    let (line, column) = (lines.line(at), lines.column(at));
    writeln!(
        out,
        "{file}:{line}:{column}: {}[{}]: {}",
        severity_name(it.severity()),
        it.code.text(),
        it.message
    )
}

fn render_json(it: &Diagnostic, file: &str, lines: &LineIndex, out: &mut dyn io::Write) -> io::Result<()> {
    let label = |(span, text): &(crate::span::Span, String)| {
        serde_json::json!({
            "line": lines.line(span.start),
            "column": lines.column(span.start),
            "start": span.start,
            "end": span.end,
            "text": text,
        })
    };
    let edit = |fix: &crate::diagnostic::Fix| serde_json::json!({ "start": fix.span.start, "end": fix.span.end, "text": fix.text });
    let mut value = serde_json::json!({
        "file": file,
        "severity": severity_name(it.severity()),
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
