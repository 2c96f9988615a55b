//! One rank's part of a job on GPUs.

use hir::{
    atomic_file,
    cuda::{self, CudaError, Engine, Gpu},
    exit::Exit,
    io::data::Data,
    launch::job_rank::JobRank,
    plan::{Plan, sync},
    run::{
        gpu,
        inputs::InputSpec,
        output,
        prepare::JobFailure,
        rank_process::RunVerdict,
        timing_report,
        unwritten::UnwrittenReads,
        verdict::{self, Expectation},
    },
    sim::Schedule,
};

use crate::{
    options::{Device, Expect, Options},
    task::{Task, print_outputs},
};

/// Whether a process without a launcher starts one for each rank: where GPUs were asked for, or there are enough.
pub fn should_spawn_ranks(options: &Options) -> bool {
    let Some(ranks) = options.ranks.filter(|it| (2..=options.max_ranks).contains(it) && !options.memory)
    else {
        return false;
    };
    match options.device() {
        Device::Sim => false,
        Device::Cuda => true,
        // Standard input is for one process.
        Device::Auto => {
            options.schedule.is_program()
                && options.file.as_deref() != Some("-")
                && cuda::device_names().is_ok_and(|it| it.len() >= ranks)
        }
    }
}

/// The GPU that runs this rank's plan, the one that it has or one that is found now, or why the simulator does. All ranks
/// choose alike, and fail alike.
pub fn choose_gpu<'a>(
    options: &Options,
    plans: &[Plan],
    peers: &dyn cuda::ProcessGroup,
    gpu: &'a mut Option<Gpu>,
) -> Result<Result<&'a mut Gpu, String>, JobFailure> {
    match options.device() {
        Device::Sim => Ok(Err("it was asked for".to_owned())),
        Device::Cuda if plans.len() != peers.world() => {
            // What is missing altogether comes first.
            cuda::device_names()?;
            let (ranks, processes) = (plans.len(), peers.world());
            let message = format!(
                "{ranks} ranks on GPUs need as many processes, there are {processes}: use mpirun, torchrun or \
                 `--ranks {ranks}`"
            );
            Err(JobFailure::Other(Exit::Environment, message))
        }
        // What is missing here is told before anything is computed.
        Device::Cuda => Ok(Ok(get_or_init_gpu(gpu, peers)?)),
        Device::Auto if !options.schedule.is_program() => Ok(Err("only it has schedules".to_owned())),
        Device::Auto => Ok(gpu::check_gpu_support(plans, peers)
            .and_then(|()| get_or_init_gpu(gpu, peers).map_err(|it| it.to_string()))),
    }
}

/// The GPU that this rank has, or one that is found now.
fn get_or_init_gpu<'a>(
    gpu: &'a mut Option<Gpu>,
    peers: &dyn cuda::ProcessGroup,
) -> Result<&'a mut Gpu, CudaError> {
    match gpu {
        Some(it) => Ok(it),
        None => Ok(gpu.insert(cuda::assign_device(peers)?)),
    }
}

/// This rank's part of a job on GPUs; or why the simulator takes it, where that was left open. All ranks come to the same.
///
/// # Errors
/// What is missing or wrong, on whatever rank.
pub fn run(
    task: &Task<'_>,
    filling: InputSpec,
    (gpu, member): (&mut Gpu, &JobRank),
    say: &mut dyn FnMut(String),
) -> Result<Result<RunVerdict, String>, JobFailure> {
    // Here some of these programs would come to their ends: our hosts do not wait for each other. In the framework that the
    // program is for they hang.
    if let Some(deadlock) = sync::deadlock(task.plans) {
        return Err(JobFailure::Other(Exit::Hang, deadlock.to_string()));
    }
    let engine = match gpu.engine(task.plans, member) {
        Ok(engine) => engine,
        // All ranks refuse alike.
        Err(fault @ CudaError::Unsupported { .. }) if task.options.device() == Device::Auto => {
            return Ok(Err(fault.to_string()));
        }
        Err(fault @ (CudaError::Unsupported { .. } | CudaError::OutOfMemory { .. })) => {
            return Err(fault.into());
        }
        Err(fault) => {
            let failure = fault.into();
            abort_job(member, &failure);
            return Err(failure);
        }
    };
    let wanted = agree_on_setup(GpuRunSetup::of(task, filling, member), member)?;
    run_on_engine(engine, task, &wanted, member, say).map(Ok)
}

/// What a run on GPUs starts from and has to come to.
struct GpuRunSetup {
    /// By rank and input; what this process has no use for is empty.
    inputs: Vec<Vec<Data>>,
    expected: Vec<Expectation>,
    /// Whether the simulator has rounded nothing, where it was asked.
    exact: Option<bool>,
}

impl GpuRunSetup {
    fn of(task: &Task<'_>, mut filling: InputSpec, member: &JobRank) -> Result<Self, JobFailure> {
        let Task { options, plans, .. } = task;
        member.set_phase("making its inputs");
        let rank = member.channel.rank;
        let simulates = rank == 0 && options.expect.iter().any(|it| matches!(it, Expect::Sim));
        // Inputs of other ranks are made up only where they are needed.
        let inputs = filling.fill_ranks(plans, |it| simulates || it == rank)?;
        let (mut expected, mut exact) = (Vec::new(), None);
        if rank == 0 {
            member.set_phase("finding out what is expected");
            expected = task.expectations(&filling)?;
        }
        if simulates {
            task.check_memory()?;
            let (found, notes) = verdict::simulated_expectations(plans, inputs.clone(), "the simulator")?;
            expected.extend(found);
            exact = Some(notes.exactness.is_exact());
            let mut reads = UnwrittenReads::default();
            reads.add(plans, &notes, &Schedule::Program, task.prepared.sources.len());
            task.print_unwritten_warnings(&reads);
        }
        Ok(Self { inputs, expected, exact })
    }
}

/// What one rank lacks all ranks do not run without.
fn agree_on_setup(
    made: Result<GpuRunSetup, JobFailure>,
    member: &JobRank,
) -> Result<GpuRunSetup, JobFailure> {
    // Some ranks have much to compute for it, and the others may wait.
    member.set_phase("waiting for the other ranks' inputs");
    let (exit, message) = made.as_ref().map_or_else(JobFailure::summary, |_| (Exit::Success, String::new()));
    let all: Vec<(Exit, String)> = member.channel.all_gather_values(&(exit, message))?;
    let lacks = all.into_iter().enumerate().find(|(_, (exit, _))| *exit != Exit::Success);
    let lacks =
        lacks.map(|(rank, (exit, message))| JobFailure::Other(exit, format!("rank {rank}: {message}")));
    // Each tells what it lacks itself.
    made.and_then(|it| lacks.map_or(Ok(it), Err))
}

fn run_on_engine(
    engine: &mut Engine,
    task: &Task<'_>,
    wanted: &GpuRunSetup,
    member: &JobRank,
    say: &mut dyn FnMut(String),
) -> Result<RunVerdict, JobFailure> {
    let Task { options, plans, names, .. } = task;
    let rank = member.channel.rank;
    let (kind, seed) = (options.inputs, options.seed);
    say(format!("# {}: {} GPU ranks, inputs {kind} seed {seed}", names.join(", "), plans.len()));
    task.notes_on_parts().into_iter().for_each(&mut *say);
    let watch = output::watched_views(plans, &options.output, Some(rank))?;
    let gathered = output::watched_views(plans, &options.output, Some(0))?;
    let (warmup, iterations, graph) = (options.warmup, options.iters, options.cudagraph);
    let job = gpu::GpuJob {
        plans,
        inputs: &wanted.inputs,
        expectations: &wanted.expected,
        criteria: options.criteria(wanted.exact, true),
        compares: !options.expect.is_empty() || options.reference.is_some(),
        watch: &watch,
        gathered: &gathered,
        bench: (iterations > 0).then_some(gpu::Bench { warmup, iterations, graph }),
        stress: options.stress.map(|runs| gpu::Stress { runs: runs as usize, seed, graph }),
        profile_host: options.profile_host.then_some(graph),
    };
    let ran = gpu::run(&job, engine, member, &mut |note| say(format!("# {note}")))
        .inspect_err(|failure| abort_job(member, failure))?;
    // From here on no rank waits for another: what fails is the exit code of all, and the job goes on.
    output::write_outputs(plans, &ran.outcome, &options.output, Some(rank), say)?;
    if rank > 0 {
        return Ok(RunVerdict { exit: ran.verdict.exit, line: None, summary: String::new() });
    }
    if let Some((timing, lines)) = &ran.timing {
        timing_report::timing_table(timing, lines, plans).into_iter().for_each(&mut *say);
    }
    if let Some(host) = &ran.host {
        timing_report::host_table(host, plans.len()).into_iter().for_each(&mut *say);
        say(timing_report::phase_summary(&member.phase_durations()));
    }
    if let Some(path) = options.json.as_ref().filter(|_| ran.timing.is_some() || ran.host.is_some()) {
        let text = format!("{:#}\n", timing_report::json(&ran, plans, names));
        let message = |fault: std::io::Error| format!("cannot write {}: {fault}", path.display());
        atomic_file::write(path, text.as_bytes())
            .map_err(|it| JobFailure::Other(Exit::Environment, message(it)))?;
    }
    Ok(print_outputs(ran.verdict, say))
}

/// Others do not wait for a rank that fails.
fn abort_job(member: &JobRank, failure: &JobFailure) {
    match failure {
        JobFailure::Other(exit, message) => member.give_up(*exit, message),
        JobFailure::Rejected(..) => member.give_up(Exit::Rejected, &failure.summary().1),
    }
}
