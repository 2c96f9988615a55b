//! `// RUN:` lines: the commands at the top of a program, with the passes that they name.

use std::fmt::Write;

use grammar::Span;
use lsp_types::{CompletionItem, CompletionItemKind, Documentation, MarkupContent, MarkupKind};
use passes::{Catalog, OptionKind, OptionSpec, Pass, Pipeline};

use crate::snapshot::Snapshot;

/// A place in the list of passes of a RUN line.
struct InPipeline<'t> {
    /// The pass or pipeline in whose braces the place is.
    call: Option<&'t str>,
    /// The text between the last separator and the place.
    before: &'t str,
    /// The whole word at the place, with its position.
    word: &'t str,
    span: Span,
}

/// Returns the place in a list of passes at an offset, if the offset is in one.
fn place(snapshot: &Snapshot, offset: u32) -> Option<InPipeline<'_>> {
    let text = snapshot.text();
    let start = snapshot.source.lines.start(snapshot.source.lines.line(offset));
    let line = text.get(start..)?.lines().next()?;
    let command = line.trim_start().trim_start_matches(['/', '#']).trim_start();
    let column = (offset as usize).checked_sub(start).filter(|it| *it <= line.len())?;
    let before = line.get(..column)?;
    if !command.starts_with("RUN:") {
        return None;
    }
    // The value of the option: a list of passes has no blanks, unless it is in quotes.
    let (_, value) = before.rsplit_once("--passes").or_else(|| before.rsplit_once("--pass-pipeline"))?;
    let value = value.strip_prefix(['=', ' '])?;
    let quote = value.chars().next().filter(|it| matches!(it, '\'' | '"'));
    let value = value.trim_start_matches(['\'', '"']);
    let is_over = match quote {
        Some(quote) => value.contains(quote),
        None => value.contains(' '),
    };
    if is_over {
        return None;
    }
    let is_word = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '@' | '.' | '_');
    let open = value.rfind('{').filter(|at| !value.get(*at..).is_some_and(|it| it.contains('}')));
    let call = open.and_then(|at| value.get(..at)).map(|it| it.rsplit([',', '}']).next().unwrap_or(it));
    let inside = open.and_then(|at| value.get(at + 1..)).unwrap_or(value);
    let before = inside.rsplit(',').next().unwrap_or(inside);
    let begin = line.get(..column)?.rfind(|it| !is_word(it)).map_or(0, |at| at + 1);
    let end = line.get(column..)?.find(|it| !is_word(it)).map_or(line.len(), |len| column + len);
    let span = Span::new(start + begin, start + end);
    Some(InPipeline { call, before, word: span.text(text), span })
}

/// Describes the pass, the pipeline or the option at an offset of a RUN line.
pub(crate) fn hover(snapshot: &Snapshot, catalog: &Catalog, offset: u32) -> Option<(String, Span)> {
    let it = place(snapshot, offset)?;
    if let Some(call) = it.call {
        let options = options_of(catalog, call);
        let (name, option) = options.iter().find(|(name, _)| name == it.word)?;
        return Some((option_text(name, option), it.span));
    }
    let pass = catalog.pass(it.word).map(pass_text);
    let pipeline = || catalog.pipeline(it.word).map(pipeline_text);
    Some((pass.or_else(pipeline)?, it.span))
}

/// Returns what can be written at an offset of a RUN line; `None` if the offset is not in a list of passes.
pub(crate) fn completions(
    snapshot: &Snapshot,
    catalog: &Catalog,
    offset: u32,
) -> Option<Vec<CompletionItem>> {
    let it = place(snapshot, offset)?;
    let item = |label: String, kind, detail: &str, documentation: String| CompletionItem {
        label,
        kind: Some(kind),
        detail: Some(detail.to_owned()),
        documentation: Some(Documentation::MarkupContent(MarkupContent {
            kind: MarkupKind::Markdown,
            value: documentation,
        })),
        ..Default::default()
    };
    let Some(call) = it.call else {
        let passes = catalog
            .passes
            .iter()
            .map(|it| item(it.name.to_owned(), CompletionItemKind::FUNCTION, it.description, pass_text(it)));
        let pipelines = catalog.pipelines.iter().map(|it| {
            item(it.name.to_owned(), CompletionItemKind::MODULE, it.description, pipeline_text(it))
        });
        return Some(passes.chain(pipelines).collect());
    };
    let options = options_of(catalog, call);
    if let Some((name, _)) = it.before.split_once('=') {
        let values = match options.iter().find(|it| it.0 == name.trim())?.1.kind {
            OptionKind::Word(words) => words,
            OptionKind::Flag => &["true", "false"],
            OptionKind::Count | OptionKind::Counts | OptionKind::Names | OptionKind::Text => &[],
        };
        let value = |word: &&str| item((*word).to_owned(), CompletionItemKind::VALUE, name, String::new());
        return Some(values.iter().map(value).collect());
    }
    let option = |(name, it): &(String, OptionSpec)| {
        item(name.clone(), CompletionItemKind::PROPERTY, it.description, option_text(name, it))
    };
    Some(options.iter().map(option).collect())
}

/// Returns the options of a pass, or those of the passes of a pipeline, with their names in braces.
fn options_of(catalog: &Catalog, call: &str) -> Vec<(String, OptionSpec)> {
    if let Some(pass) = catalog.pass(call) {
        return pass.options.iter().map(|it| (it.name.to_owned(), *it)).collect();
    }
    let calls = catalog.pipeline(call).and_then(|it| catalog.parse(it.passes).ok()).unwrap_or_default();
    let mut found = Vec::new();
    for pass in calls.iter().map(|it| it.pass) {
        let options = pass.options.iter().map(|it| (format!("{}.{}", pass.name, it.name), *it));
        found.extend(options.filter(|it| !found.iter().any(|(name, _)| *name == it.0)).collect::<Vec<_>>());
    }
    found
}

fn pass_text(pass: &Pass) -> String {
    let mut text = format!("**{}**: {}\n", pass.name, pass.description);
    for option in pass.options {
        let _ = write!(text, "\n* {}", option_text(option.name, option));
    }
    text
}

fn pipeline_text(it: &Pipeline) -> String {
    format!("**{}**: {}\n\n```text\n{}\n```", it.name, it.description, it.passes)
}

fn option_text(name: &str, option: &OptionSpec) -> String {
    let default = option.default.map_or("the pass decides".to_owned(), |it| format!("default `{it}`"));
    format!("`{name}`: {} ({}; {default})", option.description, option.kind.describe())
}
