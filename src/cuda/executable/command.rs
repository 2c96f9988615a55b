//! What a prepared plan consists of.

use crate::cuda::{
    comm::NcclGroup,
    device::{Copy2d, Event, KernelFunction, Stream},
    kernels::CommonKernel,
    matmul::PreparedMatmul,
    signals::SignalBatch,
};

/// One call.
pub(in crate::cuda) enum Command {
    /// Bytes become equal.
    Memset { to: u64, byte: u8, bytes: usize },
    /// Bytes move.
    Copy { to: u64, from: u64, bytes: usize },
    /// Rows of bytes move.
    Copy2d(Copy2d),
    /// A kernel runs; its number among the module's functions.
    Launch { function: usize, grid: u32, params: Box<[u64]> },
    /// A matrix product.
    Matmul(Box<PreparedMatmul>),
    /// Calls of NCCL.
    NcclGroup(Box<NcclGroup>),
    /// An event is set.
    RecordEvent(Event),
    /// The stream waits for an event.
    WaitEvent(Event),
    /// The stream has come to an instruction, and does what it waits for itself.
    NoOp,
    /// Flags are raised to the number of the run.
    Signal(Box<SignalBatch>),
    /// The stream waits until flags have come to the number of the run.
    WaitSignal(Box<SignalBatch>),
    /// The outputs are read.
    ReadOutputs,
}

impl Command {
    /// Calls that wait in a queue to the device until it comes to them, at most.
    pub fn queued_calls(&self) -> usize {
        match self {
            Self::NoOp | Self::ReadOutputs => 0,
            // A kernel, and what orders it behind the communicator's last one.
            Self::NcclGroup(_) => 4,
            Self::Memset { .. }
            | Self::Copy { .. }
            | Self::Copy2d(_)
            | Self::Launch { .. }
            | Self::Matmul(_)
            | Self::RecordEvent(_)
            | Self::WaitEvent(_)
            | Self::Signal(_)
            | Self::WaitSignal(_) => 1,
        }
    }

    /// Whether a captured plan has a node for it at least.
    pub fn is_graph_node(&self) -> bool {
        match self {
            Self::Memset { .. }
            | Self::Copy { .. }
            | Self::Copy2d(_)
            | Self::Launch { .. }
            | Self::Matmul(_)
            | Self::NcclGroup(_)
            | Self::Signal(_)
            | Self::WaitSignal(_) => true,
            Self::RecordEvent(_) | Self::WaitEvent(_) | Self::NoOp | Self::ReadOutputs => false,
        }
    }
}

/// Things that happen one after another on a stream. A communicator has a lane of its own, though it may share a stream with
/// a lane of the plan.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct LogicalStream {
    /// By stream of the plan, then by communicator.
    pub index: usize,
    pub stream: Stream,
}

/// A call, its lane, and the instruction that it is for.
pub(in crate::cuda) struct ScheduledCommand {
    pub command: Command,
    pub stream: LogicalStream,
    /// Index in `Plan::code`.
    pub inst: u32,
}

/// A prepared plan.
pub(in crate::cuda) struct Executable {
    pub commands: Vec<ScheduledCommand>,
    /// All streams: those of the plan, then those of communicators that have their own.
    pub streams: Vec<Stream>,
    /// The functions of the module, the common ones first.
    pub functions: Vec<KernelFunction>,
    /// The device address of the number of the run.
    pub epoch_address: u64,
    /// Whether a kernel reads `counter` in runs that are issued step by step too: the host then writes it when such a run begins. Captured
    /// runs count on the device.
    pub kernels_read_epoch: bool,
    /// Whether ranks wait for each other by flags.
    pub has_signals: bool,
    /// Steps that call a library for something new.
    pub first_calls: Vec<usize>,
    /// Instructions that have no step of their own, each with that whose kernel does it too; indices in `Plan::code`.
    pub fused: Vec<(u32, u32)>,
    /// What the user may want to know, by line.
    pub notes: Vec<String>,
}

impl Executable {
    /// A kernel that every module has.
    pub fn common_kernel(&self, kernel: CommonKernel) -> KernelFunction {
        self.functions[kernel as usize]
    }
}
