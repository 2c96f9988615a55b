//! Runs a Host IR program and says whether its results are right.

use std::{
    io::Write,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use grammar::{diagnostic::has_errors, ir::Program, render::Format};
use hir::{
    cuda,
    exit::Exit,
    io::{file, generate::Kind},
    launch::{environment, environment::Launch, handshake::Statement, member::Member, spawn},
    plan::Plan,
    run::{
        RunError,
        compare::{Agreement, Tolerance},
        gpu,
        inputs::{Filling, InputFlag, longest_sum},
        job::{self, Expectation, Target},
        output::{self, OutputFlag},
        prepare::{Failure, Setup, Texts, prepare},
        ranks::{self, Verdict},
    },
    sim::{Schedule, Schedules},
    source::{Binding, Source},
    tool::{self, Color, Screen, own_panics, usage},
};
use passes::{PassCall, Settings, Verify};

/// Runs a Host IR program on simulated ranks and checks its results.
///
/// Lines with `#` are commentary; the last line is the verdict.
#[derive(Parser)]
#[command(name = "hir-run", version)]
struct Options {
    /// The program; `-` for standard input.
    #[arg(required_unless_present = "program")]
    file: Option<String>,
    /// A program for each rank, where a framework prints one a rank: `0=a.hir,1=b.hir`.
    #[arg(long, conflicts_with = "file", value_name = "RANK=FILE,...")]
    program: Option<Texts>,
    /// Which container of a text that holds several, from 0.
    #[arg(long, value_name = "N")]
    container: Option<usize>,
    /// Passes to run first, as `hir-opt --passes`; not on the reference.
    #[arg(long, alias = "pass-pipeline", value_name = "a,b{opt=val}")]
    passes: Option<String>,
    /// What executes the plans; default: sim, which runs everywhere and defines what is right.
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// Number of ranks; default: the smallest world that holds every mesh.
    #[arg(long, value_parser = tool::ranks)]
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
    /// What an output has to be: `T3=@ref.npy`; `sim`: what the simulator finds for all of them.
    #[arg(long, value_name = "NAME=FILE|sim")]
    expect: Vec<Expect>,
    /// A program whose outputs are expected, by position, on the same inputs.
    #[arg(long, value_name = "SPEC.hir")]
    reference: Option<String>,
    /// Relative tolerance.
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    rtol: Option<f64>,
    /// Absolute tolerance.
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    atol: Option<f64>,
    /// Most memory that the simulated ranks may take together, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = 16)]
    memory_limit: u32,
    /// Print where every buffer lies on a GPU and how much memory that takes, and run nothing.
    #[arg(long)]
    memory: bool,
    /// Timed runs on GPUs; 0: none.
    #[arg(short = 'n', long, default_value_t = 0, value_name = "N")]
    iters: usize,
    /// Runs before those that are timed.
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N")]
    warmup: usize,
    /// Time the plan as one captured graph.
    #[arg(short = 'G', long)]
    cudagraph: bool,
    /// Run the plan N more times on GPUs, with streams held back at random: all outputs have to be equal bit by bit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stress: Option<u32>,
    /// Tell what issuing the plan costs the host of a GPU, beside the bare calls that it is made of.
    #[arg(long)]
    profile_host: bool,
    /// Where the times go, as JSON.
    #[arg(short = 'J', long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
    /// How long ranks wait for one of them, and for a run on GPUs, in seconds, before the job is given up.
    #[arg(short = 'T', long, value_name = "SEC", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
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

/// `--expect`.
#[derive(Clone)]
enum Expect {
    /// The simulator's outputs.
    Sim,
    /// A given output.
    Given(InputFlag),
}

impl std::str::FromStr for Expect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "sim" { Ok(Self::Sim) } else { text.parse().map(Self::Given) }
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number that is not negative".to_owned()),
    }
}

fn main() -> ExitCode {
    // Before any thread starts.
    cuda::set_environment();
    own_panics("hir-run");
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return usage("hir-run", &error).into(),
    };
    let screen = Screen::new("hir-run", options.error_format, options.color);
    let exit = match environment::detect(|name| std::env::var(name).ok()) {
        Err(fault) => screen.fail(fault.exit(), &fault.to_string()),
        Ok(Some(launch)) if launch.size > 1 => member(&options, screen, &launch),
        Ok(_) if options.device == Some(Device::Cuda) && options.ranks.is_some_and(|it| it > 1) => {
            spawned(options.ranks.unwrap_or(1), screen)
        }
        Ok(_) => {
            let verdict = run(&options, screen, None).unwrap_or_else(|failure| fail(screen, failure));
            verdict.line.iter().for_each(|line| {
                // A reader that went away has seen enough.
                let _ = writeln!(std::io::stdout(), "{line}");
            });
            verdict.exit
        }
    };
    exit.into()
}

/// One process of a launched job.
fn member(options: &Options, screen: Screen, launch: &Launch) -> Exit {
    let statement = || match options.ranks.filter(|it| *it != launch.size) {
        Some(ranks) => {
            let message = format!("`--ranks {ranks}`: {} started {} processes", launch.family, launch.size);
            (Statement::default(), Some(Failure::Other(Exit::Usage, message)))
        }
        None => ranks::statement(options.stated(), &options.texts(), options.reference.as_deref()),
    };
    ranks::run(launch, options.patience(), screen, statement, |member, failure| {
        let screen = if launch.rank == 0 { screen } else { screen.silenced() };
        let outcome = failure.map_or_else(|| run(options, screen, Some(member)), Err);
        outcome.unwrap_or_else(|failure| {
            let summary = failure.summary().1;
            Verdict { summary, ..fail(screen, failure) }
        })
    })
}

/// Starts one process a rank, with this command line.
fn spawned(ranks: usize, screen: Screen) -> Exit {
    let exit = std::env::current_exe().and_then(|program| {
        let job = spawn::Job { program, arguments: std::env::args().skip(1).collect(), ranks };
        spawn::run(&job, std::io::stdout(), std::io::stderr())
    });
    exit.unwrap_or_else(|fault| screen.fail(Exit::Environment, &format!("cannot start the ranks: {fault}")))
}

impl Options {
    fn texts(&self) -> Texts {
        self.program.clone().unwrap_or_else(|| Texts::One(self.file.clone().unwrap_or_default()))
    }

    /// How long ranks wait.
    fn patience(&self) -> Duration {
        Duration::from_secs(u64::from(self.timeout))
    }

    /// What all ranks of a job have to be given alike, an option a line.
    fn stated(&self) -> String {
        let device = self.device.unwrap_or(Device::Sim).to_possible_value();
        let device = device.map_or(String::new(), |it| it.get_name().to_owned());
        let mut text = format!("--device {device}\n--inputs {}\n--seed {}\n", self.inputs, self.seed);
        let mut add = |name: &str, value: Option<String>| {
            text += &value.map_or(String::new(), |it| format!("--{name} {it}\n"));
        };
        add("passes", self.passes.clone());
        add("container", self.container.map(|it| it.to_string()));
        // One schedule, or a range of seeds.
        let schedule = match self.schedule.0.as_slice() {
            [first, .., last] => Some(format!("{first} to {last}")),
            it => it.first().map(ToString::to_string),
        };
        add("schedule", schedule);
        add("rtol", self.rtol.map(|it| it.to_string()));
        add("atol", self.atol.map(|it| it.to_string()));
        self.set.iter().for_each(|it| add("set", Some(format!("{}={}", it.name, it.value))));
        let local = |is: bool| if is { "@local" } else { "" };
        let tensor = |it: &InputFlag| Some(format!("{}{}={}", it.name, local(it.local), it.value));
        self.input.iter().for_each(|it| add("input", tensor(it)));
        self.expect.iter().for_each(|it| match it {
            Expect::Sim => add("expect", Some("sim".to_owned())),
            Expect::Given(it) => add("expect", tensor(it)),
        });
        add("iters", (self.iters > 0).then(|| format!("{} after {}", self.iters, self.warmup)));
        add("cudagraph", self.cudagraph.then(|| "yes".to_owned()));
        add("stress", self.stress.map(|it| it.to_string()));
        add("profile-host", self.profile_host.then(|| "yes".to_owned()));
        let output = |it: &OutputFlag| Some(format!("{}{}={}", it.name, local(it.local), it.value));
        self.output.iter().for_each(|it| add("output", output(it)));
        text
    }
}

/// Runs the program. Every process of a launched job prepares the whole job; on simulated ranks it runs all of it too. The
/// first one reports.
fn run(options: &Options, screen: Screen, member: Option<&Member>) -> Result<Verdict, Failure> {
    let owner = member.map(|it| it.channel.rank);
    let silent = |exit| Verdict { exit, line: None, summary: "rejected".to_owned() };
    let calls = match options.passes.as_deref().map(|text| screen.pipeline(text)) {
        Some(Err(exit)) => return Ok(silent(exit)),
        Some(Ok(calls)) => calls,
        None => Vec::new(),
    };
    let quiet = owner.is_some_and(|it| it > 0);
    let mut say = |line: String| {
        if !quiet {
            // A reader that went away has seen enough.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    let rewrite = |program: &mut Program, source: &Source| rewrite(&calls, program, source);
    let setup = Setup {
        ranks: options.ranks.or(member.map(|it| it.channel.world)),
        container: options.container,
        bindings: &options.set,
        reference: false,
        inputs: &options.input,
        // What GPUs hold is theirs to say.
        memory_limit: match options.device {
            Some(Device::Cuda) => usize::MAX,
            Some(Device::Auto | Device::Sim) | None => (options.memory_limit as usize) << 30,
        },
        passes: &rewrite,
    };
    let start = Instant::now();
    let mut prepared = prepare(&options.texts(), &setup)?;
    output::keep(&mut prepared.plans, &options.output);
    let plans = &Arc::new(prepared.plans);
    for (source, warnings) in prepared.sources.iter().zip(&prepared.warnings) {
        screen.draw(source, warnings);
    }
    let names: Vec<&str> = prepared.sources.iter().map(|source| source.name.as_str()).collect();
    if options.memory {
        gpu::memory(plans)?.into_iter().for_each(say);
        return Ok(silent(Exit::Success));
    }
    let choice = choose(options, plans, member.map_or(&cuda::Alone, |it| it))?;
    if let (Err(why), Some(Device::Auto)) = (&choice, options.device) {
        say(format!("# the simulator runs this: {why}"));
    }
    let mut filling = Filling::new(options.inputs, options.seed, options.input.clone(), plans);
    if let Ok(gpu) = choice {
        let alone;
        let member = match member {
            Some(it) => it,
            None => {
                alone = Member::alone(options.patience(), ranks::end())?;
                &alone
            }
        };
        return on_gpus(options, plans, &names, &setup, filling, (gpu, member), &mut say).inspect_err(
            |failure| match failure {
                Failure::Other(exit, message) => member.give_up(*exit, message),
                Failure::Rejected(..) => member.give_up(Exit::Rejected, &failure.summary().1),
            },
        );
    }
    let inputs = filling.fill(plans)?;
    let mut expectations = expectations(options, &setup, &filling, plans)?;
    if expectations.is_empty() && options.schedule.0 != [Schedule::Program] {
        expectations = job::self_reference(plans, inputs.clone())?;
    }
    if options.expect.iter().any(|it| matches!(it, Expect::Sim)) {
        expectations.extend(job::self_reference(plans, inputs.clone())?);
    }
    let instructions: usize = plans.iter().map(|plan| plan.code.len()).sum();
    say(format!(
        "# {}: {} simulated ranks, {instructions} instructions, inputs {} seed {}",
        names.join(", "),
        plans.len(),
        options.inputs,
        options.seed
    ));
    filling.notes.drain(..).for_each(|note| say(format!("# {note}")));
    if let Some(note) = job::ends_elsewhere(plans) {
        say(format!("# warning: {note}"));
    }
    let watch = output::watches(plans, &options.output, owner)?;
    let tolerance = options.tolerance();
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
        let exact = Some(outcome.notes.exactness.is_exact());
        let judged = job::judge(
            plans,
            &outcome,
            &expectations,
            Agreement::new(tolerance, options.inputs, terms),
            exact,
        )?;
        output::write_outputs(plans, &outcome, &options.output, owner, &mut say)?;
        if judged.exit != Exit::Success {
            say(format!("# schedule {schedule}"));
            return Ok(Verdict { exit: judged.exit, summary: judged.line.clone(), line: Some(judged.line) });
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
    let Some(verdict) = verdict else { return Ok(silent(Exit::Success)) };
    let schedules = match options.schedule.0.as_slice() {
        [only] => format!("schedule {only}"),
        many => format!("{} schedules", many.len()),
    };
    say(format!("# {schedules}, {:.3} s", start.elapsed().as_secs_f64()));
    conclude(verdict, &mut say)
}

/// The outputs and the verdict.
fn conclude(verdict: job::Verdict, say: &mut dyn FnMut(String)) -> Result<Verdict, Failure> {
    say(format!("# {:<10} {:>6} {:>20}", "output", "dtype", "shape"));
    for output in &verdict.outputs {
        let tensor = &output.whole.tensor;
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        say(format!("  {:<10} {:>6} {:>20}", output.name, tensor.data.dtype().short_name(), shape.join("x")));
    }
    Ok(Verdict { exit: verdict.exit, summary: verdict.line.clone(), line: Some(verdict.line) })
}

/// The GPU that runs this rank's plan, or why the simulator does. All ranks choose alike, and fail alike.
fn choose(
    options: &Options,
    plans: &[Plan],
    peers: &dyn cuda::Peers,
) -> Result<Result<cuda::Gpu, String>, Failure> {
    if options.device != Some(Device::Cuda) {
        let wrong = match (options.stress, options.profile_host) {
            (Some(_), _) => Some(
                "`--stress` holds back streams of GPUs: add `--device=cuda`; on the simulator `--schedule=seed:0..N` \
                 tries other orders",
            ),
            (None, true) => Some("`--profile-host` times the calls of a GPU's host: add `--device=cuda`"),
            (None, false) => None,
        };
        if let Some(message) = wrong {
            return Err(Failure::Other(Exit::Usage, message.to_owned()));
        }
    }
    match options.device.unwrap_or(Device::Sim) {
        Device::Sim => Ok(Err("it was asked for".to_owned())),
        Device::Cuda if plans.len() != peers.world() => {
            let (ranks, processes) = (plans.len(), peers.world());
            let message = format!(
                "{ranks} ranks on GPUs need as many processes, there are {processes}: use mpirun, torchrun or \
                 `--ranks {ranks}`"
            );
            Err(Failure::Other(Exit::Environment, message))
        }
        // What is missing here is told before anything is computed.
        Device::Cuda => Ok(Ok(cuda::settle(peers)?)),
        Device::Auto if options.schedule.0 != [Schedule::Program] => {
            Ok(Err("only it has schedules".to_owned()))
        }
        Device::Auto => Ok(gpu::find(plans, peers)),
    }
}

/// This rank's part of a job on GPUs.
fn on_gpus(
    options: &Options,
    plans: &Arc<Vec<Plan>>,
    names: &[&str],
    setup: &Setup<'_>,
    mut filling: Filling,
    (gpu, member): (cuda::Gpu, &Member),
    say: &mut dyn FnMut(String),
) -> Result<Verdict, Failure> {
    let rank = member.channel.rank;
    let first = rank == 0;
    let simulates = first && options.expect.iter().any(|it| matches!(it, Expect::Sim));
    // Inputs of other ranks are made up only where they are needed.
    let inputs = filling.fill_some(plans, |it| simulates || it == rank)?;
    let (mut expected, mut exact) = (Vec::new(), None);
    if first {
        expected = expectations(options, setup, &filling, plans)?;
    }
    if simulates {
        let (found, is_exact) = job::simulated(plans, inputs.clone(), "the simulator")?;
        expected.extend(found);
        exact = Some(is_exact);
    }
    let (kind, seed) = (options.inputs, options.seed);
    say(format!("# {}: {} GPU ranks, inputs {kind} seed {seed}", names.join(", "), plans.len()));
    let watch = output::watches(plans, &options.output, Some(rank))?;
    let gathered = output::watches(plans, &options.output, Some(0))?;
    let (warmup, iterations, graph) = (options.warmup, options.iters, options.cudagraph);
    let job = gpu::Job {
        gpu,
        plans,
        inputs: &inputs,
        expectations: &expected,
        exact,
        kind,
        tolerance: options.tolerance(),
        terms: longest_sum(plans),
        compares: !options.expect.is_empty() || options.reference.is_some(),
        watch: &watch,
        gathered: &gathered,
        bench: (iterations > 0).then_some(gpu::Bench { warmup, iterations, graph }),
        stress: options.stress.map(|runs| gpu::Stress { runs: runs as usize, seed, graph }),
        profile: options.profile_host.then_some(graph),
    };
    let ran = gpu::run(&job, member, &mut |note| say(format!("# {note}")))?;
    output::write_outputs(plans, &ran.outcome, &options.output, Some(rank), say)?;
    if rank > 0 {
        return Ok(Verdict { exit: ran.verdict.exit, line: None, summary: String::new() });
    }
    if let Some((timing, lines)) = &ran.timing {
        gpu::table(timing, lines, plans).into_iter().for_each(&mut *say);
    }
    if let Some(host) = &ran.host {
        gpu::host_table(host, plans.len()).into_iter().for_each(&mut *say);
    }
    if let Some(path) = options.json.as_ref().filter(|_| ran.timing.is_some() || ran.host.is_some()) {
        let text = format!("{:#}\n", gpu::json(&ran, plans, names));
        let message = |fault: std::io::Error| format!("cannot write {}: {fault}", path.display());
        std::fs::write(path, text).map_err(|it| Failure::Other(Exit::Environment, message(it)))?;
    }
    conclude(ran.verdict, say)
}

impl Options {
    /// The tolerance that was given.
    fn tolerance(&self) -> Option<Tolerance> {
        (self.rtol.is_some() || self.atol.is_some())
            .then(|| Tolerance { rtol: self.rtol.unwrap_or(0.0), atol: self.atol.unwrap_or(0.0) })
    }
}

fn expectations(
    options: &Options,
    setup: &Setup<'_>,
    filling: &Filling,
    plans: &[hir::plan::Plan],
) -> Result<Vec<Expectation>, Failure> {
    let mut found = Vec::new();
    if let Some(path) = &options.reference {
        let setup = Setup { passes: &|_, _| Ok(()), container: None, reference: true, ..*setup };
        found = job::reference(path, &setup, filling, plans)?;
    }
    let given = options.expect.iter().filter_map(|it| match it {
        Expect::Given(flag) => Some(flag),
        Expect::Sim => None,
    });
    for flag in given {
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

/// Runs passes, checked after each.
fn rewrite(calls: &[PassCall], program: &mut Program, source: &Source) -> Result<(), Failure> {
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    passes::run(program, calls, settings, &mut |_| ()).map_err(|failure| {
        let diagnostics = failure.fault.diagnostics();
        match has_errors(diagnostics) && !failure.fault.is_bug() {
            true => {
                let mut diagnostics = diagnostics.to_vec();
                diagnostics
                    .iter_mut()
                    .for_each(|it| it.message += &format!(" (pass `{}`)", failure.pass.unwrap_or("none")));
                Failure::Rejected(source.clone(), diagnostics)
            }
            false => Failure::Other(Exit::Bug, failure.to_string()),
        }
    })
}

/// Reports why there is no verdict.
fn fail(screen: Screen, failure: Failure) -> Verdict {
    let told = |exit| Verdict { exit, line: None, summary: String::new() };
    match failure {
        Failure::Rejected(source, diagnostics) => {
            screen.draw(&source, &diagnostics);
            told(Exit::Rejected)
        }
        // The report comes first: the last line is the verdict.
        Failure::Other(exit @ (Exit::Hang | Exit::WrongResult), message) => {
            let (verdict, report) = message.split_once('\n').unwrap_or((&message, ""));
            let mut lines: Vec<String> = report.lines().map(|line| format!("# {line}")).collect();
            lines.push(format!("[FAILED] {verdict}"));
            Verdict { exit, line: Some(lines.join("\n")), summary: String::new() }
        }
        Failure::Other(exit, message) => told(screen.fail(exit, &message)),
    }
}
