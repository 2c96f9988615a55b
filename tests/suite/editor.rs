//! `hir lsp` as an editor runs it: a process with the protocol on its standard input and output.

use std::{
    fs,
    io::{BufRead, Read, Write},
    path::Path,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use super::{ROOT, server_process::ServerProcess};

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("editor::the_race_of_the_readme_is_marked_and_removed", race),
        Trial::test("editor::a_code_is_a_link_to_its_explanation", explains),
        Trial::test("editor::a_server_ends_with_its_editor", ends),
        Trial::test("editor::messages_that_cannot_be_read_are_answered", answers_faults),
        Trial::test("editor::stated_lengths_are_not_believed", refuses_lengths),
        Trial::test("editor::a_thousand_lines_are_read_and_checked_between_two_keystrokes", thousand_lines),
        Trial::test("editor::thirty_thousand_lines_stay_usable", many_lines),
    ]
}

const URI: &str = "file:///race.hir";

struct Server(ServerProcess);

impl Server {
    fn start() -> Result<Self, Failed> {
        Self::start_with(json!({}))
    }

    fn start_with(options: Value) -> Result<Self, Failed> {
        let mut server = Self(ServerProcess::start(&["lsp", "--stdio"])?);
        let client = json!({ "capabilities": {}, "initializationOptions": options });
        let found = server.ask("initialize", client)?;
        if found["serverInfo"]["name"] != "hir" {
            return Err(format!("the server says {found}").into());
        }
        server.tell("initialized", json!({}))?;
        Ok(server)
    }

    fn send(&mut self, message: &Value) -> Result<(), Failed> {
        let text = message.to_string();
        write!(self.0.input, "Content-Length: {}\r\n\r\n{text}", text.len())?;
        Ok(self.0.input.flush()?)
    }

    fn tell(&mut self, method: &str, params: Value) -> Result<(), Failed> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Failed> {
        let id = self.0.next_request();
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let message = self.receive()?;
            if message["id"] == id {
                return match message.get("error") {
                    None => Ok(message["result"].clone()),
                    Some(fault) => Err(format!("{method}: {fault}").into()),
                };
            }
        }
    }

    fn receive(&mut self) -> Result<Value, Failed> {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.0.output.read_line(&mut line)? == 0 {
                return Err("the server has ended".into());
            }
            match line.trim().split_once(": ") {
                Some(("Content-Length", value)) => length = value.parse()?,
                Some(_) => (),
                None => break,
            }
        }
        let mut text = vec![0; length];
        self.0.output.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn open(&mut self, text: &str) -> Result<(), Failed> {
        let document = json!({ "uri": URI, "languageId": "hir", "version": 1, "text": text });
        self.tell("textDocument/didOpen", json!({ "textDocument": document }))
    }

    /// Returns the next diagnostics that are published.
    fn published(&mut self) -> Result<Vec<Value>, Failed> {
        loop {
            let message = self.receive()?;
            if message["method"] == "textDocument/publishDiagnostics" {
                return Ok(message["params"]["diagnostics"].as_array().cloned().unwrap_or_default());
            }
        }
    }

    /// Ends the session, and returns whether the server has succeeded.
    fn close(mut self) -> Result<bool, Failed> {
        self.ask("shutdown", Value::Null)?;
        self.tell("exit", Value::Null)?;
        Ok(self.0.process.wait()?.success())
    }
}

fn race() -> Result<(), Failed> {
    let text = fs::read_to_string(Path::new(ROOT).join("tests/cases/check/race-long-allocate.hir"))?;
    let mut server = Server::start()?;
    server.open(&text)?;
    let read = server.published()?;
    let found = server.published()?;
    let lines = |found: &[Value]| -> Vec<u64> {
        let races = found.iter().filter(|it| it["code"] == "E0701");
        races.filter_map(|it| it["range"]["start"]["line"].as_u64()).map(|line| line + 1).collect()
    };
    // The two statements that the README shows.
    if !read.is_empty() || lines(&found) != [13, 17] {
        return Err(format!("read {read:?}, found {found:#?}").into());
    }
    let document = json!({ "uri": URI });
    let params =
        json!({ "textDocument": document, "range": found[0]["range"], "context": { "diagnostics": [] } });
    let actions = server.ask("textDocument/codeAction", params)?;
    let action = server.ask("codeAction/resolve", actions[0].clone())?;
    let edit = &action["edit"]["changes"][URI][0];
    let version = json!({ "uri": URI, "version": 2 });
    let change = json!({ "range": edit["range"], "text": edit["newText"] });
    server.tell("textDocument/didChange", json!({ "textDocument": version, "contentChanges": [change] }))?;
    server.published()?;
    let left = server.published()?;
    if !lines(&left).is_empty() {
        return Err(format!("{} leaves {left:#?}", actions[0]["title"]).into());
    }
    if server.close()? { Ok(()) } else { Err("the server has failed".into()) }
}

/// A client that shows texts of the server gets links, and their texts; others get no links that they cannot open.
fn explains() -> Result<(), Failed> {
    for (options, href) in
        [(json!({ "showsResults": true }), json!("hir-answer:/E0201.txt")), (json!({}), Value::Null)]
    {
        let mut server = Server::start_with(options)?;
        server.open(
            "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :\n  T1 = relv(T0)\n}\n",
        )?;
        let found = server.published()?;
        if found[0]["codeDescription"]["href"] != href {
            return Err(format!("{found:#?}").into());
        }
        let text = server.ask("hir/explain", json!({ "code": found[0]["code"] }))?;
        if !text.as_str().is_some_and(|it| it.starts_with("E0201: ") && it.contains("Example")) {
            return Err(format!("{text}").into());
        }
        if server.ask("hir/explain", json!({ "code": "moon" })).is_ok() || !server.close()? {
            return Err("`moon` has an explanation, or the server has failed".into());
        }
    }
    Ok(())
}

/// Messages that are no JSON, or no messages, are answered; a request that is cancelled before its turn is not computed.
fn answers_faults() -> Result<(), Failed> {
    let mut server = Server::start()?;
    for (text, code) in [("{\"jsonrpc\": ", -32700), ("[1, 2]", -32600)] {
        write!(server.0.input, "Content-Length: {}\r\n\r\n{text}", text.len())?;
        server.0.input.flush()?;
        let answer = server.receive()?;
        if answer["error"]["code"] != code || !answer["id"].is_null() {
            return Err(format!("{text}: {answer}").into());
        }
    }
    server.tell("$/cancelRequest", json!({ "id": 4711 }))?;
    server.send(&json!({ "jsonrpc": "2.0", "id": 4711, "method": "textDocument/hover", "params": {} }))?;
    let answer = server.receive()?;
    if answer["error"]["code"] != -32800 {
        return Err(format!("{answer}").into());
    }
    if server.close()? { Ok(()) } else { Err("the server has failed".into()) }
}

/// What a header states is neither allocated nor believed.
fn refuses_lengths() -> Result<(), Failed> {
    let long = "x".repeat(8192);
    for header in [
        "Content-Length: 18446744073709551615",
        "Content-Length: -1",
        "Content-Length: 200000000",
        "Length",
        &long,
    ] {
        let mut server = Server::start()?;
        write!(server.0.input, "{header}\r\n\r\n")?;
        drop(server.0.input);
        let code = server.0.process.wait()?.code();
        if !matches!(code, Some(2 | 6)) {
            return Err(format!("{}: the server ends with {code:?}", &header[..header.len().min(40)]).into());
        }
    }
    Ok(())
}

fn ends() -> Result<(), Failed> {
    let mut server = Server::start()?;
    server.open("%HostIrContainer {")?;
    server.published()?;
    // An editor that crashes closes the pipe.
    drop(server.0.input);
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        if server.0.process.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    server.0.process.kill()?;
    Err("the server goes on without its editor".into())
}

/// Returns a program with this number of lines: all-reduces between two ranks, each with what makes its input and waits for it.
fn program(lines: usize) -> String {
    let tensor = |number: usize| format!("T{number}_g_float[iS{number}{{4}}] (DeviceMesh{{0 1}})");
    let groups = lines.saturating_sub(2) / 4;
    let last = tensor(2 * groups);
    let mut text = format!("%HostIrContainer {{ ({}) -> ({last}) :\n", tensor(0));
    for group in 0..groups {
        let [before, between, after] = [0, 1, 2].map(|it| tensor(2 * group + it));
        text += &format!("  {between} = relu({before})\n");
        text += &format!("  {after} = ALLOCATE(mem_type=global, zero_init=false)\n");
        text += &format!(
            "  Communication {group} (type=Allreduce, team=(0 1), red_op=SUM, input={between}, output={after}, backend=NCCL)\n  \
             Wait(Communication {group})\n"
        );
    }
    text + "} // %HostIrContainer\n"
}

/// How long the answers to a keystroke take.
struct Latency {
    /// Until what the reader says is published.
    reader: Duration,
    /// Until what the check says is published.
    check: Duration,
}

impl Server {
    /// Changes a comment in the first line, as a keystroke does, and waits for both reports.
    fn keystroke(&mut self, version: i32) -> Result<Latency, Failed> {
        let [start, end] = [0, i32::from(version > 2)].map(|it| json!({ "line": 0, "character": 3 + it }));
        let change = json!({ "range": { "start": start, "end": end }, "text": (version % 10).to_string() });
        let document = json!({ "uri": URI, "version": version });
        let begin = Instant::now();
        self.tell("textDocument/didChange", json!({ "textDocument": document, "contentChanges": [change] }))?;
        let mut times = Vec::new();
        while times.len() < 2 {
            let message = self.receive()?;
            if message["params"]["version"] == version {
                if message["params"]["diagnostics"].as_array().is_none_or(|it| !it.is_empty()) {
                    return Err(format!("{message:#}").into());
                }
                times.push(begin.elapsed());
            }
        }
        Ok(Latency { reader: times[0], check: times[1] })
    }

    /// Returns the memory of the server in bytes, where the system says it.
    fn memory(&self) -> Option<usize> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.process.id())).ok()?;
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? << 10)
    }
}

/// Edits a dump of 1,000 lines. The best of some keystrokes counts: other tests run at the same time.
fn thousand_lines() -> Result<(), Failed> {
    const READER: Duration = Duration::from_millis(50);
    const CHECK: Duration = Duration::from_millis(300);
    let mut server = Server::start()?;
    server.open(&format!("// \n{}", program(998)))?;
    let mut best = Latency { reader: Duration::MAX, check: Duration::MAX };
    for version in 2..22 {
        let found = server.keystroke(version)?;
        best = Latency { reader: best.reader.min(found.reader), check: best.check.min(found.check) };
        if best.reader <= READER && best.check <= CHECK {
            return if server.close()? { Ok(()) } else { Err("the server has failed".into()) };
        }
    }
    Err(format!(
        "of 1,000 lines, the reader reports after {:?}, the check after {:?}",
        best.reader, best.check
    )
    .into())
}

/// Edits and asks about a dump of 30,000 lines: it stays usable, and its edits do not pile up in memory.
fn many_lines() -> Result<(), Failed> {
    const READER: Duration = Duration::from_secs(3);
    const ANSWER: Duration = Duration::from_secs(2);
    let mut server = Server::start()?;
    server.open(&format!("// \n{}", program(30_000)))?;
    let mut best = Latency { reader: Duration::MAX, check: Duration::MAX };
    let mut memory = Vec::new();
    for version in 2..8 {
        let found = server.keystroke(version)?;
        best = Latency { reader: best.reader.min(found.reader), check: best.check.min(found.check) };
        memory.extend(server.memory());
    }
    let place = json!({ "textDocument": { "uri": URI }, "position": { "line": 20_000, "character": 5 } });
    let mut slowest = Duration::ZERO;
    for method in ["hover", "definition", "completion", "documentHighlight"] {
        let begin = Instant::now();
        server.ask(&format!("textDocument/{method}"), place.clone())?;
        slowest = slowest.max(begin.elapsed());
    }
    // The program before the last edit may or may not be freed when the memory is read: this nearly doubles
    // single figures. An edit that keeps its program raises all of the second half.
    let (first, last) = memory.split_at(memory.len() / 2);
    let grows = last.iter().min() > first.iter().map(|it| it + it / 8).max().as_ref();
    if best.reader > READER || slowest > ANSWER || grows {
        let Latency { reader, check } = best;
        return Err(format!(
            "reader {reader:?}, check {check:?}, slowest answer {slowest:?}, memory {memory:?}"
        )
        .into());
    }
    if server.close()? { Ok(()) } else { Err("the server has failed".into()) }
}
