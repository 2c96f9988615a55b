//! Shrinks a Host IR program that fails, while it still fails in the same way.

use std::{
    io::Write,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use clap::Parser;
use grammar::{ir::Program, render::Format};
use hir::{
    exit::Exit,
    interrupt,
    out_of_memory::{self, Allocator},
    plan::limits::{self, Limits},
    reduce::{
        Candidate, Goal, Running, reduce,
        symptoms::{Examiner, Same, Test, expect_panics},
    },
    run::oracle,
    sim::Schedules,
    source::{Binding, Source, bind},
    tool::{self, Color, Screen, own_panics, reproducer::own_bug, stack::with_large_stack, usage},
};

/// Shrinks a program that fails, while it still fails in the same way.
///
/// The result is canonical text. Exit codes: 0 done, 1 the program does not fail in this way, 2 command line, 6
/// environment, 101 our bug.
#[derive(Parser)]
#[command(name = "hir-reduce", version)]
struct Options {
    /// The program; `-` for standard input.
    file: String,
    /// What has to stay true: `race`, `deadlock`, `wrong-result`, `crash` (of `--passes`), or `cmd:COMMAND`, a shell command
    /// that ends with 0 for a program of interest; `%s` in it, or its last argument, is the file.
    #[arg(long, value_name = "ORACLE")]
    oracle: Test,
    /// Passes to run first, as `hir-opt --passes`.
    #[arg(long, alias = "pass-pipeline", value_name = "a,b{opt=val}")]
    passes: Option<String>,
    /// For `wrong-result`: the program whose outputs are expected; default: the program itself before `--passes`.
    #[arg(long, value_name = "SPEC.hir")]
    reference: Option<String>,
    /// Number of ranks; default: the smallest world that holds every mesh.
    #[arg(long, value_parser = tool::ranks)]
    ranks: Option<usize>,
    /// Most ranks of a world.
    #[arg(long, value_name = "N", default_value_t = limits::RANKS, value_parser = tool::ranks)]
    max_ranks: usize,
    /// Most memory that the plans of all ranks may take, and that the simulated ranks may take together, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = 16)]
    memory_limit: u32,
    /// A symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// Schedules to run under, as `hir-run --schedule`; default: `program`, `adversarial` and a few seeds. Without this, a race is what the
    /// checker finds, and nothing runs.
    #[arg(long)]
    schedule: Option<Schedules>,
    /// Most programs that are tested.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    max_tests: usize,
    /// Where the result goes.
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How diagnostics are drawn. `sarif`: standard error is one SARIF log, of everything that is reported.
    #[arg(long, default_value = "human", value_name = "human|short|json|sarif")]
    error_format: Format,
    /// When to colour them.
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    own_panics("hir-reduce");
    interrupt::report_large_files();
    with_large_stack(|| match Options::try_parse() {
        Ok(options) => {
            let screen = Screen::new("hir-reduce", options.error_format, options.color);
            let exit = own_bug::guarded(screen, None, || run(&options, screen).unwrap_or_else(|exit| exit));
            tool::log::close(exit, true);
            exit.into()
        }
        Err(error) => usage("hir-reduce", &error).into(),
    })
}

fn run(options: &Options, screen: Screen) -> Result<Exit, Exit> {
    let calls = screen.pipeline(options.passes.as_deref().unwrap_or_default())?;
    let missing = match options.oracle {
        Test::Crash if calls.is_empty() => Some("`--oracle crash` needs `--passes`"),
        Test::WrongResult if calls.is_empty() && options.reference.is_none() => {
            Some("`--oracle wrong-result` needs `--reference` or `--passes`")
        }
        Test::Race | Test::Deadlock | Test::WrongResult | Test::Crash | Test::Command(_) => None,
    };
    if let Some(message) = missing {
        return Err(screen.fail(Exit::Usage, message));
    }
    let start = start(options, screen)?;
    let schedules = match &options.schedule {
        None => oracle::schedules(),
        Some(Schedules::Named(them)) => them.clone(),
        Some(it @ (Schedules::Explore(_) | Schedules::File(_))) => {
            let message = format!(
                "`--schedule={it}`: the steps of a program change as it gets smaller; name schedules, or leave `--schedule` out: \
                 the checker then says whether a race is left"
            );
            return Err(screen.fail(Exit::Usage, &message));
        }
    };
    let folder = tempfile::Builder::new().prefix("hir-reduce-").tempdir();
    let folder = folder.map_err(|fault| {
        screen.fail(Exit::Environment, &format!("cannot create a temporary folder: {fault}"))
    })?;
    let file = folder.path().join("candidate.hir");
    // Where memory is refused, nothing is dropped.
    let _temporary = [file.as_path(), folder.path()].map(out_of_memory::remove_if_refused);
    let (best, running) = (Arc::new(Mutex::new(Best::default())), Arc::new(Running::default()));
    let (shared, commands, scratch) = (Arc::clone(&best), Arc::clone(&running), folder.path().to_owned());
    let (asked, output) = (Arc::clone(&best), options.output.clone());
    interrupt::watch(
        move || locked(&asked).tell(screen, "so far"),
        move |signal| {
            let best = locked(&shared);
            if best.is_over {
                return false;
            }
            commands.end();
            let _ = std::fs::remove_dir_all(&scratch);
            best.tell(screen, &format!("stopped by {}", interrupt::name(signal)));
            if let Some((text, _)) = &best.found {
                screen.write(text, output.as_deref());
            }
            // The process ends: the lock is kept, and nothing else is written.
            std::mem::forget(best);
            true
        },
    )
    .map_err(|fault| screen.fail(Exit::Environment, &format!("cannot handle signals: {fault}")))?;
    let examiner = Examiner {
        test: &options.oracle,
        calls: &calls,
        reference: options.reference.as_deref(),
        bindings: &options.set,
        ranks: options.ranks,
        limits: Limits {
            ranks: options.max_ranks,
            memory: (options.memory_limit as usize) << 30,
            ..Limits::default()
        },
        schedules: &schedules,
        checks_races: options.schedule.is_none(),
        file: &file,
        running: &running,
    };
    let exit = shrink(options, screen, start, examiner, &best);
    // Without a free file descriptor only an empty folder can be removed.
    let _ = std::fs::remove_file(&file);
    let _ = std::fs::remove_dir(folder.path());
    Ok(exit)
}

/// The program as canonical text, bindings in it.
fn start(options: &Options, screen: Screen) -> Result<Candidate, Exit> {
    let source = Source::open(&options.file).map_err(|fault| {
        screen.fail(Exit::Environment, &format!("cannot read `{}`: {fault}", options.file))
    })?;
    own_bug::begin(tool::arguments());
    own_bug::add(&source.text);
    let (mut programs, diagnostics) = grammar::read(&source.text);
    if grammar::diagnostic::has_errors(&diagnostics) {
        screen.draw(&source, &diagnostics);
        return Err(Exit::Rejected);
    }
    let [program] = programs.as_mut_slice() else {
        let message = format!("`{}` holds {} containers: reduce one at a time", source.name, programs.len());
        return Err(screen.fail(Exit::Usage, &message));
    };
    bind(program, &options.set).map_err(|fault| {
        screen.draw(&fault.0, &[fault.1]);
        Exit::Rejected
    })?;
    // A command may ask for a program that the verifier rejects; nothing else does.
    let faults = grammar::verify(program);
    let is_rejected = grammar::diagnostic::has_errors(&faults);
    let is_command = matches!(options.oracle, Test::Command(_));
    let candidate = match is_rejected && !is_command {
        true => None,
        false => Candidate::read(grammar::print(program)).ok(),
    };
    candidate.ok_or_else(|| match is_rejected {
        true => {
            screen.draw(&source, &faults);
            Exit::Rejected
        }
        false => screen.fail(
            Exit::Bug,
            "the canonical text of the program does not read back: `hir-opt --verify-roundtrip`",
        ),
    })
}

fn shrink(
    options: &Options,
    screen: Screen,
    start: Candidate,
    examiner: Examiner<'_>,
    best: &Mutex<Best>,
) -> Exit {
    // Passes that panic are what is looked for, not what is reported.
    expect_panics();
    let symptoms = match examiner.examine(&start) {
        Ok(symptoms) => symptoms,
        Err(instead) => {
            let is_environment = examiner.running.fault().is_some();
            let exit = if is_environment { Exit::Environment } else { Exit::Rejected };
            return screen.fail(exit, &format!("`{}`: {instead}", options.file));
        }
    };
    let say = |line: String| match options.error_format {
        // Standard error is one log.
        Format::Sarif => screen.say(&line),
        Format::Human | Format::Short | Format::Json => drop(writeln!(std::io::stderr(), "# {line}")),
    };
    symptoms.iter().for_each(|it| say(it.clone()));
    say(format!("{} statements", start.statements()));
    locked(best).found = Some((start.text.clone(), start.statements()));
    let goal = Recorded { same: Same { examiner, symptoms }, best };
    let reduced = reduce(start, options.max_tests, &goal, &mut |candidate, tests| {
        let s = if tests == 1 { "" } else { "s" };
        say(format!("{} statements after {tests} test{s}", candidate.statements()));
    });
    // Who stops the tool from here on is too late.
    locked(best).is_over = true;
    if let Some(fault) = goal.same.examiner.running.fault() {
        let exit = screen.write(&reduced.candidate.text, options.output.as_deref());
        let failed =
            screen.fail(Exit::Environment, &format!("{fault}: the smallest program so far is written"));
        return if exit == Exit::Success { failed } else { exit };
    }
    if reduced.stopped {
        say(format!("stopped after {} tests: `--max-tests` allows more", reduced.tests));
    }
    screen.write(&reduced.candidate.text, options.output.as_deref())
}

/// The smallest program so far that fails as the first one does.
#[derive(Default)]
struct Best {
    /// Its text and how many statements it has; `None` until the first one is seen to fail.
    found: Option<(String, usize)>,
    tests: usize,
    /// Whether the result is being written.
    is_over: bool,
}

impl Best {
    fn tell(&self, screen: Screen, when: &str) {
        screen.say(&match &self.found {
            Some((_, count)) => format!("{when}: {count} statements after {} tests", self.tests),
            None => format!("{when}: the program is not yet seen to fail, nothing is written"),
        });
    }
}

fn locked(best: &Mutex<Best>) -> MutexGuard<'_, Best> {
    best.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To fail as a program did, with a record of what did.
struct Recorded<'a> {
    same: Same<'a>,
    best: &'a Mutex<Best>,
}

impl Goal for Recorded<'_> {
    fn allows(&self, before: &Candidate, after: &Program) -> bool {
        self.same.allows(before, after)
    }

    fn fails(&self, candidate: &Candidate) -> bool {
        let fails = self.same.fails(candidate);
        let mut best = locked(self.best);
        best.tests += 1;
        if fails {
            best.found = Some((candidate.text.clone(), candidate.statements()));
        }
        fails
    }
}
