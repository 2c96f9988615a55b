//! Parses text into a syntax tree.
//!
//! Invariant: parsing never fails as a whole. The parser returns everything that it could parse, with
//! diagnostics in text order for the rest.

use hir_syntax::{GrammarError, ParseEvents, TextParser};
use lalrpop_util::{ErrorRecovery, ParseError};
use rustc_hash::FxHashSet;

use crate::{
    advice,
    ast::{Container, Expr, File},
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    files,
    fusion_dump::{self, FusionLog},
    indentation::{self, TokenStream},
    ir::Comment,
    span::Span,
    token::{Source, Token, TokenKind},
};

mod expected;
mod outside;

/// Parses every container of `source`; skips the text around them.
pub fn parse(source: &str) -> (File<'_>, Vec<Diagnostic>) {
    let mut file = File::default();
    let mut diagnostics = Vec::new();
    let log = fusion_dump::find(source, &[]);
    for_each_container(source, &log, &mut diagnostics, &mut |token_stream, diagnostics| {
        let mut container = Container::default();
        if parse_container(token_stream, &mut container, diagnostics) {
            file.containers.push(container);
        }
    });
    (file, diagnostics)
}

/// Finds the containers of `source`, whose fusions are `log`, and calls `visit` with the tokens and the diagnostics of each. Returns the comments behind
/// the last one.
pub(crate) fn for_each_container<'s>(
    source: &'s str,
    log: &FusionLog<'s>,
    diagnostics: &mut Vec<Diagnostic>,
    visit: &mut dyn FnMut(TokenStream<'s>, &mut Vec<Diagnostic>),
) -> Vec<Comment> {
    // What follows are fusions of containers before.
    let source = files::fusions_start(source).and_then(|at| source.get(..at)).unwrap_or(source);
    let whole = Source { text: source, base: 0 };
    let mut at = 0;
    let mut seen = false;
    while let Some(start) = next_container(source, at) {
        let start = line_start_if_blank(source, start);
        outside::diagnose(source, at..start, log, diagnostics);
        seen = true;
        let text = Source { text: source.get(start..).unwrap_or(""), base: start as u32 };
        let mut own = Vec::new();
        let mut token_stream = indentation::container_tokens(text, &mut own);
        token_stream.comments.splice(0..0, indentation::comments_outside(whole, at..start));
        at = start + token_stream.end.max(1);
        visit(token_stream, &mut own);
        diagnostics.append(&mut own);
    }
    if seen {
        outside::diagnose(source, at..source.len(), log, diagnostics)
    } else {
        diagnostics.push(outside::no_container(source, log))
    }
    diagnostics.sort_by_key(|it| it.span().start);
    indentation::comments_outside(whole, at..source.len())
}

/// Parses a container and passes its parts to `events`. Returns false if the parser does not reach its end.
pub(crate) fn parse_container<'s>(
    token_stream: TokenStream<'s>,
    events: &mut dyn ParseEvents<'s>,
    diagnostics: &mut Vec<Diagnostic>,
) -> bool {
    let mut errors = Vec::new();
    let (source, truncated) = (token_stream.source(), token_stream.truncated_at);
    let (token_text, missing_commas) = (token_stream.own_source(), token_stream.missing_commas.clone());
    let (has_header, follows_from) = (token_stream.has_header(), token_stream.follows_from);
    let res = TextParser::new().parse(source, &mut errors, events, token_stream.into_tokens());
    let mut found = Vec::new();
    report_grammar_errors(errors, truncated, diagnostics, &mut found);
    let fatal = res.as_ref().err().cloned().and_then(expected::diagnose);
    // An error that ends the parser is dropped only if another one explains it.
    found.extend(fatal);
    drop_later_commas((token_text, &missing_commas), diagnostics, &found);
    let before = FaultyLines::of(token_text, diagnostics);
    found.retain(|it| !before.contains(it.span()));
    keep_first_of_each_line(token_text, &mut found);
    if !has_header {
        found.truncate(1);
    }
    diagnostics.append(&mut found);
    keep_first_from(follows_from, diagnostics);
    advise(token_text, diagnostics);
    res.is_ok()
}

/// Of the errors on one line, keeps the first one: the parser continues within the line.
fn keep_first_of_each_line(source: Source<'_>, errors: &mut Vec<Diagnostic>) {
    errors.sort_by_key(|it| it.span().start);
    let mut line = Span::default();
    errors.retain(|it| {
        let is_first = it.span().start > line.end || line == Span::default();
        if is_first {
            line = line_around(source, it.span().start);
        }
        is_first
    });
}

/// Adds what to write to the first error of each line that is Python.
fn advise(source: Source<'_>, diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by_key(|it| it.span().start);
    let mut end = None;
    for it in diagnostics.iter_mut().filter(|it| matches!(it.code, Code::Syntax | Code::BadToken)) {
        let start = it.span().start;
        if it.help.is_some()
            || !it.fixes.is_empty()
            || start < source.base
            || end.is_some_and(|end| start <= end)
        {
            continue;
        }
        let line = line_around(source, start);
        end = Some(line.end);
        let text = Span { start: line.start - source.base, end: line.end - source.base }.text(source.text);
        it.help = advice::of_line(text).map(Into::into);
    }
}

/// Drops the errors about missing commas behind the first other error of a line: what the brackets behind it mean is unknown.
fn drop_later_commas(
    (source, missing_commas): (Source<'_>, &FxHashSet<Span>),
    diagnostics: &mut Vec<Diagnostic>,
    found: &[Diagnostic],
) {
    let lines = FaultyLines::of(source, found);
    if !lines.lines.is_empty() {
        let is_comma = |it: &Diagnostic| it.code == Code::Syntax && missing_commas.contains(&it.span());
        diagnostics.retain(|it| !is_comma(it) || !lines.is_behind_error(it.span()));
    }
}

/// Of the syntax errors from an offset on, keeps the first one: in the text of a HostUnit whose first line has an
/// error, for example, each line has one.
fn keep_first_from(start: u32, diagnostics: &mut Vec<Diagnostic>) {
    let is_meant = |it: &Diagnostic| it.code == Code::Syntax && it.span().start >= start;
    let first = diagnostics.iter().filter(|it| is_meant(it)).map(|it| it.span().start).min();
    diagnostics.retain(|it| !is_meant(it) || Some(it.span().start) == first);
}

/// Parses one scalar expression, such as `(rank+streamIdx)%8`.
pub fn parse_scalar(source: &str) -> Result<Expr<'_>, Vec<Diagnostic>> {
    parse_scalar_at(source, 0)
}

/// Parses one scalar expression that begins at offset `base` of a longer text.
pub fn parse_scalar_at(source: &str, base: u32) -> Result<Expr<'_>, Vec<Diagnostic>> {
    let text = Source { text: source, base };
    if let Some(at) = source.find('#').into_iter().chain(source.find("//")).min() {
        let span = Span { start: base + at as u32, end: base + source.len() as u32 };
        let message = "an expression contains a comment";
        let it = Diagnostic::new(Code::Syntax, span, message, "expected the end of the expression");
        return Err(vec![it.help("write the comment behind the statement")]);
    }
    let mut diagnostics = Vec::new();
    let token_stream = indentation::expression_tokens(text, &mut diagnostics);
    let mut errors = Vec::new();
    let truncated = token_stream.truncated_at;
    let tokens = token_stream.into_tokens();
    let res = TextParser::new().parse(text, &mut errors, &mut Container::default(), tokens);
    let mut found = Vec::new();
    report_grammar_errors(errors, truncated, &diagnostics, &mut found);
    diagnostics.extend(found);
    match res {
        Ok(Some(expr)) if !has_errors(&diagnostics) => Ok(expr),
        Ok(_) => Err(diagnostics),
        Err(fault) => {
            if diagnostics.is_empty() {
                diagnostics.extend(expected::diagnose(fault));
            }
            Err(diagnostics)
        }
    }
}

/// The lines on which errors are already reported. Errors of later stages on these lines follow from them.
pub(crate) struct FaultyLines {
    /// In the order of the text.
    lines: Vec<FaultyLine>,
}

/// A line with an error.
struct FaultyLine {
    /// Its byte range.
    range: Span,
    /// The offset of its first error.
    first: u32,
}

impl FaultyLines {
    /// Returns the lines of the syntax errors in `diagnostics`, those of the container whose text is `source`.
    pub(crate) fn of(source: Source<'_>, diagnostics: &[Diagnostic]) -> Self {
        let is_syntax_error = |it: &&Diagnostic| it.is_error() && it.code.text().starts_with("E01");
        let errors = diagnostics.iter().filter(is_syntax_error);
        let mut places: Vec<u32> = errors.map(|it| it.span().start).collect();
        places.sort_unstable();
        let mut lines: Vec<FaultyLine> = Vec::new();
        for first in places {
            // A line with many errors is searched once, so that the time is linear.
            if lines.last().is_none_or(|it| first > it.range.end) {
                lines.push(FaultyLine { range: line_around(source, first), first });
            }
        }
        Self { lines }
    }

    /// Returns whether a span begins on one of the lines.
    pub(crate) fn contains(&self, span: Span) -> bool {
        self.line_of(span).is_some()
    }

    /// Returns whether a span begins on one of the lines, behind the first error of the line.
    fn is_behind_error(&self, span: Span) -> bool {
        self.line_of(span).is_some_and(|it| it.first < span.start)
    }

    /// Returns the line on which a span begins.
    fn line_of(&self, span: Span) -> Option<&FaultyLine> {
        let at = self.lines.partition_point(|it| it.range.start <= span.start).checked_sub(1)?;
        self.lines.get(at).filter(|it| span.start <= it.range.end)
    }
}

/// Returns the line that contains an offset.
fn line_around(source: Source<'_>, at: u32) -> Span {
    let at = (at.saturating_sub(source.base) as usize).min(source.text.len());
    let bytes = source.text.as_bytes();
    let start = bytes[..at].iter().rposition(|it| *it == b'\n').map_or(0, |it| it + 1);
    let end = bytes[at..].iter().position(|it| *it == b'\n').map_or(bytes.len(), |it| at + it);
    Span { start: source.base + start as u32, end: source.base + end as u32 }
}

fn report_grammar_errors(
    errors: Vec<ErrorRecovery<u32, Token<'_>, ()>>,
    truncated: Option<u32>,
    diagnostics: &[Diagnostic],
    found: &mut Vec<Diagnostic>,
) {
    // If lost indentation is already reported, an `ELSE` may be separated from its branch; that is not a
    // second error.
    let lost = diagnostics.iter().any(|it| it.code == Code::LostIndentation);
    let stray = |it: &GrammarError<'_>| matches!(it, ParseError::UnrecognizedToken { token: (_, token, _), .. } if token.kind == TokenKind::Else);
    let faults = errors.into_iter().map(|it| it.error).filter(|it| !(lost && stray(it)));
    let faults = faults.filter_map(expected::diagnose);
    // Errors at the point of truncation follow from the truncation, which is already reported.
    found.extend(faults.filter(|it| truncated.is_none_or(|end| it.span().end < end)));
}

/// Returns the start of the line that contains `start` if only blanks precede `start` on it, because its
/// column matters; otherwise returns `start`.
fn line_start_if_blank(source: &str, start: usize) -> usize {
    let before = source.get(..start).unwrap_or("");
    let line = before.trim_end_matches([' ', '\t']);
    if line.is_empty() || line.ends_with('\n') { line.len() } else { start }
}

/// Returns the offset of the next container. Some dumps published in 2024 lack the first line; those begin
/// with the second line.
fn next_container(source: &str, from: usize) -> Option<usize> {
    let marked = next_container_marker(source, from);
    let before = source.get(from..marked.unwrap_or(source.len()))?;
    let headless = ["HOST IRS:", "HOST FUSION ("].into_iter().filter_map(|it| {
        let mut found = before.match_indices(it).map(|(at, _)| at);
        found.find(|at| {
            before
                .get(..*at)
                .is_some_and(|it| it.is_empty() || it.trim_end_matches([' ', '\t']).ends_with('\n'))
        })
    });
    headless.min().map(|at| from + at).or(marked)
}

/// Returns the offset of the next `%HostIrContainer`, or of the first `%options` or `%tensor` line before it.
fn next_container_marker(source: &str, from: usize) -> Option<usize> {
    let rest = source.get(from..)?;
    let (mut seen, mut comment, mut blank) = (0, false, true);
    for (at, _) in rest.match_indices('%') {
        let gap = rest.get(seen..at).unwrap_or("");
        let line = gap.rfind('\n').map_or(gap, |newline| gap.get(newline + 1..).unwrap_or(""));
        if line.len() < gap.len() {
            (comment, blank) = (false, true);
        }
        comment |= line.contains("//") || line.contains('#');
        blank &= line.trim().is_empty();
        seen = at;
        let text = rest.get(at..).unwrap_or("");
        let header = text.strip_prefix("%HostIrContainer").is_some_and(|it| it.trim_start().starts_with('{'));
        if !comment && (header || blank && (text.starts_with("%options") || text.starts_with("%tensor"))) {
            return Some(from + at);
        }
        // The `%` itself begins the next gap. In a dump folded into one line, the text after the name that
        // follows a closing brace is not a comment.
        blank = false;
        let closer = gap.trim_matches(' ') == "//" && source.get(..from).is_some_and(|it| it.ends_with('}'));
        comment &= !(closer && text.starts_with("%HostIrContainer"));
    }
    None
}
