//! The engine as the tools use it. Most of its methods are in the modules of their kinds of runs.

use std::sync::Arc;

use hir_executor::{
    AlgorithmUse, Executor, ExecutorError, HostProfile, LineProfile, Machine, MatmulAlgorithm, ProcessGroup,
    RunProgress, RunTimes, TimedRuns, TuneOptions, Tuning, WarmUp,
};
use hir_plan::View;
use hir_tensor::{data::Data, dense::DenseTensor};

use super::{Engine, IssueMode, algorithms::machine};
use crate::{Result, exchange::gather, progress::ProgressWords};

impl Executor for Engine {
    fn progress(&self) -> Arc<dyn RunProgress> {
        Arc::<ProgressWords>::clone(&self.progress)
    }

    fn notes(&self) -> Vec<String> {
        self.notes()
    }

    fn capture_obstacle(&self) -> Option<ExecutorError> {
        self.capture_obstacle()
    }

    fn own_machine(&self) -> Result<(Machine, Option<&str>)> {
        let machine = machine(self.device.driver, self.device.handle)?;
        Ok((machine, self.comms.library.as_deref()))
    }

    fn machines(&self, peers: &dyn ProcessGroup) -> Result<Vec<Machine>> {
        gather(peers, &machine(self.device.driver, self.device.handle)?)
    }

    fn use_algorithms(
        &mut self,
        peers: &dyn ProcessGroup,
        given: &[(String, MatmulAlgorithm)],
    ) -> Result<AlgorithmUse> {
        self.use_algorithms(peers, given)
    }

    fn load_inputs(&mut self, inputs: &[Arc<Data>], peers: &dyn ProcessGroup) -> Result<()> {
        self.load_inputs(inputs, peers)
    }

    fn run(&mut self) -> Result<Vec<Option<DenseTensor>>> {
        self.issue(IssueMode::Checked)?;
        self.count_run()?;
        self.synchronize()?;
        self.read_outputs()
    }

    fn read_views(&self, views: &[&View]) -> Result<Vec<DenseTensor>> {
        self.read_views(views)
    }

    fn tune(
        &mut self,
        peers: &dyn ProcessGroup,
        options: TuneOptions,
        on_product: &dyn Fn(usize, usize),
    ) -> Result<Tuning> {
        self.tune(peers, options, on_product)
    }

    fn time(
        &mut self,
        peers: &dyn ProcessGroup,
        warmup: WarmUp,
        iterations: usize,
        graph: bool,
    ) -> Result<TimedRuns> {
        self.time(peers, warmup, iterations, graph)
    }

    fn profile_lines(&mut self, peers: &dyn ProcessGroup) -> Result<Vec<LineProfile>> {
        self.profile_lines(peers)
    }

    fn stress(
        &mut self,
        peers: &dyn ProcessGroup,
        runs: usize,
        seed: u64,
        graph: bool,
        on_run: &dyn Fn(usize),
    ) -> Result<Option<String>> {
        self.stress(peers, runs, seed, graph, on_run)
    }

    fn measure_times(&mut self, peers: &dyn ProcessGroup) -> Result<RunTimes> {
        self.measure_times(peers)
    }

    fn profile_host(&mut self, peers: &dyn ProcessGroup, graph: bool) -> Result<HostProfile> {
        self.profile_host(peers, graph)
    }
}
