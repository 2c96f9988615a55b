//! Runs one program of a job: applies passes, builds and checks the plans, and selects GPUs or the simulator.

use std::{cell::RefCell, path::Path, sync::Arc, time::Instant};

use crate::{
    auto::{self, edits::Estimates, gains::Gains},
    job::{
        gpu::{JobGroup, SimulatorReason},
        lost_job::report_without_plans,
        precheck,
        rank_process::{self, RunVerdict},
    },
    run::{
        command_line::{Device, Issue, Options},
        failure::{JobFailure, Result},
        files::write_file,
        inputs::InputSpec,
        output,
        prepare::{PrepareOptions, Prepared, prepare},
        timelines::{Estimate, estimated_overlap_json, overlap_json},
    },
    session::Report,
    tool::{Reporter, certificate},
};
use grammar::{Diagnostic, Program, Source, has_errors};
use hir_executor::{ProcessGroup, RankDevice, SingleProcess, backend};
use hir_launch::job_rank::JobRank;
use hir_plan::{CallerUses, World, limits::Limits, timeline::estimator::Planned};
use hir_process::{exit::Exit, out_of_memory};
use hir_sim::WorkBudget;
use passes::{PassCall, PassError, PassEvent, Settings, Verify};
use serde_json::{Map, Value};

use super::{
    batch::BatchProgress,
    failure::report_failure,
    gpus,
    pipelines::{self, PassesText},
    simulation::simulate,
    task::{RunMonitor, Task},
};

/// The state that the programs of a job share.
pub struct JobState<'a> {
    /// The GPU of this process.
    pub gpu: &'a mut Option<Box<dyn RankDevice>>,
    /// The number of programs that have started.
    pub progress: &'a BatchProgress,
    /// What signal handlers report.
    pub monitor: &'a RunMonitor,
}

/// Runs one program. Every process of a launched job prepares all ranks; on simulated ranks it also simulates
/// all of them, and only the first process reports. The GPU is kept for the next program.
///
/// # Errors
/// A failure that prevents a verdict.
pub fn run(
    options: &Options,
    screen: &Reporter,
    member: Option<&JobRank>,
    state: JobState<'_>,
) -> Result<RunVerdict> {
    options.validate()?;
    if state.gpu.is_none() && gpus::only_simulates(options) {
        out_of_memory::limit_memory(options.world.memory_limit);
    }
    let session = screen.session();
    session.crash_record.record_command(vec![options.reproducer_command(session.argument_texts())]);
    let owner = member.map(|it| it.channel.rank);
    let processes = member.map(|it| it.channel.world);
    let is_silent = options.reports_failures_only || owner.is_some_and(|it| it > 0);
    let mut say = |line: Report| {
        if !(is_silent || options.diagnostics.quiet && matches!(line, Report::Note(_))) {
            session.print(&line);
        }
    };
    let stored = pipelines::stored_pipeline(options, session, member)?;
    stored.iter().for_each(|it| say(Report::Note(it.note.clone())));
    let passes = PassesText::new(options, stored.and_then(|it| it.passes));
    let mut calls = passes.parse()?;
    auto::use_machine(&mut calls, options.timelines.machine.as_ref(), || gpus::gpu_name(options));
    // The program that runs, if its times are to be estimated.
    let lowered = RefCell::new(None);
    let rewrite = |program: &mut Program, source: &Source| {
        let path = options.certificate.as_deref().filter(|_| owner.is_none_or(|it| it == 0));
        let original = path.map(|path| (path, grammar::print(program)));
        rewrite(options, screen, &calls, &passes, program, source)?;
        if (options.timelines.is_requested() || options.json.is_some()) && !is_silent {
            lowered.replace(Some(program.clone()));
        }
        original.map_or(Ok(()), |(path, text)| write_certificate(path, options, &text, program))
    };
    let setup = options.preparation(session, processes, &rewrite);
    let start = Instant::now();
    let (prepared, world) = &read_and_plan(options, &setup, screen, member)?;
    let names: Vec<&str> = prepared.sources.iter().map(|source| source.name.as_str()).collect();
    if options.memory {
        return report_memory(options, world, &mut say);
    }
    say_what_has_no_effect(options, &mut say);
    let is_timeline_due = options.timelines.is_requested() && !is_silent;
    let check = (options.check, options.check_model);
    let limits = options.world.limits();
    if let Err(verdict) = precheck::check_before_run(check, &prepared.sources, world, screen, &mut say) {
        let lowered = lowered.take();
        let text = planned(prepared, lowered.as_ref(), &limits);
        let estimate = match is_timeline_due {
            true => Some(write_estimated_timelines(options, world, text, &names, &mut say)?),
            false => None,
        };
        let facts = simulated_facts(options, world, text, estimate.map(|it| (it.0, None)), is_silent);
        return Ok(RunVerdict { facts, ..RunVerdict::with_line(Exit::Check, verdict) });
    }
    if let Some(note) = prepared.unused_ranks(processes) {
        say(Report::Note(note));
    }
    let work = WorkBudget::of_billions(options.max_work());
    let task = Task {
        work: &work,
        options,
        setup: &setup,
        prepared,
        world,
        names: &names,
        owner,
        monitor: state.monitor,
        start,
        screen,
    };
    let input_spec = InputSpec::new(options.inputs(), options.seed, world);
    let input_spec = input_spec.with_flags(options.input.clone(), &session.files);
    let lowered = lowered.take();
    let text = planned(prepared, lowered.as_ref(), &limits);
    let reason = match run_on_gpu(&task, &input_spec, member, state, &mut say)? {
        Ok(verdict) => {
            let edits = edits(options, text, world, None);
            if !edits.is_empty() {
                let source = options.timelines.machine().machine.source(false);
                say(Report::Note(format!("what would shorten the run; times are {source}:")));
            }
            edits.into_iter().for_each(|it| say(Report::Note(it)));
            return Ok(verdict);
        }
        Err(reason) => reason,
    };
    say_why_simulated(options, reason, &mut say);
    let mut estimate = None;
    if is_timeline_due {
        let found = write_estimated_timelines(options, world, text, &names, &mut say)?;
        edits(options, text, world, Some(&found)).into_iter().for_each(|it| say(Report::Note(it)));
        estimate = Some(found);
    }
    let facts = simulated_facts(options, world, text, estimate, is_silent);
    if options.no_values
        && options.expect.is_empty()
        && options.reference.is_none()
        && options.output.is_empty()
    {
        let line = "estimated, nothing was run: `hir run` computes values, and GPUs measure times";
        return Ok(RunVerdict { facts, ..RunVerdict::of(Exit::Success, line) });
    }
    if let Some(member) = member {
        member.set_phase("simulating all ranks");
    }
    let verdict = simulate(&task, input_spec, &mut say);
    Ok(RunVerdict { facts, ..verdict.unwrap_or_else(|failure| report_failure(screen, &failure)) })
}

/// Writes the certificate of the passes that have made `program` of the text `original`.
fn write_certificate(path: &Path, options: &Options, original: &str, program: &Program) -> Result<()> {
    match certificate::certificate(path, options.world.ranks, original, program) {
        Ok(it) => write_file(path, &it.text),
        Err((source, fault)) => Err(JobFailure::NotCertified(source, fault)),
    }
}

/// Prints the memory that the program needs on GPUs, for `--memory`.
fn report_memory(options: &Options, world: &World, say: &mut dyn FnMut(Report)) -> Result<RunVerdict> {
    backend()?
        .memory_report(world)
        .map_err(JobFailure::Unsuitable)?
        .into_iter()
        .for_each(|it| say(Report::Output(it)));
    if !options.output.is_empty() {
        say(Report::note(
            "`--memory` runs nothing: `--output` writes no file, and its tensors keep their memory until the end",
        ));
    }
    Ok(RunVerdict::of(Exit::Success, "nothing was run: `--memory`"))
}

/// Prints which options have no effect without others.
fn say_what_has_no_effect(options: &Options, say: &mut dyn FnMut(Report)) {
    // The table of `--tuning` has pipelines for runs step by step and for replays.
    let selects_pipeline = options.step_by_step && options.tuning.is_some();
    let issue = match options.issue() {
        Issue::Graph => Some("-G"),
        Issue::StepByStep => Some("--step-by-step"),
        Issue::Default => None,
    };
    let is_repeated = options.is_measured() || options.stress.is_some();
    if let Some(option) = issue.filter(|_| !is_repeated && !selects_pipeline) {
        say(Report::Note(format!(
            "`{option}` has no effect without timed or repeated runs: add `-n 20` or `--stress 100`"
        )));
    }
    if options.tolerance().is_some() && options.expect.is_empty() && options.reference.is_none() {
        say(Report::note("`--rtol` and `--atol` have no effect without `--expect` or `--reference`"));
    }
}

/// Returns the program that all ranks run, with its text; `None` if they run several programs.
fn planned<'p>(
    prepared: &'p Prepared,
    program: Option<&'p Program>,
    limits: &'p Limits,
) -> Option<Planned<'p>> {
    let [source] = prepared.sources.as_slice() else { return None };
    Some(Planned { program: program?, lines: &source.lines, limits })
}

/// Returns what `--overlap` says about the passes that would shorten a run, and about each communication; nothing if ranks run several
/// programs. The program is estimated, unless `known` has its times.
fn edits(
    options: &Options,
    text: Option<Planned<'_>>,
    world: &World,
    known: Option<&Estimate>,
) -> Vec<String> {
    let Some(Planned { program, lines, limits }) = text.filter(|_| options.timelines.overlap) else {
        return Vec::new();
    };
    let machine = options.timelines.machine();
    let estimates = Estimates { lines, ranks: world.len(), limits, machine };
    let own = if known.is_none() { estimates.gains(program, world).ok() } else { None };
    let Some((timeline, gains)) = known.or(own.as_ref()) else { return Vec::new() };
    let table = gains.iter().flat_map(Gains::table);
    estimates.report(program, world, timeline).into_iter().chain(table).collect()
}

/// Returns what the file of `-J` says about a run without GPUs.
fn simulated_facts(
    options: &Options,
    world: &World,
    text: Option<Planned<'_>>,
    estimate: Option<Estimate>,
    is_silent: bool,
) -> Map<String, Value> {
    if options.json.is_none() || is_silent {
        return Map::new();
    }
    let overlap = match estimate {
        Some((timeline, gains)) => {
            let mut overlap = overlap_json(&timeline);
            if let Some(gains) = gains {
                overlap["gains"] = gains.json();
            }
            Some(overlap)
        }
        None => estimated_overlap_json(world, text, options.timelines.machine()),
    };
    let overlap = overlap.map(|it| ("overlap".to_owned(), it));
    Map::from_iter([("ranks".to_owned(), world.len().into())].into_iter().chain(overlap))
}

/// Reads the program, applies the passes and builds the plans of all ranks. Reports its warnings.
fn read_and_plan(
    options: &Options,
    setup: &PrepareOptions<'_>,
    screen: &Reporter,
    member: Option<&JobRank>,
) -> Result<(Prepared, Arc<World>)> {
    let kept: Vec<&str> = options.output.iter().map(|it| it.name.as_str()).collect();
    let (local, whole) = (options.local_names(), options.whole_names());
    let is_compared_per_rank = |_, name: &str| local.contains(&name) && !whole.contains(&name);
    let uses =
        CallerUses { kept: &kept, is_compared_per_rank: &is_compared_per_rank, ..CallerUses::default() };
    let mut prepared = prepare(&options.texts(), &PrepareOptions { uses, ..*setup })?;
    output::check_dtypes(&prepared.world, &options.output)?;
    let others = options.option_files();
    output::check_destinations(&prepared.world, &options.output, &others, member.is_none())?;
    let world = Arc::new(std::mem::take(&mut prepared.world));
    for (source, warnings) in prepared.sources.iter().zip(&prepared.warnings) {
        screen.report_diagnostics(source, warnings);
    }
    Ok((prepared, world))
}

/// Applies the passes of `--passes` to a program, and reports the remarks that the options select.
fn rewrite(
    options: &Options,
    screen: &Reporter,
    calls: &[PassCall],
    passes: &PassesText<'_>,
    program: &mut Program,
    source: &Source,
) -> Result<()> {
    let remarks = run_passes(calls, passes, program, source)?;
    let shown: Vec<Diagnostic> = options.remarks.select(&remarks, calls).cloned().collect();
    screen.report_diagnostics(source, &shown);
    let failure = options.remarks.failure_message(&remarks);
    failure.map_or(Ok(()), |message| Err(JobFailure::Unsuitable(message)))
}

/// Runs the program on GPUs. If the simulator must run it instead, the inner error is the reason, or `None` if
/// nobody expects GPUs.
fn run_on_gpu(
    task: &Task<'_>,
    input_spec: &InputSpec,
    member: Option<&JobRank>,
    state: JobState<'_>,
    say: &mut dyn FnMut(Report),
) -> Result<Result<RunVerdict, Option<SimulatorReason>>> {
    let options = task.options;
    // In a single process without an NVIDIA driver nobody expects GPUs, so no reason is printed.
    let is_expected = options.device == Some(Device::Auto)
        || options.device.is_none() && (member.is_some() || gpus::device_count() > 0);
    let group = member.map(JobGroup);
    let peers: &dyn ProcessGroup = group.as_ref().map_or(&SingleProcess, |it| it);
    let gpu = match gpus::choose_gpu(options, task.world, peers, state.gpu)? {
        Err(reason) => return Ok(Err(is_expected.then_some(reason))),
        Ok(gpu) => gpu,
    };
    let single;
    let member = match member {
        Some(it) => it,
        None => {
            let at_end = rank_process::end_handler(task.screen.session(), state.progress.exit_reporter());
            single = JobRank::single_process(options.timeout_duration(), report_without_plans(), at_end)?;
            &single
        }
    };
    Ok(match gpus::run(task, input_spec.clone(), (gpu, member), say)? {
        Ok(verdict) if options.reports_failures_only && verdict.exit == Exit::Success => {
            Ok(RunVerdict { line: None, ..verdict })
        }
        Ok(verdict) => Ok(verdict),
        Err(reason) => Err(Some(reason)),
    })
}

/// Prints why the simulator runs, and which options have no effect on it.
fn say_why_simulated(options: &Options, reason: Option<SimulatorReason>, say: &mut dyn FnMut(Report)) {
    if let Some(reason) = reason {
        say(Report::Note(format!("running on the simulator: {reason}")));
    }
    if let Some(path) = &options.tuning {
        say(Report::Note(format!(
            "the algorithms of `{}` are not used: the simulator has none to choose from",
            path.display()
        )));
    }
    if options.iters > 0 {
        say(Report::note("nothing is timed: the simulator has no clock"));
    }
}

/// Writes the estimated timelines, and prints their notes.
fn write_estimated_timelines(
    options: &Options,
    world: &World,
    text: Option<Planned<'_>>,
    names: &[&str],
    say: &mut dyn FnMut(Report),
) -> Result<Estimate> {
    let (report, estimate) = options.timelines.write_estimated(world, text, names)?;
    report.into_lines().for_each(|it| say(Report::Note(it)));
    Ok(estimate)
}

/// Runs passes with verification after each, and returns their remarks.
fn run_passes(
    calls: &[PassCall],
    text: &PassesText<'_>,
    program: &mut Program,
    source: &Source,
) -> Result<Vec<Diagnostic>> {
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
            return JobFailure::bad_option(text.locate(fault));
        }
        let diagnostics = failure.error.diagnostics();
        if has_errors(diagnostics) && !failure.error.is_bug() {
            let mut diagnostics = diagnostics.to_vec();
            diagnostics
                .iter_mut()
                .for_each(|it| it.message += &format!(" (pass `{}`)", failure.pass.unwrap_or("none")));
            JobFailure::Rejected(source.clone(), diagnostics)
        } else {
            JobFailure::Internal(failure.to_string())
        }
    })
}
