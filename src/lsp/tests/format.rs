//! Formatting, and the forms of a text.

use lsp_types::{FormattingOptions, TextDocumentIdentifier, request};

use super::editor::{Editor, Fault};

const LOG: &str = "// RUN: hir-opt %s
start of the job
%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :
  // the first
  T2_g_float[iS2{4}] = relu(T0)  // positive
  # the second
  FOR i0 from 0 to 2:
    // in the loop
    SetCurrentStream(Stream i0)
  T1 = relu(T2)
} // %HostIrContainer
end of the job
";

/// The same, in canonical text.
const CANONICAL: &str = "// RUN: hir-opt %s
start of the job
%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :
  // the first
  T2_g_float[iS2{4}]
     = relu(T0_g_float[iS0{4}]);  // positive
  # the second
  FOR i0 from 0 to 2:
    // in the loop
    SetCurrentStream(Stream i0)
  T1_g_float[iS1{4}]
     = relu(T2_g_float[iS2{4}]);
} // %HostIrContainer
end of the job
";

/// Asks for the edits that format the text, and makes them.
fn format(editor: &mut Editor) -> Result<(), Fault> {
    let params = serde_json::json!({
        "textDocument": TextDocumentIdentifier::new(Editor::uri()?),
        "options": FormattingOptions::default(),
    });
    let edits = editor.ask::<request::Formatting>(serde_json::from_value(params)?)?;
    editor.apply_edits(&edits.ok_or("nothing is formatted")?)
}

#[test]
fn formatting_keeps_comments_and_the_log_around_a_program() -> Result<(), Fault> {
    let mut editor = Editor::open(LOG)?;
    format(&mut editor)?;
    assert_eq!(editor.text(), CANONICAL);
    editor.act("FOR", "Write the short form")?;
    let short = editor.text().to_owned();
    assert!(
        short.contains("%tensor T0_g_float[iS0{4}]\n") && short.contains("  T2 = relu(T0);  // positive\n")
    );
    // Formatting keeps the form.
    format(&mut editor)?;
    assert_eq!(editor.text(), short);
    editor.act("FOR", "Write canonical text")?;
    assert_eq!(editor.text(), CANONICAL);
    editor.close()
}

#[test]
fn formatting_again_changes_nothing() -> Result<(), Fault> {
    let text = "%tensor T0_g_float[ideviceIdx.x0{2}, iS1{2}] (DeviceMesh{0 1})\n\
                %tensor T1_g_float[iS3{2}, ideviceIdx.x2{2}] (DeviceMesh{0 1})\n\
                %HostIrContainer { (T0) -> (T1) :\n  T1 = Set.Permute( T0 )\n} // %HostIrContainer\n\n\
                Domains:\n  T0: logical(ideviceIdx.x0{2}, iS1{2})\n";
    let mut editor = Editor::open(text)?;
    format(&mut editor)?;
    let once = editor.text().to_owned();
    assert_eq!(once.matches("Domains:").count(), 1, "{once}");
    format(&mut editor)?;
    assert_eq!(editor.text(), once);
    editor.close()
}

#[test]
fn a_text_with_errors_is_not_rewritten() -> Result<(), Fault> {
    for text in ["%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1) : }", ""] {
        let mut editor = Editor::open(text)?;
        assert!(format(&mut editor).is_err_and(|it| it.to_string() == "nothing is formatted"));
        editor.close()?;
    }
    Ok(())
}
