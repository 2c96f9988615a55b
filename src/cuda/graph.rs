//! CUDA graphs: captured once, launched many times.

use cudarc::driver::sys;

use super::{
    Result,
    device::{Device, OwnedResource, Stream},
    signals::CapturedSignals,
};

/// A captured plan, ready to be launched.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    pub exec: sys::CUgraphExec,
    /// Number of nodes.
    pub nodes: usize,
    /// The operations on signals, whose values change with every replay.
    pub signals: Vec<CapturedSignals>,
}

impl Device {
    /// Begins to capture the work issued on a stream and on streams that are forked from it.
    pub fn begin_capture(&self, stream: Stream) -> Result<()> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream comes from this device.
        let status = unsafe { (self.driver.cuStreamBeginCapture_v2)(stream.0, mode) };
        self.driver.check("cuStreamBeginCapture", status)
    }

    /// Ends the capture and instantiates the graph. All forked streams must have been joined.
    pub fn end_capture(&self, stream: Stream) -> Result<Graph> {
        let (mut graph, mut exec, mut nodes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // Nodes keep the priority of the stream that they were captured from.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        // SAFETY: the pointers are to live handles; the graph has just been captured.
        unsafe {
            self.driver
                .check("cuStreamEndCapture", (self.driver.cuStreamEndCapture)(stream.0, &raw mut graph))?;
            // Destroying the graph releases what NCCL keeps for it, even if a later call fails.
            self.track(OwnedResource::Graph(graph));
            let status = (self.driver.cuGraphGetNodes)(graph, std::ptr::null_mut(), &raw mut nodes);
            self.driver.check("cuGraphGetNodes", status)?;
            let status = (self.driver.cuGraphInstantiateWithFlags)(&raw mut exec, graph, u64::from(flags.0));
            self.driver.check("cuGraphInstantiate", status)?;
        }
        self.track(OwnedResource::GraphExec(exec));
        Ok(Graph { exec, nodes, signals: Vec::new() })
    }

    /// Launches a captured plan.
    pub fn replay(&self, graph: &Graph, stream: Stream) -> Result<()> {
        // SAFETY: the graph was instantiated on this device for the current plan.
        self.driver.check("cuGraphLaunch", unsafe { (self.driver.cuGraphLaunch)(graph.exec, stream.0) })
    }
}
