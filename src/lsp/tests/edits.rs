//! After any edits, the server says of a text what it says of the same text when it is opened.

use lsp_types::{Position, Range, TextDocumentContentChangeEvent};
use proptest::prelude::*;

use crate::document::Document;

use super::editor::{Editor, Fault};

/// The texts that edits begin with, and whose pieces they insert.
const TEXTS: &[&str] = &[
    include_str!("../../../samples/ring.hir"),
    include_str!("../../../samples/column-parallel.hir"),
    include_str!("../../../tests/cases/check/race-long-allocate.hir"),
];

/// Other pieces: what a text rarely has.
const PIECES: &[&str] =
    &["", "\n", "\r\n", "\r", "😀", "é", "  ", "{", "}", "T9", "//", "(", "%HostIrContainer {"];

/// An edit: the range, as parts of the text, and what replaces it.
#[derive(Clone, Debug)]
struct Edit {
    from: Position,
    to: Position,
    text: String,
}

fn position() -> impl Strategy<Value = Position> {
    (0u32..60, 0u32..150).prop_map(|(line, character)| Position::new(line, character))
}

fn edit() -> impl Strategy<Value = Edit> {
    let piece = prop_oneof![
        proptest::sample::select(PIECES).prop_map(str::to_owned),
        (0..TEXTS.len(), 0usize..4000, 0usize..200)
            .prop_map(|(text, at, len)| { TEXTS[text].chars().skip(at).take(len).collect() }),
    ];
    // Most edits are small, as keystrokes are.
    let end = (position(), 0u32..5, prop::bool::weighted(0.2));
    (position(), end, piece).prop_map(|(from, (far, near, is_far), text)| {
        let to = if is_far { far } else { Position::new(from.line, from.character + near) };
        Edit { from, to, text }
    })
}

/// Replaces a range as the protocol defines it, by a definition of its own: lines as lists of UTF-16 units.
fn replaced(text: &str, edit: &Edit) -> String {
    let mut lines: Vec<(Vec<u16>, &str)> = Vec::new();
    let mut rest = text;
    loop {
        let end = rest.find(['\n', '\r']);
        let Some(end) = end else { break };
        let mark = if rest[end..].starts_with("\r\n") { "\r\n" } else { &rest[end..end + 1] };
        lines.push((rest[..end].encode_utf16().collect(), mark));
        rest = &rest[end + mark.len()..];
    }
    lines.push((rest.encode_utf16().collect(), ""));
    let offset = |it: Position| -> usize {
        let before: usize = lines.iter().take(it.line as usize).map(|it| it.0.len() + it.1.len()).sum();
        let Some((line, _)) = lines.get(it.line as usize) else { return before };
        let at = line.len().min(it.character as usize);
        // The second half of a pair belongs to the character before it.
        let is_half = line.get(at).is_some_and(|it| (0xdc00..0xe000).contains(it));
        before + at - usize::from(is_half && at > 0)
    };
    let all: Vec<u16> = text.encode_utf16().collect();
    let start = offset(edit.from);
    let end = offset(edit.to).max(start);
    let new: Vec<u16> = edit.text.encode_utf16().collect();
    String::from_utf16_lossy(&[&all[..start], &new[..], &all[end..]].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn edits_give_the_state_of_a_fresh_text(text in 0..TEXTS.len(), edits in prop::collection::vec(edit(), 1..12)) {
        let mut expected = TEXTS[text].to_owned();
        let uri: Result<lsp_types::Uri, _> = "file:///edited.hir".parse();
        let mut document = Document::new(uri.map_err(|it| TestCaseError::fail(format!("{it:?}")))?, 0, expected.clone());
        for (version, edit) in edits.iter().enumerate() {
            expected = replaced(&expected, edit);
            let change = TextDocumentContentChangeEvent {
                range: Some(Range::new(edit.from, edit.to)),
                range_length: None,
                text: edit.text.clone(),
            };
            document.change(version as i32, vec![change]);
            // Some texts in between are read, too.
            if version % 3 == 0 {
                document.snapshot();
            }
        }
        let edited = document.snapshot();
        prop_assert_eq!(edited.text(), expected.as_str());
        crate::invariant::equals_fresh(&edited).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_session_of_edits_publishes_what_a_fresh_document_gets() -> Result<(), Fault> {
    let mut editor = Editor::open(TEXTS[2])?;
    // An error, its correction, and a change of the findings.
    editor.replace("Wait(", "Wat(")?;
    editor.diagnostics(false)?;
    editor.replace("Wat(", "Wait(")?;
    editor.replace("zero_init=false", "zero_init=true")?;
    let edited = editor.diagnostics(true)?;
    let text = editor.text().to_owned();
    editor.reopen(&text)?;
    assert_eq!(editor.diagnostics(true)?, edited);
    editor.close()
}
