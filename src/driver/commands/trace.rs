//! `hir overlap --trace`: what the traces of a job show.

use std::path::PathBuf;

use clap::Parser;
use hir_process::exit::Exit;

use crate::{
    source,
    tool::{Reporter, flags::DiagnosticFlags},
    trace::{analyze, json, lines, read},
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str = "  hir overlap --trace rank0.json rank1.json.gz     what collectives transfer, what they wait, and what hides them";

/// Reads the traces of the ranks of a job that torch.profiler (`prof.export_chrome_trace`) or Nsight Systems (`nsys export --type sqlite`) has
/// written, and reports for each collective how long the data takes, how long ranks wait for the last one, and what hides it.
#[derive(Parser)]
#[command(name = "hir overlap", version = crate::tool::version())]
pub(super) struct Options {
    /// The traces, one file for each rank, or with several; they may be compressed by gzip.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Write the figures to FILE as JSON; `-` is standard output.
    #[arg(short = 'J', long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    let mut traces = Vec::new();
    for path in &options.trace {
        let name = path.to_string_lossy();
        let (_, bytes) = source::bytes(screen.session(), &name)
            .map_err(|fault| screen.fail(Exit::Environment, format!("cannot read `{name}`: {fault}")))?;
        let ranks = read(bytes, traces.len())
            .map_err(|fault| screen.fail(Exit::Rejected, format!("`{name}`: {fault}")))?;
        traces.extend(ranks);
    }
    let job = analyze(&traces);
    for it in &job.notes {
        screen.message(it);
    }
    if let Some(path) = &options.json {
        return Ok(screen.write_result(&format!("{}\n", json(&job)), Some(path)));
    }
    Ok(screen.write_result(&(lines(&job).join("\n") + "\n"), None))
}
