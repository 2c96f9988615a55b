//! `hir check`: checks the programs of files and folders, as `hir-opt --check` does for one file.

mod reports;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::Parser;
use grammar::{
    Binding, Code, InvalidOption, count_text,
    render::Format,
    sarif::{Invocation, Log},
};
use hir_check::Checks;
use hir_plan::limits::DEFAULT_MAX_WORK_OF_TRIALS;
use hir_process::{atomic_file, exit::Exit, interrupt::Activity};
use hir_sim::WorkBudget;

use super::opt::{self, Processor, looks_for, start_reading};
use crate::{
    run::option_files::{OptionFile, check_option_files},
    session::{Baseline, Changes},
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
    /// Also write a report to FILE as JUnit's XML, with a test case for each file.
    #[arg(help_heading = "Diagnostics", long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write a code quality report of GitLab to FILE.
    #[arg(help_heading = "Diagnostics", long, value_name = "FILE")]
    gitlab: Option<PathBuf>,
    /// Do not report the findings in FILE, which `--update-baseline` writes: only what is new counts.
    #[arg(help_heading = "Diagnostics", long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write what is found now to the file of `--baseline`, and report nothing of it.
    #[arg(help_heading = "Diagnostics", long, requires = "baseline")]
    update_baseline: bool,
    /// Exit with 0 also if a program has a fault; not if one is rejected or cannot be read.
    #[arg(help_heading = "Diagnostics", long)]
    exit_zero: bool,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

impl Options {
    /// The files that the tool writes behind the check, by their options.
    fn written(&self) -> impl Iterator<Item = OptionFile<'_>> {
        let all = [
            ("--sarif", &self.sarif),
            ("--junit", &self.junit),
            ("--gitlab", &self.gitlab),
            ("--summary", &self.summary),
        ];
        all.into_iter().filter_map(|(option, path)| Some(OptionFile { option, path: path.as_deref()? }))
    }

    /// Returns whether findings with this code are looked for.
    fn is_searched(&self, code: Code) -> bool {
        code.check().is_none() || looks_for(self.check.unwrap_or(Checks::DEFAULT), code)
    }
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    if options.written().next().is_some() {
        screen.session().open_log();
    }
    if let Some(path) = &options.baseline {
        let read = Baseline::read(path, options.update_baseline);
        let failed = |fault| {
            let help = "`--update-baseline` writes it";
            screen.fail(Exit::Environment, format!("cannot read `{}`: {fault}; {help}", path.display()))
        };
        *screen.session().baseline() = Some(read.map_err(failed)?);
    }
    let mut tally = Tally::default();
    let checked = check_paths(options, &mut tally, screen);
    let log = screen.session().copy_of_log();
    if options.diagnostics.error_format != Format::Sarif {
        screen.session().discard_log();
    }
    checked?;
    let exit = match (tally.exit(), log) {
        (exit, None) => exit,
        (_, Some(log)) => write_files(options, &tally, &log, screen),
    };
    Ok(if options.exit_zero && exit == Exit::Check { Exit::Success } else { exit })
}

/// Says which entries of `hir.toml` and of the baseline match nothing, and writes the baseline.
///
/// # Errors
/// The baseline cannot be written.
fn report_known(options: &Options, files: &[PathBuf], tally: &Tally, screen: &Reporter) -> Result<(), Exit> {
    // A program that was not checked may have what was allowed.
    if tally.count(|it| !matches!(it, Exit::Success | Exit::Check)) == 0 {
        for it in screen.session().unused_allow_entries() {
            if options.is_searched(it.code)
                && it.file.as_ref().is_none_or(|it| files.iter().any(|file| file.ends_with(it)))
            {
                screen.message(format!("`hir.toml` allows {it}, which is not found: remove the entry"));
            }
        }
    }
    let baseline = screen.session().baseline();
    let (Some(baseline), Some(path)) = (&*baseline, &options.baseline) else { return Ok(()) };
    let is_searched = |code| options.is_searched(code);
    let Changes { known, new, gone } = baseline.changes(files, is_searched);
    let path = path.display();
    if options.update_baseline {
        let failed = |fault| screen.fail(Exit::Environment, format!("cannot write `{path}`: {fault}"));
        baseline.write(files, is_searched).map_err(failed)?;
        screen
            .message(format!("`{path}` has {}: {new} new, {gone} gone", count_text(known + new, "finding")));
        return Ok(());
    }
    if known > 0 {
        screen.message(format!("{} of `{path}`: not reported", count_text(known, "finding")));
    }
    if gone > 0 {
        let help = "`--update-baseline` removes them";
        screen.message(format!("`{path}` has findings that are gone ({gone}): {help}"));
    }
    Ok(())
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
                tally.add(path, screen.fail(Exit::Environment, message));
            }
            Ok(found) => files.extend(found),
            Err(fault) => tally.add(path, screen.fail_to_read(path.display(), &fault)),
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
        tally.add(path, check_file(options, path, is_only, &mut unmatched, &activity, screen));
    }
    if !is_only && let Some(it) = unmatched.iter().find(|it| !it.is_optional) {
        let message = format!("`--set {it}`: no program that was read has a scalar `{}`", it.name);
        tally.add(Path::new("--set"), screen.fail(Exit::Usage, message));
    }
    if files.len() > 1 && !options.diagnostics.quiet {
        screen.message(tally.summary(screen.session().allowed_faults()));
    }
    report_known(options, &files, tally, screen)
}

/// Checks that the log and the summary have files of their own, which are none of the programs.
fn check_written_files(options: &Options, programs: &[PathBuf]) -> Result<(), InvalidOption> {
    let baseline = options.baseline.iter().map(|path| OptionFile { option: "--baseline", path });
    let written = options.written().chain(baseline);
    let programs: Vec<_> = programs.iter().map(|path| OptionFile { option: "a program", path }).collect();
    check_option_files(&written.collect::<Vec<_>>(), &programs)
}

/// Writes the log and the summary that the options ask for. Returns the exit code of the tool.
fn write_files(options: &Options, tally: &Tally, log: &Log, screen: &Reporter) -> Exit {
    let exit = tally.exit();
    for OptionFile { option, path } in options.written() {
        let text = match option {
            "--sarif" => {
                let ending = Invocation { code: exit as u8, is_success: exit.is_verdict() };
                log.text("hir check", env!("CARGO_PKG_VERSION"), Some(ending))
            }
            "--junit" => reports::junit(&tally.0, log.findings()),
            "--gitlab" => reports::gitlab(log.findings()),
            _ => {
                let summary = tally.summary(screen.session().allowed_faults());
                format!("### hir check\n\n{summary}\n\n{}", log.table())
            }
        };
        // The summary of a job is one file for all of its steps.
        let written = if option == "--summary" && path != Path::new("-") {
            let opened = fs::File::options().append(true).create(true).open(path);
            opened.and_then(|mut it| it.write_all(text.as_bytes()))
        } else {
            atomic_file::write(path, text.as_bytes())
        };
        if let Err(fault) = written {
            return screen.fail(Exit::Environment, format!("cannot write `{}`: {fault}", path.display()));
        }
    }
    exit
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
struct Tally(Vec<(String, Exit)>);

impl Tally {
    fn add(&mut self, file: &Path, exit: Exit) {
        self.0.push((file.display().to_string(), exit));
    }

    fn count(&self, wanted: impl Fn(Exit) -> bool) -> usize {
        self.0.iter().filter(|it| wanted(it.1)).count()
    }

    /// Returns the exit code of all files: a file of which less is known counts more.
    fn exit(&self) -> Exit {
        const ORDER: [Exit; 5] =
            [Exit::InternalError, Exit::Usage, Exit::Environment, Exit::Rejected, Exit::Check];
        let mut all = self.0.iter().map(|it| it.1);
        let mut codes = ORDER.into_iter().filter(|it| self.count(|code| code == *it) > 0);
        codes.next().or(all.find(|it| *it != Exit::Success)).unwrap_or(Exit::Success)
    }

    /// Describes how many files ended in which way. `allowed` faults were found and not reported.
    fn summary(&self, allowed: usize) -> String {
        let rest = |it: Exit| !matches!(it, Exit::Success | Exit::Check | Exit::Rejected);
        let parts = [
            (self.count(|it| it == Exit::Success), "without faults"),
            (self.count(|it| it == Exit::Check), "with faults"),
            (self.count(|it| it == Exit::Rejected), "rejected"),
            (self.count(rest), "not checked"),
        ];
        let parts = parts.into_iter().filter(|it| it.0 > 0).map(|(count, what)| format!("{count} {what}"));
        let allowed = (allowed > 0).then(|| format!("{} allowed", count_text(allowed, "fault")));
        let parts: Vec<String> = parts.chain(allowed).collect();
        format!("{}: {}", count_text(self.0.len(), "file"), parts.join(", "))
    }
}
