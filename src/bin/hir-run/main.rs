//! Runs a Host IR program and verifies its results.

mod batch;
mod command_lines;
mod gpus;
mod options;
mod pipelines;
mod task;

use std::{convert::Infallible, process::ExitCode, sync::Arc, time::Instant};

use grammar::{
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
};
use hir::{
    cuda::{self, Gpu},
    exit::Exit,
    input_file,
    launch::{environment, environment::LaunchInfo, handshake::JobManifest, job_rank::JobRank, spawn},
    out_of_memory::Allocator,
    run::{
        gpu,
        inputs::InputSpec,
        output, per_rank, precheck,
        prepare::{JobFailure, prepare},
        rank_process::{self, Measured, ProgramPlace, RunVerdict},
    },
    source::Source,
    tool::{
        self, Reporter, print_line, report_usage_error, reproducer::crash_reproducer, startup::start_tool,
    },
};
use passes::{PassCall, PassError, PassEvent, Settings, Verify};

use batch::{BatchProgress, JobProgram, JobStep};
use options::{Device, EXAMPLES, Options};
use pipelines::{PassesText, PipelineTimes};
use task::{RunMonitor, Task};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    // Must precede the creation of threads.
    cuda::set_environment();
    start_tool("hir-run", run_tool)
}

fn run_tool() -> ExitCode {
    let options = match tool::help::parse_arguments::<Options>(EXAMPLES) {
        Ok(options) => options,
        Err(error) => return report_usage_error("hir-run", &error).into(),
    };
    let screen = options.diagnostics.reporter("hir-run");
    let read = match options.tune_passes.is_empty() {
        true => batch::read_programs(&options, std::env::args_os().skip(1).collect())
            .map_err(|(exit, message)| screen.fail(exit, &message)),
        false => pipelines::programs(&options, screen),
    };
    let programs = match read {
        Ok(programs) => programs,
        Err(exit) => {
            tool::sarif_log::close(exit, true);
            return exit.into();
        }
    };
    // Only one process of a job writes the log.
    let mut reports = true;
    let work = || match environment::detect(|name| std::env::var(name).ok()) {
        Err(fault) => screen.fail(fault.exit().into(), &fault.to_string()),
        Ok(Some(launch)) if launch.world > 1 => {
            reports = launch.rank == 0;
            run_rank_process(&options, &programs, screen, &launch)
        }
        Ok(_) if gpus::should_spawn_ranks(&options) => {
            reports = false;
            spawn_ranks(options.ranks.unwrap_or(1), screen)
        }
        Ok(_) => run_single_process(&programs, screen),
    };
    let exit = crash_reproducer::run_guarded(screen, None, work);
    let exit = screen.finish(exit);
    tool::sarif_log::close(exit, reports);
    exit.into()
}

/// Runs the programs of a job that has a single process.
fn run_single_process(programs: &[JobProgram], screen: Reporter) -> Exit {
    let mut gpu = None;
    let (count, watched) = (BatchProgress::of(programs), RunMonitor::default());
    if let Err(exit) = watched.watch(screen, count.exit_reporter()) {
        return exit;
    }
    let ended = batch::run_each(programs, (true, 1), &count, |entry, last, times| -> Result<_, Infallible> {
        watched.activity.set("while preparing the program");
        if !entry.continues() {
            input_file::forget_read_files();
        }
        let own = entry.reporter(screen);
        let state = JobState { gpu: &mut gpu, started: &count, monitor: &watched };
        let verdict = run_step(entry, own, None, times, state);
        let verdict = verdict.unwrap_or_else(|failure| report_failure(own, failure));
        watched.activity.print_result(last || verdict.exit.flow().is_break(), || {
            verdict.line.iter().for_each(|line| print_line(line));
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
    screen: Reporter,
    launch: &LaunchInfo,
) -> Exit {
    let own = if launch.rank == 0 { screen } else { screen.silent() };
    let (count, watched) = (BatchProgress::of(programs), RunMonitor::default());
    rank_process::join(launch, options.timeout_duration(), screen, count.exit_reporter(), |member| {
        let mut gpu = None;
        batch::run_each(programs, (launch.rank == 0, launch.world), &count, |entry, last, times| {
            let manifest = || job_manifest(entry, launch);
            let (own, mut measured) = (entry.reporter(own), Measured::default());
            let place = ProgramPlace { continues: entry.continues(), last };
            let end = rank_process::run(member, screen, place, manifest, |failure| {
                let outcome = failure.map_or_else(
                    || {
                        let state = JobState { gpu: &mut gpu, started: &count, monitor: &watched };
                        run_step(entry, own, Some(member), times, state)
                    },
                    Err,
                );
                let verdict = outcome.unwrap_or_else(|failure| {
                    let summary = failure.summary().1;
                    RunVerdict { summary, ..report_failure(own, failure) }
                });
                measured = verdict.measured.clone();
                verdict
            })?;
            Ok((end, measured))
        })
    })
}

/// The state that the programs of a job share.
struct JobState<'a> {
    /// The GPU of this process.
    gpu: &'a mut Option<Gpu>,
    /// The number of programs that have started.
    started: &'a BatchProgress,
    /// What signal handlers report.
    monitor: &'a RunMonitor,
}

/// Runs a program of a job, checks what all pipelines need, or reports on them.
fn run_step(
    entry: &JobProgram,
    screen: Reporter,
    member: Option<&JobRank>,
    times: &PipelineTimes,
    state: JobState<'_>,
) -> Result<RunVerdict, JobFailure> {
    match entry.step {
        JobStep::Check => pipelines::check(&entry.options, member, state.gpu),
        JobStep::Report => times.report(&entry.options, member.is_none_or(|it| it.channel.rank == 0)),
        JobStep::Only | JobStep::Line { .. } | JobStep::Pipeline(_) => {
            run(&entry.options, screen, member, state)
        }
    }
}

/// Returns the manifest that all ranks must agree on.
fn job_manifest(entry: &JobProgram, launch: &LaunchInfo) -> (JobManifest, Option<JobFailure>) {
    // The manifest is not built again: a file that cannot be read was reported by the check.
    if matches!(entry.step, JobStep::Report) {
        return (JobManifest::default(), None);
    }
    let options = &entry.options;
    match options.ranks.filter(|it| *it != launch.world) {
        Some(ranks) => {
            let message =
                format!("`--ranks {ranks}`: {} started {} processes", launch.launcher, launch.world);
            (JobManifest::default(), Some(JobFailure::Other(Exit::Usage, message)))
        }
        None => {
            let (texts, reference) = (options.texts(), options.reference.as_deref());
            rank_process::manifest(entry.canonical_options(), &texts, reference, &options.input)
        }
    }
}

/// Starts one process per rank with this command line.
fn spawn_ranks(ranks: usize, screen: Reporter) -> Exit {
    // Each rank writes its own reproducer.
    crash_reproducer::disable();
    let exit = std::env::current_exe().and_then(|program| {
        let job = spawn::Job { program, arguments: std::env::args_os().skip(1).collect(), ranks };
        spawn::run(&job, tool::ResultOutput, tool::stderr_if_separate())
    });
    exit.unwrap_or_else(|fault| screen.fail(Exit::Environment, &format!("cannot start the ranks: {fault}")))
}

/// Runs one program. Every process of a launched job prepares all ranks; on simulated ranks it also simulates
/// all of them, and only the first process reports. The GPU is kept for the next program.
fn run(
    options: &Options,
    screen: Reporter,
    member: Option<&JobRank>,
    JobState { gpu, started: count, monitor: watched }: JobState<'_>,
) -> Result<RunVerdict, JobFailure> {
    options.validate()?;
    crash_reproducer::record_command(vec![options.reproducer_command()]);
    let owner = member.map(|it| it.channel.rank);
    let silent = |exit| RunVerdict { summary: "rejected".to_owned(), ..RunVerdict::without_line(exit) };
    let quiet = options.reports_failures_only || owner.is_some_and(|it| it > 0);
    let mut say = |line: String| {
        if !(quiet || options.diagnostics.quiet && line.starts_with('#')) {
            print_line(&line);
        }
    };
    let stored = pipelines::stored_pipeline(options, member)?;
    stored.iter().for_each(|it| say(format!("# {}", it.note)));
    let passes = PassesText::new(options, stored.and_then(|it| it.passes));
    let calls = match screen.parse_located(&passes.text, |fault| passes.locate(fault)) {
        Err(exit) => return Ok(silent(exit)),
        Ok(calls) => calls,
    };
    let rewrite = |program: &mut Program, source: &Source| {
        let remarks = run_passes(&calls, &passes, program, source)?;
        let shown: Vec<Diagnostic> = options.remarks.select(&remarks).cloned().collect();
        screen.report_diagnostics(source, &shown);
        let failure = options.remarks.failure_message(&remarks);
        failure.map_or(Ok(()), |message| Err(JobFailure::Other(Exit::Rejected, message)))
    };
    let setup = options.preparation(member.map(|it| it.channel.world), &rewrite);
    let start = Instant::now();
    let mut prepared = prepare(&options.texts(), &setup)?;
    output::mark_live_out(&mut prepared.plans, &options.output)?;
    let others = options.option_files();
    output::check_destinations(&prepared.plans, &options.output, &others, member.is_none())?;
    per_rank::mark(&mut prepared.plans, &options.local_names(), &options.whole_names());
    let plans = &Arc::new(std::mem::take(&mut prepared.plans));
    for (source, warnings) in prepared.sources.iter().zip(&prepared.warnings) {
        screen.report_diagnostics(source, warnings);
    }
    let names: Vec<&str> = prepared.sources.iter().map(|source| source.name.as_str()).collect();
    if options.memory {
        gpu::memory_report(plans)?.into_iter().for_each(say);
        return Ok(silent(Exit::Success));
    }
    let is_measured = options.iters > 0 || options.profile_host || options.tune.is_some();
    if options.cudagraph && !is_measured && options.stress.is_none() {
        say("# `-G` has no effect without timed or repeated runs: add `-n 20` or `--stress 100`".to_owned());
    }
    let check = (options.check, options.check_model);
    let is_timeline_due = options.timelines.is_requested() && !quiet;
    if let Err(verdict) = precheck::check_before_run(check, &prepared.sources, plans, screen, &mut say) {
        if is_timeline_due {
            say_all(options.timelines.write_estimated(plans, &names)?.into_lines().collect(), &mut say);
        }
        return Ok(verdict);
    }
    if let Some(note) = prepared.unused_ranks(member.map(|it| it.channel.world)) {
        say(format!("# {note}"));
    }
    let task = Task {
        options,
        setup: &setup,
        prepared: &prepared,
        plans,
        names: &names,
        owner,
        monitor: watched,
        start,
        screen,
    };
    let input_spec = InputSpec::new(options.inputs, options.seed, options.input.clone(), plans);
    // In a single process without an NVIDIA driver nobody expects GPUs, so no reason is printed.
    let is_expected = options.device == Some(Device::Auto)
        || options.device.is_none()
            && (member.is_some() || cuda::device_names().is_ok_and(|it| !it.is_empty()));
    let peers: &dyn cuda::ProcessGroup = member.map_or(&cuda::SingleProcess, |it| it);
    let why = match gpus::choose_gpu(options, plans, peers, gpu)? {
        Err(why) => is_expected.then_some(why),
        Ok(gpu) => {
            let alone;
            let member = match member {
                Some(it) => it,
                None => {
                    alone = JobRank::single_process(
                        options.timeout_duration(),
                        rank_process::end_handler(count.exit_reporter()),
                    )?;
                    &alone
                }
            };
            match gpus::run(&task, input_spec.clone(), (gpu, member), &mut say)? {
                Ok(verdict) if options.reports_failures_only && verdict.exit == Exit::Success => {
                    return Ok(RunVerdict { line: None, ..verdict });
                }
                Ok(verdict) => return Ok(verdict),
                Err(why) => Some(why),
            }
        }
    };
    why.iter().for_each(|why| say(format!("# running on the simulator: {why}")));
    if let Some(path) = &options.tuning {
        say(format!(
            "# the algorithms of `{}` are not used: the simulator has none to choose from",
            path.display()
        ));
    }
    if options.iters > 0 {
        let unwritten = options.json.as_ref().map(|it| format!(", and `{}` is not written", it.display()));
        say(format!("# nothing is timed{}: the simulator has no clock", unwritten.unwrap_or_default()));
    }
    if is_timeline_due {
        say_all(options.timelines.write_estimated(plans, &names)?.into_lines().collect(), &mut say);
    }
    if let Some(member) = member {
        member.set_phase("simulating all ranks");
    }
    task.simulate(input_spec, &mut say)
}

/// Prints notes.
fn say_all(notes: Vec<String>, say: &mut dyn FnMut(String)) {
    notes.into_iter().for_each(|it| say(format!("# {it}")));
}

/// Runs passes with verification after each, and returns their remarks.
fn run_passes(
    calls: &[PassCall],
    text: &PassesText<'_>,
    program: &mut Program,
    source: &Source,
) -> Result<Vec<Diagnostic>, JobFailure> {
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    let mut found = Vec::new();
    let observe = &mut |event: PassEvent<'_>| {
        if let PassEvent::After { remarks, .. } = event {
            found.extend_from_slice(remarks);
        }
    };
    let done = passes::run(program, calls, settings, observe);
    done.map(|()| found).map_err(|failure| {
        if let PassError::BadOption(fault) = failure.error {
            let (stated, fault) = text.locate(fault);
            return JobFailure::BadOption(stated, Box::new(fault));
        }
        let diagnostics = failure.error.diagnostics();
        match has_errors(diagnostics) && !failure.error.is_bug() {
            true => {
                let mut diagnostics = diagnostics.to_vec();
                diagnostics
                    .iter_mut()
                    .for_each(|it| it.message += &format!(" (pass `{}`)", failure.pass.unwrap_or("none")));
                JobFailure::Rejected(source.clone(), diagnostics)
            }
            false => JobFailure::Other(Exit::InternalError, failure.to_string()),
        }
    })
}

/// Reports a failure that prevents a verdict.
fn report_failure(screen: Reporter, failure: JobFailure) -> RunVerdict {
    match failure {
        JobFailure::Rejected(source, diagnostics) => {
            screen.report_diagnostics(&source, &diagnostics);
            RunVerdict::without_line(Exit::Rejected)
        }
        JobFailure::BadOption(source, fault) => {
            screen.report_diagnostics(&source, &[*fault]);
            RunVerdict::without_line(Exit::Usage)
        }
        // The report comes first: the last line is the verdict.
        JobFailure::Other(exit @ (Exit::Hang | Exit::WrongResult), message) => {
            let (verdict, report) = message.split_once('\n').unwrap_or((&message, ""));
            let mut lines: Vec<String> = report.lines().map(|line| format!("# {line}")).collect();
            lines.push(format!("[FAILED] {verdict}"));
            RunVerdict { line: Some(lines.join("\n")), ..RunVerdict::without_line(exit) }
        }
        JobFailure::Other(exit, message) => RunVerdict::without_line(screen.fail(exit, &message)),
    }
}
