//! The instructions of a plan, as plain data. The simulator defines the semantics of each instruction.
//!
//! Views are boxed, because most instructions only synchronize, and the plans of a large world contain
//! millions of them.

mod attention;
mod attention_gradient;
mod communication;
mod computation;
mod gemm;
mod number;
mod opaque_call;
mod peer_collective;
mod reduce;
mod routine;

use std::{fmt, sync::Arc};

use grammar::{Op, RedOp, ReductionOp};

use super::{Buffer, BufferNo, EventNo, Shard, StreamNo, View, ViewOnRank, WorkNo};
pub use attention::Attention;
pub use attention_gradient::AttentionGradient;
pub use communication::{
    Collective, CollectiveKind, Direction, MemHandle, P2pGroup, P2pOp, PermutePeers, SignalId, SignalKind,
};
pub use computation::{Computation, CostClass, CostInfo};
pub use gemm::Gemm;
pub use number::{Number, prints_without_exponent};
pub use opaque_call::OpaqueCall;
pub use peer_collective::{PacketFormat, PeerCollective, PeerPhases, Phase, Transfer};
pub use reduce::Reduce;
pub use routine::{GroupedDim, Routine, RoutineKind};

/// A communicator: a backend and a team.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Communicator {
    /// The backend that executes its communications.
    pub backend: Backend,
    /// World ranks in team order. All members share one list.
    pub team: Arc<[usize]>,
    /// The process group of which it runs only the sends and receives of two ranks that are in no group (`sync::P2pQueues::Pair`);
    /// `None` if it runs what is posted to its team.
    pub pair_of: Option<PairOf>,
}

/// The process group of a communicator of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PairOf {
    /// That of all ranks, which `P2PCommunication` uses.
    World,
    /// That of the two ranks, in this order, which `SendRecv` uses unless these are all.
    Team,
}

impl fmt::Display for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.backend.name(), team_text(&self.team))
    }
}

/// Formats a team: `(0 1 2)`.
pub(super) fn team_text(team: &[usize]) -> String {
    let ranks: Vec<String> = team.iter().map(usize::to_string).collect();
    format!("({})", ranks.join(" "))
}

grammar::named_enum! {
    /// The library or mechanism that moves the data.
    /// The names are the values of `backend=`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Backend {
        /// NCCL.
        Nccl = "NCCL",
        /// UCC.
        Ucc = "UCC",
        /// The CUDA backend: copies and kernels over peer memory, without a library. `transport` lowers its communications. A
        /// plan has only those that some member does not post, and these never run.
        Cuda = "CUDA",
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// The operation and its operands.
    pub kind: InstKind,
    /// The stream on which it is issued. The host instructions `ShareMemHandles`, `Barrier` and `HostWait` block the host
    /// instead.
    pub stream: StreamNo,
    /// The statement that it comes from, an index into `Plan::origins`.
    pub origin: u32,
}

/// An operation with its operands. The simulator defines the semantics of each operation.
#[derive(Clone, Debug, PartialEq)]
pub enum InstKind {
    /// Allocates `buffer`. Its contents are undefined unless `zeroed` is set.
    Alloc {
        /// The buffer.
        buffer: BufferNo,
        /// The view of the whole buffer, if all its elements are set to 0.
        zeroed: Option<Box<View>>,
    },
    /// Copies elements between views of equal shape, possibly from or to the memory of a peer. Converts the
    /// element type.
    Copy {
        /// The source.
        from: Box<ViewOnRank>,
        /// The destination.
        to: Box<ViewOnRank>,
    },
    /// Sets every element to `value`.
    Fill {
        /// The destination.
        to: Box<View>,
        /// The value.
        value: Number,
    },
    /// Sets `out[i…] = start + step · i` along the only dimension.
    Iota {
        /// The destination, one dimension.
        to: Box<View>,
        /// The first value.
        start: i64,
        /// The difference of neighbours.
        step: i64,
    },
    /// Sets the elements to constants.
    Constant {
        /// The destination.
        to: Box<View>,
        /// The bytes of the elements in row-major order, of the type of the destination, each from the lowest to the highest.
        bytes: Arc<[u8]>,
    },
    /// Computes a matrix product.
    Gemm(Box<Gemm>),
    /// Computes an attention, with scores that no buffer of the plan holds.
    Attention(Box<Attention>),
    /// Computes the gradients of an attention, likewise.
    AttentionGradient(Box<AttentionGradient>),
    /// Computes elements at places that depend on other elements.
    Routine(Box<Routine>),
    /// Applies a function element by element. Operands have the shape of the result, with stride 0 in
    /// broadcast dimensions.
    Map {
        /// The function.
        op: Op,
        /// The operands.
        args: Vec<Arg>,
        /// The result.
        out: Box<View>,
    },
    /// Reduces along axes.
    Reduce(Box<Reduce>),
    /// Reduces views of several ranks, all of the same shape, in the given order. The CUDA backend's
    /// collectives use it.
    PeerReduce {
        /// The reduction operation.
        op: ReduceOp,
        /// The operands.
        parts: Vec<ViewOnRank>,
        /// The result.
        out: Box<View>,
    },
    /// Posts a collective.
    Collective(Box<Collective>),
    /// Posts a group of sends and receives.
    P2pGroup(P2pGroup),
    /// Blocks the stream until a posted communication is complete.
    Wait {
        /// The work of the communication.
        work: WorkNo,
    },
    /// Sets a signal on which a peer, or this rank, waits.
    Signal {
        /// The signal.
        signal: SignalId,
    },
    /// Blocks the stream until a signal in the memory of this rank is set.
    WaitSignal {
        /// The signal.
        signal: SignalId,
    },
    /// Records an event: it completes when all earlier work of the stream is complete (`cudaEventRecord`).
    RecordEvent {
        /// The event.
        event: EventNo,
    },
    /// Blocks the stream until an event is complete (`cudaStreamWaitEvent`).
    WaitEvent {
        /// The event.
        event: EventNo,
    },
    /// Publishes memory handles and blocks the host until each peer has published the matching handle.
    ShareMemHandles {
        /// The handles to publish, one for each side of a transfer.
        handles: Vec<MemHandle>,
    },
    /// Blocks the host until the hosts of all ranks of the world have reached the barrier with the same
    /// number.
    Barrier,
    /// Blocks the host until an event is complete (`cudaEventSynchronize`).
    HostWait {
        /// The event.
        event: EventNo,
    },
    /// Gathers the operands from all ranks, applies an operator to the whole tensors, and scatters the
    /// result. Only the simulator executes it.
    Reshard(Box<Reshard>),
    /// Runs code that the text does not contain. No executor executes it.
    OpaqueCall(Box<OpaqueCall>),
    /// Lets the caller read the outputs. This is the last instruction of every plan, on the stream that is
    /// current at exit.
    ReadOutputs,
}

/// The instructions that compute and communicate nothing, as a pattern for matches that name all instructions: they order others,
/// exchange memory handles, or hand over the outputs.
#[macro_export]
macro_rules! ordering_insts {
    () => {
        $crate::InstKind::Wait { .. }
            | $crate::InstKind::Signal { .. }
            | $crate::InstKind::WaitSignal { .. }
            | $crate::InstKind::RecordEvent { .. }
            | $crate::InstKind::WaitEvent { .. }
            | $crate::InstKind::ShareMemHandles { .. }
            | $crate::InstKind::Barrier
            | $crate::InstKind::HostWait { .. }
            | $crate::InstKind::ReadOutputs
    };
}

/// The instructions that compute or copy, without `Reshard`, as a pattern like the one above.
#[macro_export]
macro_rules! local_insts {
    () => {
        $crate::InstKind::Alloc { .. }
            | $crate::InstKind::Copy { .. }
            | $crate::InstKind::Fill { .. }
            | $crate::InstKind::Iota { .. }
            | $crate::InstKind::Constant { .. }
            | $crate::InstKind::Map { .. }
            | $crate::InstKind::PeerReduce { .. }
            | $crate::computation_insts!()
    };
}

/// An operand of `Map`.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// The elements of a view.
    View(View),
    /// The same value for every element.
    Number(Number),
}

grammar::named_enum! {
    /// A reduction operation.
    /// The names are the notation of plans.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ReduceOp {
        /// Sum.
        Sum = "sum",
        /// Product.
        Product = "product",
        /// Minimum; NaN if any operand is NaN.
        Min = "min",
        /// Maximum; NaN if any operand is NaN.
        Max = "max",
        /// Minimum; ignores NaN if another operand is a number.
        FMin = "fmin",
        /// Maximum; ignores NaN if another operand is a number.
        FMax = "fmax",
        /// Mean: the sum divided by the number of operands.
        Avg = "avg",
        /// Bitwise and.
        And = "and",
        /// Bitwise or.
        Or = "or",
        /// Bitwise exclusive or.
        Xor = "xor",
    }
}

impl From<RedOp> for ReduceOp {
    fn from(op: RedOp) -> Self {
        match op {
            RedOp::Sum => Self::Sum,
            RedOp::Product => Self::Product,
            RedOp::Min => Self::Min,
            RedOp::Max => Self::Max,
            RedOp::Avg => Self::Avg,
            RedOp::BitAnd => Self::And,
            RedOp::BitOr => Self::Or,
            RedOp::BitXor => Self::Xor,
        }
    }
}

impl From<ReductionOp> for ReduceOp {
    fn from(op: ReductionOp) -> Self {
        match op {
            ReductionOp::Add => Self::Sum,
            ReductionOp::Mul => Self::Product,
            ReductionOp::Max => Self::Max,
            ReductionOp::Min => Self::Min,
            ReductionOp::FMax => Self::FMax,
            ReductionOp::FMin => Self::FMin,
            ReductionOp::BitAnd | ReductionOp::LogicalAnd => Self::And,
            ReductionOp::BitOr | ReductionOp::LogicalOr => Self::Or,
            ReductionOp::BitXor => Self::Xor,
        }
    }
}

/// A resharding operator on whole tensors.
///
/// `body` uses its own buffers: one for each operand, in order, then one for the result, then temporaries.
/// Each is contiguous and has the shape of a whole tensor. All ranks of the team have the same `body`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshard {
    /// All ranks that hold a shard of an operand or of the result, ascending. The ranks share one list.
    pub team: Arc<[usize]>,
    /// This rank's shards of the operands.
    pub operands: Vec<Shard>,
    /// This rank's shard of the result.
    pub result: Shard,
    /// The buffers of `body`.
    pub buffers: Vec<Buffer>,
    /// The instructions that compute the whole result.
    pub body: Vec<InstKind>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_equal_where_programs_do_the_same() {
        assert_ne!(Number::Float(0.0), Number::Float(-0.0));
        assert_eq!(Number::Float(f64::NAN), Number::Float(f64::NAN));
        assert_ne!(Number::Int(1), Number::Bool(true));
    }
}
