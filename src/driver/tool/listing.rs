//! The texts of `--list-passes`, `--list-ops` and `--explain`.

use grammar::InvalidOption;
use std::fmt::Write;

use grammar::{Code, OPS, OperandDef, nearest};
use passes::OptionSpec;

use crate::auto;

/// Lists all passes with their options, then all pipelines.
pub fn passes() -> String {
    let all = auto::catalog();
    let mut out = String::from("passes:\n");
    for pass in &all.passes {
        let _ = writeln!(out, "  {:<20} {}", pass.name, pass.description);
        pass.options.iter().for_each(|option| option_line(&mut out, option));
    }
    out.push_str("pipelines:\n");
    for it in &all.pipelines {
        let passes = it.without_braces(&all.decisions);
        let without_braces =
            if passes == it.passes { String::new() } else { format!("; without braces, `{passes}`") };
        let _ = writeln!(out, "  {:<20} {}{without_braces}: {}", it.name, it.description, it.passes);
    }
    out
}

/// Describes one pass, with its documentation, options and pipelines, or one pipeline, with its passes.
///
/// # Errors
/// Reports that there is no such pass or pipeline.
pub fn pass(name: &str) -> Result<String, InvalidOption> {
    let mut out = String::new();
    let all = auto::catalog();
    let is_pass = all.pass(name).is_some();
    let mut pipelines = all.pipelines.iter();
    if let Some(it) =
        pipelines.find(|it| it.name == name || it.name.strip_prefix('@') == Some(name) && !is_pass)
    {
        let _ = writeln!(out, "{}: {}\n\nPasses:", it.name, it.description);
        for call in all.parse(it.passes).unwrap_or_default() {
            let _ = writeln!(out, "  {call}");
        }
        return Ok(out);
    }
    let Some(it) = all.pass(name) else {
        let hint = nearest(name, all.names())
            .map_or_else(|| "; `--list-passes` lists all".to_owned(), |it| format!(": did you mean `{it}`?"));
        return Err(format!("no pass or pipeline has the name `{name}`{hint}").into());
    };
    let mut is_code = false;
    for line in it.docs.lines().map(|it| it.trim_start_matches("//!")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        if line.starts_with("```") {
            is_code = !is_code
        } else {
            let _ = writeln!(out, "{}{line}", if is_code { "    " } else { "" });
        }
    }
    if !it.options.is_empty() {
        out.push_str("\nOptions:\n");
        it.options.iter().for_each(|option| option_line(&mut out, option));
    }
    let users = all.pipelines.iter().filter(|pipeline| {
        all.parse(pipeline.passes).is_ok_and(|calls| calls.iter().any(|call| call.pass.name == it.name))
    });
    let users: Vec<&str> = users.map(|it| it.name).collect();
    if !users.is_empty() {
        let _ = writeln!(out, "\nPipelines: {}", users.join(", "));
    }
    Ok(out)
}

fn option_line(out: &mut String, option: &OptionSpec) {
    let default = option.default.map(|it| format!(" [{it}]")).unwrap_or_default();
    let kind = option.kind.describe();
    let _ = writeln!(out, "    {:<18} {}: {kind}{default}", option.name, option.description);
}

/// Lists all codes of diagnostics, each with the first sentence of its explanation.
pub fn codes() -> String {
    let mut out = String::new();
    for code in Code::ALL {
        let text: Vec<&str> = code.explanation().split_whitespace().collect();
        let text = text.join(" ");
        let first = text.split_once(". ").map_or(text.as_str(), |(first, _)| first);
        let _ = writeln!(out, "{:<18} {}", code.text(), first.trim_end_matches('.'));
    }
    out
}

/// Lists all operators with their operands.
pub fn operators() -> String {
    let mut out = String::new();
    for row in OPS {
        let names = |params: &[OperandDef]| params.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
        let keys: String = row.attrs.iter().map(|it| format!(", {}=", it.name)).collect();
        let operands = format!("{}{keys}", names(row.args));
        let operands = operands.trim_start_matches(", ");
        let _ = writeln!(out, "{:<24} {}", row.mnemonic, row.doc.trim());
        let _ = match row.outs {
            [] => writeln!(out, "    ({operands})"),
            outs => writeln!(out, "    ({operands}) -> ({})", names(outs)),
        };
    }
    out
}

/// Returns the paragraph about a diagnostic's code, with an example and its edit.
///
/// # Errors
/// Reports that there is no such code.
pub fn explanation(code: &str) -> Result<String, InvalidOption> {
    let known = Code::from_text(code).or_else(|| Code::from_text(&code.to_uppercase()));
    let Some(known) = known else {
        let near = nearest(&code.to_uppercase(), Code::ALL.iter().map(|it| it.text()));
        let hint = near.map(|it| format!(": did you mean `{it}`?")).unwrap_or_default();
        return Err(format!("no diagnostic has the code `{code}`{hint}").into());
    };
    Ok(known.explained())
}
