//! `hir lsp`: serves an editor.

use clap::Parser;
use hir_lsp::ServeError;
use hir_process::exit::Exit;

use crate::{
    auto::{self, machine::default_estimator},
    tool::{Reporter, flags::DiagnosticFlags},
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str =
    "  hir lsp       started by an editor: docs/editor.md has the configuration of VS Code, Neovim and Helix";

/// Serves Host IR programs to an editor over the Language Server Protocol.
///
/// An editor starts it and speaks to it on standard input and output: it marks errors as you type, and races and deadlocks after it; it has hir's
/// edits as quick fixes, and hover, definitions, references, completion and formatting.
#[derive(Parser)]
#[command(name = "hir lsp", version)]
pub(super) struct Options {
    /// Use standard input and output. There is no other way; many editors give this option.
    #[arg(long)]
    stdio: bool,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(_: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    hir_lsp::serve_stdio(auto::catalog(), default_estimator()).map(|()| Exit::Success).map_err(|fault| {
        let exit = match fault {
            ServeError::Protocol(_) => Exit::Usage,
            ServeError::NoShutdown => Exit::Rejected,
            ServeError::Io(_) => Exit::Environment,
        };
        screen.fail(exit, fault)
    })
}
