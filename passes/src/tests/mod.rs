//! Passes and the driver, on programs small enough to read.
mod canonicalize;
mod driver;
mod pipeline;
mod remove_dead_code;

use crate::{Settings, Verify, parse, run};

/// The program that a pipeline makes of a text, checked in every way after every pass; or what is wrong.
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
        run(program, &calls, settings, &mut |_| ()).map_err(|it| format!("{it}: {:?}", it.fault))?;
        out += &grammar::print(program);
    }
    Ok(out)
}

/// Checks what a pass makes of a program's statements, and that it makes nothing else of the result.
fn check(pass: &str, header: &str, before: &str, after: &str) {
    let whole = |body: &str| format!("%HostIrContainer {{ {header} :\n{body}}} // %HostIrContainer\n");
    let once = transform(pass, &whole(before));
    assert_eq!(once, Ok(whole(after)), "after {pass}");
    if let Ok(once) = once {
        assert_eq!(transform(pass, &once).as_ref(), Ok(&once), "after {pass}, twice");
    }
}
