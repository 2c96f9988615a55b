//! Text to programs: cleaning, parsing and resolving one after the other.

use crate::{
    diagnostic::Diagnostic,
    dump_cleanup,
    ir::{ExprId, Program},
    parse, resolve,
};

/// Reads every container of a text. Programs come back even where there are errors, for what can still be told.
pub fn read(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let mut clean = dump_cleanup::clean(source);
    let (mut programs, mut diagnostics) = read_clean(&clean.text);
    clean.restore_spans(&mut programs, &mut diagnostics);
    diagnostics.append(&mut clean.diagnostics);
    diagnostics.sort_by_key(Diagnostic::span);
    (programs, diagnostics)
}

/// As `read`, of a text without traces of pasting.
pub(crate) fn read_clean(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let (mut programs, mut diagnostics) = (Vec::new(), Vec::new());
    parse::for_each_container(source, &mut diagnostics, &mut |laid, diagnostics| {
        programs.extend(resolve::resolve(laid, source, diagnostics));
    });
    (programs, diagnostics)
}

/// Reads a scalar expression in the names of a program's container; `None` where it is none.
pub fn read_scalar(program: &mut Program, source: &str) -> Option<ExprId> {
    let expr = parse::parse_scalar(source).ok()?;
    resolve::resolve_scalar(program, &expr, source)
}
