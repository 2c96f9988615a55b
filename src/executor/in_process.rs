//! Plans that run in a process that uses the device for other work, in the memory and in the order of the streams of a caller.

use std::sync::Arc;

use grammar::DType;

use super::{ExecutorError, ProcessGroup};
use hir_plan::World;

/// The device of this rank. Any thread may use it.
pub trait InProcessDevice: Send + Sync {
    /// Prepares this rank's plan. All ranks have to call this with the same plans, in the same order.
    ///
    /// # Errors
    /// The plan requires something that the executor does not support, or a rank does not answer.
    fn load(
        self: Arc<Self>,
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        options: LoadOptions<'_>,
    ) -> Result<Box<dyn InProcessProgram>, ExecutorError>;
}

/// How a plan runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions<'a> {
    /// Whether runs whose addresses repeat are captured and replayed.
    pub captures: bool,
    /// The inputs of this rank, by name, of which the caller does not need the values after a run: the run may write to their memory.
    pub donated: &'a [String],
}

/// A plan that is ready to run on the device of this rank.
pub trait InProcessProgram: Send + Sync {
    /// Returns the memory that a run needs.
    fn ports(&self) -> &CallerPorts;

    /// Returns notes for the user.
    fn notes(&self) -> &[String];

    /// Returns the numbers of runs that were issued and that are complete, without waiting for a run that is being issued.
    fn progress(&self) -> (u32, u32);

    /// Issues a run behind the work on a stream of the context; later work on the stream waits for it. All ranks have to
    /// issue the same runs in the same order.
    ///
    /// `addresses` has one for each buffer of `ports`, of device memory that is large enough and aligned to 256 bytes; that
    /// of a buffer without elements is not used. The memory has to stay allocated until the run is complete. `stream` is a
    /// handle of the vendor's library, 0 for the default stream.
    ///
    /// # Errors
    /// An address is not that of device memory, a rank does not answer in the first run, or a call fails.
    fn run(&self, addresses: &[u64], stream: u64, peers: &dyn ProcessGroup) -> Result<(), ExecutorError>;
}

/// Memory that the caller passes for a run, for inputs or outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortBuffer {
    /// The name of its tensor.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: usize,
    /// Whether the run reads it; otherwise the run writes it.
    pub is_input: bool,
    /// Whether the run copies it to or from memory of its own, because other ranks access this.
    pub is_copied: bool,
}

/// The part of an input or output that this rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerPort {
    /// The name of its tensor.
    pub name: String,
    /// Index in `CallerPorts::buffers`.
    pub buffer: usize,
    /// The offset of the first element, in elements.
    pub offset: usize,
    /// The extents, slowest dimension first.
    pub shape: Vec<usize>,
    /// The distance of neighbours along each dimension, in elements.
    pub strides: Vec<usize>,
}

/// The inputs and outputs of a plan, in the order of the program's header, and the memory that they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerPorts {
    /// The buffers for which a run needs addresses. One that is no input or output is temporary memory: its elements need no values, and
    /// nothing keeps those that a run leaves.
    pub buffers: Vec<PortBuffer>,
    /// Row-major tensors, each a buffer of its own; `None` where this rank holds no part.
    pub inputs: Vec<Option<CallerPort>>,
    /// Views, also of buffers of inputs; `None` where this rank holds no part.
    pub outputs: Vec<Option<CallerPort>>,
}
