//! Reads programs from text: cleans the text, parses it and resolves names.

use crate::{
    diagnostic::{Diagnostic, has_errors},
    dump_cleanup, fusion_dump,
    ir::{ExprId, Program},
    parse, resolve,
};

/// Reads every container of a text. Returns programs even if there are errors, so that further analyses can
/// still run on them.
pub fn read(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let mut clean = dump_cleanup::clean(source);
    let (mut programs, mut diagnostics) = read_clean(&clean.text);
    clean.restore_spans(&mut programs, &mut diagnostics);
    diagnostics.append(&mut clean.diagnostics);
    diagnostics.sort_by_key(Diagnostic::span);
    (programs, diagnostics)
}

/// Reads a text that needs no cleanup.
pub(crate) fn read_clean(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let (mut programs, mut diagnostics) = (Vec::new(), Vec::new());
    let mut faulty_from = None;
    let log = fusion_dump::find(source);
    let behind =
        parse::for_each_container(source, &log, &mut diagnostics, &mut |token_stream, diagnostics| {
            let start = token_stream.source().base;
            let res = resolve::resolve(token_stream, source, faulty_from.unwrap_or(start), &log, diagnostics);
            programs.extend(res);
            // A container that ends too early has the declarations of the next one.
            if has_errors(diagnostics) {
                faulty_from.get_or_insert(start);
            }
        });
    if let Some(last) = programs.last_mut() {
        last.spans.comments.extend(behind);
    }
    (programs, diagnostics)
}

/// Reads a scalar expression and resolves its names in the container of `program`. Returns `None` if `source`
/// is not a valid scalar expression.
pub fn read_scalar(program: &mut Program, source: &str) -> Option<ExprId> {
    let expr = parse::parse_scalar(source).ok()?;
    resolve::resolve_scalar(program, &expr, source)
}
