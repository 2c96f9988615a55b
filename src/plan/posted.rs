//! Plans whose communications are all posted, whatever executes them.
//!
//! Planning makes the posted plans of all ranks, and `transport::lower` turns them into a `World`: it selects what moves
//! the data of each communication by what the statement has requested. The requests belong to posted plans only: apart
//! from transports, only `sync::agreement` reads them, to compare those of the members. So no executor sees a request, or
//! runs plans without their transports.

use grammar::{Algorithm, OpStmt, P2pProtocol, Span, StmtId};

use rustc_hash::FxHashSet;

use super::{BufferNo, InstKind, Plan, View, WorkNo};

/// What a statement says about how its communication moves the data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Request {
    /// The algorithm of a collective; `None` selects the backend's default.
    pub algo: Option<Algorithm>,
    /// Which side of a P2P group copies, for the CUDA backend; `None` if a library moves the data.
    pub protocol: Option<P2pProtocol>,
    /// The index of the exchange of memory handles that a transfer of the CUDA backend uses, among those of its sender and
    /// receiver.
    pub handle: Option<u32>,
    /// Whether the kernel of a collective shall compute what follows the collective.
    pub fuses_epilogue: bool,
}

/// What a rank knows of the communication with a number, to which a Wait refers.
#[derive(Clone, Copy, Debug)]
pub(super) enum PostedComm {
    /// This rank has posted it.
    Here(WorkNo),
    /// This rank has executed its statement and is no member, or the statement belongs to a group: the first Wait
    /// does nothing.
    Elsewhere,
    /// This Wait has ended it, or has found that it is posted elsewhere.
    WaitedFor(StmtId),
}

/// What a rank does when a communication that it waits for has ended.
pub(super) struct AfterWait {
    pub code: Vec<InstKind>,
    /// The buffers that are not used afterwards.
    pub temporaries: Vec<BufferNo>,
}

/// What a `Combine` needs of its `Dispatch`.
pub(super) struct Dispatched {
    /// The tensor number of the rows.
    pub number: u32,
    /// `[T]`: the tokens in the order in which they are sent.
    pub order: View,
    /// `[T]`: the row of each sent token among all `R · T` that this rank sends.
    pub sent: View,
    /// `[R · T]`: the row of the result for each row that this rank receives.
    pub received: View,
    pub temporaries: Vec<BufferNo>,
}

/// A copy of the shards of all ranks that stands for a view of them.
pub(super) struct GatheredView {
    /// The number of instructions before it is complete.
    pub end: usize,
    /// The buffers of the shard and of the view.
    pub buffers: [BufferNo; 2],
    pub span: Span,
    pub stmt: OpStmt,
}

/// The posted plan of a rank.
pub(super) struct PostedPlan {
    /// The instructions and data. The communications of the CUDA backend are posted like those of a library.
    pub plan: Plan,
    /// By work.
    pub requests: Vec<Request>,
    /// The statements that other ranks may execute at other times: those in branches and loops that depend on the rank.
    pub divergent: FxHashSet<StmtId>,
}

/// The posted plans of all ranks.
#[derive(Default)]
pub(super) struct PostedWorld {
    /// By rank.
    pub plans: Vec<Plan>,
    /// By rank and work.
    pub requests: Vec<Vec<Request>>,
}
