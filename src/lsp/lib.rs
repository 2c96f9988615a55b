//! `hir lsp`: Host IR programs in an editor, over the Language Server Protocol.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `server` receives the messages of the editor, and `requests` answers those that are requests. A `document` is an open text, with the
//! `snapshot` that was read last; `check` plans and checks its programs in a thread, which an edit of the text ends; `estimate` summarises
//! each, and `lenses` has the commands above it. `diagnostics`, `actions` and `format` are about what hir finds and proposes. `names` finds the names of a text, for `navigation` and `hover`;
//! `streams` says on which stream a statement is issued, for `hover` and `hints`. `completion`, `run_lines`, `lowered`, `structure` and `tokens`
//! are the answers of these names. `positions` converts positions, and `reference` has the rows of the language reference.
//!
//! ```
//! use lsp_server::{Connection, Message, Notification, Request};
//!
//! // An editor in this process, which ends the session at once.
//! let (editor, server) = Connection::memory();
//! let serving = std::thread::spawn(move || hir_lsp::serve(&server, passes::Catalog::default(), Default::default()));
//! let request = |id: i32, method: &str| Request::new(id.into(), method.to_owned(), serde_json::json!({}));
//! let tell = |method: &str| Notification::new(method.to_owned(), serde_json::json!({}));
//! editor.sender.send(Message::Request(request(0, "initialize")))?;
//! let Message::Response(answer) = editor.receiver.recv()? else { return Err("no answer".into()) };
//! assert!(answer.response_result.is_ok_and(|it| it["capabilities"]["hoverProvider"] == true));
//! editor.sender.send(Message::Notification(tell("initialized")))?;
//! editor.sender.send(Message::Request(request(1, "shutdown")))?;
//! editor.sender.send(Message::Notification(tell("exit")))?;
//! serving.join().map_err(|_| "the server panics")??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariant: after any sequence of edits, the server says of a text what it says of the same text when it is opened.
//!
//! The package knows no command line, no file and no GPU.

mod actions;
mod check;
mod completion;
mod diagnostics;
mod document;
mod estimate;
mod format;
mod hints;
mod hover;
mod invariant;
mod lenses;
mod lowered;
mod names;
mod navigation;
mod positions;
mod reference;
mod refusal;
mod requests;
mod run_lines;
mod server;
mod session;
mod snapshot;
mod streams;
mod structure;
mod tokens;
mod transport;

pub use invariant::follows_edits;
pub use server::{ServeError, serve, serve_stdio};
