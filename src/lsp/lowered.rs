//! The program after passes, beside its text: what each of its lines comes from.

use std::sync::Arc;

use grammar::{Program, Source, StmtId, has_errors};
use passes::{Catalog, Settings};
use serde::{Deserialize, Serialize};

use crate::{refusal::Refusal, snapshot::Snapshot};

/// What `hir/lowered` asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoweredParams {
    /// The document.
    pub(crate) text_document: lsp_types::TextDocumentIdentifier,
    /// A position in the container.
    pub(crate) position: lsp_types::Position,
    /// The passes, as after `--passes`.
    pub(crate) passes: String,
}

/// The program after passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lowered {
    /// Its canonical text.
    pub(crate) text: String,
    /// Pairs of lines, from 0, in the order of the new text: the line of a statement there, and that of the statement from which
    /// passes have made it. Statements that come from no statement have none.
    pub(crate) lines: Vec<[u32; 2]>,
}

/// Names the request.
pub(crate) enum LoweredRequest {}

impl lsp_types::request::Request for LoweredRequest {
    type Params = LoweredParams;
    type Result = Lowered;
    const METHOD: &'static str = "hir/lowered";
}

/// Runs passes on the program at an offset.
///
/// # Errors
/// Why the passes cannot rewrite it.
pub(crate) fn lowered(
    snapshot: &Snapshot,
    catalog: &Catalog,
    offset: u32,
    list: &str,
) -> Result<Lowered, Refusal> {
    if snapshot.is_rejected() {
        return Err(Refusal::Rejected);
    }
    let program = snapshot.program_at(offset).ok_or(Refusal::NoProgram)?;
    let calls = catalog
        .parse(list)
        .map_err(|fault| Refusal::PassList { list: list.to_owned(), fault: Box::new(fault) })?;
    let mut program = program.clone();
    passes::run(&mut program, &calls, Settings::default(), &mut |_| ()).map_err(Refusal::Passes)?;
    let new = Source::new(String::new(), grammar::print(&program));
    let (read, found) = new.programs();
    let lines = match &read[..] {
        [read] if !has_errors(&found) => pairs(snapshot, &program, &new, read),
        _ => Vec::new(),
    };
    Ok(Lowered { text: Arc::unwrap_or_clone(new.text), lines })
}

/// Returns the lines of the statements of the new text, each with that of its origin. A pass leaves the positions of the statements that
/// it changes, and gives those that it makes the positions of those that they replace.
fn pairs(snapshot: &Snapshot, program: &Program, new: &Source, read: &Program) -> Vec<[u32; 2]> {
    let (old, all) = (statements(program), statements(read));
    if old.len() != all.len() {
        return Vec::new();
    }
    let header = program.spans.header.end;
    let stated = old.into_iter().zip(all).map(|(old, new)| (program.stmt_span(old), read.stmt_span(new)));
    let from = stated.filter(|(old, _)| old.start >= header && old.end > old.start);
    from.map(|(old, stmt)| [new.lines.line(stmt.start) - 1, snapshot.source.lines.line(old.start) - 1])
        .collect()
}

/// Returns the statements of the container in program order.
fn statements(program: &Program) -> Vec<StmtId> {
    program.body.into_iter().flat_map(|it| program.stmts_in(it)).collect()
}
