//! Tests of the driver and the pipeline parser, and properties of passes on all samples and cases. Tests of
//! what a pass makes of a program are in `tests/cases/opt`.
mod corpus;
mod driver;
mod pipeline;
mod renumber;

use std::{fs, path::Path};

use passes::{Settings, Verify, parse, run};

/// Runs a pipeline on a text with all checks enabled. Returns the printed result, or what is wrong.
fn transform(passes: &str, text: &str) -> Result<String, String> {
    let (mut programs, diagnostics) = grammar::read(text);
    if let Some(it) = diagnostics.first() {
        return Err(format!("{}: `{}`", it.message, it.span().text(text)));
    }
    let calls = parse(passes).map_err(|it| it.message)?;
    let settings = Settings { verify: Verify::Structural, roundtrip: true };
    let mut out = String::new();
    for program in &mut programs {
        if let Some(it) = grammar::verify(program).first().filter(|it| it.code.text().starts_with('E')) {
            return Err(format!("{}: `{}`", it.message, it.span().text(text)));
        }
        run(program, &calls, settings, &mut |_| ()).map_err(|it| format!("{it}: {:?}", it.error))?;
        out += &grammar::print(program);
    }
    Ok(out)
}

/// Returns all samples and cases that parse and verify, with their paths.
fn corpus() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join("samples"), root.join("tests/cases")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "hir") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                // Few passes take loops that data end.
                let clean = !text.contains("WHILE(") && transform("", &text).is_ok();
                found.extend(clean.then(|| (path.display().to_string(), text)));
            }
        }
    }
    assert!(found.len() > 100, "{} files", found.len());
    found.sort();
    found
}
