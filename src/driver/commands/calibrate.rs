//! `hir calibrate`: measures the times of a machine, for estimates.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use grammar::{Program, Source, has_errors};
use hir_plan::timeline::{machine::Machine, work::Work};
use hir_process::exit::Exit;
use passes::{PassCall, PassError};

use super::measurement::{FolderFlags, measure, report_nothing_measured};
use crate::{
    auto::{all_ways, machine::MachineFlag},
    calibrate::{
        OtherMachine, Refusal, add,
        entries::{Entry, PIPELINES, entries, least},
        evidence,
        exact::{measurements, name_of, works},
        is_same_machine, plans, read_results, write_entries,
    },
    exit_code::exit_of_rejection,
    session::Report,
    tool::{
        Reporter,
        flags::{DiagnosticFlags, TextFlags},
    },
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str = "  hir calibrate -o machine.json             measure two GPUs
  hir calibrate --ranks 1 -o machine.json   measure one GPU, without communication
  hir calibrate --for f.hir -o machine.json measure the products and the communications of a program, too
  hir calibrate --evidence machine.json     compare estimates with the measured times of whole programs";

/// Measures how long the GPUs of this host take for products, kernels, copies and collectives of many sizes, and writes the
/// times to a file for `--machine`.
///
/// Each time is that of a small program, which runs like any other program on GPUs. This takes a few minutes.
#[derive(Parser)]
#[command(name = "hir calibrate", version = crate::tool::version())]
pub(super) struct Options {
    /// The file to write.
    #[arg(short, value_name = "FILE", required_unless_present = "evidence")]
    output: Option<PathBuf>,
    /// Measure nothing: estimate the whole programs that were measured for this machine, and print both times.
    #[arg(long, value_name = "FILE|h100|h200", conflicts_with_all = ["output", "quick", "keep", "programs", "ranks", "results"])]
    evidence: Option<MachineFlag>,
    /// Number of ranks, with one GPU each. Times of more ranks are scaled from those of these.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    ranks: u32,
    /// Also measure the products, the attentions and the communications of this program, with the extents that they have after
    /// `--passes`: products in bf16, attentions in bf16 that are not causal and have heads of 128 elements. What has no table is
    /// listed as not measured. The option can be repeated.
    #[arg(long = "for", value_name = "FILE")]
    programs: Vec<PathBuf>,
    /// The passes of `--for`; without them, those of `@lower` and `@overlap`, and all ways that `@auto` compares. The option can be
    /// repeated.
    #[arg(long, value_name = "PASSES", requires = "programs")]
    passes: Vec<String>,
    /// Measure only what `--for` adds, and add it to the times of this machine, which has to have the same GPUs and the same number of
    /// ranks.
    #[arg(long, value_name = "FILE|h100|h200", requires = "programs")]
    base: Option<MachineFlag>,
    /// Measure only the smallest size of each table, and no whole programs: for trying the command.
    #[arg(long, conflicts_with = "base")]
    quick: bool,
    #[command(flatten)]
    folder: FolderFlags,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    if let Some(MachineFlag { name, machine }) = &options.evidence {
        let all = evidence::compare(machine);
        if all.is_empty() {
            let message = format!(
                "`{name}` has no measured times of whole programs: measure with `hir calibrate -o FILE`, without `--for`, which measures some"
            );
            return Err(screen.fail(Exit::Usage, message));
        }
        let lines = evidence::report(machine, &all);
        return Ok(screen.write_result(&(lines.join("\n") + "\n"), None));
    }
    let ranks = options.ranks as usize;
    let refuse_base = |name: &str, why: OtherMachine| {
        screen.fail(Exit::Usage, format!("`--base {name}`: {why}; measure without `--base`"))
    };
    if let Some(MachineFlag { name, machine }) = &options.base
        && let Err(why) = is_same_machine(machine, "", ranks)
    {
        return Err(refuse_base(name, why));
    }
    let given = pipelines(&options.passes, screen)?;
    let mut wanted: Vec<Work> = Vec::new();
    for path in &options.programs {
        let new = works_for(path, &given, ranks, screen)?;
        let new = new.into_iter().filter(|it| !wanted.contains(it)).collect::<Vec<_>>();
        wanted.extend(new);
    }
    let refuse = |message: String| screen.fail(Exit::Environment, message);
    let folder = options.folder.folder(screen)?;
    let mut entries = if options.base.is_some() { least(ranks) } else { entries(ranks, options.quick) };
    entries.extend(wanted.iter().flat_map(|it| measurements(it, ranks)));
    let start = std::time::Instant::now();
    if options.folder.results.is_none() {
        measure_all(&folder.path, &entries, options, screen)?;
    }
    let measured = read_results(&folder.path, &entries, ranks, today());
    if measured.machine.tables.is_empty() {
        return Err(report_nothing_measured(screen, &folder.path));
    }
    let machine = match &options.base {
        None => measured.machine,
        Some(MachineFlag { name, machine }) => {
            let mut machine = Machine::clone(machine);
            add(&mut machine, measured.machine).map_err(|why| refuse_base(name, why))?;
            machine
        }
    };
    let text = machine.text().map_err(|fault| refuse(fault.to_string()))?;
    let exit = screen.write_result(&text, options.output.as_deref());
    for it in &measured.missing {
        screen.message(format!("not measured: {it}"));
    }
    for it in wanted.iter().filter(|it| machine.microseconds(it).is_none()) {
        screen.message(format!("not measured: {}", name_of(it)));
    }
    let (done, all) = (entries.len() - measured.missing.len(), entries.len());
    let seconds = start.elapsed().as_secs();
    let path = options.output.as_deref().unwrap_or(Path::new("-")).display();
    screen
        .session()
        .print(&Report::Note(format!("{done} of {all} programs in {seconds} s; times in `{path}`")));
    Ok(exit)
}

/// Passes, as they are stated and parsed.
struct Stated {
    text: String,
    calls: Vec<PassCall>,
}

/// Parses passes.
///
/// # Errors
/// Returns the exit code; the error has been reported.
fn pipelines(all: &[String], screen: &Reporter) -> Result<Vec<Stated>, Exit> {
    let stated = |text: &String| {
        screen.parse_pipeline("--passes", text).map(|calls| Stated { text: text.clone(), calls })
    };
    all.iter().map(stated).collect()
}

/// Returns the work of a program after the given passes; if none are given, after those of `--for` that apply.
///
/// # Errors
/// Returns the exit code; the error has been reported.
fn works_for(path: &Path, given: &[Stated], ranks: usize, screen: &Reporter) -> Result<Vec<Work>, Exit> {
    let name = path.display().to_string();
    let source = screen.open_source(&name, &TextFlags::default())?;
    let (programs, diagnostics) = source.programs();
    screen.report_diagnostics(&source, &diagnostics);
    let program = match programs.first() {
        Some(it) if !has_errors(&diagnostics) => it,
        Some(_) | None => {
            return Err(screen.fail(exit_of_rejection(&diagnostics), format!("cannot measure `{name}`")));
        }
    };
    let text = grammar::print(program);
    if programs.iter().any(|it| grammar::print(it) != text) {
        let count = programs.len();
        let message = format!("`{name}` has {count} different containers: copy one into a file of its own");
        return Err(screen.fail(Exit::Usage, message));
    }
    let defaults = if given.is_empty() { default_pipelines(program, screen)? } else { Vec::new() };
    let all = if given.is_empty() { &defaults[..] } else { given };
    let mut found: Vec<Work> = Vec::new();
    let mut refused: Vec<(&Stated, Refusal)> = Vec::new();
    for it in all {
        match plans(program, &source.lines, &it.calls, ranks) {
            Ok(world) => {
                let new = works(&world).into_iter().filter(|it| !found.contains(it)).collect::<Vec<_>>();
                found.extend(new);
            }
            Err(refusal) => refused.push((it, refusal)),
        }
    }
    // Not every pipeline of the defaults applies to every program.
    if let Some((stated, refusal)) = refused.first()
        && (!given.is_empty() || refused.len() == all.len())
    {
        return Err(report_refusal(refusal, &stated.text, &source, screen));
    }
    if found.iter().all(|it| measurements(it, ranks).is_empty()) {
        let mut kinds: Vec<String> = found.iter().map(|it| format!("`{}`", it.kind)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let has = if kinds.is_empty() { String::new() } else { format!("; it has {}", kinds.join(", ")) };
        let message =
            format!("`{name}` has nothing that `--for` measures on {ranks} ranks after these passes{has}");
        return Err(screen.fail(Exit::Rejected, message));
    }
    Ok(found)
}

/// Returns the passes of `--for` without `--passes`.
fn default_pipelines(program: &Program, screen: &Reporter) -> Result<Vec<Stated>, Exit> {
    let all: Vec<String> = PIPELINES.map(str::to_owned).into_iter().chain(all_ways(program)).collect();
    pipelines(&all, screen)
}

/// Reports why a program has no plans after some passes, and returns the exit code.
fn report_refusal(refusal: &Refusal, passes: &str, source: &Source, screen: &Reporter) -> Exit {
    let name = &source.name;
    match refusal {
        Refusal::Passes(failure) => {
            if let PassError::BadOption(fault) = &failure.error {
                let stated = Source::new("--passes".to_owned(), passes.to_owned());
                screen.report_diagnostics(&stated, std::slice::from_ref(fault));
                return Exit::Usage;
            }
            let diagnostics = failure.error.diagnostics();
            screen.report_diagnostics(source, diagnostics);
            let exit =
                if failure.error.is_bug() { Exit::InternalError } else { exit_of_rejection(diagnostics) };
            screen.fail(exit, format!("cannot measure `{name}` with `--passes '{passes}'`: {failure}"))
        }
        Refusal::Plans(diagnostics) => {
            screen.report_diagnostics(source, diagnostics);
            let message = format!("cannot measure `{name}` with `--passes '{passes}'`: it cannot be planned");
            screen.fail(exit_of_rejection(diagnostics), message)
        }
    }
}

/// Writes all programs to a folder and runs them.
fn measure_all(folder: &Path, entries: &[Entry], options: &Options, screen: &Reporter) -> Result<(), Exit> {
    let refuse = |message: String| screen.fail(Exit::Environment, message);
    std::fs::create_dir_all(folder)
        .and_then(|()| write_entries(folder, entries))
        .map_err(|fault| refuse(format!("cannot write to `{}`: {fault}", folder.display())))?;
    if !options.diagnostics.quiet {
        let (count, ranks) = (entries.len(), options.ranks);
        screen.session().notice(&format!("measuring {count} programs on {ranks} GPUs"));
    }
    measure(screen, folder, options.ranks, &[])
}

/// Returns the date of today in UTC, as `2026-11-26`. The conversion is that of H. Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms": years begin in March, so that the leap day is the last one.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    // Days since 0000-03-01.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year)
}
