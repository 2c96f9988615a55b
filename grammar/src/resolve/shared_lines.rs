//! Statements that begin on the line of another one: a log has lost the line break between them, and with it the indentation that says
//! to which block the second one belongs.

use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
    span::Span,
};

/// Warns of the first statement of a program that begins on the line of another one.
pub(super) fn warn(program: &Program, source: &str, diagnostics: &mut Vec<Diagnostic>) {
    let mut stmts: Vec<(Span, StmtId)> = program.stmts.ids().map(|it| (program.stmt_span(it), it)).collect();
    stmts.retain(|it| it.0.end > it.0.start);
    stmts.sort_unstable_by_key(|it| (it.0.start, it.0.end));
    // A group of messages has commas between its members; the semicolon of a statement is behind its span.
    let is_on_one_line = |pair: &&[(Span, StmtId)]| {
        let between = source.get(pair[0].0.end as usize..pair[1].0.start as usize);
        between.is_some_and(|it| it.bytes().all(|it| matches!(it, b' ' | b'\t' | b';')))
    };
    let Some([_, (span, _)]) = stmts.windows(2).find(is_on_one_line) else { return };
    let message = "this statement begins on the line of another one, so its indentation does not show to which block it belongs";
    let label =
        "read as a part of the block of the statement before it, or of the loop or branch that begins there";
    let help = "write it on a line of its own, indented like its block";
    diagnostics.push(Diagnostic::new(Code::LossyIndent, *span, message, label).help(help));
}
