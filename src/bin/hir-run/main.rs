//! Runs a Host IR program and says whether its results are right.

mod batch;
mod command_lines;
mod gpus;
mod options;
mod task;

use std::{convert::Infallible, process::ExitCode, sync::Arc, time::Instant};

use clap::Parser;
use grammar::{
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
};
use hir::{
    cuda::{self, Gpu},
    exit::Exit,
    input_file, interrupt,
    launch::{environment, environment::Launch, handshake::JobManifest, member::Member, spawn},
    out_of_memory::Allocator,
    run::{
        checked, gpu,
        inputs::Filling,
        output, per_rank,
        prepare::{Failure, Setup, prepare},
        ranks::{self, Verdict},
    },
    source::Source,
    tool::{self, Screen, own_panics, print, reproducer::own_bug, stack::with_large_stack, usage},
};
use passes::{Event, PassCall, Settings, Verify};

use batch::{Count, Entry};
use options::{Device, Options};
use task::{Task, Watched};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    // Before any thread starts.
    cuda::set_environment();
    own_panics("hir-run");
    interrupt::report_large_files();
    with_large_stack(tool)
}

fn tool() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return usage("hir-run", &error).into(),
    };
    let screen = Screen::new("hir-run", options.error_format, options.color);
    let programs = match batch::programs(&options, std::env::args_os().skip(1).collect()) {
        Ok(programs) => programs,
        Err((exit, message)) => return screen.fail(exit, &message).into(),
    };
    // One process of a job reports for it.
    let mut reports = true;
    let work = || match environment::detect(|name| std::env::var(name).ok()) {
        Err(fault) => screen.fail(fault.exit().into(), &fault.to_string()),
        Ok(Some(launch)) if launch.size > 1 => {
            reports = launch.rank == 0;
            member(&options, &programs, screen, &launch)
        }
        Ok(_) if gpus::are_for(&options) => {
            reports = false;
            spawned(options.ranks.unwrap_or(1), screen)
        }
        Ok(_) => alone(&programs, screen),
    };
    let exit = own_bug::guarded(screen, None, work);
    let exit = screen.finish(exit);
    tool::log::close(exit, reports);
    exit.into()
}

/// The only process of a job.
fn alone(programs: &[Entry], screen: Screen) -> Exit {
    let mut gpu = None;
    let (count, watched) = (Count::of(programs), Watched::default());
    if let Err(fault) = watched.watch(count.teller()) {
        return screen.fail(Exit::Environment, &format!("cannot handle signals: {fault}"));
    }
    let ended = batch::each(programs, true, &count, |entry, last| -> Result<_, Infallible> {
        watched.activity.set("while preparing the program");
        input_file::forget();
        let verdict = run(&entry.options, screen, None, (&mut gpu, &count, &watched))
            .unwrap_or_else(|failure| fail(screen, failure));
        watched.activity.conclude(last || verdict.exit.flow().is_break(), || {
            verdict.line.iter().for_each(|line| print(line));
        });
        Ok(verdict.exit.flow())
    });
    match ended {
        Ok(exit) => exit,
    }
}

/// One process of a launched job.
fn member(options: &Options, programs: &[Entry], screen: Screen, launch: &Launch) -> Exit {
    let own = if launch.rank == 0 { screen } else { screen.silenced() };
    let (count, watched) = (Count::of(programs), Watched::default());
    ranks::join(launch, options.patience(), screen, count.teller(), |member| {
        let mut gpu = None;
        batch::each(programs, launch.rank == 0, &count, |entry, last| {
            let manifest = || manifest(entry, launch);
            ranks::run(member, screen, last, manifest, |failure| {
                let outcome = failure.map_or_else(
                    || run(&entry.options, own, Some(member), (&mut gpu, &count, &watched)),
                    Err,
                );
                outcome.unwrap_or_else(|failure| {
                    let summary = failure.summary().1;
                    Verdict { summary, ..fail(own, failure) }
                })
            })
        })
    })
}

/// What all ranks have to hold alike.
fn manifest(entry: &Entry, launch: &Launch) -> (JobManifest, Option<Failure>) {
    let options = &entry.options;
    match options.ranks.filter(|it| *it != launch.size) {
        Some(ranks) => {
            let message = format!("`--ranks {ranks}`: {} started {} processes", launch.family, launch.size);
            (JobManifest::default(), Some(Failure::Other(Exit::Usage, message)))
        }
        None => {
            let (texts, reference) = (options.texts(), options.reference.as_deref());
            ranks::manifest(entry.stated(), &texts, reference, &options.input)
        }
    }
}

/// Starts one process a rank, with this command line.
fn spawned(ranks: usize, screen: Screen) -> Exit {
    // Each rank writes its own reproducer.
    own_bug::end();
    let exit = std::env::current_exe().and_then(|program| {
        let job = spawn::Job { program, arguments: std::env::args_os().skip(1).collect(), ranks };
        spawn::run(&job, tool::Output, tool::errors_apart())
    });
    exit.unwrap_or_else(|fault| screen.fail(Exit::Environment, &format!("cannot start the ranks: {fault}")))
}

/// Runs the program. Every process of a launched job prepares the whole job; on simulated ranks it runs all of it too. The
/// first one reports. The GPU stays for the next program.
fn run(
    options: &Options,
    screen: Screen,
    member: Option<&Member>,
    (gpu, count, watched): (&mut Option<Gpu>, &Count, &Watched),
) -> Result<Verdict, Failure> {
    options.fit()?;
    own_bug::begin(vec![options.again()]);
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
            print(&line);
        }
    };
    let rewrite = |program: &mut Program, source: &Source| {
        let remarks = rewrite(&calls, program, source)?;
        let shown: Vec<Diagnostic> = options.remarks.select(&remarks).cloned().collect();
        screen.draw(source, &shown);
        let failure = options.remarks.failure(&remarks);
        failure.map_or(Ok(()), |message| Err(Failure::Other(Exit::Rejected, message)))
    };
    let setup = Setup {
        limits: options.limits(),
        ranks: options.ranks.or(member.map(|it| it.channel.world)),
        container: options.container,
        bindings: &options.set,
        reference: false,
        inputs: &options.input,
        passes: &rewrite,
    };
    let start = Instant::now();
    let mut prepared = prepare(&options.texts(), &setup)?;
    output::keep(&mut prepared.plans, &options.output)?;
    output::check_destinations(&prepared.plans, &options.output, member.is_none())?;
    per_rank::mark(&mut prepared.plans, &options.local_names(), &options.whole_names());
    let plans = &Arc::new(std::mem::take(&mut prepared.plans));
    for (source, warnings) in prepared.sources.iter().zip(&prepared.warnings) {
        screen.draw(source, warnings);
    }
    let names: Vec<&str> = prepared.sources.iter().map(|source| source.name.as_str()).collect();
    if options.memory {
        gpu::memory(plans)?.into_iter().for_each(say);
        return Ok(silent(Exit::Success));
    }
    if options.cudagraph && options.iters == 0 && options.stress.is_none() && !options.profile_host {
        say("# `-G` is for runs that are timed or repeated: none is asked for, by `-n 20` or `--stress 100`"
            .to_owned());
    }
    let check = (options.check, options.check_model);
    if let Err(verdict) = checked::before_run(check, &prepared.sources, plans, screen, &mut say) {
        return Ok(verdict);
    }
    let task = Task {
        options,
        setup: &setup,
        prepared: &prepared,
        plans,
        names: &names,
        owner,
        watched,
        start,
        screen,
    };
    let filling = Filling::new(options.inputs, options.seed, options.input.clone(), plans);
    // Without GPUs that is what everybody expects: it is told to those who have asked.
    let peers: &dyn cuda::Peers = member.map_or(&cuda::Alone, |it| it);
    let why = match gpus::choose(options, plans, peers, gpu)? {
        Err(why) => (options.device == Some(Device::Auto)).then_some(why),
        Ok(gpu) => {
            let alone;
            let member = match member {
                Some(it) => it,
                None => {
                    alone = Member::alone(options.patience(), ranks::end(count.teller()))?;
                    &alone
                }
            };
            match gpus::run(&task, filling.clone(), (gpu, member), &mut say)? {
                Ok(verdict) => return Ok(verdict),
                Err(why) => Some(why),
            }
        }
    };
    why.iter().for_each(|why| say(format!("# the simulator runs this: {why}")));
    if options.iters > 0 {
        let unwritten = options.json.as_ref().map(|it| format!(", and nothing written to {}", it.display()));
        say(format!("# nothing is timed{}: the simulator has no clock", unwritten.unwrap_or_default()));
    }
    task.simulate(filling, &mut say)
}

/// Runs passes, checked after each, and returns their remarks.
fn rewrite(calls: &[PassCall], program: &mut Program, source: &Source) -> Result<Vec<Diagnostic>, Failure> {
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    let mut found = Vec::new();
    let observe = &mut |event: Event<'_>| {
        if let Event::After { remarks, .. } = event {
            found.extend_from_slice(remarks);
        }
    };
    let done = passes::run(program, calls, settings, observe);
    done.map(|()| found).map_err(|failure| {
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
