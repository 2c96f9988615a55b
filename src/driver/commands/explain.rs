//! `hir explain`: explains the codes of diagnostics.

use clap::Parser;
use hir_process::exit::Exit;

use crate::tool::{Reporter, flags::DiagnosticFlags, listing};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str = "  hir explain E0801                         explain a code
  hir explain                               list all codes";

/// Explains the codes of diagnostics, or lists all codes.
#[derive(Parser)]
#[command(name = "hir explain", version = crate::tool::version())]
pub(super) struct Options {
    /// Codes of diagnostics.
    #[arg(value_name = "CODE")]
    codes: Vec<String>,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    let texts: Result<Vec<String>, _> = options.codes.iter().map(|it| listing::explanation(it)).collect();
    let texts = texts.map_err(|fault| screen.fail(Exit::Usage, fault))?;
    let text = if texts.is_empty() { listing::codes() } else { texts.join("\n") };
    Ok(screen.write_result(&text, None))
}
