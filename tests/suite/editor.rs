//! `hir lsp` as an editor runs it: a process with the protocol on its standard input and output.

use std::{
    fs,
    io::{BufRead, Read, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use super::{ROOT, server_process::ServerProcess};

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("editor::the_race_of_the_readme_is_marked_and_removed", race),
        Trial::test("editor::a_server_ends_with_its_editor", ends),
        Trial::test("editor::a_thousand_lines_are_read_between_two_keystrokes", thousand_lines),
        Trial::test("editor::the_extension_passes_its_tests", extension),
    ]
}

const URI: &str = "file:///race.hir";

struct Server(ServerProcess);

impl Server {
    fn start() -> Result<Self, Failed> {
        let mut server = Self(ServerProcess::start(&["lsp", "--stdio"])?);
        let found = server.ask("initialize", json!({ "capabilities": {} }))?;
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

/// Reads a dump of 1,000 lines after each of some keystrokes. Without optimisation, and beside other tests, it takes several times
/// as long as the 50 ms that a user may not notice.
fn thousand_lines() -> Result<(), Failed> {
    const LIMIT: Duration = Duration::from_millis(1000);
    let mut text = "%HostIrContainer { (T0_g_float[iS0{4}]) -> () :\n".to_owned();
    for line in 1..1000 {
        text += &format!(
            "  T{line}_g_float[iS{line}{{4}}] = Set( T{}_g_float[iS{}{{4}}] )\n",
            line - 1,
            line - 1
        );
    }
    text += "} // %HostIrContainer\n";
    let mut server = Server::start()?;
    server.open(&text)?;
    server.published()?;
    let mut best = Duration::MAX;
    for version in 2..8 {
        // An error and its correction: the reader answers, without a check in between.
        let at = json!({ "line": 500, "character": 0 });
        let end = json!({ "line": 500, "character": if version % 2 == 0 { 0 } else { 1 } });
        let change =
            json!({ "range": { "start": at, "end": end }, "text": if version % 2 == 0 { "(" } else { "" } });
        let document = json!({ "uri": URI, "version": version });
        let start = Instant::now();
        server.tell(
            "textDocument/didChange",
            json!({ "textDocument": document, "contentChanges": [change] }),
        )?;
        loop {
            let message = server.receive()?;
            if message["params"]["version"] == version {
                break;
            }
        }
        best = best.min(start.elapsed());
    }
    if best > LIMIT {
        return Err(format!("the reader takes {best:?} for 1,000 lines, more than {LIMIT:?}").into());
    }
    if server.close()? { Ok(()) } else { Err("the server has failed".into()) }
}

/// Runs the tests of the extension of VS Code, if there is a Node.js.
fn extension() -> Result<(), Failed> {
    let node =
        Command::new("node").arg("--test").current_dir(Path::new(ROOT).join("editors/vscode")).output();
    match node {
        Ok(it) if it.status.success() => Ok(()),
        Ok(it) => Err(String::from_utf8_lossy(&it.stdout).into_owned().into()),
        Err(_) => Ok(()),
    }
}
