//! `hir lsp`: Host IR programs in an editor, over the Language Server Protocol.
//!
//! `server` receives the messages of the editor, and `requests` answers those that are requests. A `document` is an open text, with the
//! `snapshot` that was read last; `check` plans and checks its programs in a thread, which an edit of the text ends; `estimate` summarises
//! each, and `lenses` has the commands above it. `diagnostics`, `actions` and `format` are about what hir finds and proposes. `names` finds the names of a text, for `navigation` and `hover`;
//! `streams` says on which stream a statement is issued, for `hover` and `hints`. `completion`, `run_lines`, `lowered`, `structure` and `tokens`
//! are the answers of these names. `positions` converts positions, and `reference` has the rows of the language reference.
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

pub use invariant::follows_edits;
pub use server::{ServeError, serve, serve_stdio};
