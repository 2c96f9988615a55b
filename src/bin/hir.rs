//! Explains hangs of PyTorch jobs from their flight-recorder dumps (`hir hang`).

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use hir::driver::{
    session::{Report, Verdict},
    tool::{
        self, Reporter,
        flags::{DiagnosticFlags, with_help},
        report_usage_error,
        reproducer::crash_reproducer,
        startup::start_tool,
    },
};
use hir::hang::{
    diagnostics::{self, diagnostic},
    files::{self, LoadError},
    program::program,
    report::{report, table},
};
use hir::process::{exit::Exit, out_of_memory::Allocator};

/// The examples of `--help`.
const EXAMPLES: &str =
    "  hir hang dumps/                           all dumps of a folder, one file for each rank
  hir hang nccl_trace_rank_*                the same, as files
  hir hang dumps/ -o hang.hir               the calls that do not proceed, for `hir-run hang.hir`
  hir hang dumps/ --error-format=json       what was found, as JSON lines on standard error";

/// Finds out why a job of several GPUs does not proceed.
#[derive(Parser)]
#[command(name = "hir", version)]
struct Options {
    #[command(subcommand)]
    command: Tool,
}

#[derive(Subcommand)]
enum Tool {
    Hang(HangOptions),
}

/// Explains why a PyTorch job hangs, from the dumps of its flight recorder.
///
/// Reads one dump for each rank: the pickles that PyTorch writes when a collective times out, or the JSON of its debug server. Names the rank that
/// diverged first, its call and its line, and what the others wait for. Exits with 4 if the dumps show a hang, with 0 if they show none, and with 1
/// if they cannot be read.
#[derive(clap::Args)]
#[command(mut_args(with_help("quiet", "Print only what was found and the verdict: no notes and no table")))]
struct HangOptions {
    /// Dumps, or folders of dumps.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write the calls that do not proceed to FILE as a Host IR program, on which `hir-run` deadlocks in the same way.
    #[arg(short, value_name = "FILE.hir")]
    output: Option<PathBuf>,
    #[command(flatten)]
    diagnostics: DiagnosticFlags,
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { tool: "hir" };

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1).collect();
    start_tool("hir", arguments, |session| match tool::help::parse_arguments::<Options>(session, EXAMPLES) {
        Ok(Options { command: Tool::Hang(options) }) => {
            let screen = options.diagnostics.reporter(session);
            let exit = crash_reproducer::run_guarded(&screen, None, || {
                hang(&options, &screen).unwrap_or_else(|exit| exit)
            });
            screen.finish(exit, true, |_| ()).into()
        }
        Err(error) => report_usage_error(session, &error, |_| ()).into(),
    })
}

fn hang(options: &HangOptions, screen: &Reporter) -> Result<Exit, Exit> {
    screen.start_workers()?;
    let dumps = files::load(&options.paths).map_err(|fault| {
        let exit = match fault {
            LoadError::Read { .. } => Exit::Environment,
            LoadError::NoDumps { .. } | LoadError::NoRank(_) | LoadError::Unreadable(_) => Exit::Rejected,
        };
        screen.fail(exit, fault)
    })?;
    for skipped in &dumps.skipped {
        let (source, found) = diagnostics::unreadable(skipped);
        screen.report_diagnostics(&source, &[found]);
    }
    let found = report(&dumps);
    for finding in &found.findings {
        let (source, finding) = diagnostic(finding, &options.paths);
        screen.report_diagnostics(&source, &[finding]);
    }
    let exit = if found.is_hang { Exit::Hang } else { Exit::Success };
    let mut lines = Vec::new();
    if !options.diagnostics.quiet {
        lines.push(Report::note(found.summary()));
        lines.extend(found.notes.iter().map(Report::note));
        lines.extend(table(&found).into_iter().map(|it| Report::Output(format!("  {it}"))));
    }
    if let Some(path) = &options.output {
        match screen.write_result(&program(&dumps), Some(path)) {
            Exit::Success => lines.push(Report::note(format!("program in `{}`", path.display()))),
            failed => return Err(failed),
        }
    }
    lines.push(Report::Verdict(Verdict::of(exit, found.verdict())));
    screen.session().print_all(lines);
    Ok(exit)
}
