//! `hir mcp` as an agent runs it: a process with the protocol on its standard input and output.

use std::{
    fs,
    io::{BufRead, Write},
    path::Path,
};

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use super::{ROOT, server_process::ServerProcess};

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("agents::an_agent_finds_the_race_of_the_readme_and_its_edit", session),
        Trial::test("agents::the_session_of_the_page_is_what_an_agent_reads", documented),
        Trial::test("agents::an_agent_checks_several_files_and_compares_traces", files),
        Trial::test("agents::an_agent_lowers_a_layer_and_certifies_it", lowers),
        Trial::test("agents::what_is_wrong_is_refused_and_the_session_goes_on", refused),
        Trial::test("agents::a_cancelled_call_has_no_answer", cancelled),
    ]
}

const RACE: &str = "tests/cases/check/race-long-allocate.hir";

struct Server(ServerProcess);

impl Server {
    fn start() -> Result<Self, Failed> {
        let mut server = Self(ServerProcess::start(&["mcp"])?);
        let client = json!({ "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": { "name": "suite", "version": "1" } });
        let found = server.ask("initialize", client)?;
        expect(&found["result"]["protocolVersion"], &json!("2025-03-26"))?;
        server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string())?;
        Ok(server)
    }

    fn send(&mut self, line: &str) -> Result<(), Failed> {
        writeln!(self.0.input, "{line}")?;
        Ok(self.0.input.flush()?)
    }

    fn receive(&mut self) -> Result<Value, Failed> {
        let mut line = String::new();
        self.0.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Failed> {
        let id = self.0.next_request();
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string())?;
        let answer = self.receive()?;
        expect(&answer["id"], &json!(id))?;
        Ok(answer)
    }

    /// Calls a tool; returns its result, or the error.
    fn call(&mut self, tool: &str, arguments: Value) -> Result<Value, Failed> {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))?;
        Ok(answer.get("result").unwrap_or(&answer["error"]).clone())
    }

    /// Closes the connection; the server must end.
    fn end(self) -> Result<(), Failed> {
        let ServerProcess { mut process, input, .. } = self.0;
        drop(input);
        let status = process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server ends with {status}").into()) }
    }
}

fn expect(found: &Value, wanted: &Value) -> Result<(), Failed> {
    if found == wanted { Ok(()) } else { Err(format!("{found} instead of {wanted}").into()) }
}

fn expect_text(result: &Value, parts: &[&str]) -> Result<(), Failed> {
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    match parts.iter().find(|it| !text.contains(**it)) {
        None => Ok(()),
        Some(part) => Err(format!("no `{part}` in {result:#}").into()),
    }
}

/// Applies the edit that `check` proposes, and checks the result.
fn session() -> Result<(), Failed> {
    let mut server = Server::start()?;
    let tools = server.ask("tools/list", Value::Null)?;
    let tools = tools["result"]["tools"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = tools.iter().filter_map(|it| it["name"].as_str()).collect();
    expect(
        &json!(names),
        &json!(["certify", "check", "explain", "fix", "hang", "lower", "opt", "overlap", "run"]),
    )?;
    let resources = server.ask("resources/list", Value::Null)?;
    let uri = &resources["result"]["resources"][0]["uri"];
    let language = server.ask("resources/read", json!({ "uri": uri }))?;
    let language = language["result"]["contents"][0]["text"].as_str().unwrap_or_default();
    if !language.contains("Allreduce") {
        return Err(format!("{resources}: {language}").into());
    }
    if let Some(it) = tools.iter().find(|it| it["annotations"]["readOnlyHint"] != true) {
        return Err(format!("{it}").into());
    }
    let text = fs::read_to_string(Path::new(ROOT).join(RACE))?;
    let found = server.call("check", json!({ "program": text }))?;
    let places = [
        "E0701 <stdin>:13:5: ",
        "line 13: writes it",
        "line 17: reads it",
        "after the edits: the check found no fault",
    ];
    expect_text(&found, &places)?;
    expect(&found["isError"], &json!(false))?;
    let edit = &found["structuredContent"]["edits"][0];
    let at = |key: &str| edit[key].as_u64().map(|it| it as usize).ok_or("no offset");
    let mut fixed = text.clone();
    fixed.replace_range(at("start")?..at("end")?, edit["text"].as_str().unwrap_or_default());
    let again = server.call("check", json!({ "program": fixed }))?;
    expect_text(&again, &["the check found no fault"])?;
    expect_text(&server.call("explain", json!({ "code": "E0701" }))?, &["A data race"])?;
    expect_text(
        &server.call("overlap", json!({ "path": "tests/cases/overlap/ring.hir" }))?,
        &["the whole run takes", "hidden behind computation"],
    )?;
    let run = server.call("run", json!({ "path": "tests/cases/overlap/ring.hir", "ranks": 8 }))?;
    expect_text(&run, &["[SUCCESS] ran, complete"])?;
    expect(&run["structuredContent"]["figures"]["exit_code"], &json!(0))?;
    let fixed = server.call("fix", json!({ "path": RACE }))?;
    let again = server.call("check", json!({ "program": fixed["structuredContent"]["program"] }))?;
    expect_text(&again, &["the check found no fault"])?;
    server.end()
}

/// Repairs the race and lowers the layer of docs/agents.md: each line that the page shows is in an answer; `…` stands for any text.
fn documented() -> Result<(), Failed> {
    let read = |name: &str| fs::read_to_string(Path::new(ROOT).join(name));
    let page = read("docs/agents.md")?;
    let (race, layer) = (read(RACE)?, read("docs/examples/mlp-tensor-parallel.hir")?);
    let mut server = Server::start()?;
    let mut answers = vec![
        server.call("check", json!({ "program": race }))?,
        server.call("lower", json!({ "program": layer }))?,
    ];
    let lowered = answers[1]["structuredContent"]["program"].clone();
    answers.push(server.call("certify", json!({ "original": layer, "program": lowered }))?);
    answers.push(server.call("overlap", json!({ "program": lowered }))?);
    let answers: String = answers
        .iter()
        .filter_map(|it| it["content"][0]["text"].as_str())
        .fold(String::new(), |all, it| all + it + "\n");
    let blocks = page.split("```text\n").skip(1).filter_map(|it| it.split_once("\n```"));
    let shown: Vec<&str> = blocks.flat_map(|it| it.0.lines()).collect();
    let is_like = |line: &str, shown: &str| {
        shown.split('…').try_fold(line, |rest, part| rest.split_once(part).map(|it| it.1)).is_some()
    };
    if let Some(missing) = shown.iter().find(|shown| !answers.lines().any(|it| is_like(it, shown))) {
        return Err(format!("no answer has `{missing}`: {answers}").into());
    }
    if shown.len() < 10 { Err("the page shows no session".into()) } else { server.end() }
}

/// Checks a file with a race beside one without, and compares a program with traces.
fn files() -> Result<(), Failed> {
    let mut server = Server::start()?;
    let found = server.call("check", json!({ "paths": [RACE, "samples/column-parallel.hir"] }))?;
    expect_text(
        &found,
        &[
            "2 files: 1 without faults, 1 with faults",
            "of tests/cases/check/race-long-allocate.hir, from line 12",
        ],
    )?;
    expect(&found["structuredContent"]["edits"][0]["file"], &json!(RACE))?;
    let folder = "tests/cases/timeline/";
    let traces = [format!("{folder}trace-0.json"), format!("{folder}trace-1.json")];
    let shown = server.call("overlap", json!({ "traces": traces }))?;
    expect_text(&shown, &["allreduce                   2.00       1       911.0       260.0"])?;
    let compared =
        server.call("overlap", json!({ "path": format!("{folder}trace.hir"), "traces": traces }))?;
    expect_text(&compared, &["1 communication of the program has no partner"])?;
    expect(&compared["structuredContent"]["figures"]["program"][0]["measured"]["kernel"], &json!(911.0))?;
    expect(&server.call("check", json!({ "paths": [RACE], "path": RACE }))?["code"], &json!(-32602))?;
    server.end()
}

/// Lowers a layer, overlaps it, certifies the result, and asks what its communications cost.
fn lowers() -> Result<(), Failed> {
    let mut server = Server::start()?;
    let original = fs::read_to_string(Path::new(ROOT).join("docs/examples/mlp-tensor-parallel.hir"))?;
    let lowered = server.call("lower", json!({ "program": original }))?;
    expect_text(&lowered, &["total: "])?;
    let overlapped = server.call("opt", json!({ "program": original, "passes": "@overlap{}" }))?;
    for program in [&lowered, &overlapped] {
        let program = &program["structuredContent"]["program"];
        let certified = server.call("certify", json!({ "original": original, "program": program }))?;
        expect(&certified["structuredContent"]["exit_code"], &json!(0))?;
        let cost = server.call("overlap", json!({ "program": program }))?;
        let gains = &cost["structuredContent"]["figures"]["overlap"]["gains"];
        if gains.as_array().is_none_or(|it| it.iter().all(|it| it["if_free"].is_null())) {
            return Err(format!("{cost:#}").into());
        }
    }
    let wrong = lowered["structuredContent"]["program"].as_str().unwrap_or_default().replace("relu", "neg");
    let wrong = server.call("certify", json!({ "original": original, "program": wrong }))?;
    expect(&wrong["structuredContent"]["exit_code"], &json!(3))?;
    server.end()
}

fn refused() -> Result<(), Failed> {
    let mut server = Server::start()?;
    for (line, code) in
        [("{", -32700), ("[]", -32600), ("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"moon\"}", -32601)]
    {
        server.send(line)?;
        expect(&server.receive()?["error"]["code"], &json!(code))?;
    }
    for (tool, arguments) in [
        ("write", json!({})),
        ("check", json!({})),
        ("check", json!({ "path": "-" })),
        ("check", json!({ "path": RACE, "ranks": 0 })),
        ("check", json!({ "path": RACE, "output": "a.hir" })),
        ("hang", json!({ "paths": [] })),
    ] {
        expect(&server.call(tool, arguments)?["code"], &json!(-32602))?;
    }
    // A file that is not there, a code that is none, and an option in the place of a file.
    for (tool, arguments) in [
        ("check", json!({ "path": "no-such-file.hir" })),
        ("explain", json!({ "code": "E9999" })),
        ("hang", json!({ "paths": ["--help"] })),
    ] {
        expect(&server.call(tool, arguments)?["isError"], &json!(true))?;
    }
    // What the reader rejects is an answer.
    let rejected = server.call("check", json!({ "program": "%HostIrContainer { (T0) -> (T1) : }" }))?;
    expect(&rejected["isError"], &json!(false))?;
    expect_text(&rejected, &["<stdin>:1:"])?;
    server.end()
}

/// Two calls; the second one, which waits, is cancelled before its turn.
fn cancelled() -> Result<(), Failed> {
    let mut server = Server::start()?;
    let call = |id: u32| {
        let params = json!({ "name": "check", "arguments": { "path": RACE } });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
    };
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 22 } });
    server.send(&[call(21), call(22), cancel.to_string(), call(23)].join("\n"))?;
    expect(&server.receive()?["id"], &json!(21))?;
    expect(&server.receive()?["id"], &json!(23))?;
    // The end of the session ends what runs.
    server.send(&call(24))?;
    server.end()
}
