//! Captures a plan as a graph and launches it repeatedly.

use super::{Engine, IssueMode};
use crate::{CudaError, graph::Graph};

impl Engine {
    /// Captures the plan as a graph.
    pub(super) fn capture(&mut self) -> Result<Graph, CudaError> {
        self.upload_epoch()?;
        let before = self.epoch;
        self.device.begin_capture(self.main_stream)?;
        let issued = self.issue(IssueMode::Captured);
        let graph = self.device.end_capture(self.main_stream);
        // A captured run is not executed.
        self.epoch = before;
        self.progress.end();
        Ok(Graph { signals: issued?, ..graph? })
    }

    /// Copies the host's epoch to the device: replays may follow runs that were issued command by command.
    pub(super) fn upload_epoch(&self) -> Result<(), CudaError> {
        self.device.upload(self.executable.epoch_address, &self.epoch.to_le_bytes(), self.main_stream)
    }

    /// Launches the captured plan once.
    pub(super) fn replay(&mut self, graph: &Graph) -> Result<(), CudaError> {
        self.epoch = self.epoch.wrapping_add(1);
        self.progress.begin(self.run_index(), false);
        self.progress.issued_all(self.run_index());
        for signals in &graph.signals {
            self.device.update_signals(graph.exec, signals, self.epoch)?;
        }
        self.device.replay(graph, self.main_stream)
    }
}
