//! Runs one rank's part of a job on GPUs. All ranks run their plans; rank 0 gathers the outputs and judges
//! them.

use std::sync::Arc;

use super::{distributed_check, lost_job::report_with_plans};
use crate::{
    run::{
        RunError,
        command_line::Issue,
        failure::{JobFailure, Result},
        verdict::{self, Criteria, Expectation, OutputVerdict},
    },
    session::Verdict,
};
use hir_executor::{
    Executor, ExecutorError, HostProfile, InstTime, LineProfile, ProcessGroup, RunTimes, Timing, TuneOptions,
    Tuning, WarmUp, backend,
};
use hir_launch::{
    job_rank::JobRank,
    progress::{PhaseLimit, PlanProgress},
};
use hir_plan::{Plan, View, ViewOnRank, World, timeline::estimate::MeasuredTime};
use hir_process::exit::{Exit, FailureExit};
use hir_sim::SimOutcome;
use hir_tensor::{
    data::{
        Data,
        bytes::{little_endian, of_little_endian},
    },
    dense::DenseTensor,
};

/// The parameters of a job on GPUs.
pub struct GpuJob<'a> {
    /// The plans of all ranks.
    pub world: &'a Arc<World>,
    /// The inputs of this rank, and of other ranks if they are needed, by rank and input.
    pub inputs: &'a [Vec<Arc<Data>>],
    /// The tensors that outputs are compared with. Only rank 0 uses them.
    pub expectations: &'a [Expectation],
    /// The criteria by which rank 0 compares.
    pub criteria: Criteria,
    /// True if outputs are compared with anything, on any rank.
    pub compares: bool,
    /// Tensors besides the outputs that this rank reads back.
    pub watch: &'a [ViewOnRank],
    /// Tensors that rank 0 gathers from all ranks. All ranks have the same list.
    pub gathered: &'a [ViewOnRank],
    /// How the algorithms of matrix products are measured, if requested.
    pub tune: Option<TuneOptions>,
    /// Parameters of timed runs.
    pub bench: Option<Bench>,
    /// Parameters of runs with random delays, whose outputs are compared with each other.
    pub stress: Option<Stress>,
    /// How the runs after the first one are issued.
    pub issue: Issue,
    /// Called with the number of runs with random delays that are done.
    pub on_stress_run: &'a dyn Fn(usize),
    /// True to profile the host's cost of issuing the plan.
    pub profile_host: bool,
    /// True to measure when the commands of a run execute.
    pub measures_times: bool,
}

impl GpuJob<'_> {
    /// Returns true if each rank keeps its own outputs.
    fn keeps_outputs_distributed(&self) -> bool {
        !self.compares && distributed_check::exceeds_gather_limit(self.world)
    }

    /// Returns whether runs are measured, which are replays by default.
    fn measures(&self) -> bool {
        self.bench.is_some() || self.tune.is_some() || self.profile_host
    }
}

/// Parameters of timed runs.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// The runs before the timed ones.
    pub warmup: WarmUp,
    /// Number of timed runs.
    pub iterations: usize,
}

/// Parameters of runs with random delays.
#[derive(Clone, Copy, Debug)]
pub struct Stress {
    /// Number of runs.
    pub runs: usize,
    /// Seed of the delays.
    pub seed: u64,
}

/// The result of a job on GPUs.
pub struct GpuRunResult {
    /// The verdict. On ranks other than 0 only the exit code and the line are set.
    pub verdict: OutputVerdict,
    /// The outputs of all ranks on rank 0; on other ranks, only the tensors in `watch`.
    pub outcome: SimOutcome,
    /// The times of whole runs and of lines, if requested.
    pub timing: Option<(Timing, Vec<LineProfile>)>,
    /// The measured algorithms of matrix products, if requested.
    pub tuning: Option<Tuning>,
    /// The cost of issuing the plan on the host, if requested.
    pub host: Option<HostProfile>,
    /// When the commands of a run executed, if requested.
    pub times: Option<RunTimes>,
    /// Whether the runs after the first one were replays of a captured graph.
    pub is_replayed: bool,
    /// Why they were not, if the plan cannot be captured.
    pub capture_obstacle: Option<String>,
}

/// The ranks of a job, as the executor of GPUs knows them.
#[derive(Clone, Copy)]
pub struct JobGroup<'a>(pub &'a JobRank);

impl ProcessGroup for JobGroup<'_> {
    fn rank(&self) -> usize {
        self.0.channel.rank
    }

    fn world(&self) -> usize {
        self.0.channel.world
    }

    fn local_rank(&self) -> Option<usize> {
        self.0.channel.local_rank
    }

    // The watchdog ends a job that has lost a rank. Until then, this error stops the rank.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExecutorError> {
        self.0.channel.all_gather(mine).map_err(|fault| ExecutorError::Environment(fault.to_string()))
    }

    fn barrier(&self) -> Result<(), ExecutorError> {
        self.0.channel.barrier().map_err(|fault| ExecutorError::Environment(fault.to_string()))
    }

    fn report_phase(&self, what: &str) {
        self.0.set_phase_with_limit(what, PhaseLimit::Startup);
    }
}

/// Returns the times of a run, by rank, as a timeline needs them.
pub fn measured_times(times: &RunTimes) -> Vec<Vec<MeasuredTime>> {
    let time = |it: &InstTime| MeasuredTime { inst: it.inst, begin: it.begin, end: it.end };
    times.ranks.iter().map(|it| it.iter().map(time).collect()).collect()
}

/// Why the simulator runs a program instead of GPUs.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorReason {
    /// The options ask for it.
    #[error("--device=sim")]
    Requested,
    /// The options ask for a schedule.
    #[error("GPUs do not support `--schedule`")]
    Schedule,
    /// The program is not lowered.
    #[error("the program has resharding operators that are not lowered")]
    NotLowered,
    /// The host has too few GPUs.
    #[error("{ranks} ranks need one GPU each, but this host has {gpus}")]
    FewGpus {
        /// The number of ranks.
        ranks: usize,
        /// The number of GPUs.
        gpus: usize,
    },
    /// This process would have to start the ranks.
    #[error("to run on GPUs, use `--ranks {0}` or a launcher")]
    NotLaunched(usize),
    /// The number of processes is not that of the ranks.
    #[error("{ranks} ranks cannot run in {processes} processes")]
    Processes {
        /// The number of ranks.
        ranks: usize,
        /// The number of processes.
        processes: usize,
    },
    /// The GPUs, or the executor on them, refuse.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
}

/// Checks that GPUs can run these plans. All ranks get the same result.
///
/// # Errors
/// The reason why the simulator must run them.
pub fn check_gpu_support(plans: &[Plan], peers: &dyn ProcessGroup) -> Result<(), SimulatorReason> {
    if plans.iter().any(Plan::reshards) {
        return Err(SimulatorReason::NotLowered);
    }
    match (plans.len(), peers.world()) {
        (ranks, world) if ranks == world => Ok(()),
        (ranks, 1) => Err(match backend().and_then(|it| it.device_names()) {
            Err(fault) => fault.into(),
            Ok(gpus) if gpus.len() < ranks => SimulatorReason::FewGpus { ranks, gpus: gpus.len() },
            Ok(_) => SimulatorReason::NotLaunched(ranks),
        }),
        (ranks, processes) => Err(SimulatorReason::Processes { ranks, processes }),
    }
}

/// Runs this rank's plan once for the verdict, and then the requested other runs. `say` prints notes.
///
/// # Errors
/// Errors of the engine, of the channel between ranks, or of the comparison.
pub fn run(
    job: &GpuJob<'_>,
    engine: &mut dyn Executor,
    member: &JobRank,
    say: &mut dyn FnMut(String),
) -> Result<GpuRunResult> {
    let peers: &dyn ProcessGroup = &JobGroup(member);
    let progress = engine.progress();
    member.report_plan_progress(report_with_plans(Arc::clone(job.world)), move || {
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
    let capture_obstacle = match job.issue {
        Issue::Default => engine.capture_obstacle().filter(|_| job.measures()).map(|it| it.to_string()),
        // A plan that has to be captured was refused before.
        Issue::Graph | Issue::StepByStep => None,
    };
    let is_replayed = job.issue != Issue::StepByStep && capture_obstacle.is_none();
    if let Some(why) = &capture_obstacle {
        say(format!(
            "the plan cannot be replayed as a CUDA graph, so all runs are issued step by step: {why}"
        ));
    }
    member.set_phase_with_limit("copying its inputs to the GPU", PhaseLimit::Timeout);
    engine.load_inputs(&job.inputs[peers.rank()], peers)?;
    let mine = engine.run()?;
    member.set_phase("sending its outputs to rank 0");
    let (mut outcome, mut verdict) = gather_and_judge(job, mine, member)?;
    if job.keeps_outputs_distributed() {
        say("large outputs stay on their ranks; replicated parts are compared by digest".to_owned());
    }
    let mut tuning = None;
    if let Some(options) = job.tune.filter(|_| verdict.is_right()) {
        let on_product = |done: usize, all: usize| {
            let phase = format!("measuring algorithms of matrix products, {done} of {all} done");
            member.set_phase_with_limit(&phase, PhaseLimit::Timeout);
        };
        tuning = Some(engine.tune(peers, TuneOptions { graph: is_replayed, ..options }, &on_product)?);
        // The chosen algorithms must give correct outputs.
        member.set_phase_with_limit("copying its inputs to the GPU", PhaseLimit::Timeout);
        engine.load_inputs(&job.inputs[peers.rank()], peers)?;
        let mine = engine.run()?;
        member.set_phase("sending its outputs to rank 0");
        (outcome, verdict) = gather_and_judge(job, mine, member)?;
    }
    if job.bench.is_none() || !verdict.is_right() {
        outcome.watched = read_watched(job, engine, member)?;
    }
    let (mut timing, mut host) = (None, None);
    if let Some(bench) = job.bench.filter(|_| verdict.is_right()) {
        member.set_phase_with_limit("copying its inputs to the GPU", PhaseLimit::Timeout);
        engine.load_inputs(&job.inputs[peers.rank()], peers)?;
        member.set_phase_with_limit("preparing timed runs", PhaseLimit::Timeout);
        let ran = engine.time(peers, bench.warmup, bench.iterations, is_replayed)?;
        // The outputs of the last timed run must be correct as well, and those of the first run.
        member.set_phase("sending its outputs to rank 0");
        (outcome, verdict) = gather_and_judge(job, ran.outputs, member)?;
        if let Some(difference) = ran.difference.filter(|_| verdict.is_right()) {
            verdict = with_difference(verdict, difference);
        }
        outcome.watched = read_watched(job, engine, member)?;
        timing = Some((ran.timing, engine.profile_lines(peers)?));
    }
    if let Some(Stress { runs, seed }) = job.stress.filter(|_| verdict.is_right()) {
        member.set_phase_with_limit("copying its inputs to the GPU", PhaseLimit::Timeout);
        engine.load_inputs(&job.inputs[peers.rank()], peers)?;
        member.set_phase_with_limit("preparing runs with delays", PhaseLimit::Timeout);
        // On emulated GPUs, replays do not show that `tests/cases/cuda/data-of-the-run-before.hir` is wrong, and these runs do.
        match engine.stress(peers, runs, seed, job.issue == Issue::Graph, job.on_stress_run)? {
            None => say(format!("{runs} runs with delays: outputs bitwise equal on all ranks")),
            Some(difference) => verdict = with_difference(verdict, difference),
        }
    }
    let mut run_times = None;
    if job.measures_times && verdict.is_right() {
        member.set_phase_with_limit("measuring a timeline", PhaseLimit::Timeout);
        engine.load_inputs(&job.inputs[peers.rank()], peers)?;
        run_times = Some(engine.measure_times(peers)?);
    }
    // Profiling leaves undefined outputs behind, so it comes last.
    if job.profile_host && verdict.is_right() {
        member.set_phase_with_limit("profiling its host", PhaseLimit::Timeout);
        host = Some(engine.profile_host(peers, is_replayed)?);
    }
    let times = run_times;
    Ok(GpuRunResult { verdict, outcome, timing, tuning, host, times, is_replayed, capture_obstacle })
}

/// Returns the verdict on outputs that differ from those of an earlier run with the same inputs.
fn with_difference(verdict: OutputVerdict, difference: String) -> OutputVerdict {
    OutputVerdict { exit: Exit::WrongResult, line: Verdict::failed(difference), ..verdict }
}

/// Gathers the outputs and judges them.
fn gather_and_judge(
    job: &GpuJob<'_>,
    mine: Vec<Option<DenseTensor>>,
    member: &JobRank,
) -> Result<(SimOutcome, OutputVerdict)> {
    if job.keeps_outputs_distributed() {
        return Ok((
            SimOutcome::new(job.world),
            distributed_check::judge_distributed(job.world, &mine, &JobGroup(member))?,
        ));
    }
    let outcome = gather(job.world, mine, member)?;
    let verdict = judge_on_rank0(job, &outcome, member)?;
    Ok((outcome, verdict))
}

/// Returns the outputs of all ranks on rank 0.
fn gather(plans: &[Plan], mine: Vec<Option<DenseTensor>>, member: &JobRank) -> Result<SimOutcome> {
    let mut outcome = SimOutcome::new(plans);
    if member.channel.world == 1 {
        outcome.outputs = vec![mine.into_iter().map(|it| it.map(Arc::new)).collect()];
        return Ok(outcome);
    }
    let mut bytes = Vec::new();
    for block in mine.iter().flatten() {
        bytes.extend(little_endian(&block.data));
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
                let message = format!("rank {} sent too few bytes of {}", plan.rank, port.name);
                JobFailure::Internal(message)
            })?;
            let data = of_little_endian(port.dtype, part).map_err(RunError::Dtype)?;
            outcome.outputs[plan.rank][at] = Some(Arc::new(DenseTensor::full(view.shape.clone(), data)));
        }
    }
    Ok(outcome)
}

/// Returns the tensors in `job.watch`. Rank 0 also receives the tensors of other ranks.
fn read_watched(job: &GpuJob<'_>, engine: &dyn Executor, member: &JobRank) -> Result<Vec<DenseTensor>> {
    let me = member.channel.rank;
    let here = |places: &[ViewOnRank]| -> Result<Vec<DenseTensor>, ExecutorError> {
        let views: Vec<&View> = places.iter().filter(|it| it.rank == me).map(|it| &it.view).collect();
        engine.read_views(&views)
    };
    if job.gathered.is_empty() {
        return Ok(here(job.watch)?);
    }
    let mut bytes = Vec::new();
    for block in here(job.gathered)? {
        bytes.extend(little_endian(&block.data));
    }
    let mut sizes = vec![0; job.world.len()];
    for place in job.gathered {
        let dtype = job.world[place.rank].buffers[place.view.buffer as usize].dtype;
        sizes[place.rank] += place.view.len() * dtype.size();
    }
    let all = member.channel.gather(bytes, &sizes)?;
    if me > 0 {
        return Ok(here(job.watch)?);
    }
    let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let mut blocks = Vec::new();
    for place in job.gathered {
        let dtype = job.world[place.rank].buffers[place.view.buffer as usize].dtype;
        let part = rests.get_mut(place.rank).and_then(|it| it.split_off(..place.view.len() * dtype.size()));
        let Some(part) = part else {
            return Err(JobFailure::Internal(format!("rank {} sent too few bytes", place.rank)));
        };
        let data = of_little_endian(dtype, part).map_err(RunError::Dtype)?;
        blocks.push(DenseTensor::full(place.view.shape.clone(), data));
    }
    Ok(blocks)
}

/// Judges the outputs on rank 0, which sends to the other ranks whether they are right, or why it cannot judge them.
fn judge_on_rank0(job: &GpuJob<'_>, outcome: &SimOutcome, member: &JobRank) -> Result<OutputVerdict> {
    if member.channel.rank > 0 {
        member.set_phase("waiting for rank 0 to judge the outputs");
        let results = member.channel.all_gather_values::<Option<Judged>>(&None)?;
        return match results.into_iter().next().flatten() {
            Some(Ok(exit)) => Ok(OutputVerdict::without_outputs(exit, "")),
            // Parts of an output that do not fit together are a bug.
            Some(Err(summary)) => {
                Err(JobFailure::OtherRank { rank: 0, exit: FailureExit::INTERNAL_ERROR, summary })
            }
            None => Err(JobFailure::Internal("rank 0 judged no outputs".to_owned())),
        };
    }
    member.set_phase("judging the outputs");
    let judged = verdict::judge_outputs(job.world, outcome, job.expectations, &job.criteria);
    let judged = judged.map_err(JobFailure::from);
    let result: Judged = match &judged {
        Ok(it) => Ok(it.exit),
        Err(failure) => Err(failure.summary()),
    };
    member.channel.all_gather_values(&Some(result))?;
    judged
}

/// The result of rank 0 for the outputs: its exit code, or why it cannot judge them.
type Judged = Result<Exit, String>;
