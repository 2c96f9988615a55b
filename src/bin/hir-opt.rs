//! Reads Host IR, runs passes on it and prints canonical text.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use grammar::{
    Dialect,
    codes::{Code, Severity},
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    render::Format,
    span::LineIndex,
};
use hir::{
    check::{self, Checks, ExcessNotSearched, Finding, OrderingModel, Report, StepOrder},
    exit::Exit,
    interrupt::{self, Activity},
    out_of_memory::Allocator,
    plan::{
        self, Plan,
        limits::{self, Limits},
        sync::{
            self, CommMatching,
            happens_before::{HappensBeforeGraph, OrderError},
        },
    },
    run::{
        oracle::{CheckerOracle, SimulationOracle},
        schedules,
    },
    source::{Binding, Source, apply_bindings},
    tool::{
        self, Color, Reporter,
        dump::{DumpFlags, Dumper, diff},
        expect, listing,
        progress::Progress,
        remarks::RemarkFlags,
        reproducer::{self, crash_reproducer},
        stack::with_large_stack,
        statistics::Statistics,
    },
};
use passes::{PassCall, PassError, PassEvent, PipelineError, Settings, Verify};

/// The examples of `--help`.
const EXAMPLES: &str =
    "  hir-opt dump.hir                                  print the canonical text of a dump
  hir-opt dump.hir --print=short                    the same with short tensor names
  hir-opt dump.hir --check                          prove that it has no race and no deadlock
  hir-opt program.hir --passes @overlap             lower it and overlap its communications
  hir-opt program.hir --passes @overlap --print-changed=diff
  hir-opt --list-passes chunk                       describe a pass
  hir-opt --explain E0701                           explain a diagnostic";

/// Reads Host IR, checks it, runs passes on it and prints canonical text.
///
/// The result goes to standard output, everything else to standard error.
#[derive(Parser)]
#[command(name = "hir-opt", version)]
struct Options {
    /// The program file; `-` for standard input.
    #[arg(default_value = "-")]
    file: String,
    /// Write the result to FILE.
    #[arg(help_heading = "Output", short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Passes to run: `a,b{opt=val,opt2=val},@pipeline`.
    /// A repeated option appends.
    #[arg(help_heading = "Passes", long, visible_alias = "pass-pipeline", value_name = "PIPELINE")]
    passes: Vec<String>,
    /// List all passes and pipelines, or describe NAME with its options, an example and its pipelines.
    #[arg(help_heading = "Passes", long, value_name = "NAME", num_args = 0..=1)]
    list_passes: Option<Option<String>>,
    /// List all operators.
    #[arg(help_heading = "Output", long)]
    list_ops: bool,
    /// Explain a diagnostic code, or list all codes.
    #[arg(help_heading = "Output", long, value_name = "CODE", num_args = 0..=1)]
    explain: Option<Option<String>>,
    /// Print the passes that will run, with pipelines expanded.
    #[arg(help_heading = "Passes", long)]
    dump_pass_pipeline: bool,
    /// The check that runs after every pass.
    #[arg(help_heading = "Passes", long, value_enum, default_value = "structural", num_args = 0..=1, require_equals = true,
        default_missing_value = "structural")]
    verify_each: VerifyEach,
    /// Find the first pass that fails or changes the outputs of the program, and show its changes.
    #[arg(help_heading = "Passes", long)]
    bisect: bool,
    /// If a pass fails, write the program before that pass to FILE, with the command line that reproduces the
    /// failure.
    #[arg(help_heading = "Passes", long, value_name = "FILE")]
    crash_reproducer: Option<PathBuf>,
    /// Run a reproducer written by `--crash-reproducer`.
    #[arg(help_heading = "Passes", long, value_name = "FILE", conflicts_with = "file")]
    run_reproducer: Option<PathBuf>,
    /// Check that the printed program parses to the same program, before and after every pass.
    #[arg(help_heading = "Passes", long)]
    verify_roundtrip: bool,
    /// Treat the parts of the file between `// -----` lines as separate files.
    #[arg(help_heading = "Input", long)]
    split_input_file: bool,
    /// Print the source text with all inferred information made explicit, instead of the canonical text.
    /// `check` also makes the edits that fix races, if exactly one edit fixes the race, and checks the
    /// result.
    #[arg(help_heading = "Output", long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "reading",
        conflicts_with_all = ["passes", "print_plan", "print_hb", "print", "split_input_file"])]
    fix: Option<FixMode>,
    /// Compare diagnostics with `// expected-error@+1 {{text}}` comments instead of printing them.
    #[arg(help_heading = "Input", long)]
    verify_diagnostics: bool,
    /// Print the time of parsing and of every pass.
    #[arg(help_heading = "Passes", long)]
    timing: bool,
    /// Print the statistics of every pass.
    #[arg(help_heading = "Passes", long)]
    statistics: bool,
    #[command(flatten)]
    remarks: RemarkFlags,
    #[command(flatten)]
    dumps: DumpFlags,
    /// The form in which programs are printed: `short` declares each tensor on a `%tensor` line and uses
    /// short names after it; `2025` is an older dialect, and a warning reports what it cannot express.
    #[arg(
        help_heading = "Output",
        long,
        alias = "print-dialect",
        value_name = "canonical|short|2025",
        default_value = "canonical"
    )]
    print: Dialect,
    /// Print the plan of every rank instead of the program.
    #[arg(help_heading = "Output", long)]
    print_plan: bool,
    /// Prove that the result is free of races, deadlocks and reads of unwritten memory, or report where it is
    /// not and exit with code 7. WHAT is a list of `race`, `comm`, `memory`, `excess` and `repeat`. `excess`
    /// reports statements that the program does not need, as remarks that do not change the exit code
    /// (`excess` alone exits with code 7 if the program has races). `repeat` reports races between two
    /// consecutive runs. Default: all but `repeat`.
    #[arg(help_heading = "Checks", long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<Checks>,
    /// Write to FILE an order of steps that exhibits the first race found by `--check`.
    /// `hir-run --check=warn --schedule=@FILE` runs it.
    #[arg(help_heading = "Checks", long, value_name = "FILE", requires = "check")]
    witness: Option<PathBuf>,
    /// Print the happens-before graph of all ranks in Graphviz DOT format instead of the program.
    #[arg(help_heading = "Output", long, conflicts_with = "print_plan")]
    print_hb: bool,
    /// The rules that order accesses: `nccl`, only what CUDA, NCCL and PyTorch document (default); `hir`,
    /// also what hir-run's own executors guarantee. Applies to `--check`, `--fix=check` and
    /// `--verify-each=check`.
    #[arg(help_heading = "Checks", long, value_enum)]
    check_model: Option<OrderingModel>,
    /// Number of ranks. Default: the smallest world that contains all meshes.
    #[arg(help_heading = "World", long, value_parser = tool::parse_ranks)]
    ranks: Option<usize>,
    /// The maximum number of ranks.
    #[arg(help_heading = "World", long, value_name = "N", default_value_t = limits::DEFAULT_MAX_RANKS, value_parser = tool::parse_ranks)]
    max_ranks: usize,
    /// Memory limit for the plans of all ranks, in GiB.
    #[arg(help_heading = "World", long, value_name = "GIB", default_value_t = 16, value_parser = tool::parse_memory_limit)]
    memory_limit: u32,
    /// Print only the plan of this rank.
    #[arg(help_heading = "Output", long)]
    rank: Option<usize>,
    /// Set a symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(help_heading = "World", long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// The format of diagnostics. With `sarif`, standard error is one SARIF log of everything that is
    /// reported.
    #[arg(
        help_heading = "Diagnostics",
        long,
        default_value = "human",
        value_name = "human|short|json|sarif"
    )]
    error_format: Format,
    /// Show no progress.
    #[arg(help_heading = "Diagnostics", short, long)]
    quiet: bool,
    /// When to color diagnostics.
    #[arg(help_heading = "Diagnostics", long, value_enum, default_value = "auto")]
    color: Color,
}

/// The edits that `--fix` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FixMode {
    /// The fixes of parser diagnostics.
    Reading,
    /// Also the fixes of the checker's findings.
    Check,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum VerifyEach {
    /// No check.
    Off,
    /// The verifier accepts the program.
    Structural,
    /// Also, on simulated ranks and under several schedules, the outputs are those of the program before the
    /// first pass.
    Semantic,
    /// The verifier accepts the program, and `--check` finds no race, no deadlock and no unwritten output on
    /// any rank.
    Check,
}

/// The maximum number of remarks of `--check` that are printed. Each shows source lines.
const MAX_REMARKS: usize = 256;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    tool::install_panic_hook("hir-opt");
    interrupt::handle_sigxfsz();
    with_large_stack(|| {
        let guarded = |options: Options| {
            let screen = Reporter::new("hir-opt", options.error_format, options.color);
            let path = options.crash_reproducer.as_deref();
            crash_reproducer::run_guarded(screen, path, || run(&options).unwrap_or_else(|exit| exit))
        };
        let exit = options().map_or_else(|exit| exit, guarded);
        tool::sarif_log::close(exit, true);
        exit.into()
    })
}

/// Parses the command line. With `--run-reproducer`, the flags of the reproducer come first, so that explicit
/// flags override them.
fn options() -> Result<Options, Exit> {
    let usage = |error| tool::report_usage_error("hir-opt", &error);
    let given: Options = tool::help::parse_arguments(EXAMPLES).map_err(usage)?;
    let Some(path) = given.run_reproducer else { return Ok(given) };
    let screen = Reporter::new("hir-opt", given.error_format, given.color);
    let flags = reproducer::flags(&path)
        .map_err(|fault| {
            screen.fail(Exit::Environment, &format!("cannot read `{}`: {fault}", path.display()))
        })?
        .map_err(|message| screen.fail(Exit::Usage, &message))?;
    // Passes of the command line replace those of the reproducer; other options do so by themselves.
    let flags = flags.into_iter().filter(|it| given.passes.is_empty() || !it.starts_with("--passes"));
    let mut words = std::env::args_os();
    let line: Vec<_> = words.by_ref().take(1).chain(flags.map(Into::into)).collect();
    let matches =
        Options::command().args_override_self(true).try_get_matches_from(line.into_iter().chain(words));
    let options = matches.and_then(|it| Options::from_arg_matches(&it)).map_err(usage)?;
    Ok(Options { file: path.display().to_string(), ..options })
}

fn run(options: &Options) -> Result<Exit, Exit> {
    let screen = Reporter::new("hir-opt", options.error_format, options.color);
    if let Some(text) = listing(options).map_err(|message| screen.fail(Exit::Usage, &message))? {
        return Ok(screen.write_result(&text, options.output.as_deref()));
    }
    let calls = screen.parse_pipeline(&options.passes.join(","))?;
    if options.check_model.is_some() && !options.uses_ordering_model() {
        let message = "`--check-model` needs `--check`, `--fix=check` or `--verify-each=check`";
        return Err(screen.fail(Exit::Usage, message));
    }
    options.dumps.check().map_err(|message| screen.fail(Exit::Usage, &message))?;
    let prints = [
        (options.timing, "--timing"),
        (options.statistics, "--statistics"),
        (options.dump_pass_pipeline, "--dump-pass-pipeline"),
        (options.bisect, "--bisect"),
        (options.dumps.prints(), "--print-ir-…"),
    ];
    if let (Format::Sarif, Some((_, flag))) = (options.error_format, prints.iter().find(|it| it.0)) {
        let message = format!(
            "`{flag}` prints text to standard error, which is a single log with `--error-format=sarif`: remove one of the two options"
        );
        return Err(screen.fail(Exit::Usage, &message));
    }
    if let Some(path) = &options.witness
        && std::fs::canonicalize(path)
            .is_ok_and(|it| std::fs::canonicalize(&options.file).is_ok_and(|file| it == file))
    {
        return Err(screen.fail(Exit::Usage, "`--witness` would overwrite the program"));
    }
    if options.check.is_some_and(|it| it.repeat) && options.check_model == Some(OrderingModel::Hir) {
        let message = "`--check=repeat` needs `--check-model=nccl`: hir-run separates runs by a barrier";
        return Err(screen.fail(Exit::Usage, message));
    }
    if options.dump_pass_pipeline {
        let names: Vec<String> = calls.iter().map(ToString::to_string).collect();
        let _ = writeln!(std::io::stderr(), "{}", names.join(","));
    }
    let activity = Activity::default();
    activity.set(format!("while reading `{}`", options.file));
    let stopped = activity.clone();
    let asked = activity.clone();
    interrupt::watch(
        move || screen.message(&asked.description()),
        move |signal| {
            stopped.stop(|what| {
                let name = interrupt::signal_name(signal);
                screen.message(&format!("stopped by {name} {what}: no result is written"));
                tool::sarif_log::close(Exit::from_signal(signal), true);
            })
        },
    )
    .map_err(|fault| screen.fail(Exit::Environment, &format!("cannot handle signals: {fault}")))?;
    let source = Source::open(&options.file).map_err(|fault| {
        screen.fail(Exit::Environment, &format!("cannot read `{}`: {fault}", options.file))
    })?;
    let mut tool = Tool {
        activity,
        options,
        screen,
        calls,
        dumper: Dumper::new(&options.dumps, options.print),
        remarks: Vec::new(),
        statistics: Statistics::default(),
        reading: Duration::ZERO,
        container: None,
    };
    let exit = tool.process_file(source);
    if options.run_reproducer.is_some() && exit == Exit::Success {
        screen.message("the reproducer no longer fails");
    }
    if options.statistics {
        let _ = write!(std::io::stderr(), "{}", tool.statistics.table());
    }
    if options.timing {
        let _ = write!(std::io::stderr(), "{}", tool.dumper.timing(tool.reading));
    }
    match tool.dumper.file_error() {
        Some(fault) => Err(screen.fail(Exit::Environment, fault)),
        None => Ok(exit),
    }
}

impl Options {
    /// Returns true if an option is set to which `--check-model` applies.
    fn uses_ordering_model(&self) -> bool {
        self.check.is_some() || self.fix == Some(FixMode::Check) || self.verify_each == VerifyEach::Check
    }

    fn model(&self) -> OrderingModel {
        self.check_model.unwrap_or_default()
    }
}

/// Returns the name of a `--verify-each` value.
fn verify_each_name(verify: VerifyEach) -> String {
    verify.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
}

/// Formats the number of diagnostics of a severity, or returns `None` if there are none.
fn format_count(found: &[Diagnostic], severity: Severity, word: &str) -> Option<String> {
    let count = found.iter().filter(|it| it.severity() == severity).count();
    let s = if count == 1 { "" } else { "s" };
    (count > 0).then(|| format!("{count} {word}{s}"))
}

/// Returns the text of `--explain`, `--list-passes` or `--list-ops`, if one of them is set.
fn listing(options: &Options) -> Result<Option<String>, String> {
    Ok(match (&options.explain, &options.list_passes) {
        (Some(Some(code)), _) => Some(listing::explanation(code)?),
        (Some(None), _) => Some(listing::codes()),
        (None, Some(Some(name))) => Some(listing::pass(name)?),
        (None, Some(None)) => Some(listing::passes()),
        (None, None) => options.list_ops.then(listing::operators),
    })
}

/// The result of processing one part of the input.
#[derive(Default)]
struct PartOutcome {
    /// The text for standard output.
    text: String,
    /// Diagnostics about the part.
    diagnostics: Vec<Diagnostic>,
    /// A diagnostic about a text on the command line, such as a `--set` value.
    other_source_diagnostic: Option<Box<(Source, Diagnostic)>>,
    /// A summary for each program without faults. Printed after the diagnostics.
    summaries: Vec<String>,
    /// The exit code and message of a failure, in addition to the diagnostics.
    failure: Option<(Exit, String)>,
}

struct Tool<'o> {
    activity: Activity,
    options: &'o Options,
    screen: Reporter,
    calls: Vec<PassCall>,
    dumper: Dumper<'o>,
    /// Remarks of the passes about the current program.
    remarks: Vec<Diagnostic>,
    statistics: Statistics,
    reading: Duration,
    /// Index of the current container, in a text with several.
    container: Option<usize>,
}

impl Tool<'_> {
    fn process_file(&mut self, source: Source) -> Exit {
        let parts = match self.options.split_input_file {
            true => match expect::split_input(&source) {
                Ok(parts) => parts,
                Err(fault) => {
                    self.screen.report_diagnostics(&source, &[fault]);
                    return Exit::Rejected;
                }
            },
            false => vec![&source.text[..]],
        };
        let mut texts = Vec::with_capacity(parts.len());
        let mut worst = Exit::Success;
        // Every part keeps its line numbers: it is preceded by as many empty lines.
        let mut lines_before = 0;
        for text in parts {
            let mut part = Source::new(source.name.clone(), "\n".repeat(lines_before) + text);
            let mut is_edited = false;
            lines_before += text.lines().count() + 1;
            if let Some(fixes) = self.options.fix
                && grammar::is_fixable(&part.programs().1)
            {
                let text = grammar::fix(&part.text).into_owned();
                // Remaining diagnostics refer to the edited text, which the user has not seen or which goes
                // to a file.
                let mut name = format!("{} (fixed)", part.name);
                let text = match fixes {
                    FixMode::Reading => text,
                    FixMode::Check => {
                        let file = self.options.output.as_deref().filter(|it| *it != Path::new("-"));
                        name = file.map_or(name, |it| it.display().to_string());
                        self.fix_findings(text, &name)
                    }
                };
                is_edited = text != part.text;
                part = if is_edited { Source::new(name, text) } else { part };
            }
            let outcome = self.process_part(&part, is_edited);
            let exit = self.report(&part, &outcome);
            worst = if worst == Exit::Success { exit } else { worst };
            texts.push(outcome.text);
        }
        let text = texts.join(&format!("{}\n", expect::SEPARATOR));
        if text.is_empty() && worst != Exit::Success {
            return worst;
        }
        self.activity.print_result(true, || ());
        match self.screen.write_result(&text, self.options.output.as_deref()) {
            Exit::Success => worst,
            exit => exit,
        }
    }

    /// Prints the results of a part, or compares them with the expected diagnostics.
    fn report(&self, part: &Source, outcome: &PartOutcome) -> Exit {
        if self.options.verify_diagnostics {
            let mut faults = expect::mismatches(part, &outcome.diagnostics);
            faults.extend(
                outcome.failure.iter().filter(|it| it.0 == Exit::InternalError).map(|it| it.1.clone()),
            );
            faults.iter().chain(&outcome.summaries).for_each(|it| self.screen.message(it));
            return if faults.is_empty() { Exit::Success } else { Exit::Rejected };
        }
        self.screen.report_diagnostics(part, &outcome.diagnostics);
        if let Some((source, fault)) = outcome.other_source_diagnostic.as_deref() {
            self.screen.report_diagnostics(source, std::slice::from_ref(fault));
        }
        outcome.summaries.iter().for_each(|it| self.screen.message(it));
        match &outcome.failure {
            Some((exit, message)) => self.screen.fail(*exit, message),
            None => match &outcome.other_source_diagnostic {
                Some(it) if it.1.code == Code::BadOption => Exit::Usage,
                Some(_) => Exit::Rejected,
                None if has_errors(&outcome.diagnostics) => Exit::Rejected,
                None => Exit::Success,
            },
        }
    }

    /// Processes a part. `is_edited` is set if `--fix` has changed its text.
    fn process_part(&mut self, part: &Source, is_edited: bool) -> PartOutcome {
        crash_reproducer::record_command(self.reproducer_flags());
        crash_reproducer::record_program(&part.text);
        let start = Instant::now();
        let (mut programs, diagnostics) = part.programs();
        self.reading += start.elapsed();
        let mut outcome = PartOutcome { diagnostics, ..PartOutcome::default() };
        if has_errors(&outcome.diagnostics) {
            return outcome;
        }
        if let Some(fixes) = self.options.fix {
            if fixes == FixMode::Check && !self.check_all(&mut programs, part, &mut outcome) {
                // Edits that were made are kept even if other faults remain.
                if let Some((Exit::Check, message)) = &mut outcome.failure {
                    *message += match is_edited {
                        true => "; the text is written with the edits made so far",
                        false => "; no edit was made, and no text is written",
                    };
                    outcome.text = if is_edited { part.text.clone() } else { String::new() };
                }
                return outcome;
            }
            return PartOutcome { text: part.text.clone(), ..outcome };
        }
        let mut text = String::new();
        let count = programs.len();
        for (number, program) in programs.iter_mut().enumerate() {
            self.container = (count > 1).then_some(number);
            match self.process_program(program, part, &mut outcome) {
                Some(it) => text += &it,
                None => {
                    let left = count - 1 - number;
                    if let (Some((Exit::Check, message)), 1..) = (&mut outcome.failure, left) {
                        let rest = match left {
                            1 => format!("container {} is", count - 1),
                            _ => format!("containers {} to {} are", number + 1, count - 1),
                        };
                        *message +=
                            &format!("; {rest} not checked, because container {number} stops the check");
                    }
                    return outcome;
                }
            }
        }
        // The process ends soon, and dropping a large program takes long.
        std::mem::forget(programs);
        PartOutcome { text, ..outcome }
    }

    /// Returns the requested checks with the ordering model.
    fn checks(&self) -> Checks {
        Checks { model: self.options.model(), ..self.options.check.unwrap_or(Checks::ALL) }
    }

    /// Applies the edits that fix races in all programs of a text, and prints each edit. `name` is the name
    /// of the edited text in messages.
    fn fix_findings(&self, mut text: String, name: &str) -> String {
        self.activity.set("while fixing what the check finds");
        let plan = |program: &mut Program, lines: &LineIndex| {
            apply_bindings(program, &self.options.set).ok()?;
            let ranks = self.options.ranks.unwrap_or(0).max(plan::smallest_world(program));
            plan::build_with_limits(program, lines, ranks, &self.limits()).ok()
        };
        for number in 0..grammar::read(&text).0.len() {
            let fixed = check::fix(&text, number, self.checks(), &plan);
            for edit in &fixed.edits {
                self.screen.message(&format!("{name}, line {}: {}", edit.line, edit.description));
            }
            text = fixed.text;
        }
        text
    }

    /// Checks all programs of a text. Returns false, with the reasons in `outcome`, if any has a fault.
    fn check_all(&self, programs: &mut [Program], part: &Source, outcome: &mut PartOutcome) -> bool {
        programs.iter_mut().all(|program| match apply_bindings(program, &self.options.set) {
            Ok(()) => self.check(program, part, self.checks(), outcome).is_some(),
            Err(fault) => {
                outcome.other_source_diagnostic = Some(fault);
                false
            }
        })
    }

    /// Processes one program and returns its output text. Returns `None` on failure, with the reason in
    /// `outcome`.
    fn process_program(
        &mut self,
        program: &mut Program,
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<String> {
        if let Err(fault) = apply_bindings(program, &self.options.set) {
            outcome.other_source_diagnostic = Some(fault);
            return None;
        }
        // The planner and the checker report these as errors.
        if !self.options.print_plan && !self.options.print_hb && self.options.check.is_none() {
            outcome.diagnostics.extend(sync::lint(program, &part.lines, self.options.ranks));
        }
        let result = match self.options.bisect {
            true => self.bisect(program, part),
            false => self.run_passes(program, part),
        };
        let remarks = std::mem::take(&mut self.remarks);
        outcome.diagnostics.extend(self.options.remarks.select(&remarks).cloned());
        if let Err(failure) = result {
            if let PassError::BadOption(fault) = failure.error {
                let stated = Source::new("--passes".to_owned(), self.options.passes.join(","));
                outcome.other_source_diagnostic = Some(Box::new((stated, fault)));
                return None;
            }
            outcome.diagnostics.extend_from_slice(failure.error.diagnostics());
            let exit = if failure.error.is_bug() { Exit::InternalError } else { Exit::Rejected };
            outcome.failure = Some((exit, failure.to_string()));
            return None;
        }
        if let Some(message) = self.options.remarks.failure_message(&remarks) {
            outcome.failure = Some((Exit::Rejected, message));
            return None;
        }
        if self.options.check.is_some() {
            let checks = self.checks();
            self.check(program, part, checks, outcome)?;
        }
        match (self.options.print_plan, self.options.print_hb) {
            (true, _) => self.format_plans(program, part, outcome),
            (false, true) => self.format_order_graph(program, part, outcome),
            (false, false) => {
                let (text, losses) = grammar::print_as(program, self.options.print);
                outcome.diagnostics.extend(losses);
                Some(text)
            }
        }
    }

    /// Runs the passes. If one fails, writes the program before it as a reproducer.
    fn run_passes(&mut self, program: &mut Program, part: &Source) -> Result<(), Box<PipelineError>> {
        let oracle = SimulationOracle { lines: &part.lines, ranks: self.options.ranks };
        let checked = CheckerOracle { planner: oracle, model: self.options.model() };
        let verify = match self.options.verify_each {
            VerifyEach::Off => Verify::Off,
            VerifyEach::Structural => Verify::Structural,
            VerifyEach::Semantic => Verify::Semantic(&oracle),
            VerifyEach::Check => Verify::Semantic(&checked),
        };
        let settings = Settings { verify, roundtrip: self.options.verify_roundtrip };
        let mut before = None;
        let (mut begun, all) = (0, self.calls.len());
        let progress = Progress::new(Some(all), "passes verified", self.options.quiet);
        if matches!(verify, Verify::Semantic(_)) {
            self.activity.set("while running the program before the passes");
        }
        let observe = &mut |event: PassEvent<'_>| {
            if let PassEvent::Before { call, .. } = event {
                begun += 1;
                progress.set(begun - 1);
                self.activity.set(format!("in pass {begun} of {all}, `{}`,", call.pass.name));
            }
            if let (PassEvent::Before { call, program }, Some(_)) = (event, &self.options.crash_reproducer) {
                before = Some((call.to_string(), grammar::print(program)));
            }
            if let PassEvent::After { remarks, .. } = event {
                self.remarks.extend_from_slice(remarks);
            }
            self.statistics.handle_event(event);
            progress.suspend(|| self.dumper.handle_event(event));
        };
        let result = passes::run(program, &self.calls, settings, observe);
        if let (Err(failure), Some((call, text))) = (&result, before) {
            self.write_reproducer(&call, failure, self.options.verify_each, &text);
        }
        result
    }

    /// Finds the first failing pass and returns its failure. If none fails, runs all passes.
    fn bisect(&mut self, program: &mut Program, part: &Source) -> Result<(), Box<PipelineError>> {
        let oracle = SimulationOracle { lines: &part.lines, ranks: self.options.ranks };
        let count = self.calls.len();
        self.activity.set(format!("while looking for the first of {count} passes that fails"));
        let Some(culprit) = passes::bisect(program, &self.calls, &oracle)? else {
            self.screen.message(&format!("bisect: none of the {count} passes fails"));
            return self.run_passes(program, part);
        };
        let call = self.calls[culprit.position].to_string();
        self.screen.message(&format!(
            "bisect: pass {} of {count}, `{call}`, is the first that fails",
            culprit.position + 1
        ));
        // The program after a panic may be impossible to print.
        if !matches!(culprit.error.error, PassError::Panicked(_)) {
            let _ = write!(std::io::stderr(), "{}", diff(&culprit.before, &culprit.after));
        }
        self.write_reproducer(&call, &culprit.error, VerifyEach::Semantic, &grammar::print(&culprit.before));
        Err(Box::new(culprit.error))
    }

    /// Returns the flags that reproduce an internal error from the same text.
    fn reproducer_flags(&self) -> Vec<String> {
        let options = self.options;
        let mut flags = vec![format!("--verify-each={}", verify_each_name(options.verify_each))];
        let calls: Vec<String> = self.calls.iter().map(ToString::to_string).collect();
        flags.extend((!calls.is_empty()).then(|| format!("--passes={}", calls.join(","))));
        let switches = [
            (options.verify_roundtrip, "--verify-roundtrip"),
            (options.print_plan, "--print-plan"),
            (options.print_hb, "--print-hb"),
            (options.bisect, "--bisect"),
        ];
        flags.extend(switches.into_iter().filter(|it| it.0).map(|it| it.1.to_owned()));
        flags.extend(options.check.map(|it| format!("--check={it}")));
        let needs_model = options.check.is_some() || options.verify_each == VerifyEach::Check;
        flags.extend(options.check_model.filter(|_| needs_model).map(|it| format!("--check-model={it}")));
        flags.extend(options.ranks.map(|it| format!("--ranks={it}")));
        flags.extend(options.rank.map(|it| format!("--rank={it}")));
        flags.push(format!("--max-ranks={}", options.max_ranks));
        flags.push(format!("--memory-limit={}", options.memory_limit));
        flags.extend(options.set.iter().map(|it| format!("--set={}={}", it.name, it.value)));
        flags
    }

    /// Writes the file of `--crash-reproducer`.
    fn write_reproducer(&self, call: &str, failure: &PipelineError, verify: VerifyEach, before: &str) {
        let Some(path) = &self.options.crash_reproducer else { return };
        let mut flags =
            vec![format!("--passes={call}"), format!("--verify-each={}", verify_each_name(verify))];
        flags.extend(self.options.verify_roundtrip.then(|| "--verify-roundtrip".to_owned()));
        let model = self.options.check_model.filter(|_| verify == VerifyEach::Check);
        flags.extend(model.map(|it| format!("--check-model={it}")));
        flags.extend(self.options.ranks.map(|ranks| format!("--ranks={ranks}")));
        if self
            .screen
            .write_result(&reproducer::text("hir-opt", &failure.to_string(), &flags, before), Some(path))
            == Exit::Success
        {
            crash_reproducer::disable();
            let path = path.display();
            self.screen.message(&format!("`hir-opt --run-reproducer {path}` reproduces this failure"));
        }
    }

    /// Checks the program after the passes. Returns `None` if it has a fault, with the reason in `outcome`.
    fn check(
        &self,
        program: &Program,
        part: &Source,
        checks: Checks,
        outcome: &mut PartOutcome,
    ) -> Option<()> {
        let start = Instant::now();
        self.activity.set("while checking");
        // Findings refer to lines of the checked program, so it is printed and parsed again after passes.
        let printed;
        let (source, program) = if self.calls.is_empty() {
            (part, program)
        } else {
            let text = grammar::print(program);
            let source = Source::new(format!("{} (after the passes)", part.name), text);
            let program = source.programs().0.pop()?;
            printed = (source, program);
            (&printed.0, &printed.1)
        };
        let plans = self.plan_all_ranks(program, source, outcome)?;
        let report = check::check(&plans, checks);
        for reason in &report.not_checked {
            self.screen.message(&format!("not checked: {reason}"));
        }
        for reason in &report.not_searched {
            if !matches!(reason, ExcessNotSearched::Races | ExcessNotSearched::Views) {
                self.screen.message(&format!("not searched for excess: {reason}"));
            }
        }
        let sources = std::slice::from_ref(source);
        if let Some(path) = &self.options.witness {
            self.write_witness(path, &plans, &report, sources);
        }
        let remarks = report.findings.iter().filter(|it| matches!(it, Finding::Excess(_))).count();
        if let Some(left) = remarks.checked_sub(MAX_REMARKS).filter(|it| *it > 0) {
            self.screen.message(&format!("not printed: {left} remarks beyond the first {MAX_REMARKS}"));
        }
        let mut printed_remarks = 0;
        let is_printed = |it: &&Finding| {
            printed_remarks += usize::from(matches!(it, Finding::Excess(_)));
            !matches!(it, Finding::Excess(_)) || printed_remarks <= MAX_REMARKS
        };
        let shown = report.findings.iter().filter(is_printed);
        let found: Vec<Diagnostic> = shown.map(|it| it.diagnostic(&plans, sources).1).collect();
        let errors = format_count(&found, Severity::Error, "fault");
        let others = [(Severity::Warning, "warning"), (Severity::Remark, "remark")];
        let others: Vec<String> =
            others.into_iter().filter_map(|(severity, word)| format_count(&found, severity, word)).collect();
        let more: String = others.iter().map(|it| format!(", {it}")).collect();
        if source.name == part.name {
            outcome.diagnostics.extend(found);
        } else {
            self.screen.report_diagnostics(source, &found);
        }
        let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
        let s = |count: usize| if count == 1 { "" } else { "s" };
        let container = self.container.map_or(String::new(), |it| format!("container {it}, "));
        let world = format!(
            "{container}{} rank{}, {instructions} instruction{}, {:.3} s",
            plans.len(),
            s(plans.len()),
            s(instructions),
            start.elapsed().as_secs_f64()
        );
        let unsearched = report.not_searched.iter().find_map(|it| match it {
            ExcessNotSearched::Races => Some("the program has races"),
            ExcessNotSearched::Views => {
                Some("some views have too many pieces to compare, so races are unknown")
            }
            ExcessNotSearched::Waits { .. } | ExcessNotSearched::Writes => None,
        });
        let failure = if let Some(errors) = errors {
            format!("the check found {errors}{more} ({world})")
        } else if !report.not_checked.is_empty() {
            format!("the check found no fault in what it could check{more} ({world})")
        } else if let Some(reason) = unsearched {
            let why = format!("waits and writes were not examined, because {reason}: run `--check=race`");
            match (checks.is_excess_only(), others.is_empty()) {
                (true, true) => why,
                (true, false) => format!("{}; {why}", others.join(", ")),
                (false, _) => format!("the check found no other fault{more} ({world}); {why}"),
            }
        } else {
            outcome.summaries.push(format!("the check found no fault{more} ({world})"));
            return Some(());
        };
        outcome.failure = Some((Exit::Check, failure));
        None
    }

    fn format_plans(&self, program: &Program, part: &Source, outcome: &mut PartOutcome) -> Option<String> {
        let plans = self.plan_all_ranks(program, part, outcome)?;
        let shown = plans.iter().filter(|it| self.options.rank.is_none_or(|rank| rank == it.rank));
        Some(shown.map(plan::plan_text).collect())
    }

    /// Returns the limits on the plans of all ranks.
    fn limits(&self) -> Limits {
        let memory = (self.options.memory_limit as usize) << 30;
        Limits { ranks: self.options.max_ranks, memory, ..Limits::default() }
    }

    /// Returns the happens-before graph. Returns `None` on failure, with the reason in `outcome`.
    fn format_order_graph(
        &self,
        program: &Program,
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<String> {
        let plans = self.plan_all_ranks(program, part, outcome)?;
        if let Some(deadlock) = sync::deadlock(&plans) {
            let found = Finding::Deadlock(Box::new(deadlock));
            outcome.diagnostics.push(found.diagnostic(&plans, std::slice::from_ref(part)).1);
            outcome.failure = Some((Exit::Check, "`--print-hb`: the program deadlocks".to_owned()));
            return None;
        }
        match HappensBeforeGraph::from_plans(&plans, &CommMatching::from_plans(&plans)) {
            Ok(graph) => Some(graph.dot(&plans)),
            Err(OrderError::TooLarge | OrderError::Deadlock) => {
                let message = "`--print-hb`: the world has too many streams and communicators".to_owned();
                outcome.failure = Some((Exit::Usage, message));
                None
            }
        }
    }

    /// Writes the steps that exhibit the first race for which such steps exist.
    fn write_witness(&self, path: &Path, plans: &[Plan], report: &Report, sources: &[Source]) {
        if report.has_deadlock() {
            return self.screen.message("no witness: the program deadlocks");
        }
        let steps = match StepOrder::of(plans, &CommMatching::from_plans(plans)) {
            Ok(steps) => steps,
            Err(fault) => return self.screen.message(&format!("no witness: {fault}")),
        };
        // In the simulator each buffer has its own memory, so storage races do not show.
        let is_shown = |it: &Finding| it.diagnostic(plans, sources).1.code != Code::StorageRace;
        let shown = report.findings.iter().find_map(|it| match it {
            Finding::Race { race, .. } if is_shown(it) => Some((it, steps.witness(race)?)),
            Finding::Race { .. }
            | Finding::Unwritten { .. }
            | Finding::Deadlock(_)
            | Finding::CommunicatorOrder(_)
            | Finding::Excess(_) => None,
        });
        let Some((finding, steps)) = shown else {
            let mut races = report.findings.iter().filter_map(|it| match it {
                Finding::Race { race, .. } => Some(race),
                Finding::Unwritten { .. }
                | Finding::Deadlock(_)
                | Finding::CommunicatorOrder(_)
                | Finding::Excess(_) => None,
            });
            return self.screen.message(match races.next() {
                Some(it) if it.between_runs => "no witness: a race between two runs needs two runs, but hir-run executes only one",
                Some(_) => "no witness: no order of the program's own steps shows a race with the caller or over storage",
                None => "no witness: the check found no race",
            });
        };
        let found = finding.diagnostic(plans, sources).1;
        let path_text = path.display();
        let calls: Vec<String> = self.calls.iter().map(ToString::to_string).collect();
        let flags = [
            self.container.map(|it| format!(" --container={it}")),
            (!calls.is_empty()).then(|| format!(" --passes='{}'", calls.join(","))),
            self.options.ranks.map(|it| format!(" --ranks={it}")),
        ];
        let set = self.options.set.iter().map(|it| format!(" --set={}={}", it.name, it.value));
        let flags: String = flags.into_iter().flatten().chain(set).collect();
        let title = format!(
            "[{}] {}\nhir-run {}{flags} --check=warn --schedule=@{path_text} runs these steps in this order, then all \
             others.\nrank, instruction, step of the instruction",
            found.code.text(),
            found.message,
            self.options.file
        );
        if self.screen.write_result(&schedules::format_steps(plans, &steps, &title), Some(path))
            == Exit::Success
        {
            self.screen.message(&format!("wrote an order in which this happens: {}", found.message));
        }
    }

    /// Plans all ranks. Returns `None` on failure, with the reason in `outcome`.
    fn plan_all_ranks(
        &self,
        program: &Program,
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<Vec<Plan>> {
        let smallest = plan::smallest_world(program);
        let ranks = self.options.ranks.unwrap_or(smallest);
        if ranks < smallest {
            let last = smallest - 1;
            let message = format!(
                "the program uses rank {last}, so it needs {smallest} ranks, but `--ranks` is {ranks}"
            );
            outcome.failure = Some((Exit::Environment, message));
            return None;
        }
        if let Some(rank) = self.options.rank.filter(|rank| *rank >= ranks) {
            outcome.failure = Some((
                Exit::Usage,
                match ranks {
                    1 => format!("`--rank {rank}`: the only rank is 0"),
                    _ => format!("`--rank {rank}`: the largest rank is {}", ranks - 1),
                },
            ));
            return None;
        }
        self.activity.set("while planning");
        match plan::build_with_limits(program, &part.lines, ranks, &self.limits()) {
            Ok(plans) => Some(plans),
            Err(faults) => {
                outcome.diagnostics.extend(faults);
                None
            }
        }
    }
}
