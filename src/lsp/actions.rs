//! Code actions: hir's own edits, and the forms of the language.
//!
//! An edit of one diagnostic is part of the answer. The others are made when the user chooses them (`codeAction/resolve`), because
//! they read or check the text several times.

use grammar::{Diagnostic, Span};
use lsp_types::{CodeAction, CodeActionKind, TextEdit, Uri, WorkspaceEdit};
use serde::{Deserialize, Serialize};

use crate::{
    check,
    diagnostics::{converted, is_race},
    format::{Form, rewritten},
    refusal::Refusal,
    snapshot::Snapshot,
};

/// The kind of the actions that make all edits of a file.
const FIX_ALL: CodeActionKind = CodeActionKind::new("source.fixAll.hir");

/// The longest title of an edit, in characters. Menus are narrow.
const MAX_TITLE: usize = 120;

/// What an action does to the whole text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Rewrite {
    /// Makes the edits that the reader proposes.
    FixReading,
    /// Makes the edits that remove races, until no edit helps.
    FixRaces,
    /// Writes canonical text.
    Canonical,
    /// Writes the short form.
    Short,
}

/// What an action needs to be made later: the text for which it was offered, and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deferred {
    /// The document.
    pub(crate) uri: String,
    /// The version of its text.
    pub(crate) version: i32,
    /// What to do.
    pub(crate) rewrite: Rewrite,
}

impl Rewrite {
    /// Returns the new text.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn apply(self, snapshot: &Snapshot) -> Result<String, Refusal> {
        match self {
            Self::FixReading => Ok(grammar::fix(snapshot.text()).into_owned()),
            Self::FixRaces => {
                let (text, edits) = check::fix_races(snapshot.text());
                if edits.is_empty() { Err(Refusal::NoEdit) } else { Ok(text) }
            }
            Self::Canonical => Ok(rewritten(snapshot, Form::Canonical)?),
            Self::Short => Ok(rewritten(snapshot, Form::Short)?),
        }
    }
}

/// Returns the actions for a part of a text. `findings` are those of the check.
pub(crate) fn actions(
    uri: &Uri,
    snapshot: &Snapshot,
    findings: &[Diagnostic],
    chosen: Span,
) -> Vec<CodeAction> {
    let touches = |it: &Span| it.start <= chosen.end && chosen.start <= it.end;
    let all = || snapshot.diagnostics.iter().chain(findings);
    let here = || all().filter(|it| it.labels.iter().any(|(span, _)| touches(span)));
    let mut actions: Vec<CodeAction> =
        here().filter(|it| !it.fixes.is_empty()).map(|it| fix_action(uri, snapshot, it)).collect();
    let races_here = here().filter(|it| it.fixes.is_empty() && is_race(it.code));
    let races_here: Vec<_> = races_here.flat_map(|it| converted(uri, snapshot, it)).collect();
    let deferred = |title: &str, kind: CodeActionKind, rewrite: Rewrite| CodeAction {
        title: title.to_owned(),
        kind: Some(kind),
        data: serde_json::to_value(Deferred {
            uri: uri.as_str().to_owned(),
            version: snapshot.version,
            rewrite,
        })
        .ok(),
        ..Default::default()
    };
    if snapshot.diagnostics.iter().any(|it| !it.fixes.is_empty() || it.code.text() == "lossy-wrap") {
        let title = "Make all edits of the reader in this file";
        actions.push(deferred(title, FIX_ALL, Rewrite::FixReading));
    }
    if !races_here.is_empty() {
        // Of several edits, `--fix=check` makes the one that the check proves.
        let title = "Remove this race and all others of the file (`--fix=check`)";
        let action = deferred(title, CodeActionKind::QUICKFIX, Rewrite::FixRaces);
        actions.push(CodeAction { diagnostics: Some(races_here), is_preferred: Some(true), ..action });
    }
    if findings.iter().any(|it| is_race(it.code)) {
        actions.push(deferred("Remove all races of this file", FIX_ALL, Rewrite::FixRaces));
    }
    if !snapshot.is_rejected() && !snapshot.programs.is_empty() {
        let (title, rewrite) = match Form::of(snapshot) {
            Form::Short => ("Write canonical text", Rewrite::Canonical),
            Form::Canonical => ("Write the short form, with one line for each tensor", Rewrite::Short),
        };
        actions.push(deferred(title, CodeActionKind::REFACTOR_REWRITE, rewrite));
    }
    actions
}

/// Returns the action that makes the edit of a diagnostic.
fn fix_action(uri: &Uri, snapshot: &Snapshot, it: &Diagnostic) -> CodeAction {
    let edits =
        it.fixes.iter().map(|fix| TextEdit::new(snapshot.range(fix.span), fix.text.clone())).collect();
    CodeAction {
        title: title(it),
        kind: Some(CodeActionKind::QUICKFIX),
        diagnostics: Some(converted(uri, snapshot, it)),
        edit: Some(edit(uri, edits)),
        is_preferred: Some(true),
        ..Default::default()
    }
}

/// Returns the title of a diagnostic's edit: its help, or the text that is inserted.
fn title(it: &Diagnostic) -> String {
    let inserted = || it.fixes.first().map(|fix| fix.text.trim()).filter(|it| !it.is_empty());
    let title = match (it.help.as_deref(), inserted()) {
        (Some(help), _) => help.lines().next().unwrap_or_default().to_owned(),
        (None, Some(text)) => format!("write `{}`", text.lines().next().unwrap_or_default().trim_end()),
        (None, None) => "remove this".to_owned(),
    };
    let short: String = title.chars().take(MAX_TITLE).collect();
    let more = if short.len() < title.len() { "…" } else { "" };
    format!("{}: {short}{more}", it.code.text())
}

/// Returns the edit of one document.
pub(crate) fn edit(uri: &Uri, edits: Vec<TextEdit>) -> WorkspaceEdit {
    // The key is not changed while it is in the map.
    #[allow(clippy::mutable_key_type, reason = "the protocol's type, whose key is not changed")]
    let changes = [(uri.clone(), edits)].into();
    WorkspaceEdit { changes: Some(changes), ..Default::default() }
}

/// Returns the edit that turns a text into another one: it replaces what is between their common beginning and their common end.
pub(crate) fn difference(snapshot: &Snapshot, new: &str) -> Vec<TextEdit> {
    let old = snapshot.text();
    if old == new {
        return Vec::new();
    }
    // A position cannot be between the two characters that end a line.
    let can_end = |it: &str, at: usize| {
        it.is_char_boundary(at) && !(it[..at].ends_with('\r') && it[at..].starts_with('\n'))
    };
    let is_boundary = |at: usize| can_end(old, at) && can_end(new, at);
    let common = old.bytes().zip(new.bytes()).take_while(|(a, b)| a == b).count();
    let start = (0..=common).rev().find(|at| is_boundary(*at)).unwrap_or(0);
    let most = old.len().min(new.len()) - start;
    let common = old.bytes().rev().zip(new.bytes().rev()).take(most).take_while(|(a, b)| a == b).count();
    let ends = |len: usize| (old.len() - len, new.len() - len);
    let len = (0..=common).rev().find(|len| {
        let (a, b) = ends(*len);
        can_end(old, a) && can_end(new, b)
    });
    let (old_end, new_end) = ends(len.unwrap_or(0));
    let text = new.get(start..new_end).unwrap_or_default().to_owned();
    vec![TextEdit::new(snapshot.range(Span::new(start, old_end)), text)]
}
