//! One rank's part of a job on GPUs: run, judge, time. All ranks run their plans; rank 0 gathers the outputs and judges.

use std::sync::Arc;

use super::{
    apart,
    job::{self, Criteria, Expectation, Verdict},
    prepare::Failure,
};
use crate::{
    cuda::{self, CudaError, Engine, Host, Line, Peers, Timing, buffer_assignment::WorldLayout},
    exit::Exit,
    io::{data::Data, dense::DenseTensor},
    launch::{
        LaunchError,
        member::Member,
        progress::{Limit, Run},
    },
    plan::{InstKind, Place, Plan, View},
    sim::Outcome,
};

/// What a job on GPUs is asked for.
pub struct Job<'a> {
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
    pub watch: &'a [Place],
    /// Tensors that rank 0 wants, of all ranks; all ranks know them.
    pub gathered: &'a [Place],
    /// Timed runs.
    pub bench: Option<Bench>,
    /// Runs with streams held back, compared with each other.
    pub stress: Option<Stress>,
    /// Whether to find out what issuing costs the host, and whether that is the host of a captured plan as well.
    pub profile: Option<bool>,
}

impl Job<'_> {
    /// Whether each rank keeps its own outputs.
    fn stays(&self) -> bool {
        !self.compares && apart::is_large(self.plans)
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
pub struct Ran {
    /// The verdict; on other ranks than 0 only its exit code and line are set.
    pub verdict: Verdict,
    /// What all ranks hold; on other ranks than 0, what they themselves want.
    pub outcome: Outcome,
    /// Times, if asked for: of whole runs, and of lines.
    pub timing: Option<(Timing, Vec<Line>)>,
    /// What issuing costs the host, if asked for.
    pub host: Option<Host>,
}

impl Peers for Member {
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

    fn phase(&self, what: &str) {
        self.enter(what, Limit::Start);
    }
}

impl From<LaunchError> for Failure {
    fn from(fault: LaunchError) -> Self {
        Self::Other(fault.exit().into(), fault.to_string())
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        let exit = match &error {
            CudaError::Environment(_) | CudaError::OutOfMemory { .. } => Exit::Environment,
            CudaError::Call { .. } => Exit::Device,
            CudaError::Unsupported { .. } => Exit::Rejected,
            CudaError::Internal(_) => Exit::Bug,
        };
        Self::Other(exit, error.to_string())
    }
}

/// Whether GPUs may run plans that the simulator can run as well, or why not; the same on all ranks.
///
/// # Errors
/// Why not.
pub fn runs(plans: &[Plan], peers: &dyn Peers) -> Result<(), String> {
    let reshards = |plan: &Plan| plan.code.iter().any(|it| matches!(it.kind, InstKind::Reshard(_)));
    if plans.iter().any(reshards) {
        return Err("the program has resharding operators that are not lowered".to_owned());
    }
    match (plans.len(), peers.world()) {
        (ranks, world) if ranks == world => Ok(()),
        (ranks, 1) => Err(match cuda::devices() {
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
pub fn memory(plans: &[Plan]) -> Result<Vec<String>, Failure> {
    let layout = WorldLayout::of(plans).map_err(|(rank, buffer)| {
        let name = &plans[rank].buffers[buffer as usize].name;
        Failure::Other(Exit::Rejected, format!("rank {rank}: `{name}` has no size in bytes"))
    })?;
    let mut lines: Vec<String> = Vec::new();
    let mut shown: Vec<String> = Vec::new();
    for plan in plans {
        let mut rank = layout.show(plan);
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
    job: &Job<'_>,
    engine: &mut Engine,
    member: &Member,
    say: &mut dyn FnMut(String),
) -> Result<Ran, Failure> {
    let peers: &dyn Peers = member;
    let progress = engine.progress();
    member.watch(Arc::clone(job.plans), move || {
        let (round, issued) = progress.host()?;
        let complete = progress.complete();
        Some(Run { round, complete, issued, streams: progress.streams(), queues: progress.queues() })
    });
    engine.notes().into_iter().for_each(&mut *say);
    member.enter("putting its inputs into memory", Limit::Timeout);
    engine.fill(&job.inputs[peers.rank()], peers)?;
    let mine = engine.run()?;
    member.phase("giving its outputs to rank 0");
    let (mut outcome, mut verdict) = settle(job, mine, member)?;
    if job.stays() {
        say("large outputs stay on their ranks; those that hold the same part agree by digest".to_owned());
    }
    if job.bench.is_none() || verdict.exit != Exit::Success {
        outcome.watched = watched(job, engine, member)?;
    }
    let (mut timing, mut host) = (None, None);
    if let Some(bench) = job.bench.filter(|_| verdict.exit == Exit::Success) {
        member.enter("putting its inputs into memory", Limit::Timeout);
        engine.fill(&job.inputs[peers.rank()], peers)?;
        member.enter("preparing timed runs", Limit::Timeout);
        let (times, mine) = engine.time(peers, bench.warmup, bench.iterations, bench.graph)?;
        // The last of the timed runs has to be right as well.
        member.phase("giving its outputs to rank 0");
        (outcome, verdict) = settle(job, mine, member)?;
        outcome.watched = watched(job, engine, member)?;
        timing = Some((times, engine.lines(peers)?));
    }
    if let Some(Stress { runs, seed, graph }) = job.stress.filter(|_| verdict.exit == Exit::Success) {
        member.enter("putting its inputs into memory", Limit::Timeout);
        engine.fill(&job.inputs[peers.rank()], peers)?;
        member.enter("preparing runs with delays", Limit::Timeout);
        match engine.stress(peers, runs, seed, graph)? {
            None => say(format!("{runs} runs with delays: outputs equal bit by bit on all ranks")),
            Some(difference) => {
                let line = format!("[FAILED] {difference}");
                verdict = Verdict { exit: Exit::WrongResult, line, ..verdict };
            }
        }
    }
    // What leaves garbage behind comes last.
    if let Some(graph) = job.profile.filter(|_| verdict.exit == Exit::Success) {
        member.enter("timing its host", Limit::Timeout);
        host = Some(engine.profile(peers, graph)?);
    }
    Ok(Ran { verdict, outcome, timing, host })
}

/// Brings the outputs together and judges them.
fn settle(
    job: &Job<'_>,
    mine: Vec<Option<DenseTensor>>,
    member: &Member,
) -> Result<(Outcome, Verdict), Failure> {
    if job.stays() {
        return Ok((Outcome::new(job.plans), apart::judge(job.plans, &mine, member)?));
    }
    let outcome = gather(job.plans, mine, member)?;
    let verdict = judge(job, &outcome, member)?;
    Ok((outcome, verdict))
}

/// All ranks' outputs, on rank 0.
fn gather(plans: &[Plan], mine: Vec<Option<DenseTensor>>, member: &Member) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(plans);
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
                Failure::Other(Exit::Bug, message)
            })?;
            let data = cuda::data_of(port.dtype, part)
                .map_err(|it| Failure::Other(Exit::Rejected, it.to_string()))?;
            outcome.outputs[plan.rank][at] = Some(DenseTensor::full(view.shape.clone(), data));
        }
    }
    Ok(outcome)
}

/// The tensors that this rank wants besides the outputs; rank 0 gets those of others from them.
fn watched(job: &Job<'_>, engine: &Engine, member: &Member) -> Result<Vec<DenseTensor>, Failure> {
    let me = member.channel.rank;
    let here = |places: &[Place]| -> Result<Vec<DenseTensor>, CudaError> {
        let views: Vec<&View> = places.iter().filter(|it| it.rank == me).map(|it| &it.view).collect();
        engine.peek(&views)
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
            return Err(Failure::Other(Exit::Bug, format!("rank {} gave too few bytes", place.rank)));
        };
        let data = cuda::data_of(dtype, part).map_err(|it| Failure::Other(Exit::Rejected, it.to_string()))?;
        blocks.push(DenseTensor::full(place.view.shape.clone(), data));
    }
    Ok(blocks)
}

/// Rank 0 judges and tells the others.
fn judge(job: &Job<'_>, outcome: &Outcome, member: &Member) -> Result<Verdict, Failure> {
    let peers: &dyn Peers = member;
    if peers.rank() > 0 {
        member.phase("done, rank 0 judges the outputs");
        let told = peers.all_gather(&[])?;
        let exit = match told.first().and_then(|it| it.first()) {
            Some(0) => Exit::Success,
            Some(_) | None => Exit::WrongResult,
        };
        return Ok(Verdict { exit, line: String::new(), outputs: Vec::new(), wrong: None });
    }
    member.phase("judging the outputs");
    let judged = job::judge(job.plans, outcome, job.expectations, &job.criteria);
    let exit = judged.as_ref().map_or(Exit::Bug, |it| it.exit);
    peers.all_gather(&[exit as u8])?;
    Ok(judged?)
}
