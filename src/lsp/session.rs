//! What a session has: the open documents, the thread that checks them, and the way to the editor.

use std::{collections::BTreeMap, io, sync::Arc};

use crossbeam_channel::Sender;
use hir_plan::timeline::estimator::Estimator;
use lsp_server::{ErrorCode, Message, Notification, RequestId, Response};
use lsp_types::{
    MessageType, ShowMessageParams,
    notification::{self, Notification as _},
};
use passes::Catalog;
use serde_json::Value;

use crate::{check::Checker, document::Document};

/// What the user reads about a bug.
pub(crate) const BUG: &str = "a bug in hir, which the log of the server shows";

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The kind of failure.
    pub(crate) code: ErrorCode,
    /// The reason, for the user.
    pub(crate) message: String,
}

impl Failure {
    /// Creates a failure.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The answer to a request: a value, or why there is none.
pub(crate) type Answer = Result<Value, Failure>;

/// The state of a session.
pub(crate) struct Session {
    sender: Sender<Message>,
    /// Whether the editor shows the results of commands; else the server sends them as messages, too.
    pub(crate) shows_results: bool,
    /// The passes that programs name.
    pub(crate) catalog: Arc<Catalog>,
    /// What estimates their times.
    pub(crate) estimator: Estimator<'static>,
    /// Checks the texts.
    pub(crate) checker: Checker,
    /// The open documents, by name.
    pub(crate) documents: BTreeMap<String, Document>,
}

impl Session {
    /// Begins a session without documents.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn new(
        sender: Sender<Message>,
        shows_results: bool,
        catalog: Catalog,
        estimator: Estimator<'static>,
    ) -> io::Result<Self> {
        let (catalog, checker) = (Arc::new(catalog), Checker::start(estimator)?);
        Ok(Self { sender, shows_results, catalog, estimator, checker, documents: BTreeMap::new() })
    }

    /// Returns an open document.
    ///
    /// # Errors
    /// The document is not open.
    pub(crate) fn document(&mut self, uri: &str) -> Result<&mut Document, Failure> {
        let known = self.documents.get_mut(uri);
        known.ok_or_else(|| Failure::new(ErrorCode::InvalidParams, format!("`{uri}` is not open")))
    }

    /// Sends a message. Without an editor, the loop of the server ends by itself.
    pub(crate) fn send(&self, message: impl Into<Message>) {
        let _ = self.sender.send(message.into());
    }

    /// Returns what shows a text to the user from another thread, unless the editor shows results itself.
    pub(crate) fn teller(&self) -> impl FnOnce(&str) + Send + use<> {
        let sender = (!self.shows_results).then(|| self.sender.clone());
        move |text| {
            let Some(sender) = sender else { return };
            let message = ShowMessageParams { typ: MessageType::INFO, message: text.to_owned() };
            let method = notification::ShowMessage::METHOD.to_owned();
            drop(sender.send(Notification::new(method, message).into()));
        }
    }

    /// Sends the answer to a request.
    pub(crate) fn respond(&self, id: RequestId, answer: Answer) {
        self.send(response(id, answer));
    }

    /// Returns what sends the answer to a request from another thread.
    pub(crate) fn responder(&self, id: RequestId) -> impl FnOnce(Answer) + Send + use<> {
        let sender = self.sender.clone();
        move |answer| drop(sender.send(response(id, answer).into()))
    }
}

fn response(id: RequestId, answer: Answer) -> Response {
    match answer {
        Ok(value) => Response::new_ok(id, value),
        Err(it) => Response::new_err(id, it.code as i32, it.message),
    }
}
