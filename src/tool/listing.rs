//! The texts of `--list-passes`, `--list-ops` and `--explain`.

use std::fmt::Write;

use grammar::{
    codes::Code,
    nearest,
    ops::{OPS, OperandDef},
};

/// Lists all passes with their options, then all pipelines.
pub fn passes() -> String {
    let mut out = String::from("passes:\n");
    for pass in passes::PASSES {
        let _ = writeln!(out, "  {:<20} {}", pass.name, pass.description);
        for option in pass.options {
            let default = option.default.map(|it| format!(" [{it}]")).unwrap_or_default();
            let kind = option.kind.describe();
            let _ = writeln!(out, "    {:<18} {}: {kind}{default}", option.name, option.description);
        }
    }
    out.push_str("pipelines:\n");
    for pipeline in passes::PIPELINES {
        let _ = writeln!(out, "  {:<20} {}: {}", pipeline.name, pipeline.description, pipeline.passes);
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

/// Returns the paragraph about a diagnostic's code.
///
/// # Errors
/// Reports that there is no such code.
pub fn explanation(code: &str) -> Result<String, String> {
    let known = Code::from_text(code).or_else(|| Code::from_text(&code.to_uppercase()));
    let Some(known) = known else {
        let near = nearest(code, Code::ALL.iter().map(|it| it.text()));
        let hint = near.map(|it| format!(": did you mean `{it}`?")).unwrap_or_default();
        return Err(format!("no diagnostic has the code `{code}`{hint}"));
    };
    let lines: Vec<&str> = known.explanation().lines().map(str::trim).collect();
    Ok(format!("{}: {}\n", known.text(), lines.join(" ").trim()))
}
