//! The command line of hir-opt.

use grammar::InvalidOption;
use std::path::{Path, PathBuf};

use crate::{
    run::{
        option_files::{OptionFile, check_option_files},
        timelines::TimelineFlags,
    },
    tool::{
        dump::DumpFlags,
        flags::{DiagnosticFlags, TextFlags, WorldFlags, with_help},
        model_flags::ModelFlags,
        remarks::RemarkFlags,
    },
};
use clap::{Parser, ValueEnum};
use grammar::{Binding, Dialect, render::Format};
use hir_check::{Checks, OrderingModel};

/// The examples of `--help`.
pub const EXAMPLES: &str =
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
#[derive(Default, Parser)]
#[command(
    name = "hir-opt",
    version = crate::tool::version(),
    mut_args(with_help("memory_limit", "Memory limit for the plans of all ranks, in GiB")),
    mut_args(with_help("quiet", "Show no progress"))
)]
pub struct Options {
    /// The program file; `-` for standard input.
    #[arg(default_value = "-")]
    pub file: String,
    /// Write the result to FILE.
    #[arg(help_heading = "Output", short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Passes to run: `a,b{opt=val,opt2=val},@pipeline{a.opt=val}`.
    /// A repeated option appends.
    #[arg(help_heading = "Passes", long, visible_alias = "pass-pipeline", value_name = "PIPELINE")]
    pub passes: Vec<String>,
    /// List all passes and pipelines, or describe NAME with its options, an example and its pipelines.
    #[arg(help_heading = "Passes", long, value_name = "NAME", num_args = 0..=1)]
    pub list_passes: Option<Option<String>>,
    /// List all operators.
    #[arg(help_heading = "Output", long)]
    pub list_ops: bool,
    /// Explain a diagnostic code, or list all codes.
    #[arg(help_heading = "Output", long, value_name = "CODE", num_args = 0..=1)]
    pub explain: Option<Option<String>>,
    /// Print the passes that will run, with pipelines expanded.
    #[arg(help_heading = "Passes", long)]
    pub dump_pass_pipeline: bool,
    /// The check that runs after every pass.
    #[arg(help_heading = "Passes", long, value_enum, default_value = "structural", num_args = 0..=1, require_equals = true,
        default_missing_value = "structural")]
    pub verify_each: VerifyEach,
    /// Find the first pass that fails or changes the outputs of the program, and show its changes.
    #[arg(help_heading = "Passes", long)]
    pub bisect: bool,
    /// If a pass fails, write the program before that pass to FILE, with the command line that reproduces the
    /// failure.
    #[arg(help_heading = "Passes", long, value_name = "FILE")]
    pub crash_reproducer: Option<PathBuf>,
    /// Run a reproducer written by `--crash-reproducer`.
    #[arg(help_heading = "Passes", long, value_name = "FILE", conflicts_with = "file")]
    pub run_reproducer: Option<PathBuf>,
    /// Check that the printed program parses to the same program, before and after every pass.
    #[arg(help_heading = "Passes", long)]
    pub verify_roundtrip: bool,
    /// Treat the parts of the file between `// -----` lines as separate files.
    #[arg(help_heading = "Input", long)]
    pub split_input_file: bool,
    /// Print the source text with all inferred information made explicit, instead of the canonical text.
    /// `check` also makes the edits that fix races, if exactly one edit fixes the race, and checks the
    /// result. `overlap` runs the passes that `--overlap` offers, and prints canonical text [without a value: reading].
    #[arg(help_heading = "Output", long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "reading",
        conflicts_with_all = ["passes", "print_plan", "print_hb", "print", "split_input_file"])]
    pub fix: Option<FixMode>,
    /// Compare diagnostics with `// expected-error@+1 {{text}}` comments instead of printing them.
    #[arg(help_heading = "Input", long)]
    pub verify_diagnostics: bool,
    /// Print the time of parsing and of every pass.
    #[arg(help_heading = "Passes", long)]
    pub timing: bool,
    /// Print the statistics of every pass.
    #[arg(help_heading = "Passes", long)]
    pub statistics: bool,
    /// Files beside the program.
    #[command(flatten)]
    pub text: TextFlags,
    #[command(flatten)]
    pub remarks: RemarkFlags,
    #[command(flatten)]
    pub dumps: DumpFlags,
    /// The form in which programs are printed: `short` declares each tensor on a `%tensor` line and uses
    /// short names after it; `2025` is an older dialect, and a warning reports what it cannot express.
    /// Default: canonical.
    #[arg(help_heading = "Output", long, alias = "print-dialect", value_name = "canonical|short|2025")]
    pub print: Option<Dialect>,
    /// Print the plan of every rank instead of the program.
    #[arg(help_heading = "Output", long, conflicts_with = "overlap")]
    pub print_plan: bool,
    /// Prove that the result is free of races, deadlocks and unwritten outputs, or report where it is
    /// not and exit with code 7. The program is printed only if `-o`, `--passes` or `--print` asks for it.
    /// WHAT is a list of `race`, `comm`, `memory`, `excess`, `repeat` and `capture`, or `all`: all but `capture`.
    /// `excess` reports statements that the program does not need, as remarks that do not change the exit
    /// code (`excess` alone exits with code 7 if the program has races). `repeat` reports races between two
    /// consecutive runs and contradictory orders of communicators of several ones, and includes `race` and `comm`; `capture` reports what a
    /// capture into a CUDA graph does not record. Default: all but
    /// these two.
    #[arg(help_heading = "Checks", long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "race,comm,memory,excess")]
    pub check: Option<Checks>,
    /// Write to FILE an order of steps in which the first race found by `--check` occurs.
    /// `hir-run --check=warn --schedule=@FILE` runs it.
    #[arg(help_heading = "Checks", long, value_name = "FILE", requires = "check")]
    pub witness: Option<PathBuf>,
    /// Certify that the program computes after the passes what it computes before, and write both to FILE, which `hir certify FILE`
    /// certifies again.
    #[arg(help_heading = "Checks", long, value_name = "FILE", requires = "passes")]
    pub certificate: Option<PathBuf>,
    /// Print the happens-before graph of all ranks in Graphviz DOT format instead of the program.
    #[arg(help_heading = "Output", long, conflicts_with_all = ["print_plan", "overlap"])]
    pub print_hb: bool,
    /// Print the communications of the program after the passes instead of the program: the line that posts each, its kind,
    /// its ranks, how often it runs, the bytes that a rank sends, and the tensors.
    #[arg(help_heading = "Output", long, conflicts_with_all = ["print_plan", "print_hb", "overlap"])]
    pub communication: bool,
    #[command(flatten)]
    pub timelines: TimelineFlags,
    #[command(flatten)]
    pub models: ModelFlags,
    /// Also prove that FILE, a program of the same process, may run before or after this one, in any order and any number of times. The
    /// two share inputs, outputs and symmetric tensors of one name, streams and communicators. Can be repeated.
    #[arg(
        help_heading = "Checks",
        long,
        value_name = "FILE",
        requires = "check",
        conflicts_with = "split_input_file"
    )]
    pub with: Vec<PathBuf>,
    #[command(flatten)]
    pub world: WorldFlags,
    /// Print only the plan of this rank.
    #[arg(help_heading = "Output", long, requires = "print_plan")]
    pub rank: Option<usize>,
    /// Set a symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(help_heading = "Ranks and symbols", long, value_name = "NAME=VALUE")]
    pub set: Vec<Binding>,
    #[command(flatten)]
    pub diagnostics: DiagnosticFlags,
}

/// The edits that `--fix` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FixMode {
    /// Only the fixes of parser diagnostics.
    Reading,
    /// Also the fixes of the checker's findings.
    Check,
    /// The passes that shorten the estimated time, as in the report of `--overlap`.
    Overlap,
}

/// The check that runs after every pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum VerifyEach {
    /// No check.
    Off,
    /// The verifier accepts the program.
    #[default]
    Structural,
    /// Also, on simulated ranks and under several schedules, the outputs are those of the program before the
    /// first pass.
    Semantic,
    /// The verifier accepts the program, and `--check` finds no race, no deadlock and no unwritten output on
    /// any rank.
    Check,
}

impl Options {
    /// Checks that the options are compatible.
    ///
    /// # Errors
    /// A message that says what to change.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        self.models.validate(self.uses_ordering_model())?;
        self.dumps.check()?;
        let prints = [
            (self.timing, "--timing"),
            (self.statistics, "--statistics"),
            (self.dump_pass_pipeline, "--dump-pass-pipeline"),
            (self.dumps.prints(), "--print-ir-…"),
        ];
        let format = match self.diagnostics.error_format {
            Format::Human | Format::Short | Format::Github => None,
            Format::Json => Some(("JSON lines", "json")),
            Format::Sarif => Some(("a single log", "sarif")),
        };
        if let (Some((what, format)), Some((_, flag))) = (format, prints.iter().find(|it| it.0)) {
            return Err(format!(
                "`{flag}` prints text to standard error, which is {what} with `--error-format={format}`: remove one of \
                 the two options"
            ).into());
        }
        let of_one = [
            (self.witness.is_some(), "--witness"),
            (self.certificate.is_some(), "--certificate"),
            (!self.timelines.timeline.is_empty(), "--timeline"),
        ];
        if let (true, Some((_, option))) = (self.split_input_file, of_one.into_iter().find(|it| it.0)) {
            return Err(format!(
                "`{option}` writes a file about one program, but `--split-input-file` reads several: give one part as a file"
            ).into());
        }
        if !self.with.is_empty() && self.models.check_model == Some(OrderingModel::Hir) {
            return Err("`--with` needs `--check-model=nccl`: hir-run runs one program".into());
        }
        self.check_files()?;
        self.check_fix()?;
        if self.check.is_some_and(|it| it.repeat) && self.models.check_model == Some(OrderingModel::Hir) {
            return Err(
                "`--check=repeat` needs `--check-model=nccl`: hir-run separates runs by a barrier".into()
            );
        }
        Ok(())
    }

    /// Checks that each option has its own file, and that only `-o` overwrites the program.
    fn check_files(&self) -> Result<(), InvalidOption> {
        let timelines = self.timelines.timeline.iter().map(|it| ("--timeline", it.path.as_path()));
        let named = [
            ("--witness", &self.witness),
            ("--certificate", &self.certificate),
            ("--crash-reproducer", &self.crash_reproducer),
        ];
        let named = named.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
        let files = |it: (&'static str, _)| OptionFile { option: it.0, path: it.1 };
        let mut written: Vec<OptionFile<'_>> = named.chain(timelines).map(files).collect();
        let program = OptionFile { option: "the program", path: Path::new(&self.file) };
        let fusions = self.text.fusions.iter();
        let fusions: Vec<_> =
            fusions.map(|it| OptionFile { option: "the fusions", path: Path::new(it) }).collect();
        check_option_files(&written, &[&[program][..], &fusions].concat())?;
        written.extend(self.output.as_deref().map(|path| OptionFile { option: "-o", path }));
        check_option_files(&written, &[])
    }

    /// Checks that `--fix`, which runs no passes and makes no timeline, has no option that it would ignore.
    fn check_fix(&self) -> Result<(), InvalidOption> {
        let Some(fix) = self.fix else { return Ok(()) };
        let ignored = [
            (fix != FixMode::Check && self.check.is_some(), "--check"),
            (fix == FixMode::Reading && !self.set.is_empty(), "--set"),
            (fix != FixMode::Overlap && self.timelines.machine.is_some(), "--machine"),
            (fix != FixMode::Check && self.witness.is_some(), "--witness"),
            (!self.with.is_empty(), "--with"),
            (self.crash_reproducer.is_some(), "--crash-reproducer"),
            (self.statistics, "--statistics"),
            (self.dump_pass_pipeline, "--dump-pass-pipeline"),
            (self.verify_roundtrip, "--verify-roundtrip"),
            (self.remarks.is_requested(), "--remarks"),
            (self.timelines.is_requested(), if self.timelines.overlap { "--overlap" } else { "--timeline" }),
            (self.bisect, "--bisect"),
            (!matches!(self.verify_each, VerifyEach::Off | VerifyEach::Structural), "--verify-each"),
            (self.dumps.prints(), "--print-ir-…"),
            (self.dumps.writes_files(), "--print-ir-tree-dir"),
            (self.rank.is_some(), "--rank"),
            (self.communication, "--communication"),
        ];
        match ignored.into_iter().find(|it| it.0) {
            None => Ok(()),
            Some((_, "--check")) if fix == FixMode::Overlap => {
                Err("`--fix=overlap` checks each edit, and nothing else: remove `--check`".into())
            }
            Some((_, "--check")) => {
                Err("`--fix` only prints the text, and checks nothing: use `--fix=check`".into())
            }
            Some((_, option)) => {
                Err(format!("`--fix` ignores `{option}`: remove one of the two options").into())
            }
        }
    }

    /// Returns true if the tool writes a program, plans or a report. `--check` alone writes nothing, so that its
    /// verdict is the last thing on the screen.
    pub fn prints_result(&self) -> bool {
        self.check.is_none()
            || self.output.is_some()
            || !self.passes.is_empty()
            || self.fix.is_some()
            || self.print.is_some()
            || self.print_plan
            || self.print_hb
            || self.communication
            || self.timelines.overlap
    }

    /// Returns true if an option is set to which `--check-model` applies.
    fn uses_ordering_model(&self) -> bool {
        self.check.is_some() || self.fix == Some(FixMode::Check) || self.verify_each == VerifyEach::Check
    }

    /// Returns the requested checks with the models.
    pub fn checks(&self) -> Checks {
        self.models.apply(self.requested_checks())
    }

    /// Returns the requested checks. Programs that run with others may also run twice.
    fn requested_checks(&self) -> Checks {
        let checks = self.check.unwrap_or(Checks::DEFAULT);
        let runs = !self.with.is_empty();
        Checks { race: checks.race || runs, repeat: checks.repeat || runs, ..checks }
    }

    /// Returns what `--verify-each=check` looks for.
    pub fn checks_of_passes(&self) -> Checks {
        self.models.apply_to_passes(self.checks().of_faults())
    }
}
