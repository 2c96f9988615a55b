//! `hir check`: checks the programs of files and folders, as `hir-opt --check` does for one file.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::Parser;
use grammar::{
    Binding, InvalidOption, count_text,
    render::Format,
    sarif::{Invocation, Log},
};
use hir_check::Checks;
use hir_plan::limits::DEFAULT_MAX_WORK_OF_TRIALS;
use hir_process::{atomic_file, exit::Exit, interrupt::Activity};
use hir_sim::WorkBudget;

use super::opt::{self, Processor, start_reading};
use crate::{
    run::option_files::{OptionFile, check_option_files},
    tool::{
        Reporter,
        flags::{DiagnosticFlags, TextFlags, WorldFlags, with_help},
        model_flags::ModelFlags,
    },
};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str =
    "  hir check dump.hir                        prove that it has no race and no deadlock
  hir check programs/ other.hir             all programs of a folder, and a file
  hir check programs/ --error-format=github annotations in GitHub Actions";

/// Checks that Host IR programs are free of races, deadlocks and unwritten outputs.
///
/// Reports on each file, and prints one summary of several. Exits with 0 if all programs are free of faults, with 7 if one has a fault, and
/// with 1 if one is rejected; 6 if a file cannot be read. Of several, the one that says least about the programs counts. In several files,
/// a scalar that the text does not define gets the value that `--assume` proposes, with a warning.
#[derive(Parser)]
#[command(
    name = "hir check",
    version = crate::tool::version(),
    mut_args(with_help("memory_limit", "Memory limit for the plans of all ranks of a program, in GiB")),
    mut_args(with_help("quiet", "Print only what was found: no summary of programs without faults"))
)]
pub(super) struct Options {
    /// Program files, and folders whose programs (`.hir`, and `.mlir` of StableHLO) are checked, with those of the folders in them; `-` for
    /// standard input.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What to look for: a list of `race`, `comm`, `memory`, `excess`, `repeat` and `capture`, or `all`, as for `hir-opt --check`. Default:
    /// all but `repeat` and `capture`.
    #[arg(help_heading = "Checks", long, value_name = "WHAT", require_equals = true)]
    check: Option<Checks>,
    #[command(flatten)]
    models: ModelFlags,
    /// Also prove that FILE, a program of the same process, may run before or after each of these programs, in any order and any number of
    /// times, as `hir-opt --check --with`. Can be repeated.
    #[arg(help_heading = "Checks", long, value_name = "FILE")]
    with: Vec<PathBuf>,
    #[command(flatten)]
    text: TextFlags,
    #[command(flatten)]
    world: WorldFlags,
    /// Set a symbol of the programs that have it: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(help_heading = "Ranks and symbols", long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// Also write a SARIF log to FILE, for code scanning.
    #[arg(help_heading = "Diagnostics", long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Also append a table of what was found to FILE, as Markdown, for the summary of a job.
    #[arg(help_heading = "Diagnostics", long, value_name = "FILE")]
    summary: Option<PathBuf>,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    if options.sarif.is_some() || options.summary.is_some() {
        screen.session().open_log();
    }
    let mut tally = Tally::default();
    let checked = check_paths(options, &mut tally, screen);
    let log = screen.session().copy_of_log();
    if options.diagnostics.error_format != Format::Sarif {
        screen.session().discard_log();
    }
    checked?;
    Ok(log.map_or(tally.exit(), |log| write_files(options, &tally, &log, screen)))
}

/// Checks the programs of all paths, and prints one summary of several.
///
/// # Errors
/// No program was checked.
fn check_paths(options: &Options, tally: &mut Tally, screen: &Reporter) -> Result<(), Exit> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in &options.paths {
        match program_files(path) {
            Ok(found) if found.is_empty() => {
                let message = format!("no `.hir` or `.mlir` file in `{}`", path.display());
                tally.add(screen.fail(Exit::Environment, message));
            }
            Ok(found) => files.extend(found),
            Err(fault) => tally.add(screen.fail_to_read(path.display(), &fault)),
        }
    }
    // A file may be given by itself and with its folder.
    let mut seen = BTreeSet::new();
    files.retain(|it| seen.insert(it.clone()));
    if let Err(message) = check_written_files(options, &files) {
        return Err(screen.fail(Exit::Usage, message));
    }
    let is_only = files.len() == 1;
    let first = files.first().map_or(String::new(), |it| it.display().to_string());
    let activity = start_reading(options.world.memory_limit, &first, screen)?;
    let mut unmatched = options.set.clone();
    for path in &files {
        tally.add(check_file(options, path, is_only, &mut unmatched, &activity, screen));
    }
    if !is_only && let Some(it) = unmatched.iter().find(|it| !it.is_optional) {
        let message = format!("`--set {it}`: no program that was read has a scalar `{}`", it.name);
        tally.add(screen.fail(Exit::Usage, message));
    }
    if files.len() > 1 && !options.diagnostics.quiet {
        screen.message(tally.summary());
    }
    Ok(())
}

/// Checks that the log and the summary have files of their own, which are none of the programs.
fn check_written_files(options: &Options, programs: &[PathBuf]) -> Result<(), InvalidOption> {
    let written = [("--sarif", &options.sarif), ("--summary", &options.summary)];
    let written =
        written.into_iter().filter_map(|(option, path)| Some(OptionFile { option, path: path.as_deref()? }));
    let programs: Vec<_> = programs.iter().map(|path| OptionFile { option: "a program", path }).collect();
    check_option_files(&written.collect::<Vec<_>>(), &programs)
}

/// Writes the log and the summary that the options ask for. Returns the exit code of the tool.
fn write_files(options: &Options, tally: &Tally, log: &Log, screen: &Reporter) -> Exit {
    let exit = tally.exit();
    let mut written = Vec::new();
    if let Some(file) = &options.sarif {
        let ending = Invocation { code: exit as u8, is_success: exit.is_verdict() };
        let text = log.text("hir check", env!("CARGO_PKG_VERSION"), Some(ending));
        written.push((file, atomic_file::write(file, text.as_bytes())));
    }
    if let Some(file) = &options.summary {
        let text = format!("### hir check\n\n{}\n\n{}", tally.summary(), log.table());
        let result = if file == Path::new("-") {
            atomic_file::write(file, text.as_bytes())
        } else {
            let opened = fs::File::options().append(true).create(true).open(file);
            opened.and_then(|mut it| it.write_all(text.as_bytes()))
        };
        written.push((file, result));
    }
    let failed = written.into_iter().find_map(|(file, result)| Some((file, result.err()?)));
    match failed {
        Some((file, fault)) => {
            screen.fail(Exit::Environment, format!("cannot write `{}`: {fault}", file.display()))
        }
        None => exit,
    }
}

/// Checks the programs of a file. Programs without faults are reported if it is the only one. Of several files, each takes the bindings of its
/// own scalars, which are removed from `unmatched`.
fn check_file(
    options: &Options,
    path: &Path,
    is_only: bool,
    unmatched: &mut Vec<Binding>,
    activity: &Activity,
    screen: &Reporter,
) -> Exit {
    let file = path.display().to_string();
    let screen = if is_only { screen.clone() } else { screen.about(&file) };
    screen.session().files.forget();
    activity.set(format!("while reading `{file}`"));
    let source = match screen.open_source(&file, &options.text) {
        Ok(source) => source,
        Err(exit) => return exit,
    };
    if !is_only && !unmatched.is_empty() {
        let programs = source.programs().0;
        unmatched.retain(|it| !programs.iter().any(|program| it.applies_to(program)));
    }
    let set = options.set.iter().cloned();
    let set = set.map(|it| Binding { is_optional: it.is_optional || !is_only, ..it }).collect();
    let Options { check, mut world, diagnostics, .. } = *options;
    // No value on the command line fits the scalars of all of several files.
    world.assume |= !is_only;
    let file_options = opt::Options {
        file,
        check: check.or(Some(Checks::DEFAULT)),
        models: options.models.clone(),
        with: options.with.clone(),
        world,
        diagnostics,
        text: options.text.clone(),
        set,
        ..opt::Options::default()
    };
    if let Err(message) = file_options.validate() {
        return screen.fail(Exit::Usage, message);
    }
    let work = WorkBudget::of_billions(world.max_work(DEFAULT_MAX_WORK_OF_TRIALS));
    let processor = Processor::new(&file_options, Vec::new(), &work, activity.clone(), &screen);
    let reports_success = is_only && !diagnostics.quiet;
    Processor { is_last: is_only, reports_success, ..processor }.process_file(source)
}

/// Returns a file, or the programs of a folder and of the folders in it, in the order of their names. Hidden folders, and folders that
/// links lead to, are left out.
fn program_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path == Path::new("-") || !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if entry.file_type()?.is_dir() {
                folders.extend((!is_hidden).then_some(path));
            } else if is_program(&path)
                // A link that leads nowhere is one file that cannot be read.
                && fs::metadata(&path).map_or(true, |it| it.is_file())
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a file of a folder is a program: `.hir`, or `.mlir` with operations of StableHLO or Shardy, since MLIR has other dialects.
fn is_program(path: &Path) -> bool {
    match path.extension().and_then(|it| it.to_str()) {
        Some("hir") => true,
        Some("mlir") => {
            fs::read_to_string(path).is_ok_and(|it| it.contains("stablehlo.") || it.contains("sdy."))
        }
        Some(_) | None => false,
    }
}

/// How the files ended.
#[derive(Default)]
struct Tally(Vec<Exit>);

impl Tally {
    fn add(&mut self, exit: Exit) {
        self.0.push(exit);
    }

    fn count(&self, wanted: impl Fn(Exit) -> bool) -> usize {
        self.0.iter().filter(|it| wanted(**it)).count()
    }

    /// Returns the exit code of all files: a file of which less is known counts more.
    fn exit(&self) -> Exit {
        const ORDER: [Exit; 5] =
            [Exit::InternalError, Exit::Usage, Exit::Environment, Exit::Rejected, Exit::Check];
        let mut codes = ORDER.into_iter().filter(|it| self.0.contains(it));
        codes.next().or(self.0.iter().copied().find(|it| *it != Exit::Success)).unwrap_or(Exit::Success)
    }

    fn summary(&self) -> String {
        let rest = |it: Exit| !matches!(it, Exit::Success | Exit::Check | Exit::Rejected);
        let parts = [
            (self.count(|it| it == Exit::Success), "without faults"),
            (self.count(|it| it == Exit::Check), "with faults"),
            (self.count(|it| it == Exit::Rejected), "rejected"),
            (self.count(rest), "not checked"),
        ];
        let parts: Vec<String> =
            parts.into_iter().filter(|it| it.0 > 0).map(|(count, what)| format!("{count} {what}")).collect();
        format!("{}: {}", count_text(self.0.len(), "file"), parts.join(", "))
    }
}
