//! Parses pass pipelines: `canonicalize, remove-dead-code{option=value, other={a,b}}, @default`.
//!
//! An option whose value is a list also takes the following items, up to one that is `name=value` or the name
//! of an option: `chunk{sizes=2048,2048,1024,axis=T3.0}`.
//!
//! The options of a named pipeline are those of its passes: `@overlap{overlap.count=4,assign-streams.count=2}`. Without braces, the name may
//! stand for other passes, which decide whether to run the pipeline: `Catalog::decisions`.
//!
//! Invariant: the span of every diagnostic lies in the pipeline's text, so that a caret can point into it.

mod named;

use std::fmt::{self, Display};

use grammar::{Code, Diagnostic, Span, nearest};

use crate::{
    list,
    pass::{Arguments, OptionKind, OptionSpec, Pass, Pipeline},
};

/// A pass with its arguments.
#[derive(Clone, Debug)]
pub struct PassCall {
    /// The pass.
    pub pass: &'static Pass,
    /// Its options, including defaults.
    pub arguments: Arguments,
    /// Span of the pass, or of the pipeline that contains it, in the pipeline's text.
    pub span: Span,
}

impl PartialEq for PassCall {
    /// Compares the passes and their options, not where they are written.
    fn eq(&self, other: &Self) -> bool {
        (self.pass.name, &self.arguments) == (other.pass.name, &other.arguments)
    }
}

impl Eq for PassCall {}

impl Display for PassCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.pass.name)?;
        for (at, (name, value)) in self.arguments.iter().enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { "{" } else { "," })?;
        }
        f.write_str(if self.arguments.iter().next().is_some() { "}" } else { "" })
    }
}

/// Parses a list of some passes and pipelines: see `Catalog::parse`.
pub(crate) fn parse(
    text: &str,
    passes: &[&'static Pass],
    pipelines: &[Pipeline],
    decisions: &[(&'static str, &'static str)],
) -> Result<Vec<PassCall>, Diagnostic> {
    let mut calls = Vec::new();
    if text.trim().is_empty() {
        return Ok(calls);
    }
    for item in split(TextSlice { text, start: 0 })? {
        let (name, options) = item.name_and_options();
        if name.text.is_empty() {
            let (message, label) = if item.start >= text.trim_end().len() {
                ("the list of passes ends with a comma", "expected a pass, or no comma before this")
            } else {
                ("missing pass name", "expected a pass")
            };
            return Err(Diagnostic::new(Code::BadPipeline, name.span(), message, label));
        }
        match (name.text.starts_with('@'), options) {
            (true, options) => {
                let pipeline = pipelines.iter().find(|it| it.name == name.text);
                let Some(pipeline) = pipeline else {
                    let known = pipelines.iter().map(|it| it.name);
                    let fault = unknown_name("pipeline", name, known);
                    let plain = name.text.trim_start_matches('@');
                    if let Some((start, _)) = name.text.split_once(['(', '=', ':'])
                        && pipelines.iter().any(|it| it.name == start.trim())
                    {
                        let message = "write the options of a pipeline in braces";
                        let label = format!("expected `{}{{PASS.OPTION=VALUE}}`", start.trim());
                        return Err(Diagnostic::new(Code::BadPipeline, name.span(), message, label));
                    }
                    return Err(match passes.iter().find(|it| it.name == plain) {
                        Some(pass) => fault.help(format!("`{}` is a pass: write it without `@`", pass.name)),
                        None => fault,
                    });
                };
                let Some(options) = options else {
                    calls.extend(expand(pipeline.without_braces(decisions), name, passes)?);
                    continue;
                };
                let mut inner = expand(pipeline.passes, name, passes)?;
                named::read_named_options(pipeline, options, &mut inner)?;
                calls.extend(inner);
            }
            (false, options) => {
                let Some(pass) = passes.iter().find(|it| it.name == name.text) else {
                    let former = list::FORMER_NAMES.iter().find(|it| it.0 == name.text && options.is_none());
                    let inner = former.and_then(|it| expand(it.1, name, passes).ok());
                    calls.extend(inner.ok_or_else(|| unknown_pass(name, passes, pipelines))?);
                    continue;
                };
                let mut arguments = Arguments::defaults(pass);
                arguments.set_call(name.span());
                if let Some(options) = options {
                    let set = |option, value, text: &str| set_option(option, value, text, &mut arguments);
                    read_options(options, |name| find_option(pass, name), set)?;
                }
                calls.push(PassCall { pass, arguments, span: name.span() });
            }
        }
    }
    Ok(calls)
}

/// Parses the passes for which `name` stands. Their positions are that of the name.
fn expand(text: &str, name: TextSlice<'_>, passes: &[&'static Pass]) -> Result<Vec<PassCall>, Diagnostic> {
    let mut calls = parse(text, passes, &[], &[])?;
    for call in &mut calls {
        call.span = name.span();
        call.arguments.set_call(name.span());
    }
    Ok(calls)
}

/// A slice of the pipeline's text and its offset.
#[derive(Clone, Copy)]
struct TextSlice<'t> {
    text: &'t str,
    start: usize,
}

impl<'t> TextSlice<'t> {
    fn span(self) -> Span {
        // A caret needs at least one column, even for empty text.
        Span::new(self.start, self.start + self.text.len().max(1))
    }

    fn part(self, from: usize, to: usize) -> Self {
        Self { text: &self.text[from..to], start: self.start + from }
    }

    fn trim(self) -> Self {
        let front = self.text.len() - self.text.trim_start().len();
        let text = self.text.trim();
        if text.is_empty() { self.part(0, 0) } else { self.part(front, front + text.len()) }
    }

    /// Returns the text before the first `=`, and the text after it.
    fn name_and_value(self) -> (Self, Option<Self>) {
        match self.text.find('=') {
            Some(sign) => (self.part(0, sign).trim(), Some(self.part(sign + 1, self.text.len()).trim())),
            None => (self, None),
        }
    }

    /// Returns the text before the first brace and the text inside the braces.
    fn name_and_options(self) -> (Self, Option<Self>) {
        match self.text.find('{') {
            Some(open) => {
                let close = self.text.rfind('}').unwrap_or(self.text.len());
                (self.part(0, open).trim(), Some(self.part(open + 1, close.max(open + 1))))
            }
            None => (self, None),
        }
    }
}

/// Splits a comma-separated list into trimmed items. Commas in braces do not separate items.
fn split(list: TextSlice<'_>) -> Result<Vec<TextSlice<'_>>, Diagnostic> {
    let mut items = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut start = 0;
    // True after the closing brace of this item, when only a comma may follow.
    let mut closed = false;
    let fault = |at: usize, message: &str, label: &str| {
        let span = Span::new(list.start + at, list.start + at + 1);
        Diagnostic::new(Code::BadPipeline, span, message, label)
    };
    for (at, letter) in list.text.char_indices() {
        match letter {
            '{' if closed => return Err(fault(at, "options are given twice", "expected `,`")),
            '{' => open.push(at),
            '}' => {
                if open.pop().is_none() {
                    return Err(fault(at, "unmatched `}`", "no `{` precedes it"));
                }
                closed = open.is_empty();
            }
            ',' if open.is_empty() => {
                items.push(list.part(start, at).trim());
                (start, closed) = (at + 1, false);
            }
            _ if closed && !letter.is_whitespace() => {
                return Err(fault(at, "text after a closing brace", "expected `,`"));
            }
            _ => (),
        }
    }
    if let Some(at) = open.first() {
        return Err(fault(*at, "unclosed `{`", "no `}` follows"));
    }
    items.push(list.part(start, list.text.len()).trim());
    Ok(items)
}

/// An option that a pipeline sets, and the pass that has it.
#[derive(Clone, Copy)]
struct PassOption {
    /// The pass. A named pipeline may have options with the same name in several passes.
    pass: &'static Pass,
    /// The name of the option and the values that it accepts.
    spec: &'static OptionSpec,
}

/// Reads options. `find` returns the option of a name, and `set` sets it to the given value.
fn read_options<'t>(
    options: TextSlice<'t>,
    find: impl Fn(TextSlice<'t>) -> Result<PassOption, Diagnostic>,
    mut set: impl FnMut(PassOption, TextSlice<'t>, &str) -> Result<(), Diagnostic>,
) -> Result<(), Diagnostic> {
    if options.text.trim().is_empty() {
        return Ok(());
    }
    let mut given: Vec<(&str, &str)> = Vec::new();
    // The last option if it has a value, with the offset of the value.
    let mut last: Option<(PassOption, &str, usize)> = None;
    for item in split(options)? {
        let (name, value) = item.name_and_value();
        let found = find(name);
        if let (Err(fault), None, false, Some((option, known, start))) =
            (&found, value, item.text.is_empty(), last)
        {
            let end = item.start + item.text.len() - options.start;
            let value = options.part(start - options.start, end);
            match option.spec.kind {
                OptionKind::Counts => {
                    set(option, value, value.text)?;
                    continue;
                }
                OptionKind::Names => {
                    let text = format!("{known}={}", value.text.replace(',', ";"));
                    return Err(fault.clone().help(format!("`;` separates names: write `{text}`")));
                }
                OptionKind::Flag | OptionKind::Count | OptionKind::Word(_) | OptionKind::Text => (),
            }
        }
        let option = found?;
        let key = (option.pass.name, option.spec.name);
        if given.contains(&key) {
            let message = format!("the option `{}` is given twice", name.text);
            return Err(Diagnostic::new(Code::BadOption, name.span(), message, "already given"));
        }
        given.push(key);
        let text = value.map_or(if option.spec.kind == OptionKind::Flag { "true" } else { "" }, |it| it.text);
        set(option, value.unwrap_or(name), text)?;
        last = value.map(|it| (option, name.text, it.start));
    }
    Ok(())
}

/// Returns the option of a pass with a name.
fn find_option(pass: &'static Pass, name: TextSlice<'_>) -> Result<PassOption, Diagnostic> {
    let known = pass.options.iter().find(|it| it.name == name.text);
    known.map(|spec| PassOption { pass, spec }).ok_or_else(|| unknown_option(pass, name))
}

/// Sets an option if its kind accepts the value.
fn set_option(
    PassOption { pass, spec }: PassOption,
    place: TextSlice<'_>,
    text: &str,
    arguments: &mut Arguments,
) -> Result<(), Diagnostic> {
    if !spec.kind.accepts(text) {
        return Err(bad_value(pass, spec, place, text));
    }
    arguments.set(spec.name, text);
    arguments.set_span(spec.name, place.span());
    Ok(())
}

fn unknown_option(pass: &'static Pass, name: TextSlice<'_>) -> Diagnostic {
    // `count:2`.
    if let Some((option, value)) = name.text.split_once(':')
        && pass.options.iter().any(|it| it.name == option.trim())
    {
        let message = "`=` separates an option from its value";
        let label = format!("expected `{}={}`", option.trim(), value.trim());
        return Diagnostic::new(Code::BadOption, name.span(), message, label);
    }
    let message = if name.text.is_empty() {
        format!("missing option of the pass `{}`", pass.name)
    } else {
        format!("the pass `{}` has no option `{}`", pass.name, name.text)
    };
    let known: Vec<&str> = pass.options.iter().map(|it| it.name).collect();
    let label = match known.as_slice() {
        [] => "the pass has no options".to_owned(),
        known => format!("expected one of {}", known.join(", ")),
    };
    let it = Diagnostic::new(Code::BadOption, name.span(), message, label);
    suggest(it, name.text, known.into_iter())
}

fn bad_value(pass: &Pass, spec: &OptionSpec, value: TextSlice<'_>, text: &str) -> Diagnostic {
    let message = match text {
        "" => format!("the option `{}` of `{}` has no value", spec.name, pass.name),
        _ => format!("`{text}` is not a value of the option `{}` of `{}`", spec.name, pass.name),
    };
    let is_large =
        |it: &str| it.bytes().all(|it| it.is_ascii_digit()) && it.parse::<f64>().is_ok_and(|it| it > 0.0);
    let is_number = matches!(spec.kind, OptionKind::Count | OptionKind::Counts)
        && value.text.split(',').all(|it| is_large(it.trim()));
    let label = if is_number {
        "expected a smaller number".to_owned()
    } else {
        format!("expected {}", spec.kind.describe())
    };
    Diagnostic::new(Code::BadOption, value.span(), message, label)
}

/// Returns the error for a name that is no pass, with what may be meant.
fn unknown_pass(name: TextSlice<'_>, passes: &[&'static Pass], pipelines: &[Pipeline]) -> Diagnostic {
    let text = name.text;
    let is_known =
        |word: &str| passes.iter().any(|it| it.name == word) || pipelines.iter().any(|it| it.name == word);
    let message = |what: &str| Diagnostic::new(Code::BadPipeline, name.span(), what, "expected a pass");
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.len() > 1 && words.iter().all(|it| is_known(it)) {
        return message("commas separate passes").help(format!("write `{}`", words.join(",")));
    }
    if let Some((pass, options)) = text.split_once('(').filter(|(pass, _)| is_known(pass.trim())) {
        let options = options.trim_end_matches(')');
        return message("write the options of a pass in braces")
            .help(format!("write `{}{{{options}}}`", pass.trim()));
    }
    if let Some((pass, option)) = text.split_once(['=', ':']).filter(|(pass, _)| is_known(pass.trim())) {
        return message("write the options of a pass in braces").help(format!(
            "write `{}{{{}}}`",
            pass.trim(),
            option.trim()
        ));
    }
    let it = unknown_name("pass", name, passes.iter().map(|it| it.name));
    if text.starts_with("--") {
        return it.help(format!("`{text}` looks like a flag of the tool: pass it as an argument of its own"));
    }
    let pipeline = pipelines.iter().find(|it| it.name.trim_start_matches('@') == text);
    match pipeline {
        Some(pipeline) => it.help(format!("did you mean the pipeline `{}`?", pipeline.name)),
        None if it.help.is_some() => it,
        None => suggest(it, text, pipelines.iter().map(|it| it.name)),
    }
}

fn unknown_name(what: &str, name: TextSlice<'_>, known: impl Iterator<Item = &'static str>) -> Diagnostic {
    let message = format!("unknown {what} `{}`", name.text);
    let label = format!("expected a {what} that `hir-opt --list-passes` lists");
    suggest(Diagnostic::new(Code::UnknownPass, name.span(), message, label), name.text, known)
}

fn suggest(it: Diagnostic, name: &str, known: impl Iterator<Item = &'static str>) -> Diagnostic {
    match nearest(name, known) {
        Some(near) => it.help(format!("did you mean `{near}`?")),
        None => it,
    }
}
