//! Faults of a program that are about how an executor runs it, and not about the order of two accesses.

use grammar::Code;
use hir_plan::{Plan, World, sync::SwappedCalls};

/// The maximum of `CUDA_DEVICE_MAX_CONNECTIONS`.
pub(super) const MAX_HARDWARE_QUEUES: usize = 32;
/// The number of hardware queues without `CUDA_DEVICE_MAX_CONNECTIONS`.
pub(super) const HARDWARE_QUEUES: usize = 8;

/// A transfer over peer memory that is posted again too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PostedAgain {
    /// The rank.
    pub rank: usize,
    /// The instruction of the rank that posted the transfer before, or waited for the post.
    pub earlier: usize,
    /// The instruction that does so again.
    pub inst: usize,
}

/// A fault of how an executor runs a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionFault {
    /// The rank.
    pub rank: usize,
    /// The statement, an index into `Plan::origins`.
    pub origin: u32,
    /// What is wrong.
    pub kind: ExecutionFaultKind,
    /// A transfer that is posted again: two instructions of the rank, of which the second posts, or waits for the post, and the first one did
    /// so before, in this run or in the one before.
    pub again: Option<[usize; 2]>,
}

impl ExecutionFault {
    /// Ranks make two calls in different orders.
    pub(super) fn swapped(world: &World, it: SwappedCalls) -> Self {
        let at = it.first[0];
        let origin = world[at.rank].code[at.inst].origin;
        Self { rank: at.rank, origin, kind: ExecutionFaultKind::Swapped(it), again: None }
    }

    /// An instruction of a rank posts a transfer again that may not have ended, in its own run or in the run before.
    pub(super) fn posted_again(plans: &[Plan], it: PostedAgain, between_runs: bool) -> Self {
        // Within a run, a walk may visit posts that nothing orders in another order than that of the program.
        let swapped = !between_runs && it.inst < it.earlier;
        let [earlier, later] = if swapped { [it.inst, it.earlier] } else { [it.earlier, it.inst] };
        let origin = plans[it.rank].code[later].origin;
        let again = (!between_runs).then_some([earlier, later]);
        Self { rank: it.rank, origin, kind: ExecutionFaultKind::PostedAgain { between_runs }, again }
    }
}

/// What is wrong with how an executor runs a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutionFaultKind {
    /// A capture does not record the stream, an index into `Plan::streams`: it has work before it takes part.
    NotRecorded(u32),
    /// A stream that takes part in a capture waits for one that does not.
    Isolation,
    /// The host waits, which ends a capture with an error.
    HostWait,
    /// The host allocates or frees symmetric memory, which ends a capture with an error.
    SymmetricMemory {
        /// Whether it frees.
        frees: bool,
    },
    /// A captured graph allocates it, and the program does not free it.
    NotFreed,
    /// The end does not follow this work of a stream or communicator that takes part in a capture.
    Unjoined,
    /// It posts a transfer again that may not have ended.
    PostedAgain {
        /// Whether the first one belongs to the run before.
        between_runs: bool,
    },
    /// This many streams wait for other ranks, more than there are hardware queues, and the ranks may wait for each other if two share one.
    TooFewQueues(usize),
    /// Ranks make two calls of a team in different orders.
    Swapped(SwappedCalls),
}

impl ExecutionFaultKind {
    /// Returns the code of the diagnostic.
    pub fn code(self) -> Code {
        match self {
            Self::NotRecorded(_)
            | Self::Isolation
            | Self::HostWait
            | Self::SymmetricMemory { .. }
            | Self::NotFreed
            | Self::Unjoined => Code::NotCaptured,
            Self::PostedAgain { .. } => Code::SemaphoreInUse,
            Self::TooFewQueues(_) => Code::FewQueues,
            Self::Swapped(_) => Code::CheckedDeadlock,
        }
    }

    /// Returns what is said at the statement.
    pub fn label(self) -> String {
        let label = match self {
            Self::NotRecorded(_) => "a capture does not record this: the stream has not waited for main",
            Self::Isolation => "waits for a stream that the capture does not record",
            Self::HostWait => "the host waits for work that is not executed before the graph is launched",
            Self::SymmetricMemory { frees: false } => "allocates symmetric memory",
            Self::SymmetricMemory { frees: true } => "frees symmetric memory",
            Self::NotFreed => "the graph allocates this, and the program does not free it",
            Self::Unjoined => "nothing waits for this before the end of the program",
            Self::PostedAgain { .. } => "the same transfer again",
            Self::Swapped(_) => "another rank makes another call of the team here",
            Self::TooFewQueues(_) => return format!("the {}th stream that waits", HARDWARE_QUEUES + 1),
        };
        label.to_owned()
    }
}
