//! Captures a plan as a graph and launches it repeatedly.

use super::{Engine, IssueMode};
use crate::{ExecutorError, Result, graph::Graph};
use hir_plan::{Inst, InstKind, Plan};

/// Returns the error of a capture of an instruction that makes the host wait: a replay does not involve the host.
pub(super) fn host_wait(plan: &Plan, inst: &Inst) -> ExecutorError {
    ExecutorError::unsupported(plan, inst, "a CUDA graph cannot make the host wait")
}

impl Engine {
    /// Returns why runs cannot be replayed as CUDA graphs, if a rank's plan cannot be captured. It is the same on all
    /// ranks: if one rank issues its communications one by one, the others do so, too.
    pub(super) fn capture_obstacle(&self) -> Option<ExecutorError> {
        let waits = |it: &&Inst| matches!(it.kind, InstKind::HostWait { .. });
        let of_plan = |plan: &Plan| plan.code.iter().find(waits).map(|it| host_wait(plan, it));
        self.memory.plans().iter().find_map(of_plan)
    }

    /// Captures the plan as a graph, whose replays copy the outputs to the host if `reads_outputs` is set.
    pub(super) fn capture(&mut self, reads_outputs: bool) -> Result<Graph> {
        self.upload_epoch()?;
        let before = self.epoch;
        self.device.begin_capture(self.main_stream)?;
        let issued = self.issue(IssueMode::Captured { reads_outputs });
        let graph = self.device.end_capture(self.main_stream);
        // A captured run is not executed.
        self.epoch = before;
        self.progress.end();
        Ok(Graph { signals: issued?, ..graph? })
    }

    /// Copies the host's epoch to the device: replays may follow runs that were issued command by command.
    pub(super) fn upload_epoch(&self) -> Result<()> {
        self.device.upload(self.executable.epoch_address, &self.epoch.to_le_bytes(), self.main_stream)
    }

    /// Launches the captured plan once.
    pub(super) fn replay(&mut self, graph: &Graph) -> Result<()> {
        self.epoch = self.epoch.wrapping_add(1);
        self.progress.begin(self.run_index(), false);
        self.progress.issued_all(self.run_index());
        for signals in &graph.signals {
            self.device.update_signals(graph.exec, signals, self.epoch)?;
        }
        self.device.replay(graph, self.main_stream)
    }
}
