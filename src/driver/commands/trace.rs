//! `hir overlap --trace`: what the traces of a job show.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use clap::Parser;
use grammar::Binding;
use hir_plan::{CallerUses, Plan, World, timeline::Timeline};
use hir_process::exit::Exit;

use super::run::report_failure;
use crate::{
    auto::machine::MachineFlag,
    run::{
        failure::JobFailure,
        prepare::{PassRunner, PrepareOptions, prepare},
        program_files::ProgramFiles,
        timelines::too_many_streams,
    },
    source,
    tool::{
        Reporter,
        flags::{DiagnosticFlags, WorldFlags},
    },
    trace::{analyze, compare, comparison_json, comparison_lines, json, lines, read},
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str = "  hir overlap program.hir                          what each communication of a program costs
  hir overlap --trace rank0.json rank1.json.gz     what collectives transfer, what they wait, and what hides them
  hir overlap program.hir --trace rank*.json       each communication of a program, measured beside estimated";

/// Reports for each communication of a program how long it takes, what hides it, and how long the program takes without it: measured on GPUs,
/// estimated without. The options are those of `hir run`.
///
/// With `--trace`, reads the traces of the ranks of a job that torch.profiler (`prof.export_chrome_trace`) or Nsight Systems (`nsys export --type sqlite`) has
/// written, and reports for each collective how long the data takes, how long ranks wait for the last one, and what hides it. With a program,
/// its communications are estimated and compared with those of the rank of the first trace, by kind, size and order.
/// `hir overlap --trace --help` lists the options for traces.
#[derive(Parser)]
#[command(name = "hir overlap", version = crate::tool::version())]
pub(super) struct Options {
    /// The program that the job runs.
    program: Option<String>,
    /// The traces, one file for each rank, or with several; they may be compressed by gzip.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Write the figures to FILE as JSON, too; with `-`, only these are printed.
    #[arg(short = 'J', long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Estimate the program with the times of this machine, as `hir-run --machine`.
    #[arg(long, requires = "program", value_name = "FILE|h100|h200|nominal")]
    machine: Option<MachineFlag>,
    /// Set a symbol of the program: `i0=8192`.
    #[arg(long, requires = "program", value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    #[command(flatten)]
    world: WorldFlags,
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
    let mut seen = BTreeSet::new();
    if let Some(twice) = traces.iter().find(|it| !seen.insert(it.rank)) {
        let message = format!("two traces are of rank {}: give one of each rank", twice.rank);
        return Err(screen.fail(Exit::Rejected, message));
    }
    let job = analyze(&traces);
    for it in &job.notes {
        screen.message(it);
    }
    let mut figures = json(&job);
    let mut report = lines(&job);
    if let Some(path) = &options.program {
        let (world, timeline) =
            estimate(options, path, screen).map_err(|failure| report_failure(screen, &failure).exit)?;
        let rank = traces[0].rank;
        let Some(rows) = compare(&traces, &world, &timeline) else {
            let message = format!("`{path}` has no rank {rank}, of which the first trace is");
            return Err(screen.fail(Exit::Rejected, message));
        };
        figures["program"] = comparison_json(&rows);
        report = comparison_lines(&rows, rank, &timeline.source);
    }
    if let Some(path) = &options.json {
        let written = screen.write_result(&format!("{figures}\n"), Some(path));
        if written != Exit::Success || path == Path::new("-") {
            return Ok(written);
        }
    }
    Ok(screen.write_result(&(report.join("\n") + "\n"), None))
}

/// Estimates the program, as `@lower` lowers it if its statements reshard.
fn estimate(options: &Options, path: &str, screen: &Reporter) -> Result<(World, Timeline), JobFailure> {
    let prepared = |passes: &PassRunner<'_>| {
        let setup = PrepareOptions {
            session: screen.session(),
            limits: options.world.limits(),
            ranks: options.world.ranks,
            container: None,
            fusions: &[],
            bindings: &options.set,
            assume: options.world.assume,
            is_reference: false,
            inputs: &[],
            uses: CallerUses::default(),
            passes,
        };
        prepare(&ProgramFiles::One(path.to_owned()), &setup)
    };
    let mut found = prepared(&|_, _| Ok(()))?;
    if found.world.iter().any(Plan::reshards) {
        screen.message(format!("`{path}` is estimated as `@lower` lowers it"));
        found = prepared(&|program, _| {
            let refused = || JobFailure::Unsuitable(format!("`@lower` cannot lower `{path}`"));
            *program = passes::lowered(program).ok_or_else(refused)?;
            Ok(())
        })?;
    }
    for (source, warnings) in found.sources.iter().zip(&found.warnings) {
        screen.report_diagnostics(source, warnings);
    }
    let machine = MachineFlag::or_default(options.machine.as_ref());
    let timeline = machine.estimator().timeline(&found.world, None).map_err(too_many_streams)?;
    if timeline.slices.iter().any(|it| it.end.is_none()) {
        return Err(JobFailure::Unsuitable(format!("`{path}` never ends: `hir check` says why")));
    }
    Ok((found.world, timeline))
}
