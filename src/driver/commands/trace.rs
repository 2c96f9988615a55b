//! `hir overlap --trace`: what the traces of a job show.

use std::path::PathBuf;

use clap::Parser;
use hir_process::exit::Exit;

use crate::{
    source,
    tool::{Reporter, flags::DiagnosticFlags},
    trace::{analyze, json, lines, parse},
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str = "  hir overlap --trace rank0.json rank1.json.gz     what collectives transfer, what they wait, and what hides them";

/// Reads the traces that torch.profiler has written of the ranks of a job (`prof.export_chrome_trace`), and reports for each collective how
/// long the data takes, how long ranks wait for the last one, and what hides it.
#[derive(Parser)]
#[command(name = "hir overlap", version = crate::tool::version())]
pub(super) struct Options {
    /// The traces, one file for each rank; they may be compressed by gzip.
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
    for (number, path) in options.trace.iter().enumerate() {
        let name = path.to_string_lossy();
        let text = source::open(screen.session(), &name)
            .map_err(|fault| screen.fail(Exit::Environment, format!("cannot read `{name}`: {fault}")))?;
        let trace = parse(&text.text, number)
            .map_err(|fault| screen.fail(Exit::Rejected, format!("`{name}`: {fault}")))?;
        traces.push(trace);
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
