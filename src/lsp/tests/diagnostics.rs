//! Diagnostics and their edits.

use lsp_types::{DiagnosticSeverity, NumberOrString};

use super::editor::{Editor, Fault};

/// The race of the README.
const RACE: &str = include_str!("../../../tests/cases/check/race-long-allocate.hir");

fn codes(diagnostics: &[lsp_types::Diagnostic]) -> Vec<&str> {
    diagnostics
        .iter()
        .filter_map(|it| match &it.code {
            Some(NumberOrString::String(code)) => Some(code.as_str()),
            Some(NumberOrString::Number(_)) | None => None,
        })
        .collect()
}

#[test]
fn a_race_marks_both_statements_and_one_edit_removes_it() -> Result<(), Fault> {
    let mut editor = Editor::open(RACE)?;
    assert_eq!(codes(&editor.diagnostics(false)?), [""; 0]);
    let found = editor.diagnostics(true)?;
    let races: Vec<_> = found.iter().filter(|it| it.severity == Some(DiagnosticSeverity::ERROR)).collect();
    assert_eq!(races.len(), 2, "{found:#?}");
    let marked: Vec<String> = races.iter().map(|it| editor.text_at(it.range)).collect();
    assert!(marked.iter().any(|it| it.starts_with("Communication 7 (")), "{marked:?}");
    assert!(marked.iter().all(|it| it.len() > 40 || !it.starts_with("Communication")), "{marked:?}");
    // Each statement refers to the other one.
    for (one, other) in [(races[0], races[1]), (races[1], races[0])] {
        let related = one.related_information.as_deref().unwrap_or_default();
        assert_eq!(related.iter().map(|it| it.location.range).collect::<Vec<_>>(), [other.range]);
    }
    editor.act("Communication 7", "Remove this race")?;
    assert!(editor.text().contains("ALLOCATE(mem_type=global, zero_init=false)"), "{}", editor.text());
    let left = editor.diagnostics(true)?;
    assert!(left.iter().all(|it| it.severity != Some(DiagnosticSeverity::ERROR)), "{left:#?}");
    editor.close()
}

#[test]
fn all_races_of_a_file_are_removed_at_once() -> Result<(), Fault> {
    let mut editor = Editor::open(RACE)?;
    editor.diagnostics(true)?;
    editor.act("Wait", "Remove all races")?;
    let left = editor.diagnostics(true)?;
    assert!(left.iter().all(|it| it.severity != Some(DiagnosticSeverity::ERROR)), "{left:#?}");
    editor.close()
}

#[test]
fn errors_of_the_reader_come_at_once_and_end_with_the_edit_that_corrects_them() -> Result<(), Fault> {
    let text = "a log\n%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :\n  T1 = relv(T0)\n}\nthe end\n";
    let mut editor = Editor::open(text)?;
    let found = editor.diagnostics(false)?;
    assert_eq!(codes(&found), ["E0201"]);
    assert_eq!(editor.text_at(found[0].range), "relv");
    editor.replace("relv", "relu")?;
    assert_eq!(codes(&editor.diagnostics(false)?), [""; 0]);
    assert_eq!(codes(&editor.diagnostics(true)?), [""; 0]);
    editor.replace("T1 = relu(T0)", "T1 = relu(T2)")?;
    assert_eq!(codes(&editor.diagnostics(false)?), ["E0207"]);
    editor.close()
}

#[test]
fn findings_follow_edits_of_other_lines_until_the_next_check() -> Result<(), Fault> {
    let mut editor = Editor::open(RACE)?;
    editor.diagnostics(true)?;
    editor.replace("  FOR i5", "  // 😀 a comment\n  FOR i5")?;
    let found = editor.diagnostics(false)?;
    let marked: Vec<String> = found.iter().map(|it| editor.text_at(it.range)).collect();
    assert!(marked.iter().any(|it| it.starts_with("Communication 7 (")), "{marked:?}");
    let moved = editor.diagnostics(true)?;
    assert_eq!(codes(&moved), codes(&found));
    editor.close()
}

#[test]
fn an_unknown_request_is_refused_and_the_session_goes_on() -> Result<(), Fault> {
    let mut editor = Editor::open("")?;
    assert_eq!(editor.diagnostics(false)?, []);
    let refused = editor.call("textDocument/moon", serde_json::json!({}))?;
    assert_eq!(refused.map_err(|it| it.code), Err(-32601));
    let refused = editor.call("textDocument/codeAction", serde_json::json!({ "range": 1 }))?;
    assert_eq!(refused.map_err(|it| it.code), Err(-32602));
    editor.close()
}

#[test]
fn a_session_that_is_shut_down_refuses_requests_and_ends_without_a_fault() -> Result<(), Fault> {
    let mut editor = Editor::open(RACE)?;
    editor.call("shutdown", serde_json::Value::Null)?.map_err(|it| it.message)?;
    let refused = editor.call("textDocument/hover", serde_json::json!({}))?;
    assert_eq!(refused.map_err(|it| it.code), Err(-32600));
    editor.reopen(RACE)?;
    assert!(editor.end()?.is_ok());
    let unannounced = Editor::open(RACE)?.end()?;
    assert!(matches!(unannounced, Err(hir_lsp::ServeError::NoShutdown)), "{unannounced:?}");
    Ok(())
}

#[test]
fn what_two_ranks_do_differently_is_marked_before_any_check() -> Result<(), Fault> {
    // There are no plans, so the only report behind that of the reader is the first one.
    let mut editor = Editor::open(include_str!("../../../tests/cases/errors/backends-differ.hir"))?;
    assert_eq!(codes(&editor.diagnostics(false)?), [""; 0]);
    let found = editor.diagnostics(true)?;
    assert_eq!(codes(&found), ["E0501"]);
    let related = found[0].related_information.as_deref().unwrap_or_default();
    assert_eq!(related.iter().map(|it| it.location.range.start.line + 1).collect::<Vec<_>>(), [14]);
    editor.close()
}

#[test]
fn a_module_of_stablehlo_is_read_as_one() -> Result<(), Fault> {
    let module = include_str!("../../../docs/examples/jax/shift.mlir");
    let mut editor = Editor::open(module)?;
    assert_eq!(codes(&editor.diagnostics(false)?), [""; 0]);
    editor.replace("collective_permute", "collective_unknown")?;
    let found = editor.diagnostics(false)?;
    assert_eq!(codes(&found), ["E0901"]);
    editor.close()
}

/// The editor has no flags.
#[test]
fn a_limit_names_the_tool_that_has_the_flag() -> Result<(), Fault> {
    let mesh = "(DeviceMesh{0 1 2 3})";
    let (input, output) = (format!("T0_g_float[iS0{{4}}] {mesh}"), format!("T1_g_float[iS1{{4}}] {mesh}"));
    let text = format!(
        "%HostIrContainer {{ ({input}) -> ({output}) :\n  FOR i9 from 0 to 600000:\n    {output}\n       = relu({input});\n}}\n"
    );
    let mut editor = Editor::open(&text)?;
    let found = editor.diagnostics(true)?;
    assert_eq!(codes(&found), ["E0410"]);
    assert!(found[0].message.contains("`hir check --max-work="), "{found:#?}");
    editor.close()
}
