//! The commands of a prepared plan.

use std::sync::Arc;

use crate::{
    ExecutorError, Result,
    comm::NcclGroup,
    device::{Copy2d, Event, KernelFunction, Stream},
    kernels::CommonKernel,
    matmul::PreparedMatmul,
    signals::{SignalBatch, SignalOp},
};
use hir_executor::{AttentionLibrary, AttentionTask, MatmulAlgorithm};

/// One call.
pub(crate) enum Command {
    /// Fills memory with a byte.
    Memset { to: u64, byte: u8, bytes: usize },
    /// Copies memory.
    Copy { to: u64, from: u64, bytes: usize },
    /// Copies rows of memory.
    Copy2d(Copy2d),
    /// Launches a kernel; `function` is its index in the module.
    Launch { function: usize, grid: u32, params: Box<[u64]> },
    /// Calls cuBLASLt for a matrix product.
    Matmul(Box<PreparedMatmul>),
    /// Calls a library of the process for an attention or its gradients.
    Attention(Arc<dyn AttentionLibrary>, Box<AttentionTask>),
    /// Calls NCCL.
    NcclGroup(Box<NcclGroup>),
    /// Records an event.
    RecordEvent(Event),
    /// Makes the stream wait for an event.
    WaitEvent(Event),
    /// Makes the host wait until the stream has finished, and leave a loop there.
    WaitOnHost(Option<LoopExit>),
    /// Does nothing: the awaited communication runs on this stream. The command keeps the instruction visible
    /// in the progress.
    NoOp,
    /// Writes the epoch to signals, or makes the stream wait until they have reached it.
    Signals(SignalOp, Box<SignalBatch>),
    /// Copies the outputs.
    ReadOutputs,
}

/// Where the host may leave a loop (`hir_plan::LoopExit`).
#[derive(Clone, Copy)]
pub(crate) struct LoopExit {
    /// The address of the condition, one byte.
    pub condition: u64,
    /// The event that is recorded at the end of the loop; `None` behind the last iteration.
    pub end: Option<Event>,
}

impl Command {
    /// Returns the maximum number of entries that the command takes in a queue to the device.
    pub fn queued_calls(&self) -> usize {
        match self {
            Self::WaitOnHost(_) | Self::NoOp | Self::ReadOutputs => 0,
            // A kernel and its ordering behind the communicator's last one.
            Self::NcclGroup(_) => 4,
            Self::Attention(library, task) => library.launches(task),
            Self::Memset { .. }
            | Self::Copy { .. }
            | Self::Copy2d(_)
            | Self::Launch { .. }
            | Self::Matmul(_)
            | Self::RecordEvent(_)
            | Self::WaitEvent(_)
            | Self::Signals(..) => 1,
        }
    }

    /// Returns the values among the command's parameters that may be addresses of inputs or outputs.
    pub fn addresses(&self) -> Vec<u64> {
        match self {
            Self::Memset { to, .. } => vec![*to],
            Self::Copy { to, from, .. } => vec![*to, *from],
            Self::Copy2d(rows) => vec![rows.to, rows.from],
            Self::Launch { params, .. } => params.to_vec(),
            Self::Matmul(it) => it.addresses().collect(),
            Self::Attention(_, it) => {
                it.tensors.iter().map(|it| it.address).chain([it.workspace.0]).collect()
            }
            Self::NcclGroup(it) => it.clone().addresses_mut().map(|it| *it).collect(),
            Self::WaitOnHost(exit) => exit.iter().map(|it| it.condition).collect(),
            Self::RecordEvent(_)
            | Self::WaitEvent(_)
            | Self::NoOp
            | Self::Signals(..)
            | Self::ReadOutputs => Vec::new(),
        }
    }

    /// Replaces one of `addresses`.
    pub fn set_address(&mut self, position: usize, address: u64) -> Result<()> {
        let slot = match self {
            Self::Memset { to, .. } => Some(to),
            Self::Copy { to, from, .. } => [to, from].into_iter().nth(position),
            Self::Copy2d(rows) => [&mut rows.to, &mut rows.from].into_iter().nth(position),
            Self::Launch { params, .. } => params.get_mut(position),
            Self::Matmul(it) => return it.set_address(position, address),
            Self::Attention(_, it) => {
                let tensors = it.tensors.iter_mut().map(|it| &mut it.address);
                tensors.chain([&mut it.workspace.0]).nth(position)
            }
            Self::NcclGroup(it) => it.addresses_mut().nth(position),
            Self::WaitOnHost(exit) => exit.as_mut().map(|it| &mut it.condition),
            Self::RecordEvent(_)
            | Self::WaitEvent(_)
            | Self::NoOp
            | Self::Signals(..)
            | Self::ReadOutputs => None,
        };
        let slot =
            slot.ok_or_else(|| ExecutorError::Internal(format!("a command has no address {position}")))?;
        *slot = address;
        Ok(())
    }

    /// Returns true if a captured graph has at least one node for the command.
    pub fn is_graph_node(&self) -> bool {
        match self {
            Self::Memset { .. }
            | Self::Copy { .. }
            | Self::Copy2d(_)
            | Self::Launch { .. }
            | Self::Matmul(_)
            | Self::Attention(..)
            | Self::NcclGroup(_)
            | Self::Signals(..) => true,
            Self::RecordEvent(_)
            | Self::WaitEvent(_)
            | Self::WaitOnHost(_)
            | Self::NoOp
            | Self::ReadOutputs => false,
        }
    }
}

/// A sequence of commands in stream order. A communicator has a logical stream of its own, which may share a
/// CUDA stream with a stream of the plan.
#[derive(Clone, Copy)]
pub(crate) struct LogicalStream {
    /// Index by stream of the plan, then by communicator.
    pub index: usize,
    pub stream: Stream,
}

/// A command, its logical stream, and its instruction.
pub(crate) struct ScheduledCommand {
    pub command: Command,
    pub stream: LogicalStream,
    /// Index in `Plan::code`.
    pub inst: u32,
}

/// A matrix product as cuBLASLt sees it: commands with equal descriptions, which use the same algorithm.
pub(crate) struct MatmulProduct {
    /// Identifies the product on all ranks and machines.
    pub key: String,
    /// The algorithm that cuBLASLt expects to be the fastest.
    pub first: MatmulAlgorithm,
    /// Indices of its commands.
    pub commands: Vec<usize>,
}

/// A plan lowered to commands.
pub(crate) struct Executable {
    pub commands: Vec<ScheduledCommand>,
    /// All CUDA streams: those of the plan, then those of communicators that have their own.
    pub streams: Vec<Stream>,
    /// The kernels of the module; the common ones come first.
    pub functions: Vec<KernelFunction>,
    /// Device address of the epoch (`signals`).
    pub epoch_address: u64,
    /// Whether a kernel reads the epoch even in runs that are issued command by command. The host then writes
    /// it when such a run begins; captured runs count on the device.
    pub kernels_read_epoch: bool,
    /// Indices of the commands that call a library with new arguments.
    pub first_calls: Vec<usize>,
    /// The matrix products that cuBLASLt computes.
    pub products: Vec<MatmulProduct>,
    /// Instructions without a command of their own, each with the instruction whose kernel does their work;
    /// indices in `Plan::code`.
    pub fused: Vec<(u32, u32)>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Executable {
    /// Returns a kernel that every module contains.
    pub fn common_kernel(&self, kernel: CommonKernel) -> KernelFunction {
        self.functions[kernel as usize]
    }
}
