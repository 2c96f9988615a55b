//! Faults of a program that are about how an executor runs it, and not about the order of two accesses.

use hir_plan::Plan;

/// The number of hardware queues without `CUDA_DEVICE_MAX_CONNECTIONS`.
pub(super) const HARDWARE_QUEUES: usize = 8;

/// A fault of how an executor runs a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionFault {
    /// The rank.
    pub rank: usize,
    /// The statement, an index into `Plan::origins`.
    pub origin: u32,
    /// What is wrong.
    pub kind: ExecutionFaultKind,
}

impl ExecutionFault {
    /// An instruction of a rank posts a transfer again that may not have ended, in its own run or in the run before.
    pub(super) fn posted_again(plans: &[Plan], (rank, inst): (usize, usize), between_runs: bool) -> Self {
        let origin = plans[rank].code[inst].origin;
        Self { rank, origin, kind: ExecutionFaultKind::PostedAgain { between_runs } }
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
    /// The end does not follow this work of a stream or communicator that takes part in a capture.
    Unjoined,
    /// It posts a transfer again that may not have ended.
    PostedAgain {
        /// Whether the first one belongs to the run before.
        between_runs: bool,
    },
    /// This many streams may wait for other ranks at the same time, more than there are hardware queues.
    TooFewQueues(usize),
}

impl ExecutionFaultKind {
    /// Returns what is said at the statement.
    pub fn label(self) -> String {
        let label = match self {
            Self::NotRecorded(_) => "a capture does not record this: the stream has not waited for main",
            Self::Isolation => "waits for a stream that the capture does not record",
            Self::HostWait => "the host waits for work that is not executed before the graph is launched",
            Self::Unjoined => "nothing waits for this before the end of the program",
            Self::PostedAgain { .. } => "the same transfer again",
            Self::TooFewQueues(_) => return format!("the {}th stream that waits", HARDWARE_QUEUES + 1),
        };
        label.to_owned()
    }
}
