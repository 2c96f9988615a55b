//! One rank's part of a job on GPUs: run, judge, time. All ranks run their plans; rank 0 gathers the outputs and judges.

use std::sync::Arc;

use super::{
    distributed_check,
    prepare::JobFailure,
    verdict::{self, Criteria, Expectation, OutputVerdict},
};
use crate::{
    cuda::{
        self, CudaError, Engine, HostProfile, LineProfile, ProcessGroup, Timing,
        buffer_assignment::BufferAssignment,
    },
    exit::Exit,
    io::{data::Data, dense::DenseTensor},
    launch::{
        LaunchError,
        job_rank::JobRank,
        progress::{PhaseLimit, PlanProgress},
    },
    plan::{InstKind, Plan, View, ViewOnRank},
    sim::SimOutcome,
};

/// What a job on GPUs is asked for.
pub struct GpuJob<'a> {
    /// The plans of all ranks.
    pub plans: &'a Arc<Vec<Plan>>,
    /// Every rank's part of every input.
    pub inputs: &'a [Vec<Data>],
    /// What outputs are compared with; only rank 0 looks at them.
    pub expectations: &'a [Expectation],
    /// What decides how near outputs have to be.
    pub criteria: Criteria,
    /// Whether any rank has something that outputs are compared with.
    pub compares: bool,
    /// Tensors that this rank wants besides the outputs.
    pub watch: &'a [ViewOnRank],
    /// Tensors that rank 0 wants, of all ranks; all ranks know them.
    pub gathered: &'a [ViewOnRank],
    /// Timed runs.
    pub bench: Option<Bench>,
    /// Runs with streams held back, compared with each other.
    pub stress: Option<Stress>,
    /// Whether to find out what issuing costs the host, and whether that is the host of a captured plan as well.
    pub profile_host: Option<bool>,
}

impl GpuJob<'_> {
    /// Whether each rank keeps its own outputs.
    fn keeps_outputs_distributed(&self) -> bool {
        !self.compares && distributed_check::exceeds_gather_limit(self.plans)
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Runs before those that count.
    pub warmup: usize,
    /// Runs that count.
    pub iterations: usize,
    /// Whether the plan is captured as a graph.
    pub graph: bool,
}

/// Runs that are compared with the one that was judged.
#[derive(Clone, Copy, Debug)]
pub struct Stress {
    /// How many.
    pub runs: usize,
    /// What delays are drawn from.
    pub seed: u64,
    /// Whether the plan is captured as a graph.
    pub graph: bool,
}

/// What a job has come to.
pub struct GpuRunResult {
    /// The verdict; on other ranks than 0 only its exit code and line are set.
    pub verdict: OutputVerdict,
    /// What all ranks hold; on other ranks than 0, what they themselves want.
    pub outcome: SimOutcome,
    /// Times, if asked for: of whole runs, and of lines.
    pub timing: Option<(Timing, Vec<LineProfile>)>,
    /// What issuing costs the host, if asked for.
    pub host: Option<HostProfile>,
}

impl ProcessGroup for JobRank {
    fn rank(&self) -> usize {
        self.channel.rank
    }

    fn world(&self) -> usize {
        self.channel.world
    }

    fn local_rank(&self) -> usize {
        self.channel.local_rank
    }

    // A job that has lost a rank is ended by its watchdog; until then this is why nothing goes on.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CudaError> {
        self.channel.all_gather(mine).map_err(|fault| CudaError::Environment(fault.to_string()))
    }

    fn barrier(&self) -> Result<(), CudaError> {
        self.channel.barrier().map_err(|fault| CudaError::Environment(fault.to_string()))
    }

    fn report_phase(&self, what: &str) {
        self.set_phase_with_limit(what, PhaseLimit::Startup);
    }
}

impl From<LaunchError> for JobFailure {
    fn from(fault: LaunchError) -> Self {
        Self::Other(fault.exit().into(), fault.to_string())
    }
}

impl From<CudaError> for JobFailure {
    fn from(error: CudaError) -> Self {
        let exit = match &error {
            CudaError::Environment(_) | CudaError::OutOfMemory { .. } => Exit::Environment,
            CudaError::Call { .. } => Exit::Device,
            CudaError::Unsupported { .. } => Exit::Rejected,
            CudaError::Internal(_) => Exit::InternalError,
        };
        Self::Other(exit, error.to_string())
    }
}

/// Whether GPUs may run plans that the simulator can run as well, or why not; the same on all ranks.
///
/// # Errors
/// Why not.
pub fn check_gpu_support(plans: &[Plan], peers: &dyn ProcessGroup) -> Result<(), String> {
    let reshards = |plan: &Plan| plan.code.iter().any(|it| matches!(it.kind, InstKind::Reshard(_)));
    if plans.iter().any(reshards) {
        return Err("the program has resharding operators that are not lowered".to_owned());
    }
    match (plans.len(), peers.world()) {
        (ranks, world) if ranks == world => Ok(()),
        (ranks, 1) => Err(match cuda::device_names() {
            Err(fault) => fault.to_string(),
            Ok(gpus) if gpus.len() < ranks => {
                format!("{ranks} ranks want a GPU each, this host has {}", gpus.len())
            }
            Ok(_) => format!("`--ranks {ranks}`, or a launcher, would run its {ranks} ranks on GPUs"),
        }),
        (ranks, world) => Err(format!("{ranks} ranks in {world} processes")),
    }
}

/// The memory of all ranks for people.
///
/// # Errors
/// A buffer without a size.
pub fn memory_report(plans: &[Plan]) -> Result<Vec<String>, JobFailure> {
    let layout = BufferAssignment::of(plans).map_err(|(rank, buffer)| {
        let name = &plans[rank].buffers[buffer as usize].name;
        JobFailure::Other(Exit::Rejected, format!("rank {rank}: `{name}` has no size in bytes"))
    })?;
    let mut lines: Vec<String> = Vec::new();
    let mut shown: Vec<String> = Vec::new();
    for plan in plans {
        let mut rank = layout.describe(plan);
        let sums = rank.pop();
        // Ranks of one program mostly have one layout.
        if rank != shown {
            lines.extend(rank.iter().cloned());
            shown = rank;
        }
        lines.extend(sums);
    }
    Ok(lines)
}

/// Runs this rank's plan, once for the verdict and then timed, if asked for; `say` gets commentary.
///
/// # Errors
/// What `Engine` and `judge` find.
pub fn run(
    job: &GpuJob<'_>,
    engine: &mut Engine,
    member: &JobRank,
    say: &mut dyn FnMut(String),
) -> Result<GpuRunResult, JobFailure> {
    let peers: &dyn ProcessGroup = member;
    let progress = engine.progress();
    member.report_plan_progress(Arc::clone(job.plans), move || {
        let (round, issued) = progress.issued_inst()?;
        let complete = progress.completed_runs();
        Some(PlanProgress {
            round,
            completed_rounds: complete,
            issued,
            streams: progress.stream_positions(),
            queues: progress.communicator_positions(),
        })
    });
    engine.notes().into_iter().for_each(&mut *say);
    member.set_phase_with_limit("putting its inputs into memory", PhaseLimit::Timeout);
    engine.load_inputs(&job.inputs[peers.rank()], peers)?;
    let mine = engine.run()?;
    member.set_phase("giving its outputs to rank 0");
    let (mut outcome, mut verdict) = gather_and_judge(job, mine, member)?;
    if job.keeps_outputs_distributed() {
        say("large outputs stay on their ranks; those that hold the same part agree by digest".to_owned());
    }
    if job.bench.is_none() || verdict.exit != Exit::Success {
        outcome.watched = read_watched(job, engine, member)?;
    }
    let (mut timing, mut host) = (None, None);
    if let Some(bench) = job.bench.filter(|_| verdict.exit == Exit::Success) {
        member.set_phase_with_limit("putting its inputs into memory", PhaseLimit::Timeout);
        engine.load_inputs(&job.inputs[peers.rank()], peers)?;
        member.set_phase_with_limit("preparing timed runs", PhaseLimit::Timeout);
        let (times, mine) = engine.time(peers, bench.warmup, bench.iterations, bench.graph)?;
        // The last of the timed runs has to be right as well.
        member.set_phase("giving its outputs to rank 0");
        (outcome, verdict) = gather_and_judge(job, mine, member)?;
        outcome.watched = read_watched(job, engine, member)?;
        timing = Some((times, engine.profile_lines(peers)?));
    }
    if let Some(Stress { runs, seed, graph }) = job.stress.filter(|_| verdict.exit == Exit::Success) {
        member.set_phase_with_limit("putting its inputs into memory", PhaseLimit::Timeout);
        engine.load_inputs(&job.inputs[peers.rank()], peers)?;
        member.set_phase_with_limit("preparing runs with delays", PhaseLimit::Timeout);
        match engine.stress(peers, runs, seed, graph)? {
            None => say(format!("{runs} runs with delays: outputs equal bit by bit on all ranks")),
            Some(difference) => {
                let line = format!("[FAILED] {difference}");
                verdict = OutputVerdict { exit: Exit::WrongResult, line, ..verdict };
            }
        }
    }
    // What leaves garbage behind comes last.
    if let Some(graph) = job.profile_host.filter(|_| verdict.exit == Exit::Success) {
        member.set_phase_with_limit("timing its host", PhaseLimit::Timeout);
        host = Some(engine.profile_host(peers, graph)?);
    }
    Ok(GpuRunResult { verdict, outcome, timing, host })
}

/// Brings the outputs together and judges them.
fn gather_and_judge(
    job: &GpuJob<'_>,
    mine: Vec<Option<DenseTensor>>,
    member: &JobRank,
) -> Result<(SimOutcome, OutputVerdict), JobFailure> {
    if job.keeps_outputs_distributed() {
        return Ok((
            SimOutcome::new(job.plans),
            distributed_check::judge_distributed(job.plans, &mine, member)?,
        ));
    }
    let outcome = gather(job.plans, mine, member)?;
    let verdict = judge_on_rank0(job, &outcome, member)?;
    Ok((outcome, verdict))
}

/// All ranks' outputs, on rank 0.
fn gather(
    plans: &[Plan],
    mine: Vec<Option<DenseTensor>>,
    member: &JobRank,
) -> Result<SimOutcome, JobFailure> {
    let mut outcome = SimOutcome::new(plans);
    if member.channel.world == 1 {
        outcome.outputs = vec![mine];
        return Ok(outcome);
    }
    let mut bytes = Vec::new();
    for block in mine.iter().flatten() {
        bytes.extend_from_slice(cuda::bytes_of(&block.data));
    }
    let size = |plan: &Plan| -> usize {
        let held = plan.outputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.len() * it.dtype.size()));
        held.sum()
    };
    let sizes: Vec<usize> = plans.iter().map(size).collect();
    let all = member.channel.gather(bytes, &sizes)?;
    for (plan, bytes) in plans.iter().zip(all) {
        let mut rest = bytes.as_slice();
        for (at, port) in plan.outputs.iter().enumerate() {
            let Some(view) = &port.shard.view else { continue };
            let size = view.len() * port.dtype.size();
            let part = rest.split_off(..size).ok_or_else(|| {
                let message = format!("rank {} gave too few bytes of {}", plan.rank, port.name);
                JobFailure::Other(Exit::InternalError, message)
            })?;
            let data = cuda::data_of(port.dtype, part)
                .map_err(|it| JobFailure::Other(Exit::Rejected, it.to_string()))?;
            outcome.outputs[plan.rank][at] = Some(DenseTensor::full(view.shape.clone(), data));
        }
    }
    Ok(outcome)
}

/// The tensors that this rank wants besides the outputs; rank 0 gets those of others from them.
fn read_watched(job: &GpuJob<'_>, engine: &Engine, member: &JobRank) -> Result<Vec<DenseTensor>, JobFailure> {
    let me = member.channel.rank;
    let here = |places: &[ViewOnRank]| -> Result<Vec<DenseTensor>, CudaError> {
        let views: Vec<&View> = places.iter().filter(|it| it.rank == me).map(|it| &it.view).collect();
        engine.read_views(&views)
    };
    if job.gathered.is_empty() {
        return Ok(here(job.watch)?);
    }
    let mut bytes = Vec::new();
    for block in here(job.gathered)? {
        bytes.extend_from_slice(cuda::bytes_of(&block.data));
    }
    let mut sizes = vec![0; job.plans.len()];
    for place in job.gathered {
        let dtype = job.plans[place.rank].buffers[place.view.buffer as usize].dtype;
        sizes[place.rank] += place.view.len() * dtype.size();
    }
    let all = member.channel.gather(bytes, &sizes)?;
    if me > 0 {
        return Ok(here(job.watch)?);
    }
    let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let mut blocks = Vec::new();
    for place in job.gathered {
        let dtype = job.plans[place.rank].buffers[place.view.buffer as usize].dtype;
        let part = rests.get_mut(place.rank).and_then(|it| it.split_off(..place.view.len() * dtype.size()));
        let Some(part) = part else {
            return Err(JobFailure::Other(
                Exit::InternalError,
                format!("rank {} gave too few bytes", place.rank),
            ));
        };
        let data =
            cuda::data_of(dtype, part).map_err(|it| JobFailure::Other(Exit::Rejected, it.to_string()))?;
        blocks.push(DenseTensor::full(place.view.shape.clone(), data));
    }
    Ok(blocks)
}

/// Rank 0 judges and tells the others.
fn judge_on_rank0(
    job: &GpuJob<'_>,
    outcome: &SimOutcome,
    member: &JobRank,
) -> Result<OutputVerdict, JobFailure> {
    let peers: &dyn ProcessGroup = member;
    if peers.rank() > 0 {
        member.set_phase("done, rank 0 judges the outputs");
        let told = peers.all_gather(&[])?;
        let exit = match told.first().and_then(|it| it.first()) {
            Some(0) => Exit::Success,
            Some(_) | None => Exit::WrongResult,
        };
        return Ok(OutputVerdict { exit, line: String::new(), outputs: Vec::new(), wrong_output: None });
    }
    member.set_phase("judging the outputs");
    let judged = verdict::judge_outputs(job.plans, outcome, job.expectations, &job.criteria);
    let exit = judged.as_ref().map_or(Exit::InternalError, |it| it.exit);
    peers.all_gather(&[exit as u8])?;
    Ok(judged?)
}
