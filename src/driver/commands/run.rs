//! hir-run: runs a Host IR program and verifies its results.

mod batch;
mod failure;
mod gpus;
mod pipelines;
mod program;
mod simulation;
mod task;

use std::{convert::Infallible, io, path::PathBuf, process::Command, sync::Arc};

pub(super) use crate::run::command_line::{EXAMPLES, Options};
use crate::{
    job::rank_process::{self, Measured, ProgramPlace, RunVerdict},
    run::{
        RunError,
        failure::{JobFailure, Result},
    },
    session::{CommandLine, Report, Session, Verdict},
    tool::{self, Reporter, report_usage_error, reproducer::crash_reproducer, startup::start_tool},
};
use hir_launch::{
    environment,
    environment::LaunchInfo,
    handshake::JobManifest,
    job_rank::JobRank,
    spawn,
    watcher::{self, Watcher},
};
use hir_process::{exit::Exit, threads::start_workers};

use batch::{BatchProgress, JobProgram, JobStep};
pub use failure::report_failure;
use failure::{finish_program, print_failure};
use pipelines::PipelineTimes;
use program::JobState;
use task::RunMonitor;

/// Runs hir-run.
pub fn main_with(command_line: CommandLine) -> Exit {
    // Must precede the creation of threads.
    if let Ok(it) = hir_executor::backend() {
        it.set_environment();
    }
    start_tool("hir-run", command_line, run_tool)
}

fn run_tool(session: &Arc<Session>) -> Exit {
    if let Some(cause) = watcher::wait_for_loss() {
        session.print_end(Exit::Hang, [failed(cause)]);
        return Exit::Hang;
    }
    let options = match tool::help::parse_arguments::<Options>(session, EXAMPLES) {
        Ok(options) => options,
        Err(error) => {
            let verdict = |message: &str| {
                session.print_all(environment::is_first().then(|| failed(format!("not run: {message}"))));
            };
            return report_usage_error(session, &error, verdict);
        }
    };
    let screen = options.diagnostics.reporter(session);
    let read = if options.tune_passes.is_empty() {
        batch::read_programs(&options, session, session.arguments_with_defaults())
    } else {
        pipelines::programs(&options, session)
    };
    let programs = match read {
        Ok(programs) => programs,
        Err(failure) => return finish(&screen, print_failure(&screen, &failure), true),
    };
    // Only one process of a job writes the log.
    let mut reports = true;
    let work = || match environment::detect(|name| std::env::var(name).ok()) {
        Err(fault) => print_failure(&screen, &fault.into()),
        Ok(Some(launch)) if launch.world > 1 => {
            reports = launch.rank == 0;
            // A rank without threads does not join: the others would wait for its messages.
            with_workers(&screen, || run_rank_process(&options, &programs, &screen, &launch))
        }
        Ok(_) if gpus::should_spawn_ranks(&options) => {
            reports = false;
            spawn_ranks(options.world.ranks.unwrap_or(1), &screen)
        }
        Ok(_) => with_workers(&screen, || run_single_process(&programs, &screen)),
    };
    let exit = crash_reproducer::run_guarded(&screen, None, work);
    finish(&screen, exit, reports)
}

/// Starts the threads that compute inputs and results, then runs.
fn with_workers(screen: &Reporter, run: impl FnOnce() -> Exit) -> Exit {
    match start_workers() {
        Ok(()) => run(),
        Err(refused) => print_failure(screen, &RunError::from(refused).into()),
    }
}

/// Ends the output of the tool. The last line is the verdict, also on what standard error did not accept.
fn finish(screen: &Reporter, exit: Exit, reports: bool) -> Exit {
    screen.finish(exit, reports, |fault| screen.session().print(&failed(fault)))
}

/// Returns the last line of a run that failed.
fn failed(text: impl Into<String>) -> Report {
    Report::Verdict(Verdict::failed(text))
}

/// Runs the programs of a job that has a single process.
fn run_single_process(programs: &[JobProgram], screen: &Reporter) -> Exit {
    let mut gpu = None;
    let (progress, monitor) = (BatchProgress::of(programs, screen.session()), RunMonitor::default());
    if let Err(exit) = monitor.watch(screen, progress.exit_reporter()) {
        return exit;
    }
    let ended =
        batch::run_each(programs, (true, 1), &progress, |entry, last, times| -> Result<_, Infallible> {
            monitor.activity.set("while preparing the program");
            if !entry.continues() {
                screen.session().files.forget();
            }
            let own = entry.reporter(screen);
            let state = JobState { gpu: &mut gpu, progress: &progress, monitor: &monitor };
            let verdict = run_step(entry, &own, None, times, state);
            let verdict = verdict.unwrap_or_else(|failure| entry.verdict(report_failure(&own, &failure)));
            let verdict = finish_program(entry, &own, verdict);
            monitor.activity.print_result(last || verdict.exit.flow().is_break(), || {
                screen.session().print_all(verdict.lines());
            });
            Ok((verdict.exit.flow(), verdict.measured))
        });
    match ended {
        Ok(exit) => exit,
    }
}

/// Runs the programs of a job as one of several rank processes.
fn run_rank_process(
    options: &Options,
    programs: &[JobProgram],
    screen: &Reporter,
    launch: &LaunchInfo,
) -> Exit {
    let own = if launch.rank == 0 { screen.clone() } else { screen.silent() };
    let (progress, monitor) = (BatchProgress::of(programs, screen.session()), RunMonitor::default());
    let command = || {
        let mut command = Command::new(own_program(screen.session()).ok()?);
        command.args(screen.session().command_line.start.iter().skip(1));
        Some(command)
    };
    let _watcher = Watcher::start(launch, command);
    let report = progress.exit_reporter();
    let last = move |exit, verdict: &Verdict| {
        report(exit, verdict);
        watcher::dismiss();
    };
    rank_process::join(launch, options.timeout_duration(), screen, last, |member| {
        let mut gpu = None;
        batch::run_each(programs, (launch.rank == 0, launch.world), &progress, |entry, last, times| {
            let manifest = || job_manifest(entry, launch, screen.session());
            let (own, mut measured) = (entry.reporter(&own), Measured::default());
            let place = ProgramPlace { continues: entry.continues(), last };
            let end = rank_process::run(member, screen, place, manifest, |failure| {
                let outcome = failure.map_or_else(
                    || {
                        let state = JobState { gpu: &mut gpu, progress: &progress, monitor: &monitor };
                        run_step(entry, &own, Some(member), times, state)
                    },
                    Err,
                );
                let verdict = outcome.unwrap_or_else(|failure| entry.verdict(report_failure(&own, &failure)));
                let verdict = if launch.rank == 0 { finish_program(entry, &own, verdict) } else { verdict };
                measured = verdict.measured.clone();
                verdict
            })?;
            Ok((end, measured))
        })
    })
}

/// Runs a program of a job, checks what all pipelines need, or reports on them.
fn run_step(
    entry: &JobProgram,
    screen: &Reporter,
    member: Option<&JobRank>,
    times: &PipelineTimes,
    state: JobState<'_>,
) -> Result<RunVerdict> {
    match entry.step {
        JobStep::Check => pipelines::check(&entry.options, screen.session(), member, state.gpu),
        JobStep::Report => {
            times.report(&entry.options, screen.session(), member.is_none_or(|it| it.channel.rank == 0))
        }
        JobStep::Only | JobStep::Line { .. } | JobStep::Pipeline(_) => {
            program::run(&entry.options, screen, member, state)
        }
    }
}

/// Returns the manifest that all ranks must agree on.
fn job_manifest(
    entry: &JobProgram,
    launch: &LaunchInfo,
    session: &Session,
) -> (JobManifest, Option<JobFailure>) {
    // The manifest is not built again: a file that cannot be read was reported by the check.
    if matches!(entry.step, JobStep::Report) {
        return (JobManifest::default(), None);
    }
    let options = &entry.options;
    match options.world.ranks.filter(|it| *it != launch.world) {
        Some(ranks) => {
            let message =
                format!("`--ranks {ranks}`: {} started {} processes", launch.launcher, launch.world);
            (JobManifest::default(), Some(JobFailure::Usage(message)))
        }
        None => {
            let (texts, reference) = (options.texts(), options.reference.as_deref());
            let texts = (&texts, &options.text.fusions[..]);
            rank_process::manifest(session, entry.canonical_options(), texts, reference, &options.input)
        }
    }
}

/// Returns the program that runs this tool, with the first words of its command line.
fn own_program(session: &Session) -> io::Result<PathBuf> {
    session.command_line.start.first().map_or_else(std::env::current_exe, |program| Ok(program.into()))
}

/// Starts one process per rank with the command line of this one.
fn spawn_ranks(ranks: usize, screen: &Reporter) -> Exit {
    // Each rank writes its own reproducer.
    let session = screen.session();
    session.crash_record.disable();
    let CommandLine { start, arguments } = &session.command_line;
    let exit = own_program(session).and_then(|program| {
        let arguments = start.iter().skip(1).chain(arguments).cloned().collect();
        let job = spawn::Job { program, arguments, ranks };
        let errors =
            (!session.stderr.is_same_file(&session.stdout)).then(|| Box::new(session.stderr.clone()) as _);
        spawn::run(&job, session.stdout.clone(), errors)
    });
    exit.unwrap_or_else(|fault| {
        let message = format!("cannot start the ranks: {fault}");
        print_failure(screen, &JobFailure::Environment(message))
    })
}
