//! The server: receives messages of the editor, keeps the open documents, and answers.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crossbeam_channel::select;
use hir_plan::timeline::estimator::Estimator;
use lsp_server::{Connection, ErrorCode, Message, Notification, ProtocolError, Request};
use lsp_types::{
    InitializeParams, PublishDiagnosticsParams,
    notification::{self, Notification as _},
    request::{self, Request as _},
};
use passes::Catalog;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    check::Checked,
    diagnostics,
    document::Document,
    requests,
    session::{BUG, Failure, Session},
    transport::{self, Cancelled},
};

/// The longest reason why a message cannot be read, in characters.
const MAX_REASON: usize = 400;

/// Why a server has ended before its editor ended it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The editor does not follow the protocol.
    #[error("the editor does not follow the protocol: {0}")]
    Protocol(String),
    /// The editor has ended the server without the request that comes before that. The protocol wants an exit code of its own for it.
    #[error("the editor has sent `exit` without `shutdown` before it")]
    NoShutdown,
    /// A message cannot be read or written, or the system refuses a thread.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Serves the editor that has started this process, on standard input and output, until it ends the session. `catalog` has the passes
/// that programs name, and `estimator` what estimates their times.
///
/// # Errors
/// See [`ServeError`].
pub fn serve_stdio(catalog: Catalog, estimator: Estimator<'static>) -> Result<(), ServeError> {
    let (connection, cancelled, threads) = transport::stdio()?;
    serve_until(&connection, &cancelled, catalog, estimator)?;
    // The thread that writes ends when nothing can send to it.
    drop(connection);
    threads.join().map_err(|fault| match fault.kind() {
        // The reason contains the message.
        io::ErrorKind::InvalidData => {
            ServeError::Protocol(fault.to_string().chars().take(MAX_REASON).collect())
        }
        _ => fault.into(),
    })
}

/// Serves an editor until it ends the session.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(
    connection: &Connection,
    catalog: Catalog,
    estimator: Estimator<'static>,
) -> Result<(), ServeError> {
    serve_until(connection, &Cancelled::default(), catalog, estimator)
}

/// As `serve`, where requests may be cancelled.
fn serve_until(
    connection: &Connection,
    cancelled: &Cancelled,
    catalog: Catalog,
    estimator: Estimator<'static>,
) -> Result<(), ServeError> {
    let protocol = |fault: ProtocolError| ServeError::Protocol(fault.to_string());
    let (id, params) = connection.initialize_start().map_err(protocol)?;
    let client: Option<InitializeParams> = serde_json::from_value(params).ok();
    let shows_results =
        client.as_ref().and_then(|it| it.initialization_options.as_ref()?.get("showsResults")?.as_bool());
    let workspace = client.and_then(|it| it.capabilities.workspace).unwrap_or_default();
    let lenses = workspace.code_lens.and_then(|it| it.refresh_support).unwrap_or_default();
    let hints = workspace.inlay_hint.and_then(|it| it.refresh_support).unwrap_or_default();
    let refreshes =
        [(lenses, request::CodeLensRefresh::METHOD), (hints, request::InlayHintRefreshRequest::METHOD)];
    connection.initialize_finish(id, requests::capabilities()).map_err(protocol)?;
    let mut server = Server {
        session: Session::new(connection.sender.clone(), shows_results == Some(true), catalog, estimator)?,
        refreshes: refreshes.into_iter().filter(|it| it.0).map(|it| it.1).collect(),
        requests: 0,
    };
    let mut is_shut_down = false;
    loop {
        // Of many changes in a row, only the text after the last one is read.
        if connection.receiver.is_empty() {
            server.read_changed();
        }
        select! {
            recv(connection.receiver) -> message => match message {
                Ok(Message::Request(request)) if is_shut_down => {
                    let message = "the session is shut down";
                    server.session.respond(request.id, Err(Failure::new(ErrorCode::InvalidRequest, message)));
                }
                Ok(Message::Request(request)) if request.method == request::Shutdown::METHOD => {
                    is_shut_down = true;
                    server.session.respond(request.id, Ok(Value::Null));
                }
                Ok(Message::Request(it)) if cancelled.lock().is_ok_and(|mut all| all.remove(&it.id)) => {
                    server.session.respond(it.id, Err(Failure::new(ErrorCode::RequestCanceled, "cancelled")));
                }
                Ok(Message::Request(request)) => server.answer(request),
                Ok(Message::Notification(it)) if it.method == notification::Exit::METHOD => {
                    return if is_shut_down { Ok(()) } else { Err(ServeError::NoShutdown) };
                }
                Ok(Message::Notification(it)) => server.notice(it),
                Ok(Message::Response(_)) => (),
                // The editor has closed the connection.
                Err(_) => return Ok(()),
            },
            recv(server.session.checker.results) -> checked => checked.into_iter().for_each(|it| server.report(it)),
        }
    }
}

/// Follows the messages of the editor.
struct Server {
    session: Session,
    /// The requests after which the editor asks again for what the check has changed.
    refreshes: Vec<&'static str>,
    /// The number of requests that the server has sent.
    requests: i32,
}

impl Server {
    /// Answers a request. A bug ends the request, not the session.
    fn answer(&mut self, request: Request) {
        let id = request.id.clone();
        let answered = catch_unwind(AssertUnwindSafe(|| requests::answer(&mut self.session, request)));
        let result = answered.unwrap_or_else(|_| Some(Err(Failure::new(ErrorCode::InternalError, BUG))));
        if let Some(result) = result {
            self.session.respond(id, result);
        }
    }

    /// Follows a notification. Those that the server does not know, the protocol lets it ignore.
    fn notice(&mut self, it: Notification) {
        match it.method.as_str() {
            notification::DidOpenTextDocument::METHOD => {
                if let Some(it) = params::<notification::DidOpenTextDocument>(it) {
                    let it = it.text_document;
                    let name = it.uri.as_str().to_owned();
                    self.session.documents.insert(name, Document::new(it.uri, it.version, it.text));
                }
            }
            notification::DidChangeTextDocument::METHOD => {
                if let Some(it) = params::<notification::DidChangeTextDocument>(it)
                    && let Ok(document) = self.session.document(it.text_document.uri.as_str())
                {
                    document.change(it.text_document.version, it.content_changes);
                }
            }
            notification::DidCloseTextDocument::METHOD => {
                if let Some(it) = params::<notification::DidCloseTextDocument>(it) {
                    let uri = it.text_document.uri;
                    self.session.documents.remove(uri.as_str());
                    self.publish(PublishDiagnosticsParams::new(uri, Vec::new(), None));
                }
            }
            _ => (),
        }
    }

    /// Reads the texts that have changed, reports what the reader says, and starts their checks.
    fn read_changed(&mut self) {
        let mut reports = Vec::new();
        for (name, document) in self.session.documents.iter_mut().filter(|(_, it)| !it.is_reported) {
            document.is_reported = true;
            let Ok(snapshot) = catch_unwind(AssertUnwindSafe(|| document.snapshot())) else { continue };
            if !snapshot.is_rejected() && !snapshot.programs.is_empty() {
                document.check = Some(self.session.checker.check(name.clone(), Arc::clone(&snapshot)));
            }
            reports.push(report_of(document));
        }
        reports.into_iter().for_each(|it| self.publish(it));
    }

    /// Reports what the check has found, unless the text has changed since.
    fn report(&mut self, checked: Checked) {
        let Some(document) = self.session.documents.get_mut(&checked.uri) else { return };
        if document.is_changed() || !Arc::ptr_eq(&document.snapshot(), &checked.snapshot) {
            return;
        }
        let is_news = document.report.findings != checked.report.findings
            || document.report.not_checked != checked.report.not_checked
            || document.report.summaries != checked.report.summaries;
        document.report = checked.report;
        if checked.is_complete {
            document.check = None;
            // What the check has said before is published.
            if document.is_checked && !is_news {
                return;
            }
        }
        document.is_checked = true;
        let report = report_of(document);
        self.publish(report);
        for method in &self.refreshes {
            self.requests += 1;
            self.session.send(Request::new(self.requests.into(), (*method).to_owned(), ()));
        }
    }

    fn publish(&self, mut report: PublishDiagnosticsParams) {
        if self.session.shows_results {
            report.diagnostics.iter_mut().for_each(diagnostics::add_link);
        }
        let method = notification::PublishDiagnostics::METHOD.to_owned();
        self.session.send(Notification::new(method, report));
    }
}

/// Returns what is known about a document.
fn report_of(document: &mut Document) -> PublishDiagnosticsParams {
    let snapshot = document.snapshot();
    let found = diagnostics::all(&document.uri, &snapshot, &document.report);
    PublishDiagnosticsParams::new(document.uri.clone(), found, Some(snapshot.version))
}

/// Returns the parameters of a notification, or `None` if they are not those of the protocol.
fn params<N: notification::Notification<Params: DeserializeOwned>>(it: Notification) -> Option<N::Params> {
    serde_json::from_value(it.params).ok()
}
