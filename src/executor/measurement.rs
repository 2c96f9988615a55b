//! What executors measure in runs, over all ranks.

use hir_tensor::dense::DenseTensor;

/// The runs before the timed ones.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    /// Their minimum number.
    pub runs: usize,
    /// True for more of them, until the GPUs are as warm as in a long run.
    pub until_warm: bool,
}

/// Times of several runs, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Microseconds of each run on the slowest rank.
    pub runs: Vec<f64>,
    /// Number of nodes of the captured graph; `None` if the runs were issued command by command.
    pub nodes: Option<usize>,
}

impl Timing {
    /// Returns a quantile of the runs in microseconds: 0.5 is the median.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut runs = self.runs.clone();
        runs.sort_by(f64::total_cmp);
        let at = ((runs.len() as f64 * part).ceil() as usize).clamp(1, runs.len().max(1)) - 1;
        runs.get(at).copied().unwrap_or(0.0)
    }
}

/// What timed runs have given.
#[derive(Clone, Debug)]
pub struct TimedRuns {
    /// The times.
    pub timing: Timing,
    /// The outputs of the last run, indexed by output.
    pub outputs: Vec<Option<DenseTensor>>,
    /// The first element, over all ranks, that differs from that of the run before the timed ones, in words.
    pub difference: Option<String>,
}

/// The cost of one kind of work of a source line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineProfile {
    /// The line; 0 for the end of the program.
    pub line: u32,
    /// The kind of work, in a word.
    pub work: String,
    /// Number of instructions in one run.
    pub count: usize,
    /// Bytes that the communications and copies of one run move, counted as nccl-tests counts them.
    pub bytes: usize,
    /// Microseconds of one run on the slowest rank. Instructions that run in one kernel are timed as one of
    /// them.
    pub microseconds: f64,
    /// Ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests: `2 (n-1) / n` for an all-reduce of
    /// `n` ranks.
    pub bus_factor: f64,
    /// The line whose kernel also does the work of this line, if this line has no command of its own.
    pub fused_into: Option<u32>,
}

/// When an instruction ran, in microseconds since the first one of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstTime {
    /// The index of the instruction in `Plan::code`.
    pub inst: u32,
    /// When it began.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
}

/// The times of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTimes {
    /// By rank, in issue order.
    pub ranks: Vec<Vec<InstTime>>,
    /// The largest possible difference between the clocks of two ranks of one host, in microseconds.
    pub error: f64,
}

/// The cost of the bare calls of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCost {
    /// The kind of call.
    pub name: &'static str,
    /// Number of calls in one run.
    pub count: usize,
    /// Microseconds of a call: the median over rounds.
    pub microseconds: f64,
}

/// The host time of issuing a plan on one rank, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct HostProfile {
    /// The rank with the largest ratio of the way in which runs are issued.
    pub rank: usize,
    /// Number of rounds, each of which measures everything once.
    pub rounds: usize,
    /// The kinds of calls that the plan contains.
    pub calls: Vec<CallCost>,
    /// A run issued command by command: median and minimum over rounds.
    pub run: [f64; 2],
    /// One replay of the captured plan (median and minimum over rounds), and the number of its nodes. A replay sets the
    /// values of signals and launches the graph.
    pub graph: Option<([f64; 2], usize)>,
}

impl HostProfile {
    /// Returns the cost of all bare calls of one run.
    pub fn bare_cost(&self) -> f64 {
        self.calls.iter().map(|it| it.count as f64 * it.microseconds).sum()
    }

    /// Returns the cost of a run that is issued command by command relative to its bare calls.
    pub fn ratio(&self) -> f64 {
        self.run[0] / self.bare_cost().max(1e-3)
    }

    /// Returns the cost of a replay of the captured plan relative to the bare calls of the plan.
    pub fn graph_ratio(&self) -> Option<f64> {
        self.graph.map(|([median, _], _)| median / self.bare_cost().max(1e-3))
    }
}
