//! The instructions, as plain data. The simulator's arm for each defines it.
//!
//! Views are boxed: most instructions only synchronise, and a world of many ranks has millions of them.

use std::sync::Arc;

use grammar::{
    ops::Op,
    words::{Algorithm, P2pProtocol, P2pType, RedOp, ReductionOp},
};

use super::{Buffer, BufferNo, CommunicatorNo, EventNo, Shard, StreamNo, View, ViewOnRank, WorkNo};

/// A backend and a team.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Communicator {
    /// Whose queue.
    pub backend: Backend,
    /// World ranks in team order; shared, since every member has it.
    pub team: Arc<[usize]>,
}

/// Who moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// NCCL.
    Nccl,
    /// UCC.
    Ucc,
    /// The CUDA backend: no library, copies and kernels over peer memory. Executors never see it: `transport` lowers it.
    Cuda,
}

impl Backend {
    /// The `backend=` that names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nccl => "NCCL",
            Self::Ucc => "UCC",
            Self::Cuda => "CUDA",
        }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// What to do.
    pub kind: InstKind,
    /// The stream it is issued on. Host instructions (`Exchange`, `Barrier`) block the host instead.
    pub stream: StreamNo,
    /// An index into `Plan::origins`.
    pub origin: u32,
}

/// What an instruction does. The simulator's arm defines each.
#[derive(Clone, Debug, PartialEq)]
pub enum InstKind {
    /// The buffer comes into being, unwritten, or zero.
    Alloc {
        /// Which.
        buffer: BufferNo,
        /// Whether its elements become 0.
        zero: bool,
    },
    /// Elements move between views of equal shape, possibly to or from a peer's memory; the element type converts.
    Copy {
        /// Source.
        from: Box<ViewOnRank>,
        /// Destination.
        to: Box<ViewOnRank>,
    },
    /// Every element becomes `value`.
    Fill {
        /// Destination.
        to: Box<View>,
        /// The value.
        value: Number,
    },
    /// `out[i…] = start + step · i` along the only dimension.
    Iota {
        /// Destination, one dimension.
        to: Box<View>,
        /// First value.
        start: i64,
        /// Difference of neighbours.
        step: i64,
    },
    /// A matrix product.
    Gemm(Box<Gemm>),
    /// Element by element; operands have the result's shape (stride 0 where they repeat).
    Map {
        /// The function.
        op: Op,
        /// Operands.
        args: Vec<Arg>,
        /// Result.
        out: Box<View>,
    },
    /// Combines along axes.
    Reduce(Box<Reduce>),
    /// Combines equally shaped views of several ranks in the order given: the CUDA backend's reductions.
    PeerReduce {
        /// How.
        op: ReduceOp,
        /// Operands.
        parts: Vec<ViewOnRank>,
        /// Result.
        out: Box<View>,
    },
    /// Posts a collective.
    Collective(Box<Collective>),
    /// Posts sends and receives as one.
    Transfer(Transfer),
    /// The stream waits for a posted work.
    Wait {
        /// Which.
        work: WorkNo,
    },
    /// Raises a flag that a peer (or this rank) polls.
    Signal {
        /// Which.
        signal: SignalId,
    },
    /// The stream waits until a flag that lives on this rank is raised.
    WaitSignal {
        /// Which.
        signal: SignalId,
    },
    /// Sets an event once everything issued on the stream so far is done.
    RecordEvent {
        /// Which.
        event: EventNo,
    },
    /// The stream waits for an event.
    WaitEvent {
        /// Which.
        event: EventNo,
    },
    /// The host publishes handles and blocks until each peer has published the matching one.
    ShareMemHandles {
        /// The transfers whose handles are exchanged.
        handles: Vec<MemHandle>,
    },
    /// The host blocks until the hosts of all ranks of the world have come to their barrier of the same number.
    Barrier,
    /// Assembles operands from all ranks, applies an operator to them as a whole, scatters the result. Simulator only.
    Reshard(Box<Reshard>),
    /// The caller reads the outputs. The last instruction of every plan, on the stream current at exit.
    ReadOutputs,
}

/// A scalar constant. Constants are equal if programs that differ in nothing else do the same: zeros of two signs are not, a
/// NaN is equal to itself.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(_) | Self::Float(_) | Self::Bool(_), _) => false,
        }
    }
}

/// An operand of `Map`.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Elements.
    View(View),
    /// The same value for every element.
    Number(Number),
}

/// `out[b…, m, n] = Σₖ a[b…, m, k] · b[b…, k, n] + bias[b…, m, n]`; all views have the same batch dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// Left operand `[b…, m, k]`.
    pub a: View,
    /// Right operand `[b…, k, n]`.
    pub b: View,
    /// Added before the one rounding; has the result's shape.
    pub bias: Option<View>,
    /// Result `[b…, m, n]`.
    pub out: View,
}

/// `out` = `input` combined along `axes`, starting from `init`; `out` has the other axes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// How.
    pub op: ReduceOp,
    /// The value to start from.
    pub init: Number,
    /// Operand.
    pub input: View,
    /// The operand's axes that vanish, ascending.
    pub axes: Vec<usize>,
    /// Result.
    pub out: View,
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Product.
    Product,
    /// Minimum; a NaN wins.
    Min,
    /// Maximum; a NaN wins.
    Max,
    /// Minimum; a number wins over a NaN.
    FMin,
    /// Maximum; a number wins over a NaN.
    FMax,
    /// Sum divided by the number of operands.
    Avg,
    /// Bits of all.
    And,
    /// Bits of any.
    Or,
    /// Bits of an odd number.
    Xor,
}

impl From<RedOp> for ReduceOp {
    fn from(op: RedOp) -> Self {
        match op {
            RedOp::Sum => Self::Sum,
            RedOp::Product => Self::Product,
            RedOp::Min => Self::Min,
            RedOp::Max => Self::Max,
            RedOp::Avg => Self::Avg,
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

/// A collective. Members match by position in their communicator's queue.
///
/// `contract` defines what each member gives and gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// The queue.
    pub communicator: CommunicatorNo,
    /// What is done.
    pub kind: CollectiveKind,
    /// How the data is to be moved; `None`: as the backend does it by itself.
    pub algo: Option<Algorithm>,
    /// What this rank gives; `None` where it gives nothing.
    pub input: Option<View>,
    /// What this rank gets; `None` where it gets nothing.
    pub output: Option<View>,
    /// The work that `Wait` names.
    pub work: WorkNo,
}

/// Types of collectives, with what the type needs. Roots and peers count within the team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// One to all.
    Broadcast {
        /// Who gives.
        root: usize,
    },
    /// All to one.
    Gather {
        /// Who gets.
        root: usize,
    },
    /// All to all, everything.
    Allgather,
    /// One to all, a part each.
    Scatter {
        /// Who gives.
        root: usize,
    },
    /// Combined at one.
    Reduce {
        /// Who gets.
        root: usize,
        /// How.
        op: ReduceOp,
    },
    /// Combined at all.
    Allreduce {
        /// How.
        op: ReduceOp,
    },
    /// Combined, a part each.
    ReduceScatter {
        /// How.
        op: ReduceOp,
    },
    /// One to one.
    SendRecv {
        /// Who gives.
        root: usize,
    },
    /// A part of each to each.
    AllToAll,
    /// Each to one.
    Permute {
        /// Who gets this rank's input.
        send_peer: usize,
        /// Whose input this rank gets.
        recv_peer: usize,
    },
}

/// Sends and receives that are posted as one and complete as one. Each side matches the peer's other side in order of
/// posting, a pair at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// The queue.
    pub communicator: CommunicatorNo,
    /// Who copies, with the CUDA backend; `None`: a library moves the data.
    pub protocol: Option<P2pProtocol>,
    /// The sides.
    pub ops: Vec<P2pOp>,
    /// The work that `Wait` names.
    pub work: WorkNo,
}

/// One side of a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct P2pOp {
    /// Whether this rank gives or gets.
    pub direction: Direction,
    /// The other rank, a world rank.
    pub peer: usize,
    /// What is given, or where it goes.
    pub view: View,
    /// The statement that posts it, an index into `Plan::origins`: of a coalesced side, not that of the transfer.
    pub origin: u32,
}

/// Give or get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// This rank gives.
    Send,
    /// This rank gets.
    Recv,
}

impl From<P2pType> for Direction {
    fn from(kind: P2pType) -> Self {
        match kind {
            P2pType::Send => Self::Send,
            P2pType::Recv => Self::Recv,
        }
    }
}

impl Direction {
    /// What the other side of a transfer does.
    pub fn opposite(self) -> Self {
        match self {
            Self::Send => Self::Recv,
            Self::Recv => Self::Send,
        }
    }
}

/// A flag in the memory of `to`, raised by `from`, once a run. Executors that run a plan again compare with the run's
/// number instead of resetting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalId {
    /// Who raises it.
    pub from: usize,
    /// On whose memory it lives, and who polls it.
    pub to: usize,
    /// What it says.
    pub kind: SignalKind,
    /// Of a message: which between `from` and `to`. Of a collective (`TeamReady`, `TeamDone`): which of its team's.
    pub index: u32,
}

/// What a raised flag tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignalKind {
    /// The buffer on `from` may be read or written by `to`.
    Ready,
    /// `from` has finished with the buffer on `to`.
    Done,
    /// As `Ready`, of a put: the receiver says so.
    PutReady,
    /// As `Done`, of a put: the sender says so.
    PutDone,
    /// As `Ready`, of a collective over peer memory; the team's number among those that have such collectives.
    TeamReady(u32),
    /// As `Done`, of a collective over peer memory; the team's number.
    TeamDone(u32),
}

/// A handle that `Exchange` publishes and expects.
#[derive(Clone, Debug, PartialEq)]
pub struct MemHandle {
    /// This rank's side.
    pub direction: Direction,
    /// The other rank.
    pub peer: usize,
    /// Which exchange on this channel (sender, receiver).
    pub index: u32,
    /// The P2PCommunication's number, for reports.
    pub number: u32,
}

impl MemHandle {
    /// The exchange that a rank's handle is one side of: the sender, the receiver, and which of theirs it is.
    pub fn exchange_key(&self, rank: usize) -> (usize, usize, u32) {
        match self.direction {
            Direction::Send => (rank, self.peer, self.index),
            Direction::Recv => (self.peer, rank, self.index),
        }
    }
}

/// A resharding operator on whole tensors.
///
/// `body` works on buffers of its own, one for each operand, in order, then the result, then temporaries, each
/// contiguous and of the whole tensor's shape. All ranks of the team hold the same `body`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshard {
    /// All ranks that hold a shard of an operand or of the result, ascending; shared.
    pub team: Arc<[usize]>,
    /// This rank's shards of the operands.
    pub operands: Vec<Shard>,
    /// This rank's shard of the result.
    pub result: Shard,
    /// Buffers of `body`.
    pub buffers: Vec<Buffer>,
    /// Instructions that compute the whole result.
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
