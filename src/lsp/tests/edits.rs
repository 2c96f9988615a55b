//! After any edits, the server says of a text what it says of the same text when it is opened.

use hir_lsp::follows_edits;
use lsp_types::{Position, Range};
use proptest::prelude::*;

use super::{
    editor::{Editor, Fault},
    text::replaced,
};

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
    range: Range,
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
        Edit { range: Range::new(from, to), text }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn edits_give_the_state_of_a_fresh_text(text in 0..TEXTS.len(), edits in prop::collection::vec(edit(), 1..12)) {
        let mut expected = TEXTS[text].to_owned();
        let mut session = expected.clone();
        for Edit { range: Range { start, end }, text } in &edits {
            expected = replaced(&expected, Range::new(*start, *end), text);
            session += &format!("\0{}:{} {}:{}\n{text}", start.line, start.character, end.line, end.character);
        }
        prop_assert_eq!(follows_edits(&session), Ok(expected));
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
