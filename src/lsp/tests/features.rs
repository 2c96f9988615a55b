//! Hover, definitions, references, names, structure, tokens, hints and completion.

use lsp_types::{
    CompletionResponse, DocumentSymbolResponse, GotoDefinitionResponse, HoverContents, InlayHintLabel,
    Position, SemanticTokensResult, request,
};
use serde_json::{Value, json};

use super::editor::{Editor, Fault};

/// A program with everything that has a name.
const PROGRAM: &str = "// RUN: hir-opt %s --passes=assign-streams{count=4}
%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{8}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{16}] (DeviceMesh{0 1})) :
  T1_g_float[iS2{16}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
  Stream s0 = GetCurrentStream()
  SetCurrentStream(Stream 1)
  Synchronize(Stream s0)
  Communication 7 (type=Allgather, team=(0 1), input=T0_g_float[ideviceIdx.x0{2}, iS1{8}] (DeviceMesh{0 1}), output=T1_g_float[iS2{16}] (DeviceMesh{0 1}), backend=NCCL)
  Wait(Communication 7)
  SetCurrentStream(Stream s0)
  FOR i5 from 0 to i9:
    Synchronize(Stream ( i5 + 1 ))
} // %HostIrContainer

Index definitions:
  i9 = 1 + rank;
";

impl Editor {
    /// Returns the parameters of a request about the last character of the first occurrence of `mark`.
    fn at(&self, mark: &str) -> Result<Value, Fault> {
        let end = self.range_of(mark)?.end;
        let position = Position::new(end.line, end.character - 1);
        Ok(json!({ "textDocument": { "uri": Self::uri()? }, "position": position }))
    }

    fn hover(&mut self, mark: &str) -> Result<String, Fault> {
        let params = serde_json::from_value(self.at(mark)?)?;
        match self.ask::<request::HoverRequest>(params)?.map(|it| it.contents) {
            Some(HoverContents::Markup(it)) => Ok(it.value),
            other => Err(format!("hover of `{mark}`: {other:?}").into()),
        }
    }

    /// Returns the text of the line in which the name at `mark` is defined.
    fn definition(&mut self, mark: &str) -> Result<String, Fault> {
        let params = serde_json::from_value(self.at(mark)?)?;
        match self.ask::<request::GotoDefinition>(params)? {
            Some(GotoDefinitionResponse::Scalar(it)) => {
                let line = self.text().lines().nth(it.range.start.line as usize).unwrap_or_default();
                Ok(format!("{} in {}", self.text_at(it.range), line.trim()))
            }
            other => Err(format!("definition of `{mark}`: {other:?}").into()),
        }
    }

    /// Returns the lines, from 1, that mention the name at `mark`.
    fn references(&mut self, mark: &str) -> Result<Vec<u32>, Fault> {
        let mut params = self.at(mark)?;
        params["context"] = json!({ "includeDeclaration": true });
        let found = self.ask::<request::References>(serde_json::from_value(params)?)?.unwrap_or_default();
        Ok(found.iter().map(|it| it.range.start.line + 1).collect())
    }

    fn rename(&mut self, mark: &str, new: &str) -> Result<(), Fault> {
        let mut params = self.at(mark)?;
        params["newName"] = json!(new);
        let edit = self.ask::<request::Rename>(serde_json::from_value(params)?)?;
        self.apply(&edit.ok_or("no edit")?)
    }

    /// Returns the labels that can be written behind `mark`.
    fn completions(&mut self, mark: &str) -> Result<Vec<String>, Fault> {
        let mut params = self.at(mark)?;
        params["position"] = json!(self.range_of(mark)?.end);
        let found = self.ask::<request::Completion>(serde_json::from_value(params)?)?;
        match found {
            Some(CompletionResponse::Array(found)) => Ok(found.into_iter().map(|it| it.label).collect()),
            other => Err(format!("{other:?}").into()),
        }
    }
}

#[test]
fn hover_describes_tensors_statements_scalars_and_passes() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    assert_eq!(
        editor.hover("{ (T0")?,
        "```hir\nT0_g_float[ideviceIdx.x0{2}, iS1{8}] (DeviceMesh{0 1})\n```\n* shape: 2 × 8, float\n* sharding: dimension 0 over 2 \
         ranks (deviceIdx.x)\n* mesh: 0 1 (2 ranks)\n* per rank: 32 bytes\n* an input: the caller writes it\n* bound or written: line \
         2\n* read: line 7\n"
    );
    let whole = editor.hover("-> (T1")?;
    assert!(
        whole.contains("* per rank: 64 bytes\n* bound or written: line 3, line 7\n* read: line 2\n"),
        "{whole}"
    );
    let statement = editor.hover("Communicatio")?;
    assert!(statement.contains("A collective of a team; `root` is an index into the team."), "{statement}");
    assert!(
        statement.contains("* on `Stream 1`, which line 5 makes current\n* waited for: line 8\n"),
        "{statement}"
    );
    assert!(statement.contains("* Allgather of 32 bytes of each rank (`T0`)\n"), "{statement}");
    let wait = editor.hover("Wait(Communication 7")?;
    assert!(wait.starts_with("```hir\nCommunication 7 (type=Allgather"), "{wait}");
    assert_eq!(editor.hover("+ rank")?, "`rank`: the rank that runs the program");
    assert_eq!(editor.hover("to i9")?, "```hir\ni9 = ( 1 + rank )\n```\n");
    // With the check come the verdict and the times.
    editor.diagnostics(true)?;
    assert!(editor.hover("Communicatio")?.contains("* estimated time: "));
    let verdict = "2 ranks: no race, no deadlock, every output written · ";
    let container = editor.hover("%HostIrContaine")?;
    assert!(
        container.starts_with(verdict) && container.contains("overlap; times are estimated"),
        "{container}"
    );
    assert!(editor.hover("assign-stream")?.starts_with("**assign-streams**: "));
    assert!(editor.hover("{count")?.starts_with("`count`: "));
    editor.close()
}

#[test]
fn definitions_and_references_of_every_kind_of_name() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    assert!(
        editor.definition("output=T1")?.starts_with("T1 in T1_g_float[iS2{16}] (DeviceMesh{0 1}) = ALLOCATE")
    );
    assert!(editor.definition("input=T0")?.starts_with("T0 in %HostIrContainer"));
    assert_eq!(editor.definition("Synchronize(Stream s0")?, "s0 in Stream s0 = GetCurrentStream()");
    assert!(editor.definition("Wait(Communication 7")?.starts_with("7 in Communication 7 (type=Allgather"));
    // The keyword belongs to the name.
    assert!(editor.definition("Wait(Communi")?.starts_with("7 in Communication 7 (type=Allgather"));
    assert_eq!(editor.definition("Synchronize(Str")?, "s0 in Stream s0 = GetCurrentStream()");
    assert_eq!(editor.definition("to i9")?, "i9 in i9 = 1 + rank;");
    assert_eq!(editor.definition("( i5")?, "i5 in FOR i5 from 0 to i9:");
    assert_eq!(editor.references("-> (T1")?, [2, 3, 7]);
    assert_eq!(editor.references("Communication 7")?, [7, 8]);
    assert_eq!(editor.references("Stream s0")?, [4, 6, 9]);
    assert_eq!(editor.references("to i9")?, [10, 15]);
    editor.close()
}

#[test]
fn a_new_name_is_written_everywhere_or_nowhere() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    editor.rename("-> (T1", "T12")?;
    assert_eq!(editor.text(), PROGRAM.replace("T1_", "T12_"));
    editor.rename("Communication 7", "70")?;
    editor.rename("FOR i5", "i55")?;
    editor.rename("Stream s0", "s3")?;
    let expected =
        PROGRAM.replace("T1_", "T12_").replace("Communication 7", "Communication 70").replace("i5", "i55");
    assert_eq!(editor.text(), expected.replace("s0", "s3"));
    assert_eq!(editor.diagnostics(false)?, []);
    for (mark, new) in
        [("-> (T12", "T0"), ("-> (T12", "X1"), ("-> (T12", "T"), ("FOR i55", "i9"), ("+ rank", "rank1")]
    {
        assert!(editor.rename(mark, new).is_err(), "{mark} {new}");
    }
    editor.close()
}

#[test]
fn a_name_that_the_log_has_elsewhere_keeps_it() -> Result<(), Fault> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/log/kernels.hir");
    let log = std::fs::read_to_string(path)?;
    let mut editor = Editor::open(&log)?;
    // The groups of the kernels name their inputs, and a container does not change them.
    for (mark, new) in [("%HostIrContainer { (T0", "T77"), ("    Outputs: {T4", "T77")] {
        let refused = editor.rename(mark, new).err().map(|it| it.to_string()).unwrap_or_default();
        assert!(refused.contains("with the name `T77`, line "), "{mark}: {refused}");
    }
    assert_eq!(editor.text(), log);
    editor.close()
}

#[test]
fn the_outline_has_loops_with_their_statements() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    let params = json!({ "textDocument": { "uri": Editor::uri()? } });
    let found = editor.ask::<request::DocumentSymbolRequest>(serde_json::from_value(params.clone())?)?;
    let Some(DocumentSymbolResponse::Nested(found)) = found else { return Err("no outline".into()) };
    assert_eq!(found.len(), 1);
    let children = found[0].children.clone().unwrap_or_default();
    let names: Vec<&str> = children.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names.last(), Some(&"FOR i5 from 0 to i9:"));
    assert_eq!(names.len(), 8, "{names:?}");
    let named = editor.call("workspace/symbol", json!({ "query": "for I5" }))?;
    assert_eq!(named.map_err(|it| it.message)?[0]["name"], "FOR i5 from 0 to i9:");
    let folds = editor.ask::<request::FoldingRangeRequest>(serde_json::from_value(params.clone())?)?;
    let folds: Vec<_> = folds.unwrap_or_default().iter().map(|it| (it.start_line, it.end_line)).collect();
    assert_eq!(folds, [(1, 14), (9, 10)]);
    let tokens = editor.ask::<request::SemanticTokensFullRequest>(serde_json::from_value(params)?)?;
    let Some(SemanticTokensResult::Tokens(tokens)) = tokens else { return Err("no tokens".into()) };
    let (mut line, mut column) = (0, 0);
    let mut shown = Vec::new();
    for it in &tokens.data {
        column = if it.delta_line == 0 { column } else { 0 } + it.delta_start;
        line += it.delta_line;
        let range =
            lsp_types::Range::new(Position::new(line, column), Position::new(line, column + it.length));
        shown.push((editor.text_at(range).to_owned(), it.token_type));
    }
    for (word, kind) in
        [("FOR", 0), ("Communication", 2), ("T1", 3), ("i5", 5), ("type", 7), ("Allgather", 8)]
    {
        assert!(shown.contains(&(word.to_owned(), kind)), "{word}: {shown:?}");
    }
    editor.close()
}

/// Returns the hints of the text, each with its line.
fn hints(editor: &mut Editor) -> Result<Vec<String>, Fault> {
    let range = json!({ "start": { "line": 0, "character": 0 }, "end": { "line": 99, "character": 0 } });
    let params = json!({ "textDocument": { "uri": Editor::uri()? }, "range": range });
    let params: lsp_types::InlayHintParams = serde_json::from_value(params)?;
    // The times come with the check.
    editor.diagnostics(true)?;
    let label = |it: &lsp_types::InlayHint| match &it.label {
        InlayHintLabel::String(text) => format!("{}: {text}", it.position.line + 1),
        InlayHintLabel::LabelParts(_) => String::new(),
    };
    let found = editor.ask::<request::InlayHintRequest>(params)?.unwrap_or_default();
    Ok(found.iter().map(label).collect())
}

#[test]
fn hints_say_what_a_statement_does_not_state() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    assert_eq!(hints(&mut editor)?, ["7: Stream 1 · 6.1 µs", "8: ⟵ line 7: Allgather of T0 to T1"]);
    editor.close()
}

#[test]
fn the_stream_behind_a_branch_is_the_one_of_both_paths() -> Result<(), Fault> {
    let program = "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :
  Stream s0 = GetCurrentStream()
  T1_g_float[iS1{4}] = ALLOCATE(mem_type=global, zero_init=false)
  IF Manual ( rank == 0 ):
    SetCurrentStream(Stream 1)
  ELSE:
    SetCurrentStream(Stream 1)
  Synchronize(Stream s0)
  T1_g_float[iS1{4}] = neg(T0_g_float[iS0{4}])
  SetCurrentStream(Stream s0)
  Synchronize(Stream 1)
  T1_g_float[iS1{4}] = abs(T1_g_float[iS1{4}])
} // %HostIrContainer
";
    let mut editor = Editor::open(program)?;
    let hints = hints(&mut editor)?;
    let stream = |it: &String| it.split(" · ").next().unwrap_or_default().to_owned();
    let streams: Vec<String> = hints.iter().map(stream).filter(|it| it.contains("Stream")).collect();
    // The stream at entry, to which `s0` returns, has no hint.
    assert_eq!(streams, ["9: Stream 1"], "{hints:?}");
    editor.close()
}

#[test]
fn lenses_run_a_program_and_show_its_timeline_and_overlap() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    editor.diagnostics(true)?;
    let params = json!({ "textDocument": { "uri": Editor::uri()? } });
    let lenses = editor.ask::<request::CodeLensRequest>(serde_json::from_value(params)?)?.unwrap_or_default();
    let commands: Vec<_> = lenses.into_iter().filter_map(|it| it.command).collect();
    let titles: Vec<&str> = commands.iter().map(|it| it.title.as_str()).collect();
    assert!(titles[0].starts_with("2 ranks: no race, no deadlock, every output written · "), "{titles:?}");
    assert_eq!(titles[1..4], ["run on 2 simulated ranks", "timeline", "overlap"]);
    let mut execute = |command: &str, arguments: Value| {
        editor.call("workspace/executeCommand", json!({ "command": command, "arguments": arguments }))
    };
    let mut outcomes = Vec::new();
    for it in &commands[1..4] {
        outcomes.push(execute(&it.command, json!(it.arguments))?.map_err(|it| it.message)?);
    }
    let text = |at: usize| outcomes[at]["text"].as_str().unwrap_or_default();
    let (run, overlap) = (text(0), text(2));
    assert!(
        run.starts_with("ran to the end on 2 simulated ranks: ") && run.contains("\nT1 of rank 1: "),
        "{run}"
    );
    assert!(overlap.contains("hidden behind computation"), "{overlap}");
    assert!(outcomes[1]["html"].as_str().is_some_and(|it| it.contains("<svg")), "{}", outcomes[1]);
    for (command, argument) in [("hir.run", Value::Null), ("hir.moon", json!(commands[1].arguments))] {
        assert_eq!(execute(command, argument)?.map_err(|it| it.code), Err(-32602));
    }
    editor.close()
}

/// A product and an all-reduce, one after the other: what does not depend on the all-reduce could hide it.
const EXPOSED: &str = "\
%HostIrContainer { (T0_g___bfloat[iS0{4096}, iS1{4096}] (DeviceMesh{0 1})) -> (T1_g___bfloat[iS2{4096}, iS3{4096}] (DeviceMesh{0 1})) :
  T1_g___bfloat[iS2{4096}, iS3{4096}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
  Communication 1 (type=Allreduce, team=(0 1), input=T0_g___bfloat[iS0{4096}, iS1{4096}] (DeviceMesh{0 1}), output=T1_g___bfloat[iS2{4096}, iS3{4096}] (DeviceMesh{0 1}))
  Wait(Communication 1)
} // %HostIrContainer
";

#[test]
fn a_lens_says_what_a_communication_costs() -> Result<(), Fault> {
    let mut editor = Editor::open(EXPOSED)?;
    let found = editor.diagnostics(true)?;
    let params = json!({ "textDocument": { "uri": Editor::uri()? } });
    let lenses = editor.ask::<request::CodeLensRequest>(serde_json::from_value(params)?)?.unwrap_or_default();
    let gains: Vec<_> = lenses.iter().filter(|it| it.range.start.line == 2).collect();
    let [gain] = gains[..] else { return Err(format!("{lenses:?} {found:?}").into()) };
    let title = gain.command.as_ref().map(|it| it.title.as_str()).unwrap_or_default();
    let numbers: Vec<f64> = title.split(' ').filter_map(|it| it.parse().ok()).collect();
    // All of it is exposed, and no computation can hide it: only a program without it is shorter.
    assert!(title.starts_with("Allreduce: ") && title.ends_with(" µs if free"), "{title}");
    let [time, exposed, hidden, free] = numbers[..] else { return Err(title.into()) };
    assert!(time > 100.0 && time == exposed && hidden < 0.1 * time && free > 0.9 * time, "{title}");
    editor.close()
}

#[test]
fn completion_offers_what_can_be_written() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    let has =
        |found: &[String], wanted: &[&str]| wanted.iter().all(|it| found.iter().any(|found| found == it));
    editor.replace("  SetCurrentStream(Stream 1)", "  Com\n  SetCurrentStream(Stream 1)")?;
    assert!(has(&editor.completions("  Com")?, &["Communication", "CollectivePermute", "FOR", "T0", "i9"]));
    editor.replace("  Com\n", "  Communication 9 (type=")?;
    let words = editor.completions("Communication 9 (type=")?;
    assert!(has(&words, &["Allgather", "Allreduce"]) && !has(&words, &["send"]), "{words:?}");
    editor.replace("Communication 9 (type=", "Communication 9 (type=Allreduce, ")?;
    let keys = editor.completions("(type=Allreduce, ")?;
    assert!(has(&keys, &["team", "input", "red_op"]) && !has(&keys, &["type"]), "{keys:?}");
    editor.reopen(&PROGRAM.replace("Wait(Communication 7)", "Wait("))?;
    assert_eq!(editor.completions("Wait(")?, ["Communication 7"]);
    editor.reopen(&PROGRAM.replace("Synchronize(Stream s0)", "Synchronize("))?;
    let streams = editor.completions("Synchronize(")?;
    assert!(has(&streams, &["Stream s0", "Stream 1"]) && !has(&streams, &["T0"]), "{streams:?}");
    assert!(has(&editor.completions("--passes=")?, &["assign-streams", "@overlap"]));
    assert!(has(&editor.completions("assign-streams{")?, &["count"]));
    editor.close()
}

#[test]
fn the_program_after_passes_knows_its_origin() -> Result<(), Fault> {
    let mut editor = Editor::open(include_str!("../../../samples/column-parallel.hir"))?;
    let ask = |editor: &mut Editor, passes: &str| -> Result<Result<Value, String>, Fault> {
        let mut params = editor.at("%HostIrContainer")?;
        params["passes"] = json!(passes);
        Ok(editor.call("hir/lowered", params)?.map_err(|it| it.message))
    };
    let found = ask(&mut editor, "@overlap-allgather-linear")??;
    let new = found["text"].as_str().ok_or("no text")?;
    let pairs: Vec<[u32; 2]> = serde_json::from_value(found["lines"].clone())?;
    let (old, new): (Vec<&str>, Vec<&str>) = (editor.text().lines().collect(), new.lines().collect());
    // The loop of the ring comes from the linear layer.
    let linear = old.iter().position(|it| it.contains("linear(")).ok_or("no linear")? as u32;
    let looped = new.iter().position(|it| it.trim_start().starts_with("FOR ")).ok_or("no loop")? as u32;
    assert!(pairs.iter().any(|it| it[1].abs_diff(linear) <= 1 && it[0] >= looped), "{found:#?}");
    assert!(pairs.is_sorted_by_key(|it| it[0]));
    assert!(ask(&mut editor, "@overlp")?.is_err_and(|it| it.contains("unknown pipeline")));
    editor.close()
}

/// Edits that make a text faulty in many places do not disturb the requests about it.
#[test]
fn every_request_has_an_answer_at_every_place_of_a_faulty_text() -> Result<(), Fault> {
    let mut editor = Editor::open(PROGRAM)?;
    for (old, new) in
        [("GetCurrentStream()", "GetCurrentStream("), ("(DeviceMesh{0 1}) =", "(Device"), ("FOR", "FO")]
    {
        editor.replace(old, new)?;
        let lines: Vec<usize> = editor.text().lines().map(|it| it.encode_utf16().count()).collect();
        for (line, length) in lines.into_iter().enumerate() {
            for character in (0..=length).step_by(7) {
                let at = json!({ "textDocument": { "uri": Editor::uri()? }, "position": { "line": line, "character": character } });
                for method in ["hover", "definition", "documentHighlight", "completion", "prepareRename"] {
                    let answer = editor.call(&format!("textDocument/{method}"), at.clone())?;
                    assert!(answer.is_ok(), "{method} at {line}:{character}: {answer:?}");
                }
            }
        }
        let whole = json!({ "textDocument": { "uri": Editor::uri()? } });
        for method in ["documentSymbol", "foldingRange", "semanticTokens/full"] {
            let answer = editor.call(&format!("textDocument/{method}"), whole.clone())?;
            assert!(answer.is_ok(), "{method}: {answer:?}");
        }
    }
    editor.close()
}
