//! One rank's part of a job on GPUs: run, judge, time. All ranks run their plans; rank 0 gathers the outputs and judges.

use std::time::Duration;

use super::{
    compare::{Agreement, Tolerance},
    job::{self, Expectation, Verdict},
    prepare::Failure,
};
use crate::{
    cuda::{CudaError, Engine, Line, Options, Peers, Timing, layout::WorldLayout},
    exit::Exit,
    io::{data::Data, generate::Kind},
    launch::channel::Channel,
    plan::{InstKind, Place, Plan, View},
    sim::{Outcome, memory::Block},
};

/// What a job on GPUs is asked for.
pub struct Job<'a> {
    /// The plans of all ranks.
    pub plans: &'a [Plan],
    /// Every rank's part of every input.
    pub inputs: &'a [Vec<Data>],
    /// What outputs are compared with; only rank 0 looks at them.
    pub expectations: &'a [Expectation],
    /// Whether what is expected was computed without a rounding, if that is known.
    pub exact: Option<bool>,
    /// How inputs were made.
    pub kind: Kind,
    /// Tolerance, if one was given.
    pub tolerance: Option<Tolerance>,
    /// Terms of the longest sum.
    pub terms: usize,
    /// Tensors that are wanted besides, of all ranks.
    pub watch: &'a [Place],
    /// Timed runs.
    pub bench: Option<Bench>,
    /// How long a run may take.
    pub timeout: Duration,
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

/// What a job has come to.
pub struct Ran {
    /// The verdict; on other ranks than 0 only its exit code and line are set.
    pub verdict: Verdict,
    /// What all ranks hold.
    pub outcome: Outcome,
    /// Times, if asked for: of whole runs, and of lines.
    pub timing: Option<(Timing, Vec<Line>)>,
}

impl Peers for Channel {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    // A job that has lost a rank is ended by its watchdog; until then this is why nothing goes on.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CudaError> {
        Self::all_gather(self, mine).map_err(|fault| CudaError::Environment(fault.to_string()))
    }

    fn barrier(&self) -> Result<(), CudaError> {
        Self::barrier(self).map_err(|fault| CudaError::Environment(fault.to_string()))
    }

    fn give_up(&self, exit: Exit, reason: &str) {
        if self.world > 1 {
            self.abort(exit, reason);
        }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        let exit = match &error {
            CudaError::Environment(_) => Exit::Environment,
            CudaError::Call { .. } => Exit::Device,
            CudaError::Unsupported { .. } => Exit::Rejected,
            CudaError::Hang(_) => Exit::Hang,
            CudaError::Internal(_) => Exit::Bug,
        };
        // A hang's first line is the verdict, the rest its report.
        Self::Other(exit, error.to_string())
    }
}

/// Why plans cannot run on GPUs, where the simulator can run them; `None` where nothing is known against it.
pub fn obstacle(plans: &[Plan], processes: usize) -> Option<String> {
    let reshards = |plan: &Plan| plan.code.iter().any(|it| matches!(it.kind, InstKind::Reshard(_)));
    if plans.iter().any(reshards) {
        return Some("the program has resharding operators that are not lowered".to_owned());
    }
    if plans.len() != processes {
        return Some(format!("{} ranks in {processes} process", plans.len()));
    }
    crate::cuda::devices().err().map(|it| it.to_string())
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
pub fn run(job: &Job<'_>, peers: &dyn Peers, say: &mut dyn FnMut(String)) -> Result<Ran, Failure> {
    let mut engine = Engine::new(job.plans, peers, Options { timeout: job.timeout })?;
    engine.notes().into_iter().for_each(&mut *say);
    engine.fill(&job.inputs[peers.rank()], peers)?;
    let mine = engine.run()?;
    let mut outcome = gather(job.plans, mine, peers)?;
    outcome.watched = watched(job, &engine, peers)?;
    let mut verdict = judge(job, &outcome, peers)?;
    let Some(bench) = job.bench.filter(|_| verdict.exit == Exit::Success) else {
        return Ok(Ran { verdict, outcome, timing: None });
    };
    engine.fill(&job.inputs[peers.rank()], peers)?;
    let (timing, mine) = engine.time(peers, bench.warmup, bench.iterations, bench.graph)?;
    // The last of the timed runs has to be right as well.
    let last = gather(job.plans, mine, peers)?;
    outcome.outputs = last.outputs;
    verdict = judge(job, &outcome, peers)?;
    let lines = engine.lines(peers)?;
    Ok(Ran { verdict, outcome, timing: Some((timing, lines)) })
}

/// All ranks' outputs, on every rank.
fn gather(plans: &[Plan], mine: Vec<Option<Block>>, peers: &dyn Peers) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::new(plans);
    if peers.world() == 1 {
        outcome.outputs = vec![mine];
        return Ok(outcome);
    }
    let mut bytes = Vec::new();
    for block in mine.iter().flatten() {
        bytes.extend_from_slice(crate::cuda::bytes_of(&block.data));
    }
    let all = peers.all_gather(&bytes)?;
    for (plan, bytes) in plans.iter().zip(all) {
        let mut rest = bytes.as_slice();
        for (at, port) in plan.outputs.iter().enumerate() {
            let Some(view) = &port.shard.view else { continue };
            let size = view.len() * port.dtype.size();
            let part = rest.split_off(..size).ok_or_else(|| {
                let message = format!("rank {} gave too few bytes of {}", plan.rank, port.name);
                Failure::Other(Exit::Bug, message)
            })?;
            let data = crate::cuda::data_of(port.dtype, part)
                .map_err(|it| Failure::Other(Exit::Rejected, it.to_string()))?;
            outcome.outputs[plan.rank][at] = Some(Block::full(view.shape.clone(), data));
        }
    }
    Ok(outcome)
}

/// The tensors that are wanted besides the outputs, on every rank.
fn watched(job: &Job<'_>, engine: &Engine<'_>, peers: &dyn Peers) -> Result<Vec<Block>, Failure> {
    if job.watch.is_empty() {
        return Ok(Vec::new());
    }
    let here = |rank: usize| job.watch.iter().filter(move |it| it.rank == rank).map(|it| &it.view);
    let views: Vec<&View> = here(peers.rank()).collect();
    let mut bytes = Vec::new();
    for block in engine.peek(&views)? {
        bytes.extend_from_slice(crate::cuda::bytes_of(&block.data));
    }
    let all = peers.all_gather(&bytes)?;
    let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let mut blocks = Vec::new();
    for place in job.watch {
        let dtype = job.plans[place.rank].buffers[place.view.buffer as usize].dtype;
        let part = rests.get_mut(place.rank).and_then(|it| it.split_off(..place.view.len() * dtype.size()));
        let Some(part) = part else {
            return Err(Failure::Other(Exit::Bug, format!("rank {} gave too few bytes", place.rank)));
        };
        let data =
            crate::cuda::data_of(dtype, part).map_err(|it| Failure::Other(Exit::Rejected, it.to_string()))?;
        blocks.push(Block::full(place.view.shape.clone(), data));
    }
    Ok(blocks)
}

/// Rank 0 judges and tells the others.
fn judge(job: &Job<'_>, outcome: &Outcome, peers: &dyn Peers) -> Result<Verdict, Failure> {
    if peers.rank() > 0 {
        let told = peers.all_gather(&[])?;
        let exit = match told.first().and_then(|it| it.first()) {
            Some(0) => Exit::Success,
            Some(_) | None => Exit::WrongResult,
        };
        return Ok(Verdict { exit, line: String::new(), outputs: Vec::new(), wrong: None });
    }
    // The simulator says whether anything was rounded: if not, both machines give the same bits.
    let agreement = match Agreement::new(job.tolerance, job.kind, job.terms) {
        Agreement::Equal | Agreement::Sums { .. } if job.exact != Some(true) => {
            Agreement::Machines { terms: job.terms }
        }
        given => given,
    };
    let judged = job::judge(job.plans, outcome, job.expectations, agreement, job.exact);
    let exit = judged.as_ref().map_or(Exit::Bug, |it| it.exit);
    peers.all_gather(&[exit as u8])?;
    Ok(judged?)
}

/// The table of a timing, as nccl-tests prints them: in total, where sizes are of all outputs of one rank, and by line.
pub fn table(timing: &Timing, lines: &[Line], plans: &[Plan]) -> Vec<String> {
    let bytes = |plan: &Plan| -> usize {
        plan.outputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.len() * it.dtype.size())).sum()
    };
    let size = plans.iter().map(bytes).max().unwrap_or(0);
    let [median, p99, least, most] = [0.5, 0.99, 0.0, 1.0].map(|it| timing.quantile(it));
    let rate = size as f64 / median.max(1e-3) / 1e3;
    let how = match timing.nodes {
        Some(nodes) => format!("one graph of {nodes} nodes"),
        None => "step by step".to_owned(),
    };
    let mut rows = vec![
        format!(
            "# {} timed runs, {how}; events after a barrier of all ranks, MAX over ranks",
            timing.runs.len()
        ),
        format!(
            "# {:>14} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "size(B)", "time(us)", "p99(us)", "min(us)", "max(us)", "algbw(GB/s)"
        ),
        format!("  {size:>14} {median:>12.2} {p99:>12.2} {least:>12.2} {most:>12.2} {rate:>12.2}"),
        "# by line, step by step, each on its own stream: lines overlap".to_owned(),
        format!(
            "# {:>6} {:<14} {:>6} {:>14} {:>12} {:>12} {:>12}",
            "line", "what", "count", "size(B)", "time(us)", "algbw(GB/s)", "busbw(GB/s)"
        ),
    ];
    rows.extend(lines.iter().map(|it| {
        let Line { line, what, count, bytes, time, bus } = it;
        let rate = *bytes as f64 / time.max(1e-3) / 1e3;
        let rates = match bytes {
            0 => format!("{:>12} {:>12}", "-", "-"),
            _ => format!("{rate:>12.2} {:>12.2}", rate * bus),
        };
        format!("  {line:>6} {what:<14} {count:>6} {bytes:>14} {time:>12.2} {rates}")
    }));
    rows
}

/// A timing for programs to read.
pub fn json(timing: &Timing, lines: &[Line], plans: &[Plan], names: &[&str]) -> serde_json::Value {
    let line = |it: &Line| {
        serde_json::json!({
            "line": it.line, "what": it.what, "count": it.count, "bytes": it.bytes, "us": it.time,
            "bus_factor": it.bus,
        })
    };
    let lines: Vec<serde_json::Value> = lines.iter().map(line).collect();
    serde_json::json!({
        "program": names,
        "ranks": plans.len(),
        "graph_nodes": timing.nodes,
        "lines": lines,
        "runs_us": timing.runs,
        "median_us": timing.quantile(0.5),
        "p99_us": timing.quantile(0.99),
        "min_us": timing.quantile(0.0),
        "max_us": timing.quantile(1.0),
    })
}
