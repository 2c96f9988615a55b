//! What a prepared plan consists of.

use crate::cuda::{
    comm::Group,
    device::{Event, Function, Rows, Stream},
    flags::Flags,
    gemm::Product,
    kernels::Common,
};

/// One call.
pub(in crate::cuda) enum Action {
    /// Bytes become equal.
    Set { to: u64, byte: u8, bytes: usize },
    /// Bytes move.
    Copy { to: u64, from: u64, bytes: usize },
    /// Rows of bytes move.
    Rows(Rows),
    /// A kernel runs; its number among the module's functions.
    Launch { function: usize, grid: u32, words: Box<[u64]> },
    /// A matrix product.
    Product(Box<Product>),
    /// Calls of NCCL.
    Group(Box<Group>),
    /// An event is set.
    Record(Event),
    /// The stream waits for an event.
    Wait(Event),
    /// The stream has come to an instruction, and does what it waits for itself.
    Pass,
    /// Flags are raised to the number of the run.
    Raise(Box<Flags>),
    /// The stream waits until flags have come to the number of the run.
    Await(Box<Flags>),
    /// The outputs are read.
    Finish,
}

impl Action {
    /// Calls that wait in a queue to the device until it comes to them, at most.
    pub fn queued(&self) -> usize {
        match self {
            Self::Pass | Self::Finish => 0,
            // A kernel, and what orders it behind the communicator's last one.
            Self::Group(_) => 4,
            Self::Set { .. }
            | Self::Copy { .. }
            | Self::Rows(_)
            | Self::Launch { .. }
            | Self::Product(_)
            | Self::Record(_)
            | Self::Wait(_)
            | Self::Raise(_)
            | Self::Await(_) => 1,
        }
    }

    /// Whether a captured plan has a node for it at least.
    pub fn is_node(&self) -> bool {
        match self {
            Self::Set { .. }
            | Self::Copy { .. }
            | Self::Rows(_)
            | Self::Launch { .. }
            | Self::Product(_)
            | Self::Group(_)
            | Self::Raise(_)
            | Self::Await(_) => true,
            Self::Record(_) | Self::Wait(_) | Self::Pass | Self::Finish => false,
        }
    }
}

/// Things that happen one after another on a stream. A communicator has a lane of its own, though it may share a stream with
/// a lane of the plan.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Lane {
    /// By stream of the plan, then by communicator.
    pub number: usize,
    pub stream: Stream,
}

/// A call, its lane, and the instruction that it is for.
pub(in crate::cuda) struct Step {
    pub action: Action,
    pub lane: Lane,
    /// Index in `Plan::code`.
    pub inst: u32,
}

/// A prepared plan.
pub(in crate::cuda) struct Executable {
    pub steps: Vec<Step>,
    /// All streams: those of the plan, then those of communicators that have their own.
    pub streams: Vec<Stream>,
    /// The functions of the module, the common ones first.
    pub functions: Vec<Function>,
    /// The device address of the number of the run.
    pub counter: u64,
    /// Whether a kernel reads `counter` in runs that are issued step by step too: the host then writes it when such a run begins. Captured
    /// runs count on the device.
    pub reads_counter: bool,
    /// Whether ranks wait for each other by flags.
    pub has_flags: bool,
    /// Steps that call a library for something new.
    pub firsts: Vec<usize>,
    /// Instructions that have no step of their own, each with that whose kernel does it too; indices in `Plan::code`.
    pub fused: Vec<(u32, u32)>,
    /// What the user may want to know, by line.
    pub notes: Vec<String>,
}

impl Executable {
    /// A kernel that every module has.
    pub fn common(&self, kernel: Common) -> Function {
        self.functions[kernel as usize]
    }
}
