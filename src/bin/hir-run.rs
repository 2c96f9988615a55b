//! Runs a Host IR program and says whether its results are right.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Instant,
};

use clap::{Parser, ValueEnum};
use grammar::render::{Format, render};
use hir::{
    exit::Exit,
    io::{file, generate::Kind},
    launch::environment::{self, Launch},
    run::{
        RunError,
        compare::Tolerance,
        inputs::{Filling, InputFlag, longest_sum},
        job::{self, Expectation, Failure, OutputFlag, Setup, Target},
    },
    sim::Schedule,
    source::Binding,
};

/// Runs a Host IR program on simulated ranks and checks its results.
///
/// Lines with `#` are commentary; the last line is the verdict.
#[derive(Parser)]
#[command(name = "hir-run", version)]
struct Options {
    /// The program; `-` for standard input.
    file: String,
    /// What executes the plans.
    #[arg(long, value_enum, default_value = "auto")]
    device: Device,
    /// Number of ranks; default: the smallest world that holds every mesh.
    #[arg(long, value_parser = ranks)]
    ranks: Option<usize>,
    /// Order of what the synchronisation leaves open: `program`, `adversarial`, `seed:N`, or `seed:A..B` for many runs.
    #[arg(long, default_value = "program")]
    schedule: Schedules,
    /// Values of inputs that are not given.
    #[arg(long, default_value = "exact", value_name = "exact|random|rank|zeros")]
    inputs: Kind,
    /// Seed of those values.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// An input: `T0=@x.npy`, `T0=@w.safetensors#key`, `T0=2x2xf32=1 2 3 4`, `T0@local=@x.%r.npy`.
    #[arg(long, value_name = "NAME=VALUE")]
    input: Vec<InputFlag>,
    /// A symbol: `i0=8192`, `numberOfStreams=4`, `i84='(rank+streamIdx)%8'`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// Where a tensor goes: `T3=@y.npy`, `T3=-`, `T3@local=@y.%r.npy`.
    #[arg(long, value_name = "NAME=FILE")]
    output: Vec<OutputFlag>,
    /// What an output has to be: `T3=@ref.npy`.
    #[arg(long, value_name = "NAME=FILE")]
    expect: Vec<InputFlag>,
    /// A program whose outputs are expected, by position, on the same inputs.
    #[arg(long, value_name = "SPEC.hir")]
    reference: Option<String>,
    /// Relative tolerance.
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    rtol: Option<f64>,
    /// Absolute tolerance.
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    atol: Option<f64>,
    /// How diagnostics are drawn.
    #[arg(long, default_value = "human", value_name = "human|short|json")]
    error_format: Format,
    /// When to colour them.
    #[arg(long, value_enum, default_value = "auto")]
    color: Color,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The GPUs when there are enough, else the simulator.
    Auto,
    /// The simulator.
    Sim,
    /// The GPUs.
    Cuda,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// One schedule, or one for every seed of a range.
#[derive(Clone)]
struct Schedules(Vec<Schedule>);

impl std::str::FromStr for Schedules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((first, last)) = text.strip_prefix("seed:").and_then(|range| range.split_once("..")) {
            return match (first.parse::<u64>(), last.parse::<u64>()) {
                (Ok(first), Ok(last)) if first < last => {
                    Ok(Self((first..last).map(Schedule::Seed).collect()))
                }
                _ => Err(format!("`{text}` is no range of seeds: expected `seed:0..50`")),
            };
        }
        text.parse().map(|it| Self(vec![it])).map_err(|fault: hir::sim::ScheduleError| fault.to_string())
    }
}

fn ranks(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|it| *it > 0).ok_or_else(|| "expected a number, 1 or more".to_owned())
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number that is not negative".to_owned()),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let launch = match environment::detect(|name| std::env::var(name).ok()) {
        Ok(launch) => launch,
        Err(message) => return fail(&options, Failure::Other(Exit::Environment, message)).into(),
    };
    match run(&options, launch.as_ref()) {
        Ok(exit) => exit.into(),
        Err(failure) => fail(&options, failure).into(),
    }
}

fn run(options: &Options, launch: Option<&Launch>) -> Result<Exit, Failure> {
    if options.device == Device::Cuda {
        let message = "this build has no GPU executor: run with `--device=sim`".to_owned();
        return Err(Failure::Other(Exit::Environment, message));
    }
    // Every process of a launched job simulates the whole job; the first one reports.
    let quiet = launch.is_some_and(|it| it.rank > 0);
    let mut say = |line: String| {
        if !quiet {
            // A reader that went away has seen enough.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    let no_passes = |_: &mut grammar::ir::Program, _: &hir::source::Source| Ok(());
    let setup = Setup {
        ranks: options.ranks.or(launch.map(|it| it.size)),
        bindings: &options.set,
        inputs: &options.input,
        passes: &no_passes,
    };
    let start = Instant::now();
    let prepared = job::prepare(&options.file, &setup)?;
    let plans = &prepared.plans;
    draw(options, &prepared.source, &prepared.warnings);
    let mut filling = Filling::new(options.inputs, options.seed, options.input.clone(), plans);
    let inputs = filling.fill(plans)?;
    let mut expectations = expectations(options, &setup, &filling, plans)?;
    if expectations.is_empty() && options.schedule.0 != [Schedule::Program] {
        expectations = job::self_reference(plans, inputs.clone())?;
    }
    let instructions: usize = plans.iter().map(|plan| plan.code.len()).sum();
    say(format!(
        "# {}: {} simulated ranks, {instructions} instructions, inputs {} seed {}",
        options.file,
        plans.len(),
        options.inputs,
        options.seed
    ));
    filling.notes.drain(..).for_each(|note| say(format!("# {note}")));
    if let Some(note) = job::ends_elsewhere(plans) {
        say(format!("# warning: {note}"));
    }
    let watch = job::watches(plans, &options.output)?;
    let tolerance = (options.rtol.is_some() || options.atol.is_some())
        .then(|| Tolerance { rtol: options.rtol.unwrap_or(0.0), atol: options.atol.unwrap_or(0.0) });
    let mut verdict = None;
    for schedule in &options.schedule.0 {
        let outcome = match job::simulate(plans, inputs.clone(), *schedule, watch.clone()) {
            Ok(outcome) => outcome,
            Err(fault) => {
                say(format!("# schedule {schedule}"));
                return Err(fault.into());
            }
        };
        let terms = longest_sum(plans);
        let judged = job::judge(plans, &outcome, &expectations, options.inputs, tolerance, terms)?;
        job::write_outputs(plans, &outcome, &options.output, &mut say)?;
        if judged.exit != Exit::Success {
            say(format!("# schedule {schedule}"));
            say(judged.line);
            return Ok(judged.exit);
        }
        if let (None, Some(at)) = (&verdict, outcome.notes.first_inexact) {
            let count = outcome.notes.exactness.inexact();
            say(format!(
                "# {count} inexact roundings, the first at rank {}, {}",
                at.rank,
                hir::sim::describe(plans, at)
            ));
        }
        verdict = Some(judged);
    }
    let Some(verdict) = verdict else { return Ok(Exit::Success) };
    let schedules = match options.schedule.0.as_slice() {
        [only] => format!("schedule {only}"),
        many => format!("{} schedules", many.len()),
    };
    say(format!("# {schedules}, {:.3} s", start.elapsed().as_secs_f64()));
    say(format!("# {:<10} {:>6} {:>20}", "output", "dtype", "shape"));
    for output in &verdict.outputs {
        let tensor = &output.whole.tensor;
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        say(format!("  {:<10} {:>6} {:>20}", output.name, tensor.data.dtype().short_name(), shape.join("x")));
    }
    say(verdict.line);
    Ok(verdict.exit)
}

fn expectations(
    options: &Options,
    setup: &Setup<'_>,
    filling: &Filling,
    plans: &[hir::plan::Plan],
) -> Result<Vec<Expectation>, Failure> {
    let mut found = Vec::new();
    if let Some(path) = &options.reference {
        found = job::reference(path, setup, filling, plans)?;
    }
    for flag in &options.expect {
        let port = plans.iter().flat_map(|plan| &plan.outputs).find(|port| port.name == flag.name);
        let Some(port) = port else {
            let names: Vec<&str> =
                plans.iter().take(1).flat_map(|plan| &plan.outputs).map(|port| port.name.as_str()).collect();
            let message = format!(
                "`--expect {}`: the program has no such output; it has {}",
                flag.name,
                names.join(", ")
            );
            return Err(Failure::Other(Exit::Usage, message));
        };
        let given = |error| RunError::Given { flag: format!("--expect {}", flag.name), error };
        let source: file::Source = flag.value.parse().map_err(given)?;
        let tensor = source.load(port.dtype).map_err(given)?.tensor;
        found.push(Expectation {
            origin: match source {
                file::Source::File(_) => flag.value.clone(),
                file::Source::Literal(_) => "the values given".to_owned(),
            },
            output: Target::Name(flag.name.clone()),
            tensor,
        });
    }
    Ok(found)
}

fn draw(options: &Options, source: &hir::source::Source, diagnostics: &[grammar::diagnostic::Diagnostic]) {
    let color = match options.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    };
    let _ =
        render(diagnostics, &source.name, &source.text, options.error_format, color, &mut std::io::stderr());
}

fn fail(options: &Options, failure: Failure) -> Exit {
    match failure {
        Failure::Rejected(source, diagnostics) => {
            draw(options, &source, &diagnostics);
            Exit::Rejected
        }
        Failure::Other(exit, message) => {
            match exit {
                // The report comes first: the last line is the verdict.
                Exit::Hang | Exit::WrongResult => {
                    let (verdict, report) = message.split_once('\n').unwrap_or((&message, ""));
                    let mut out = std::io::stdout().lock();
                    let _ = report.lines().try_for_each(|line| writeln!(out, "# {line}"));
                    let _ = writeln!(out, "[FAILED] {verdict}");
                }
                _ => {
                    let _ = writeln!(std::io::stderr(), "hir-run: {message}");
                }
            }
            exit
        }
    }
}
