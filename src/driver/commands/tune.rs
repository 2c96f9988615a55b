//! `hir tune`: measures what is the fastest on a machine.

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use grammar::algorithm_table::DEFAULT_RULES;
use hir_process::exit::Exit;

use super::measurement::{FolderFlags, measure, report_nothing_measured};
use crate::{
    calibrate::collectives::{Job, Measured, jobs},
    session::Report,
    tool::{Reporter, flags::DiagnosticFlags},
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str =
    "  hir tune collectives -o rules.txt                        measure all collectives on two GPUs
  hir tune collectives --ranks 2,4 --nccl-tuner tuner.conf  also write a file for NCCL's tuner plugin
  hir run f.hir --passes \"@lower,select-algorithms{table=$(cat rules.txt)}\"";

/// Measures which algorithm of each collective is the fastest on the GPUs of this host, for each size and number of ranks, and whether
/// results always have the same bits. Elements are bf16.
///
/// Prints all times in microseconds, the fastest first. This takes about a minute.
#[derive(Parser)]
#[command(name = "hir tune", version = crate::tool::version())]
pub(super) struct Options {
    /// What to tune.
    #[arg(value_enum)]
    what: What,
    /// The file for the rules of `select-algorithms{table=…}`.
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The file for NCCL's example of a tuner plugin (`NCCL_TUNER_CONFIG_FILE`): where a ring or a tree with a protocol is at least 2%
    /// faster than what NCCL chooses itself.
    #[arg(long, value_name = "FILE")]
    nccl_tuner: Option<PathBuf>,
    /// Numbers of ranks, with one GPU each.
    #[arg(long, value_name = "N,…", default_value = "2", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: Vec<u32>,
    /// Measure only the smallest size, in few runs: for trying the command.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    folder: FolderFlags,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The algorithms of collectives.
    Collectives,
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    let What::Collectives = options.what;
    let refuse = |message: String| screen.fail(Exit::Environment, message);
    let folder = options.folder.folder(screen)?;
    let mut found = Measured::default();
    for ranks in &options.ranks {
        for job in jobs(*ranks as usize, options.quick) {
            let place = folder.path.join(&job.name);
            if options.folder.results.is_none() {
                run_job(&job, &place, *ranks, options, screen)?;
            }
            job.read(&place, &mut found);
            if let (true, Some(given)) = (found.is_empty(), &options.folder.results) {
                let given = given.display();
                let message = format!("`{given}` has no results of `hir tune`; run it with `--keep {given}`");
                return Err(refuse(message));
            }
            // A job without GPUs; the others would fail in the same way.
            if found.is_empty() {
                return Err(report_nothing_measured(screen, &place));
            }
        }
    }
    for it in &found.missing {
        screen.message(format!("not measured: {it}"));
    }
    let mut exit = screen.write_result(&found.report(), None);
    let rules = found.rules(DEFAULT_RULES) + "\n";
    let files = [(&options.output, rules), (&options.nccl_tuner, found.nccl_lines())];
    for (path, text) in files {
        if let (Some(path), Exit::Success) = (path, exit) {
            exit = screen.write_result(&text, Some(path));
        }
    }
    let wrong = found.wrong();
    if wrong.is_empty() || exit != Exit::Success {
        return Ok(exit);
    }
    let wrong = wrong.join(", ");
    let message = format!(
        "{wrong}: bits differ between runs or ranks, although hir guarantees the same bits; no measured rule selects this"
    );
    Ok(screen.fail(Exit::WrongResult, message))
}

fn run_job(job: &Job, place: &Path, ranks: u32, options: &Options, screen: &Reporter) -> Result<(), Exit> {
    let refuse = |message: String| screen.fail(Exit::Environment, message);
    job.write(place).map_err(|fault| refuse(format!("cannot write to `{}`: {fault}", place.display())))?;
    if !options.diagnostics.quiet {
        let note = format!("job `{}`: {} programs on {ranks} GPUs", job.name, job.len());
        screen.session().print(&Report::Note(note));
    }
    measure(screen, place, ranks, &job.environment)
}
