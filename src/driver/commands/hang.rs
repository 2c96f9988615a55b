//! `hir hang`: explains why a PyTorch job hangs.

mod timeline;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use grammar::InvalidOption;
use hir_hang::{
    answer::answer,
    diagnostics::{self, diagnostic},
    files::{self, LoadError},
    program::program,
    report::{report, table},
    watch,
};
use hir_plan::timeline::file::TimelineFile;
use hir_process::exit::Exit;

use self::timeline::timeline;
use crate::{
    run::option_files::{OptionFile, check_option_files},
    session::{Report, Verdict},
    tool::{
        Reporter,
        flags::{DiagnosticFlags, with_help},
    },
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str =
    "  hir hang dumps/                           all dumps of a folder, one file for each rank
  hir hang nccl_trace_rank_*                the same, as files
  hir hang dumps/ -o hang.hir               the calls that do not proceed, for `hir-run hang.hir`
  hir hang --watch dumps/                   the same, as soon as the dumps are complete
  hir hang dumps/ --error-format=json       what was found, as JSON lines on standard error";

/// Explains why a PyTorch job hangs, from the dumps of its flight recorder.
///
/// Reads one dump for each rank: the pickles that PyTorch writes when a collective times out, or the JSON of its debug server. Names the rank that
/// diverged first, its call and its line, and what the others wait for. Exits with 4 if the dumps show a hang, with 0 if they show none, with 1
/// if no file is a dump that can be read, and with 6 if a file or folder cannot be opened.
#[derive(Parser)]
#[command(
    name = "hir hang",
    version = crate::tool::version(),
    mut_args(with_help("quiet", "Print only what was found and the verdict: no notes and no table"))
)]
pub(super) struct Options {
    /// Dumps, or folders or archives (`.zip`, `.tar.gz`) of dumps.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write the calls that do not proceed to FILE as a Host IR program. `hir-run` deadlocks on it if they hang because of their order, their members
    /// or their peers.
    #[arg(short, value_name = "FILE.hir")]
    output: Option<PathBuf>,
    /// Write to FILE when each rank made which call, until when: a picture (`.svg`), a page (`.html`) or a trace for Perfetto (`.json`). What
    /// has not completed has no end. A repeated option writes several files.
    #[arg(long, value_name = "FILE")]
    timeline: Vec<TimelineFile>,
    /// A folder with the files of the program, whose paths in the dumps may be those of another machine.
    #[arg(long, value_name = "DIR")]
    source: Vec<PathBuf>,
    /// Wait until the dumps are complete: one of each rank, or no change for a minute. The folder need not exist yet.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

/// Checks that no option writes over a dump. A program in their folder is that of an earlier call.
fn check_files(options: &Options) -> Result<(), InvalidOption> {
    let file = |option, path| OptionFile { option, path };
    let mut inputs: Vec<_> = options.paths.iter().map(|it| file("a dump", it)).collect();
    let output = options.output.as_deref();
    let folder = output.filter(|it| it.is_file() && it.extension().is_none_or(|it| it != "hir"));
    let folder = folder.and_then(|it| it.canonicalize().ok()?.parent().map(Path::to_path_buf));
    if folder
        .is_some_and(|it| options.paths.iter().any(|path| path.canonicalize().is_ok_and(|path| path == it)))
    {
        inputs.extend(output.map(|it| file("a file of the dumps", it)));
    }
    let timelines = options.timeline.iter().map(|it| file("--timeline", &it.path));
    let written: Vec<_> = output.map(|it| file("-o", it)).into_iter().chain(timelines).collect();
    check_option_files(&written, &inputs)
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    screen.start_workers()?;
    check_files(options).map_err(|fault| screen.fail(Exit::Usage, fault))?;
    if options.watch {
        watch::wait(&options.paths, Duration::from_secs(1));
    }
    let mut dumps = files::load(&options.paths).map_err(|fault| {
        let exit = match fault {
            LoadError::Read { .. } => Exit::Environment,
            LoadError::NotAFile(_)
            | LoadError::NoDumps { .. }
            | LoadError::NoRank(_)
            | LoadError::Unreadable(_) => Exit::Rejected,
        };
        screen.fail(exit, fault)
    })?;
    dumps.folders.splice(0..0, options.source.iter().cloned());
    for skipped in &dumps.skipped {
        let (source, found) = diagnostics::unreadable(skipped);
        screen.report_diagnostics(&source, &[found]);
    }
    let found = report(&dumps);
    for finding in &found.findings {
        let (source, finding) = diagnostic(finding, &dumps);
        screen.report_diagnostics(&source, &[finding]);
    }
    screen.report_json(&answer(&dumps, &found));
    let exit = if found.is_hang { Exit::Hang } else { Exit::Success };
    let mut lines = Vec::new();
    if !options.diagnostics.quiet {
        lines.push(Report::note(found.summary()));
        lines.extend(found.notes.iter().map(Report::note));
        lines.extend(table(&found).into_iter().map(|it| Report::Output(format!("  {it}"))));
    }
    let mut write = |what: &str, text: &str, path: &Path| match screen.write_result(text, Some(path)) {
        Exit::Success => {
            lines.push(Report::note(format!("{what} in `{}`", path.display())));
            Ok(())
        }
        failed => Err(failed),
    };
    if let Some(path) = &options.output {
        write("program", &program(&dumps), path)?;
    }
    for file in &options.timeline {
        let path = file.path.display();
        let title = format!("{}, {}", found.summary(), if found.is_hang { "hang" } else { "no hang" });
        let timeline = timeline(&dumps, &found);
        let mut report = table(&found);
        report.push(format!("Times are {}.", timeline.source));
        let text = file.text(&timeline, &title, &report);
        let text = text.map_err(|fault| screen.fail(Exit::Usage, format!("`{path}`: {fault}")))?;
        write("timeline", &text, &file.path)?;
    }
    lines.push(Report::Verdict(if found.is_hang || found.proceeds {
        Verdict::of(exit, found.verdict())
    } else {
        Verdict::undecided(found.verdict())
    }));
    screen.session().print_all(lines);
    Ok(exit)
}
