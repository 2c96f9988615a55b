//! Statements that begin on the line of another one: a log has lost the line break between them, and with it the indentation that says
//! to which block the second one belongs. Behind a statement of the container itself there is no doubt: only another one of the container can
//! follow it. There is none either if the indentation is still there, as in a log that is wrapped at the width of a terminal.

use rustc_hash::FxHashSet;

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, Stmt, StmtId},
    span::Span,
};

/// Warns of the first statement of a program that begins on the line of another one and could belong to several blocks. A container that
/// has lost its indentation has its error already.
pub(super) fn warn(program: &Program, source: &str, diagnostics: &mut Vec<Diagnostic>) {
    if diagnostics.iter().any(|it| it.code == Code::LostIndentation) {
        return;
    }
    let of_container: FxHashSet<StmtId> =
        program.body.map(|it| program.blocks[it].iter().copied().collect()).unwrap_or_default();
    let has_no_block =
        |it: StmtId| of_container.contains(&it) && !matches!(program.stmts[it], Stmt::For(_) | Stmt::If(_));
    let mut stmts: Vec<(Span, StmtId)> = program.stmts.ids().map(|it| (program.stmt_span(it), it)).collect();
    stmts.retain(|it| it.0.end > it.0.start);
    stmts.sort_unstable_by_key(|it| (it.0.start, it.0.end));
    let is_in_doubt = |pair: &&[(Span, StmtId)]| {
        let (before, after) = (pair[0].0, pair[1].0);
        !has_no_block(pair[0].1)
            && source.get(before.end as usize..after.start as usize).is_some_and(|between| {
                // A group of messages has commas between its members; the semicolon of a statement is behind its span.
                between.bytes().all(|it| matches!(it, b' ' | b'\t' | b';'))
                    && between.trim_start_matches(';') != indentation(source, before.start)
            })
    };
    let Some([_, (span, _)]) = stmts.windows(2).find(is_in_doubt) else { return };
    let message = "this statement begins on the line of another one, so its indentation does not show to which block it belongs";
    let label =
        "read as a part of the block of the statement before it, or of the loop or branch that begins there";
    let help = "write it on a line of its own, indented like its block";
    diagnostics.push(Diagnostic::new(Code::LossyIndent, *span, message, label).help(help));
}

/// Returns the blanks at the beginning of the line of `offset`.
fn indentation(source: &str, offset: u32) -> &str {
    let before = source.get(..offset as usize).unwrap_or("");
    let line = before.rfind('\n').map_or(before, |it| &before[it + 1..]);
    &line[..line.len() - line.trim_start().len()]
}
