//! A plan that is captured once and launched again and again.

use super::{Engine, IssueMode};
use crate::cuda::{CudaError, graph::Graph};

impl Engine {
    /// Captures the plan as a graph.
    pub(super) fn capture(&mut self) -> Result<Graph, CudaError> {
        self.upload_epoch()?;
        let before = self.epoch;
        self.device.begin_capture(self.main_stream)?;
        let issued = self.issue(IssueMode::Captured);
        let graph = self.device.end_capture(self.main_stream);
        // Capturing is not running.
        self.epoch = before;
        self.progress.end();
        issued?;
        graph
    }

    /// The device's count of runs goes on from the host's: before replays that follow runs issued step by step.
    pub(super) fn upload_epoch(&self) -> Result<(), CudaError> {
        self.device.upload(self.executable.epoch_address, &self.epoch.to_le_bytes(), self.main_stream)
    }

    /// Launches the captured plan once.
    pub(super) fn replay(&mut self, graph: Graph) -> Result<(), CudaError> {
        self.epoch = self.epoch.wrapping_add(1);
        self.progress.begin(self.run_index(), false);
        self.progress.issued_all(self.run_index());
        self.device.replay(graph, self.main_stream)
    }
}
