//! Reads programs from text: cleans the text, parses it and resolves names.

use rustc_hash::FxHashSet;

use crate::{
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    dump_cleanup, fusion_dump,
    ir::{ExprId, Program},
    parse, resolve,
};

/// Reads every container of a text. Returns programs even if there are errors, so that further analyses can
/// still run on them.
pub fn read(source: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let mut clean = dump_cleanup::clean(source);
    let (mut programs, mut diagnostics) = read_clean(&clean.text, &clean.ranks);
    clean.restore_spans(&mut programs, &mut diagnostics);
    diagnostics.append(&mut clean.diagnostics);
    diagnostics.sort_by_key(Diagnostic::span);
    (programs, diagnostics)
}

/// Reads a text that needs no cleanup. `ranks` says where the lines of each rank begin, as `CleanedText` does.
pub(crate) fn read_clean(source: &str, ranks: &[(u32, usize)]) -> (Vec<Program>, Vec<Diagnostic>) {
    let (mut programs, mut diagnostics) = (Vec::new(), Vec::new());
    let (mut faulty_from, mut fitting) = (None, FxHashSet::default());
    let log = fusion_dump::find(source, ranks);
    let behind =
        parse::for_each_container(source, &log, &mut diagnostics, &mut |token_stream, diagnostics| {
            let start = token_stream.source().base;
            let res = resolve::resolve(token_stream, source, faulty_from.unwrap_or(start), &log, diagnostics);
            programs.extend(res.program);
            fitting.extend(res.fitting_files);
            // A container that ends too early has the declarations of the next one.
            if has_errors(diagnostics) {
                faulty_from.get_or_insert(start);
            }
        });
    if let Some(last) = programs.last_mut() {
        last.spans.comments.extend(behind);
    }
    if !has_errors(&diagnostics) {
        let unused = log.files.iter().enumerate().filter(|it| !fitting.contains(&it.0));
        diagnostics.extend(unused.filter_map(|(_, file)| unused_fusions(file, &programs)));
    }
    (programs, diagnostics)
}

/// Returns the warning about a file of which no fusion fits a container.
fn unused_fusions(file: &str, programs: &[Program]) -> Option<Diagnostic> {
    let (one, label) = match programs {
        [_] => ("this container", "the container"),
        _ => ("a container of this text", "the first one"),
    };
    let message = format!("no fusion in `{file}` fits {one}, so the file has no effect");
    let it = Diagnostic::new(Code::UnusedFusions, programs.first()?.spans.header, message, label);
    let dump = "`NVFUSER_DUMP=host_ir,segmented_fusion`";
    Some(it.help(format!(
        "name a log of nvFuser with the fusion of {one} ({dump}), or leave out `--fusions {file}`"
    )))
}

/// Reads a scalar expression and resolves its names in the container of `program`. Returns `None` if `source`
/// is not a valid scalar expression.
pub fn read_scalar(program: &mut Program, source: &str) -> Option<ExprId> {
    let expr = parse::parse_scalar(source).ok()?;
    resolve::resolve_scalar(program, &expr, source)
}
