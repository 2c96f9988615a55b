//! `hir mcp`: serves agents over the Model Context Protocol.
//!
//! `protocol` has the messages, `tools` what an agent can ask for and which tool of hir answers it, `limited_command` runs that tool within the
//! limits, and `answer` makes a short text of what it prints. The protocol is JSON-RPC with one message a line: a crate for it would bring
//! an asynchronous runtime for a program that answers one request after the other.
//!
//! Source of the protocol: modelcontextprotocol.io/specification, versions 2024-11-05 to 2025-06-18, transport `stdio`.

mod answer;
mod limited_command;
mod protocol;
mod tools;

use std::{
    ffi::OsString,
    io::{self, Write},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use clap::Parser;
use hir_process::exit::Exit;
use serde_json::{Value, json};

use self::{
    limited_command::Calls,
    protocol::{Incoming, RpcError},
};
use crate::tool::{Reporter, flags::DiagnosticFlags};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str = "  hir mcp       started by an agent: docs/agents.md has the configuration of Claude Code, VS Code and others";

/// Serves agents over the Model Context Protocol, on standard input and output.
///
/// The tools only read: check, explain, hang, overlap and run. Each call has at most 60 seconds and 4 GiB for plans and simulated ranks.
#[derive(Parser)]
#[command(name = "hir mcp", version = crate::tool::version())]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(_: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    let start = &screen.session().command_line.start;
    // The last word is `mcp`.
    let program: Vec<OsString> = start.iter().take(start.len().saturating_sub(1)).cloned().collect();
    serve(&program).map(|()| Exit::Success).map_err(|fault| screen.fail(Exit::Environment, fault))
}

/// A call of a tool that waits for its turn.
struct Call {
    id: Value,
    params: Value,
}

/// Answers messages until there are no more. Calls are made one after the other in a thread, so that one can be cancelled.
fn serve(program: &[OsString]) -> io::Result<()> {
    let calls = Arc::new(Calls::default());
    let (queue, waiting): (Sender<Call>, Receiver<Call>) = channel();
    thread::scope(|scope| {
        let worker = Arc::clone(&calls);
        scope.spawn(move || {
            for Call { id, params } in waiting {
                // A cancelled call has no answer.
                if let Some(answer) = worker.within(&id, || tools::call(program, &params, &worker)) {
                    reply(&id, answer);
                }
            }
        });
        let served = receive(&calls, &queue);
        // Nobody reads the answer of a call that still runs.
        calls.cancel_all();
        drop(queue);
        served
    })
}

/// Follows the messages of the agent.
fn receive(calls: &Calls, queue: &Sender<Call>) -> io::Result<()> {
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    while protocol::read_line(&mut input, &mut line)? {
        match protocol::parse(&line) {
            Ok(None) => (),
            Ok(Some(Incoming::Notification { method, params })) => {
                if method == "notifications/cancelled" {
                    calls.cancel(&params["requestId"]);
                }
            }
            Ok(Some(Incoming::Request { id, method, params })) => match method.as_str() {
                "tools/call" => {
                    calls.add(&id);
                    // The thread ends only after this one.
                    let _ = queue.send(Call { id, params });
                }
                _ => reply(&id, answer(&method, &params)),
            },
            Err((id, fault)) => reply(&id, Err(fault)),
        }
    }
    Ok(())
}

/// The resource with the reference of the language.
const LANGUAGE: &str = "hir://language";

/// Answers what needs no tool.
fn answer(method: &str, params: &Value) -> Result<Value, RpcError> {
    match method {
        "initialize" => Ok(json!({
            "protocolVersion": protocol::version(params["protocolVersion"].as_str()),
            "capabilities": { "tools": {}, "resources": {} },
            "serverInfo": { "name": "hir", "version": crate::tool::version() },
            "instructions": tools::INSTRUCTIONS,
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({ "tools": tools::list() })),
        "resources/list" => Ok(json!({ "resources": [{
            "uri": LANGUAGE, "name": "language", "title": "The language of Host IR", "mimeType": "text/markdown",
        }] })),
        "resources/templates/list" => Ok(json!({ "resourceTemplates": [] })),
        "resources/read" if params["uri"] == LANGUAGE => Ok(json!({ "contents": [{
            "uri": LANGUAGE, "mimeType": "text/markdown", "text": grammar::REFERENCE,
        }] })),
        "resources/read" => Err(RpcError::parameters(format!("the only resource is `{LANGUAGE}`"))),
        other => Err(RpcError::no_method(other)),
    }
}

/// Sends an answer. Without a reader, the next line of input is the last one.
fn reply(id: &Value, answer: Result<Value, RpcError>) {
    let message = protocol::response(id, answer);
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{message}").and_then(|()| out.flush());
}
