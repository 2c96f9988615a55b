//! The executor of one rank: a plan that is prepared on the device of the rank, with what the tools do with it.

use std::sync::Arc;

use super::{
    AlgorithmUse, ExecutorError, HostProfile, LineProfile, Machine, MatmulAlgorithm, ProcessGroup, RunTimes,
    TimedRuns, TuneOptions, Tuning, WarmUp,
};
use hir_plan::View;
use hir_tensor::{data::Data, dense::DenseTensor};

/// The progress of this rank in its plan, which another thread reads without waiting. Instructions are indices in `Plan::code`.
pub trait RunProgress: Send + Sync {
    /// Returns the index of the run that the host issues or waits for, and the instruction that it has
    /// reached: the length of the plan if all are issued. Returns `None` if nothing runs.
    fn issued_inst(&self) -> Option<(u32, u32)>;
    /// Returns the number of runs that the device has completed.
    fn completed_runs(&self) -> u32;
    /// Returns the first incomplete instruction of each stream of the plan. A communication counts as complete
    /// when it is posted. The list is empty if streams do not write their progress.
    fn stream_positions(&self) -> Vec<u32>;
    /// Returns the first incomplete communication of each communicator. The list is empty if streams do not
    /// write their progress.
    fn communicator_positions(&self) -> Vec<u32>;
}

/// A plan of one rank that is ready to run. All ranks have to call a method with `peers`, in the same order.
pub trait Executor {
    /// Returns this rank's progress, for use by another thread.
    fn progress(&self) -> Arc<dyn RunProgress>;

    /// Returns notes for the user.
    fn notes(&self) -> Vec<String>;

    /// Returns why runs cannot be replayed, if a rank's plan cannot be captured. It is the same on all ranks.
    fn capture_obstacle(&self) -> Option<ExecutorError>;

    /// Returns what this rank runs on, and the version and the path of the library of communications if the plan calls it.
    ///
    /// # Errors
    /// A library is missing, or a call of the driver fails.
    fn own_machine(&self) -> Result<(Machine, Option<&str>), ExecutorError>;

    /// Returns what describes the machines of all ranks, by rank.
    ///
    /// # Errors
    /// A library is missing, or a rank does not answer.
    fn machines(&self, peers: &dyn ProcessGroup) -> Result<Vec<Machine>, ExecutorError>;

    /// Makes every product use the algorithm that is given for it, by the key of the product, and the others their own. All ranks
    /// have the same list. Call it while nothing runs, and load inputs afterwards.
    ///
    /// # Errors
    /// A call fails, or a rank does not answer. An algorithm that some rank refuses is not an error: the result names it
    /// on all ranks, and the product keeps its own.
    fn use_algorithms(
        &mut self,
        peers: &dyn ProcessGroup,
        given: &[(String, MatmulAlgorithm)],
    ) -> Result<AlgorithmUse, ExecutorError>;

    /// Poisons all memory and uploads the inputs: for each input, this rank's part in row-major order.
    ///
    /// # Errors
    /// An input does not fit, or a call fails.
    fn load_inputs(&mut self, inputs: &[Arc<Data>], peers: &dyn ProcessGroup) -> Result<(), ExecutorError>;

    /// Runs the plan once and returns its outputs, indexed by output.
    ///
    /// # Errors
    /// A call fails.
    fn run(&mut self) -> Result<Vec<Option<DenseTensor>>, ExecutorError>;

    /// Reads views of this rank after the last run.
    ///
    /// # Errors
    /// A view lies outside its buffer, or a call fails.
    fn read_views(&self, views: &[&View]) -> Result<Vec<DenseTensor>, ExecutorError>;

    /// Measures the algorithms of all matrix products and sets the chosen ones. `on_product` is called with the number
    /// of products that are done and with that of all products. Load inputs afterwards.
    ///
    /// # Errors
    /// A call fails, or a rank does not answer.
    fn tune(
        &mut self,
        peers: &dyn ProcessGroup,
        options: TuneOptions,
        on_product: &dyn Fn(usize, usize),
    ) -> Result<Tuning, ExecutorError>;

    /// Times runs, as a captured graph if `graph` is set, and compares the outputs of the last one bit by bit with those
    /// that are on the host now. Each run begins with poisoned outputs.
    ///
    /// # Errors
    /// A call fails, or the captured graph has too few nodes.
    fn time(
        &mut self,
        peers: &dyn ProcessGroup,
        warmup: WarmUp,
        iterations: usize,
        graph: bool,
    ) -> Result<TimedRuns, ExecutorError>;

    /// Measures the cost of each line, over all ranks.
    ///
    /// # Errors
    /// A call fails.
    fn profile_lines(&mut self, peers: &dyn ProcessGroup) -> Result<Vec<LineProfile>, ExecutorError>;

    /// Runs the plan `runs` times with random delays of its streams, as a captured graph if `graph` is set, and describes the first
    /// difference, over all ranks, from the outputs that are on the host now. `on_run` is called with the number of runs
    /// that are done.
    ///
    /// # Errors
    /// A call fails.
    fn stress(
        &mut self,
        peers: &dyn ProcessGroup,
        runs: usize,
        seed: u64,
        graph: bool,
        on_run: &dyn Fn(usize),
    ) -> Result<Option<String>, ExecutorError>;

    /// Measures when the commands of all ranks execute in one run.
    ///
    /// # Errors
    /// A call fails.
    fn measure_times(&mut self, peers: &dyn ProcessGroup) -> Result<RunTimes, ExecutorError>;

    /// Measures what issuing the plan costs the host, and returns the profile of the rank with the largest
    /// ratio. With `graph`, it also measures a replay of the captured plan. The outputs are undefined afterwards.
    ///
    /// # Errors
    /// A call fails.
    fn profile_host(&mut self, peers: &dyn ProcessGroup, graph: bool) -> Result<HostProfile, ExecutorError>;
}
