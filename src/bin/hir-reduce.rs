//! Shrinks a Host IR program that fails, while it still fails in the same way.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Parser;
use grammar::render::Format;
use hir::{
    exit::Exit,
    reduce::{
        Candidate, reduce,
        symptoms::{Examiner, Same, Test},
    },
    run::oracle,
    sim::Schedules,
    source::{Binding, Source, bind},
    tool::{self, Color, Screen, own_panics, usage},
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
    /// A symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// Schedules to run under, as `hir-run --schedule`; default: `program`, `adversarial` and a few seeds.
    #[arg(long)]
    schedule: Option<Schedules>,
    /// Most programs that are tested.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    max_tests: usize,
    /// Where the result goes.
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How diagnostics are drawn.
    #[arg(long, default_value = "human", value_name = "human|short|json")]
    error_format: Format,
    /// When to colour them.
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
}

fn main() -> ExitCode {
    own_panics("hir-reduce");
    match Options::try_parse() {
        Ok(options) => run(&options).unwrap_or_else(|exit| exit).into(),
        Err(error) => usage("hir-reduce", &error).into(),
    }
}

fn run(options: &Options) -> Result<Exit, Exit> {
    let screen = Screen::new("hir-reduce", options.error_format, options.color);
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
    let schedules = options.schedule.clone().map_or_else(oracle::schedules, |it| it.0);
    let folder = std::env::temp_dir().join(format!("hir-reduce-{}", std::process::id()));
    let environment =
        |fault| screen.fail(Exit::Environment, &format!("cannot use {}: {fault}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(environment)?;
    let examiner = Examiner {
        test: &options.oracle,
        calls: &calls,
        reference: options.reference.as_deref(),
        bindings: &options.set,
        ranks: options.ranks,
        schedules: &schedules,
        file: &folder.join("candidate.hir"),
    };
    let exit = shrink(options, screen, start, examiner);
    // What is left in the folder for temporary files harms nobody.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(exit)
}

/// The program as canonical text, bindings in it.
fn start(options: &Options, screen: Screen) -> Result<Candidate, Exit> {
    let source = Source::open(&options.file).map_err(|fault| {
        screen.fail(Exit::Environment, &format!("cannot read `{}`: {fault}", options.file))
    })?;
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
        screen.draw(&source, &[fault]);
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

fn shrink(options: &Options, screen: Screen, start: Candidate, examiner: Examiner<'_>) -> Exit {
    // Passes that panic are what is looked for, not what is reported.
    std::panic::set_hook(Box::new(|_| ()));
    let symptoms = match examiner.examine(&start) {
        Ok(symptoms) => symptoms,
        Err(instead) => return screen.fail(Exit::Rejected, &format!("`{}`: {instead}", options.file)),
    };
    let say = |line: String| drop(writeln!(std::io::stderr(), "# {line}"));
    symptoms.iter().for_each(|it| say(it.clone()));
    say(format!("{} statements", start.statements()));
    let goal = Same { examiner, symptoms };
    let reduced = reduce(start, options.max_tests, &goal, &mut |candidate, tests| {
        say(format!("{} statements after {tests} tests", candidate.statements()));
    });
    own_panics("hir-reduce");
    if reduced.stopped {
        say(format!("stopped after {} tests: `--max-tests` allows more", reduced.tests));
    }
    screen.write(&reduced.candidate.text, options.output.as_deref())
}
