//! An editor that talks to a server in this process.

use std::{thread::JoinHandle, time::Duration};

use hir_lsp::{ServeError, serve};
use hir_plan::timeline::estimator::Estimator;
use lsp_server::{Connection, Message, Notification, Request, RequestId, Response, ResponseError};
use lsp_types::{
    CodeAction, CodeActionContext, CodeActionOrCommand, CodeActionParams, Diagnostic,
    PublishDiagnosticsParams, Range, TextEdit, Uri, WorkspaceEdit, request,
};
use passes::Catalog;
use serde_json::{Value, json};

use super::text;

/// Why a script stops.
pub(super) type Fault = Box<dyn std::error::Error>;

/// How long an answer may take, on a slow machine without optimisation.
const PATIENCE: Duration = Duration::from_secs(60);

/// An editor with one document.
pub(super) struct Editor {
    connection: Connection,
    server: JoinHandle<Result<(), ServeError>>,
    requests: i32,
    version: i32,
    text: String,
    /// What the server has published, in order.
    published: Vec<PublishDiagnosticsParams>,
}

impl Editor {
    /// Starts a server and opens a document.
    pub(super) fn open(text: &str) -> Result<Self, Fault> {
        let (connection, server) = Connection::memory();
        let server = std::thread::spawn(move || {
            serve(&server, Catalog::default(), Estimator { lower: passes::lowered, ..Estimator::default() })
        });
        let mut editor =
            Self { connection, server, requests: 0, version: 0, text: String::new(), published: Vec::new() };
        let _ = editor.call("initialize", json!({ "capabilities": {} }))?;
        editor.tell("initialized", json!({}))?;
        editor.reopen(text)?;
        Ok(editor)
    }

    /// The name of the document.
    pub(super) fn uri() -> Result<Uri, Fault> {
        Ok("file:///a%20folder/test.hir".parse()?)
    }

    /// Closes the document, if it is open, and opens it with another text.
    pub(super) fn reopen(&mut self, text: &str) -> Result<(), Fault> {
        let uri = Self::uri()?;
        if self.version > 0 {
            self.tell("textDocument/didClose", json!({ "textDocument": { "uri": uri } }))?;
        }
        self.version += 1;
        text.clone_into(&mut self.text);
        let document = json!({ "uri": uri, "languageId": "hir", "version": self.version, "text": text });
        self.tell("textDocument/didOpen", json!({ "textDocument": document }))
    }

    /// Replaces the first occurrence of `old`, as a keystroke does.
    pub(super) fn replace(&mut self, old: &str, new: &str) -> Result<(), Fault> {
        let range = self.range_of(old)?;
        self.text = text::replaced(&self.text, range, new);
        self.change(json!([{ "range": range, "text": new }]))
    }

    /// Sends changes that have been made in the text.
    fn change(&mut self, changes: Value) -> Result<(), Fault> {
        self.version += 1;
        let document = json!({ "uri": Self::uri()?, "version": self.version });
        self.tell("textDocument/didChange", json!({ "textDocument": document, "contentChanges": changes }))
    }

    /// Makes an edit that the server has proposed.
    pub(super) fn apply(&mut self, edit: &WorkspaceEdit) -> Result<(), Fault> {
        let edits =
            edit.changes.as_ref().and_then(|it| it.values().next()).ok_or("the edit changes nothing")?;
        self.apply_edits(edits)
    }

    /// Makes edits, all of which refer to the present text.
    pub(super) fn apply_edits(&mut self, edits: &[TextEdit]) -> Result<(), Fault> {
        let mut edits: Vec<_> = edits.iter().collect();
        edits.sort_by_key(|it| std::cmp::Reverse(it.range.start));
        for edit in edits {
            self.text = text::replaced(&self.text, edit.range, &edit.new_text);
        }
        let text = self.text.clone();
        self.change(json!([{ "text": text }]))
    }

    /// Returns the text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the range of the first occurrence of a text.
    pub(super) fn range_of(&self, text: &str) -> Result<Range, Fault> {
        text::range_of(&self.text, text).ok_or_else(|| format!("the text has no `{text}`").into())
    }

    /// Returns the text of a range.
    pub(super) fn text_at(&self, range: Range) -> String {
        text::text_at(&self.text, range)
    }

    /// Returns what is published about the present text. `with_check` waits for the check, too.
    pub(super) fn diagnostics(&mut self, with_check: bool) -> Result<Vec<Diagnostic>, Fault> {
        let wanted = if with_check { 2 } else { 1 };
        loop {
            let own = |it: &&PublishDiagnosticsParams| it.version == Some(self.version);
            if let Some(it) = self.published.iter().filter(own).nth(wanted - 1) {
                return Ok(it.diagnostics.clone());
            }
            self.receive()?;
        }
    }

    /// Sends a request and returns its result.
    pub(super) fn ask<R: request::Request>(&mut self, params: R::Params) -> Result<R::Result, Fault> {
        match self.call(R::METHOD, serde_json::to_value(params)?)? {
            Ok(value) => Ok(serde_json::from_value(value)?),
            Err(fault) => Err(format!("{}: {}", fault.code, fault.message).into()),
        }
    }

    /// Returns the actions at the first occurrence of a text.
    pub(super) fn actions(&mut self, at: &str) -> Result<Vec<CodeAction>, Fault> {
        let params = CodeActionParams {
            text_document: lsp_types::TextDocumentIdentifier::new(Self::uri()?),
            range: self.range_of(at)?,
            context: CodeActionContext::default(),
            work_done_progress_params: Default::default(),
            partial_result_params: Default::default(),
        };
        let found = self.ask::<request::CodeActionRequest>(params)?.unwrap_or_default();
        let action = |it| match it {
            CodeActionOrCommand::CodeAction(it) => Some(it),
            CodeActionOrCommand::Command(_) => None,
        };
        Ok(found.into_iter().filter_map(action).collect())
    }

    /// Makes the action with a title that begins in this way.
    pub(super) fn act(&mut self, at: &str, title: &str) -> Result<(), Fault> {
        let mut actions = self.actions(at)?.into_iter();
        let mut action =
            actions.find(|it| it.title.starts_with(title)).ok_or_else(|| format!("no action `{title}`"))?;
        if action.edit.is_none() {
            action = self.ask::<request::CodeActionResolveRequest>(action)?;
        }
        self.apply(&action.edit.ok_or("the action has no edit")?)
    }

    /// Sends a request and returns its result, or the error of the server.
    pub(super) fn call(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<Result<Value, ResponseError>, Fault> {
        self.requests += 1;
        let id = RequestId::from(self.requests);
        self.connection.sender.send(Request::new(id.clone(), method.to_owned(), params).into())?;
        loop {
            if let Some(response) = self.receive()?
                && response.id == id
            {
                return Ok(response.response_result);
            }
        }
    }

    fn tell(&mut self, method: &str, params: Value) -> Result<(), Fault> {
        Ok(self.connection.sender.send(Notification::new(method.to_owned(), params).into())?)
    }

    /// Receives a message; returns a response.
    fn receive(&mut self) -> Result<Option<Response>, Fault> {
        match self.connection.receiver.recv_timeout(PATIENCE)? {
            Message::Response(it) => return Ok(Some(it)),
            Message::Notification(it) if it.method == "textDocument/publishDiagnostics" => {
                self.published.push(serde_json::from_value(it.params)?);
            }
            Message::Notification(_) | Message::Request(_) => (),
        }
        Ok(None)
    }

    /// Ends the session.
    pub(super) fn close(mut self) -> Result<(), Fault> {
        let _ = self.call("shutdown", Value::Null)?;
        Ok(self.end()??)
    }

    /// Ends the server, and returns how it has ended.
    pub(super) fn end(mut self) -> Result<Result<(), ServeError>, Fault> {
        self.tell("exit", Value::Null)?;
        Ok(self.server.join().map_err(|_| "the server has panicked")?)
    }
}
