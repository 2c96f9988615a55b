//! A plan that is captured once and launched again and again.

use super::{Engine, Mode};
use crate::cuda::{CudaError, graph::Graph};

impl Engine {
    /// Captures the plan as a graph.
    pub(super) fn capture(&mut self) -> Result<Graph, CudaError> {
        self.align()?;
        let before = self.epoch;
        self.device.begin_capture(self.first)?;
        let issued = self.issue(Mode::Captured);
        let graph = self.device.end_capture(self.first);
        // Capturing is not running.
        self.epoch = before;
        self.progress.end();
        issued?;
        graph
    }

    /// The device's count of runs goes on from the host's: before replays that follow runs issued step by step.
    pub(super) fn align(&self) -> Result<(), CudaError> {
        self.device.upload(self.executable.counter, &self.epoch.to_le_bytes(), self.first)
    }

    /// Launches the captured plan once.
    pub(super) fn replay(&mut self, graph: Graph) -> Result<(), CudaError> {
        self.epoch = self.epoch.wrapping_add(1);
        self.progress.begin(self.round(), false);
        self.progress.issued(self.round());
        self.device.replay(graph, self.first)
    }
}
