//! Reads and rewrites texts.

use grammar::{Diagnostic, Program, Severity, Source, Span, has_errors};
use passes::{OptionSpec, Pass, Settings};
use serde_json::{Value, json};

/// Reads a text: what the reader reports, the text with the reader's edits, and both forms of each program.
pub(crate) fn read(text: &str) -> Value {
    let source = source(text);
    let (programs, found) = source.programs();
    let forms = !has_errors(&found);
    let canonical: String = programs.iter().filter(|_| forms).map(grammar::print).collect();
    let short: String = programs.iter().filter(|_| forms).map(short).collect();
    json!({
        "programs": programs.len(),
        "diagnostics": diagnostics(&found, &source),
        "fixed": (source.is_host_ir() && grammar::is_fixable(&found)).then(|| grammar::fix(text).into_owned()),
        "canonical": canonical,
        "short": short,
    })
}

/// Returns the only program of a text.
///
/// # Errors
/// The text is rejected, or has not one program.
pub(crate) fn only_program(text: &str) -> Result<(Source, Program), String> {
    let source = source(text);
    let (mut programs, found) = source.programs();
    if has_errors(&found) {
        return Err("the text has errors: correct them first".to_owned());
    }
    match (programs.pop(), programs.len()) {
        (Some(program), 0) => Ok((source, program)),
        (Some(_), more) => Err(format!("the text has {} programs: keep one of them", more + 1)),
        (None, _) => Err("the text has no program".to_owned()),
    }
}

/// Runs passes.
///
/// # Errors
/// There are no such passes, or they cannot rewrite the program.
pub(crate) fn lower(text: &str, list: &str) -> Result<Value, String> {
    let (source, mut program) = only_program(text)?;
    let calls = passes::parse(list).map_err(|fault| {
        let label = fault.labels.first().map_or("", |it| it.1.as_str());
        format!("`{list}`: {}: {label}", fault.message)
    })?;
    match passes::run(&mut program, &calls, Settings::default(), &mut |_| ()) {
        Ok(_) => Ok(json!({ "text": grammar::print(&program), "short": short(&program), "diagnostics": [] })),
        Err(fault) => {
            let found = diagnostics(fault.error.diagnostics(), &source);
            Ok(json!({ "reason": fault.to_string(), "diagnostics": found }))
        }
    }
}

/// Returns the names, descriptions and options of the pipelines and passes.
pub(crate) fn passes() -> Value {
    let option = |it: &OptionSpec| json!({ "name": it.name, "about": it.description, "kind": it.kind.describe(), "default": it.default });
    let pipelines =
        passes::PIPELINES.iter().map(|it| json!({ "name": it.name, "about": it.description, "options": [] }));
    let pass = |it: &Pass| {
        let options: Vec<Value> = it.options.iter().map(option).collect();
        json!({ "name": it.name, "about": it.description, "options": options })
    };
    pipelines.chain(passes::PASSES.iter().map(pass)).collect()
}

pub(crate) fn source(text: &str) -> Source {
    hir_front::source("program.hir", text)
}

fn short(program: &Program) -> String {
    let mut out = Vec::new();
    // Writing to memory does not fail.
    let _ = grammar::write_short(program, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns diagnostics with positions in UTF-16 units, as the page counts.
pub(crate) fn diagnostics(found: &[Diagnostic], source: &Source) -> Vec<Value> {
    let units = |offset: u32| {
        let before = source.text.get(..offset as usize).unwrap_or(&source.text);
        before.encode_utf16().count()
    };
    let span = |it: Span| json!([units(it.start), units(it.end)]);
    let one = |it: &Diagnostic| {
        let label = |(at, text): &(Span, String)| {
            let line = source.lines.line(at.start);
            let code = source.text.lines().nth(line as usize - 1).unwrap_or_default().trim();
            json!({ "span": span(*at), "file": source.name, "line": line, "code": code, "text": text })
        };
        let fix = |it: &grammar::diagnostic::Fix| json!({ "span": span(it.span), "text": it.text });
        json!({
            "code": it.code.text(),
            "severity": match it.severity() {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Remark => "info",
            },
            "message": it.message,
            "labels": it.labels.iter().map(label).collect::<Vec<_>>(),
            "notes": it.notes,
            "help": it.help,
            "fixes": it.fixes.iter().map(fix).collect::<Vec<_>>(),
        })
    };
    found.iter().map(one).collect()
}
