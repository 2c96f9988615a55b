//! Runs one rank's part of a job on GPUs.

use std::sync::Arc;

use crate::{
    exit_code::exit_code,
    job::{
        gpu::{self, JobGroup, SimulatorReason},
        rank_process::{Measured, RunVerdict},
        timing_report, tuning,
    },
    run::{
        RunError,
        command_line::{Device, Expect, Options},
        failure::{JobFailure, Result},
        inputs::InputSpec,
        output,
        unwritten::UnwrittenReads,
        verdict::{self, Expectation},
    },
    session::Report,
    tool::progress::Progress,
};
use grammar::Code;
use hir_executor::{
    Executor, ExecutorError, Machine, ProcessGroup, RankDevice, TuneOptions, WarmUp, backend,
};
use hir_launch::job_rank::JobRank;
use hir_plan::{LOOP_LIMIT, World};
use hir_process::exit::FailureExit;
use hir_sim::{Schedule, SimError};
use hir_tensor::data::Data;

use super::task::{Task, print_outputs};

/// Returns the number of GPUs that this process may use; 0 without a driver.
pub fn device_count() -> usize {
    backend().and_then(|it| it.device_names()).map_or(0, |it| it.len())
}

/// Returns the name of the first GPU of this process; `None` if no GPU can take part.
pub fn gpu_name(options: &Options) -> Option<String> {
    if only_simulates(options) { None } else { backend().ok()?.device_names().ok()?.into_iter().next() }
}

/// Returns true if this process, which has no launcher, should start one process per rank: `--device=cuda` is
/// given, or there are enough GPUs.
pub fn should_spawn_ranks(options: &Options) -> bool {
    let Some(ranks) =
        options.world.ranks.filter(|it| (2..=options.world.max_ranks).contains(it) && !options.memory)
    else {
        return false;
    };
    match options.device() {
        Device::Sim => false,
        Device::Cuda => true,
        // Only one process can read standard input.
        Device::Auto => {
            options.schedule.is_program() && options.file.as_deref() != Some("-") && device_count() >= ranks
        }
    }
}

/// Returns whether no GPU can take part: the options ask for the simulator, or the machine has none.
pub fn only_simulates(options: &Options) -> bool {
    match options.device() {
        Device::Sim => true,
        Device::Cuda => false,
        Device::Auto => !options.schedule.is_program() || device_count() == 0,
    }
}

/// Returns the GPU for this rank's plan, initializing it on first use, or the reason why the simulator runs
/// instead. All ranks make the same choice and fail in the same way.
pub fn choose_gpu<'a>(
    options: &Options,
    world: &World,
    peers: &dyn ProcessGroup,
    gpu: &'a mut Option<Box<dyn RankDevice>>,
) -> Result<Result<&'a mut dyn RankDevice, SimulatorReason>> {
    match options.device() {
        Device::Sim => Ok(Err(SimulatorReason::Requested)),
        Device::Cuda => gpu_of_rank(world.len(), peers, gpu).map(Ok),
        Device::Auto if !options.schedule.is_program() => Ok(Err(SimulatorReason::Schedule)),
        Device::Auto => {
            Ok(gpu::check_gpu_support(world, peers).and_then(|()| Ok(get_or_init_gpu(gpu, peers)?)))
        }
    }
}

/// Returns the GPU of this rank in a job with this many ranks, initializing it on first use, before anything is computed.
/// All ranks have to call it, and fail in the same way.
///
/// # Errors
/// Not every rank has a process and a GPU.
pub fn gpu_of_rank<'a>(
    ranks: usize,
    peers: &dyn ProcessGroup,
    gpu: &'a mut Option<Box<dyn RankDevice>>,
) -> Result<&'a mut dyn RankDevice> {
    let processes = peers.world();
    if ranks != processes {
        // A missing driver or device is reported before the number of processes.
        backend()?.device_names()?;
        let message = format!(
            "{ranks} ranks on GPUs need {ranks} processes, but there are {processes}: use mpirun, torchrun or \
             `--ranks {ranks}`"
        );
        return Err(JobFailure::Environment(message));
    }
    Ok(get_or_init_gpu(gpu, peers)?)
}

/// Returns the GPU of this rank, initializing it on first use.
fn get_or_init_gpu<'a>(
    gpu: &'a mut Option<Box<dyn RankDevice>>,
    peers: &dyn ProcessGroup,
) -> Result<&'a mut dyn RankDevice, ExecutorError> {
    match gpu {
        Some(it) => Ok(it.as_mut()),
        None => Ok(gpu.insert(backend()?.assign_device(peers)?).as_mut()),
    }
}

/// Runs this rank's part of a job on GPUs, or returns the reason why the simulator must run it, if
/// `--device=auto`. All ranks get the same result.
///
/// # Errors
/// An error on any rank.
pub fn run(
    task: &Task<'_>,
    input_spec: InputSpec,
    (gpu, member): (&mut dyn RankDevice, &JobRank),
    say: &mut dyn FnMut(Report),
) -> Result<Result<RunVerdict, SimulatorReason>> {
    // On GPUs some of these programs would finish, because our host threads do not wait for each other. In
    // the framework that the program targets they hang.
    if let Some(deadlock) = task.world.deadlock() {
        return Err(RunError::Fault(SimError::Deadlock(Box::new(deadlock.clone()))).into());
    }
    let engine = match gpu.executor(task.world, &JobGroup(member)) {
        Ok(engine) => engine,
        // All ranks refuse in the same way.
        Err(fault @ ExecutorError::Unsupported { .. }) if task.options.device() == Device::Auto => {
            return Ok(Err(fault.into()));
        }
        Err(fault @ (ExecutorError::Unsupported { .. } | ExecutorError::OutOfMemory { .. })) => {
            return Err(fault.into());
        }
        Err(fault) => {
            let failure = fault.into();
            abort_job(member, &failure);
            return Err(failure);
        }
    };
    // All ranks refuse in the same way, before any of them runs anything, so that the job continues.
    if let Some(fault) = engine.capture_obstacle().filter(|_| task.options.requires_capture()) {
        return Err(JobFailure::Unsuitable(format!(
            "{fault}; without `-G`, all runs are issued step by step"
        )));
    }
    let machine = match task.options.tuning_flag() {
        None => None,
        Some(flag) => {
            let note = &mut |note: String| say(Report::Note(note));
            // All ranks get the same inner error.
            let loaded = tuning::load(&task.setup.session.files, flag, engine, member, note)
                .inspect_err(|it| abort_job(member, it))?;
            Some(loaded?)
        }
    };
    let wanted = agree_on_setup(GpuRunSetup::of(task, input_spec, member), member)?;
    run_on_engine(engine, task, (&wanted, machine), member, say).map(Ok)
}

/// The inputs and the expected outputs of a run on GPUs.
struct GpuRunSetup {
    /// Inputs by rank and position; empty for those that this process does not use.
    inputs: Vec<Vec<Arc<Data>>>,
    expected: Vec<Expectation>,
    /// Whether the simulator rounded nothing; `None` if it did not run.
    exact: Option<bool>,
}

impl GpuRunSetup {
    fn of(task: &Task<'_>, mut input_spec: InputSpec, member: &JobRank) -> Result<Self> {
        let Task { options, world, .. } = task;
        member.set_phase("preparing its inputs");
        let rank = member.channel.rank;
        let simulates = rank == 0 && options.expect.iter().any(|it| matches!(it, Expect::Sim));
        // Inputs of other ranks are generated only if the simulator needs them.
        let inputs = input_spec.fill_ranks(world, |it| simulates || it == rank)?;
        let (mut expected, mut exact) = (Vec::new(), None);
        if rank == 0 {
            member.set_phase("computing the expected outputs");
            expected = task.expectations(&input_spec)?;
        }
        if simulates {
            task.check_memory(&input_spec)?;
            let (found, notes) =
                verdict::simulated_expectations(world, inputs.clone(), "the simulator", task.limits())?;
            expected.extend(found);
            exact = Some(notes.exactness.is_exact());
            let mut reads = UnwrittenReads::default();
            reads.add(world, &notes, &Schedule::Program, task.prepared.sources.len());
            task.print_unwritten_warnings(&reads);
        }
        Ok(Self { inputs, expected, exact })
    }
}

/// Returns the setup of this rank if all ranks have succeeded; otherwise a failure on every rank.
fn agree_on_setup(setup: Result<GpuRunSetup>, member: &JobRank) -> Result<GpuRunSetup> {
    // Some ranks compute for a long time here while the others wait.
    member.set_phase("waiting for the other ranks' inputs");
    let mine = setup.as_ref().err().map(|it| (FailureExit::from(exit_code(it)), it.summary()));
    let all = member.channel.all_gather_values(&mine)?;
    let failure = all.into_iter().enumerate().find_map(|(rank, it)| {
        let (exit, summary) = it?;
        Some(JobFailure::OtherRank { rank, exit, summary })
    });
    // A rank that failed itself returns its own failure.
    setup.and_then(|it| failure.map_or(Ok(it), Err))
}

fn run_on_engine(
    engine: &mut dyn Executor,
    task: &Task<'_>,
    (wanted, machine): (&GpuRunSetup, Option<Machine>),
    member: &JobRank,
    say: &mut dyn FnMut(Report),
) -> Result<RunVerdict> {
    let Task { options, world, names, .. } = task;
    let rank = member.channel.rank;
    let (kind, seed) = (options.inputs(), options.seed);
    say(Report::Note(format!("{}: {} GPU ranks, inputs {kind} seed {seed}", names.join(", "), world.len())));
    task.notes_on_parts().into_iter().for_each(|it| say(Report::Note(it)));
    let watch = output::watched_views(world, &options.output, Some(rank))?;
    let gathered = output::watched_views(world, &options.output, Some(0))?;
    let iterations = options.iters;
    let warmup = WarmUp { runs: options.warmup, until_warm: !options.tune_passes.is_empty() };
    let is_silent = options.diagnostics.quiet || rank > 0;
    let runs = options.stress.map(|it| it as usize);
    let progress = runs.map(|it| Progress::new(Some(it), "runs with delays", is_silent));
    let on_stress_run = |done: usize| progress.iter().for_each(|it| it.set(done));
    let job = gpu::GpuJob {
        world,
        inputs: &wanted.inputs,
        expectations: &wanted.expected,
        criteria: options.criteria(wanted.exact, true, &wanted.inputs),
        compares: !options.expect.is_empty() || options.reference.is_some(),
        watch: &watch,
        gathered: &gathered,
        tune: (options.tune.is_some() && options.tune_passes.is_empty()).then(|| tune_options(options)),
        bench: (iterations > 0).then_some(gpu::Bench { warmup, iterations }),
        stress: options.stress.map(|runs| gpu::Stress { runs: runs as usize, seed }),
        issue: options.issue(),
        on_stress_run: &on_stress_run,
        profile_host: options.profile_host,
        measures_times: options.timelines.is_requested(),
    };
    let ran = gpu::run(&job, engine, member, &mut |note| say(Report::Note(note)))
        .inspect_err(|failure| abort_job(member, failure))
        .map_err(|failure| match failure {
            JobFailure::Executor(ExecutorError::LoopLimit { rank, line, place }) => {
                let (code, message) = (Some(Code::LoopLimit), LOOP_LIMIT.to_owned());
                task.fault(SimError::Program { code, rank, line, place, message }, None)
            }
            other => other,
        })?;
    progress.iter().for_each(Progress::finish);
    // From here on no rank waits for another: a failure determines the exit code of all ranks, and the job
    // continues.
    output::write_outputs(world, &ran.outcome, &options.output, Some(rank), say)?;
    if rank > 0 {
        return Ok(RunVerdict::without_line(ran.verdict.exit));
    }
    if let (Some(path), Some(machine), Some(found)) = (&options.tune, &machine, &ran.tuning) {
        let rounds = tune_options(options).rounds;
        tuning::report(found, rounds, ran.is_replayed).into_iter().for_each(|it| say(Report::Note(it)));
        // Algorithms that give wrong results are not stored.
        let notes = if ran.verdict.is_right() {
            tuning::store_algorithms(&task.setup.session.files, path, (machine, world.len()), found)?
        } else {
            let shown = path.display();
            vec![format!("`{shown}` is not written: the outputs are wrong with these algorithms")]
        };
        notes.into_iter().for_each(|it| say(Report::Note(it)));
    }
    if let Some((timing, lines)) = &ran.timing {
        timing_report::timing_table(timing, lines, world).into_iter().for_each(&mut *say);
    }
    if let Some(times) = &ran.times {
        let notes =
            options.timelines.write_measured(world, names, &gpu::measured_times(times), times.error)?;
        notes.into_lines().for_each(|it| say(Report::Note(it)));
    }
    if let Some(host) = &ran.host {
        timing_report::host_table(host, world.len()).into_iter().for_each(&mut *say);
        say(timing_report::phase_summary(&member.phase_durations()));
    }
    let mut facts = timing_report::json(&ran, world.len());
    if options.json.is_some() {
        facts.insert("machine".to_owned(), timing_report::machine_json(engine)?);
    }
    let median = ran.timing.as_ref().map(|(timing, _)| timing.quantile(0.5));
    let measured = Measured { median, machine, capture_obstacle: ran.capture_obstacle };
    Ok(RunVerdict { measured, facts, ..print_outputs(ran.verdict, say) })
}

/// Number of timed runs of an algorithm if `-n` is not given.
const TUNING_ROUNDS: usize = 20;

/// Returns how `--tune` measures.
fn tune_options(options: &Options) -> TuneOptions {
    let rounds = if options.iters > 0 { options.iters } else { TUNING_ROUNDS };
    TuneOptions { warmup: options.warmup, rounds, graph: !options.step_by_step }
}

/// Tells the other ranks that this rank has failed, so that they do not wait for it.
fn abort_job(member: &JobRank, failure: &JobFailure) {
    // The report names this rank.
    let reason = match failure {
        JobFailure::Executor(fault) => fault.without_rank(),
        // That rank ends the job.
        JobFailure::OtherRank { .. } => return,
        other => other.to_string(),
    };
    member.give_up(exit_code(failure), &reason);
}
