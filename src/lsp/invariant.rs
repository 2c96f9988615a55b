//! The invariant of the package, for fuzzing: after any edits, a document is what the same text is when it is opened, and every request about it
//! has an answer.

use std::sync::Arc;

use grammar::Span;
use lsp_types::{Position, Range, TextDocumentContentChangeEvent};
use passes::Catalog;

use crate::{
    actions, completion, document::Document, hints, hover, navigation, positions::Positions,
    snapshot::Snapshot, structure, tokens,
};

/// The most edits of a session, and the most places of the last text where requests are made.
const MAX_EDITS: usize = 32;
const MAX_PLACES: usize = 16;

/// Checks the invariant. The parts of `session` are separated by NUL: a text, then edits, each a line
/// `LINE:CHARACTER LINE:CHARACTER` with what is replaced, and the text that replaces it. Returns the text behind the edits.
///
/// # Errors
/// How the edited document differs from one that is opened with its text.
pub fn follows_edits(session: &str) -> Result<String, String> {
    let mut parts = session.split('\0');
    let text = parts.next().unwrap_or_default().to_owned();
    let uri: lsp_types::Uri = "file:///edited.hir".parse().map_err(|fault| format!("{fault:?}"))?;
    let mut document = Document::new(uri, 0, text);
    for (version, edit) in (1..).zip(parts.filter_map(parsed).take(MAX_EDITS)) {
        document.change(version, vec![edit]);
        // Some texts in between are read, too.
        if version % 2 == 0 {
            document.snapshot();
        }
    }
    let edited = document.snapshot();
    equals_fresh(&edited)?;
    answers(&document.uri, &edited);
    Ok(edited.text().to_owned())
}

fn parsed(edit: &str) -> Option<TextDocumentContentChangeEvent> {
    let (range, text) = edit.split_once('\n')?;
    let position = |it: &str| {
        let (line, character) = it.split_once(':')?;
        Some(Position::new(line.parse().ok()?, character.parse().ok()?))
    };
    let (from, to) = range.split_once(' ')?;
    let range = Range::new(position(from)?, position(to)?);
    Some(TextDocumentContentChangeEvent { range: Some(range), range_length: None, text: text.to_owned() })
}

/// Compares what was read with what is read from the same text alone.
///
/// # Errors
/// What differs.
fn equals_fresh(edited: &Snapshot) -> Result<(), String> {
    let text = edited.text().to_owned();
    let positions = Positions::new(&text);
    for at in (0..=text.len() as u32).filter(|at| text.is_char_boundary(*at as usize)) {
        if edited.positions.position(&text, at) != positions.position(&text, at) {
            return Err(format!("the position of byte {at} differs"));
        }
    }
    let fresh = Snapshot::read(&edited.source.name, edited.version, text, positions);
    if edited.diagnostics != fresh.diagnostics {
        return Err(format!("{:#?} instead of {:#?}", edited.diagnostics, fresh.diagnostics));
    }
    let printed = |it: &Snapshot| it.programs.iter().map(grammar::print).collect::<Vec<_>>();
    if printed(edited) == printed(&fresh) { Ok(()) } else { Err("the programs differ".to_owned()) }
}

/// Makes the requests that need no check. They must not panic.
fn answers(uri: &lsp_types::Uri, snapshot: &Arc<Snapshot>) {
    let catalog = Catalog::default();
    let len = snapshot.text().len();
    structure::symbols(snapshot);
    structure::folds(snapshot);
    tokens::tokens(snapshot);
    hints::hints(snapshot, &[], Span::new(0, len));
    for at in (0..MAX_PLACES).map(|it| (it * len / MAX_PLACES) as u32) {
        hover::hover(snapshot, &catalog, &[], at);
        navigation::definition(uri, snapshot, at);
        navigation::highlights(snapshot, at);
        navigation::renamed_range(snapshot, at);
        completion::completions(snapshot, &catalog, at);
        actions::actions(uri, snapshot, &[], Span { start: at, end: at });
    }
}
