//! hir reduce: reduces a failing Host IR program while it still fails in the same way.

use grammar::InvalidOption;
use std::{
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    reduce::{
        Candidate, CommandRunner, InterestingnessTest,
        failure_test::{FailureOracle, FailureTest, SameFailure},
        reduce,
    },
    run::oracle,
    tool::{
        Reporter,
        flags::{DiagnosticFlags, TextFlags, WorldFlags, with_help},
        progress::Progress,
    },
};
use clap::Parser;
use grammar::{Binding, Dialect, Program, apply_bindings, count_text, render::Format};
use hir_process::{exit::Exit, interrupt, out_of_memory};
use hir_sim::{ScheduleSet, WorkBudget};

/// The examples of `--help`.
pub(super) const EXAMPLES: &str =
    "  hir reduce dump.hir --oracle deadlock             the lines that a deadlock needs
  hir reduce dump.hir --oracle race -o small.hir
  hir reduce program.hir --oracle wrong-result --passes @overlap
  hir reduce dump.hir --oracle 'cmd:./fails.sh %s'  any command that exits with 0 for a failing program";

/// Reduces a failing program while it still fails in the same way.
///
/// Exits with 1 if the program does not fail in this way.
#[derive(Parser)]
#[command(
    name = "hir reduce",
    version = crate::tool::version(),
    mut_args(with_help("quiet", "Print only the result and diagnostics: no notes and no progress"))
)]
pub(super) struct Options {
    /// The program file; `-` for standard input.
    file: String,
    /// The failure to preserve: `race`, `deadlock`, `wrong-result`, `crash` (of `--passes`), or
    /// `cmd:COMMAND`, a shell command that exits with 0 if the program still fails. `%s` in the command
    /// stands for the program file; without it, the file is the last argument.
    #[arg(help_heading = "Reduction", long, value_name = "ORACLE")]
    oracle: FailureOracle,
    /// Passes to run first, as in `hir-opt --passes`.
    #[arg(help_heading = "Reduction", long, alias = "pass-pipeline", value_name = "a,b{opt=val}")]
    passes: Vec<String>,
    /// For `wrong-result`: the program that computes the expected outputs. Default: the program itself before
    /// `--passes`.
    #[arg(help_heading = "Reduction", long, value_name = "SPEC.hir")]
    reference: Option<String>,
    #[command(flatten)]
    text: TextFlags,
    #[command(flatten)]
    world: WorldFlags,
    /// Set a symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(help_heading = "Ranks and symbols", long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// Schedules to run, as in `hir-run --schedule`. Default: `program`, `adversarial` and several seeds.
    /// Without this option, races are found by the checker and nothing runs.
    #[arg(help_heading = "Reduction", long)]
    schedule: Option<ScheduleSet>,
    /// The maximum number of programs to test. Four programs that are proposed, but not tested, because they cannot run
    /// or lose an order, count as one.
    #[arg(help_heading = "Reduction", long, value_name = "N", default_value_t = 2000)]
    max_tests: usize,
    /// The form of the result: `short` declares each tensor on a `%tensor` line and uses short names after
    /// it; `canonical` spells tensors in full. Default: `short`, or `canonical` for the oracle `cmd:`, whose
    /// command reads canonical text.
    #[arg(help_heading = "Output", long, value_name = "canonical|short", value_parser = parse_form)]
    print: Option<Dialect>,
    /// Write the result to FILE.
    #[arg(help_heading = "Output", short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) diagnostics: DiagnosticFlags,
}

pub(super) fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    let calls = screen.parse_pipeline("--passes", &options.passes.join(","))?;
    let missing = match options.oracle {
        FailureOracle::Crash if calls.is_empty() => Some("`--oracle crash` needs `--passes`"),
        FailureOracle::WrongResult if calls.is_empty() && options.reference.is_none() => {
            Some("`--oracle wrong-result` needs `--reference` or `--passes`")
        }
        FailureOracle::Race
        | FailureOracle::Deadlock
        | FailureOracle::WrongResult
        | FailureOracle::Crash
        | FailureOracle::Command(_) => None,
    };
    if let Some(message) = missing {
        return Err(screen.fail(Exit::Usage, message));
    }
    // A command of the user may need any amount of memory, and inherits the limit.
    if !matches!(options.oracle, FailureOracle::Command(_)) {
        out_of_memory::limit_memory(options.world.memory_limit);
    }
    match options.oracle {
        FailureOracle::Race if options.schedule.is_none() => (),
        FailureOracle::Crash | FailureOracle::Command(_) => (),
        FailureOracle::Race | FailureOracle::Deadlock | FailureOracle::WrongResult => {
            screen.start_workers()?
        }
    }
    let start = start(options, screen)?;
    if let Some(path) = &options.reference {
        screen.open_source(path, &options.text)?;
    }
    let schedules = match &options.schedule {
        None => oracle::schedules(),
        Some(ScheduleSet::List(them)) => them.clone(),
        Some(it @ (ScheduleSet::Explore(_) | ScheduleSet::File(_))) => {
            let message = format!(
                "`--schedule={it}`: the steps of a program change as it is reduced; use named schedules, or omit `--schedule` to \
                 find races with the checker"
            );
            return Err(screen.fail(Exit::Usage, message));
        }
    };
    let folder = tempfile::Builder::new().prefix("hir-reduce-").tempdir();
    let folder = folder.map_err(|fault| {
        screen.fail(Exit::Environment, format!("cannot create a temporary directory: {fault}"))
    })?;
    let file = folder.path().join("candidate.hir");
    // If an allocation fails, no destructor runs; the allocator then removes these files.
    let _temporary = [file.as_path(), folder.path()].map(out_of_memory::remove_on_out_of_memory);
    let best = Arc::new(Mutex::new(Best::default()));
    let running = Arc::new(CommandRunner::new(file.clone()));
    let (shared, commands, scratch) = (Arc::clone(&best), Arc::clone(&running), folder.path().to_owned());
    let (current, output) = (Arc::clone(&best), options.output.clone());
    screen.watch_signals(
        move |screen| lock(&current).report(screen, "so far"),
        move |screen, signal| {
            let best = lock(&shared);
            if best.is_writing {
                return false;
            }
            commands.kill();
            let _ = std::fs::remove_dir_all(&scratch);
            best.report(screen, &format!("stopped by {}", interrupt::signal_name(signal)));
            if let Some((text, _)) = &best.found {
                screen.write_result(text, output.as_deref());
            }
            // The process ends: the lock is kept so that nothing else is written.
            std::mem::forget(best);
            true
        },
    )?;
    let work = WorkBudget::of_billions(options.world.max_work(hir_plan::limits::DEFAULT_MAX_WORK_OF_TRIALS));
    let examiner = FailureTest {
        calls: &calls,
        reference: options.reference.as_deref(),
        fusions: &options.text.fusions,
        bindings: &options.set,
        assume: options.world.assume,
        ranks: options.world.ranks,
        limits: options.world.limits(),
        work,
        schedules,
        checks_races: options.schedule.is_none(),
        ..FailureTest::new(screen.session(), &options.oracle, &running)
    };
    let exit = shrink(options, screen, start, examiner, &best);
    // Without a free file descriptor, only an empty directory can be removed.
    let _ = std::fs::remove_file(&file);
    let _ = std::fs::remove_dir(folder.path());
    Ok(exit)
}

/// Reads the program, applies `--set`, and returns it as canonical text.
fn start(options: &Options, screen: &Reporter) -> Result<Candidate, Exit> {
    let source = screen.open_source(&options.file, &options.text)?;
    let record = &screen.session().crash_record;
    record.record_command(screen.session().argument_texts());
    record.record_program(&source.text);
    let (mut programs, diagnostics) = (source.reader.read)(&source.text);
    if grammar::diagnostic::has_errors(&diagnostics) {
        screen.report_diagnostics(&source, &diagnostics);
        return Err(Exit::Rejected);
    }
    let [program] = programs.as_mut_slice() else {
        let message = format!("`{}` has {} containers: reduce one at a time", source.name, programs.len());
        return Err(screen.fail(Exit::Usage, message));
    };
    apply_bindings(program, &options.set).map_err(|fault| {
        screen.report_diagnostics(&fault.0, &[fault.1]);
        Exit::Usage
    })?;
    if options.world.assume {
        let it = hir_plan::assume_scalars(program, &source, options.world.ranks, &options.world.limits());
        screen.report_diagnostics(&source, it.as_slice());
    }
    let smallest = hir_plan::smallest_world(program);
    if let Some(ranks) = options.world.ranks.filter(|ranks| *ranks < smallest) {
        let message = hir_plan::limits::too_few_ranks_text("the program", smallest, ranks);
        return Err(screen.fail(Exit::Environment, message));
    }
    // Only an external command may accept a program that the verifier rejects.
    let faults = grammar::verify(program);
    let is_rejected = grammar::diagnostic::has_errors(&faults);
    let is_command = matches!(options.oracle, FailureOracle::Command(_));
    let candidate =
        if is_rejected && !is_command { None } else { Candidate::read(grammar::print(program)).ok() };
    candidate.ok_or_else(|| {
        if is_rejected {
            screen.report_diagnostics(&source, &faults);
            Exit::Rejected
        } else {
            screen.fail(
                Exit::InternalError,
                "the canonical text of the program does not parse: run `hir-opt --verify-roundtrip`",
            )
        }
    })
}

fn shrink(
    options: &Options,
    screen: &Reporter,
    start: Candidate,
    examiner: FailureTest<'_>,
    best: &Mutex<Best>,
) -> Exit {
    let symptoms = match examiner.failure_signatures(&start) {
        Ok(symptoms) => symptoms,
        Err(instead) => {
            let is_environment = examiner.running.fault().is_some();
            let exit = if is_environment { Exit::Environment } else { Exit::Rejected };
            return screen.fail(exit, format!("`{}`: {instead}", options.file));
        }
    };
    let progress = Progress::new(Some(options.max_tests), "tests at most", options.diagnostics.quiet);
    let say = |line: String| match options.diagnostics.error_format {
        _ if options.diagnostics.quiet => (),
        Format::Sarif | Format::Json => screen.message(line),
        Format::Human | Format::Short | Format::Github => {
            progress.suspend(|| drop(writeln!(&screen.session().stderr, "# {line}")));
        }
    };
    symptoms.iter().for_each(|it| say(it.clone()));
    say(format!("{} statements", start.statements()));
    lock(best).found = Some((result_text(options, &start), start.statements()));
    let goal = RecordingGoal {
        options,
        progress: &progress,
        same: SameFailure { test: examiner, signatures: symptoms },
        best,
    };
    let reduced = reduce(start, options.max_tests, &goal, &mut |candidate, tests| {
        say(format!("{} statements after {}", candidate.statements(), count_text(tests, "test")));
    });
    // A signal from here on is too late to stop the tool.
    lock(best).is_writing = true;
    if let Some(fault) = goal.same.test.running.fault() {
        let exit = screen.write_result(&result_text(options, &reduced.candidate), options.output.as_deref());
        let failed =
            screen.fail(Exit::Environment, format!("{fault}: the smallest program so far is written"));
        return if exit == Exit::Success { failed } else { exit };
    }
    if reduced.hit_limit {
        say(format!("stopped after {} tests: `--max-tests` allows more", reduced.tests));
    }
    screen.write_result(&result_text(options, &reduced.candidate), options.output.as_deref())
}

/// Parses the value of `--print`. An older dialect could lose the failure.
fn parse_form(text: &str) -> Result<Dialect, InvalidOption> {
    match text.parse() {
        Ok(form @ (Dialect::Canonical | Dialect::Short)) => Ok(form),
        Ok(Dialect::Y2025) | Err(_) => Err("expected `canonical` or `short`".into()),
    }
}

/// Returns the text of a program in the form that `--print` selects.
fn result_text(options: &Options, candidate: &Candidate) -> String {
    let is_command = matches!(options.oracle, FailureOracle::Command(_));
    match options.print.unwrap_or(if is_command { Dialect::Canonical } else { Dialect::Short }) {
        Dialect::Short => grammar::print_as(&candidate.program, Dialect::Short).0,
        Dialect::Canonical | Dialect::Y2025 => candidate.text.clone(),
    }
}

/// The smallest failing program so far, and the progress of the reduction.
#[derive(Default)]
struct Best {
    /// Its text and its number of statements; `None` until the failure of the first program is confirmed.
    found: Option<(String, usize)>,
    tests: usize,
    /// True while the result is being written.
    is_writing: bool,
}

impl Best {
    fn report(&self, screen: &Reporter, when: &str) {
        screen.message(&match &self.found {
            Some((_, count)) => format!("{when}: {count} statements after {} tests", self.tests),
            None => format!("{when}: the failure of the program is not confirmed yet, nothing is written"),
        });
    }
}

fn lock(best: &Mutex<Best>) -> MutexGuard<'_, Best> {
    best.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A goal that records the smallest program that still fails.
struct RecordingGoal<'a> {
    options: &'a Options,
    progress: &'a Progress,
    same: SameFailure<'a>,
    best: &'a Mutex<Best>,
}

impl InterestingnessTest for RecordingGoal<'_> {
    fn is_worth_testing(&self, before: &Candidate, after: &Program) -> bool {
        self.same.is_worth_testing(before, after)
    }

    fn is_interesting(&self, candidate: &Candidate) -> bool {
        let fails = self.same.is_interesting(candidate);
        let mut best = lock(self.best);
        best.tests += 1;
        self.progress.set(best.tests);
        if fails {
            best.found = Some((result_text(self.options, candidate), candidate.statements()));
        }
        fails
    }
}
