//! The stream on which each statement is issued, as far as the text of the program determines it.

use grammar::{Program, Stmt, StmtId, expr_text};
use hir_ir::streams::{StreamFacts, StreamValue, uses_stream};

/// A stream that is current at a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CurrentStream {
    /// The stream that is current when the program begins.
    Entry,
    /// A stream, and the statement that has made it current, if it is the same one on all paths.
    Set(String, Option<StmtId>),
    /// One of several.
    Unknown,
}

/// Returns the stream that is current at a statement of the container that works on one.
pub(crate) fn current_stream(program: &Program, facts: &StreamFacts, stmt: StmtId) -> Option<CurrentStream> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    uses_stream(it.op.def().class).then_some(())?;
    let set = |text: String| CurrentStream::Set(format!("Stream {text}"), facts.setter(stmt));
    Some(match facts.current(stmt)? {
        StreamValue::Entry => CurrentStream::Entry,
        StreamValue::Index(index) => set(expr_text(program, index)),
        StreamValue::Captured(name) => set(format!("s{name}")),
        StreamValue::Joined(_) => CurrentStream::Unknown,
    })
}
