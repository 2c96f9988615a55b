//! Why there is no witness of a finding.

use super::{NotReplayable, orders::TooLarge};

/// Why no order of steps of the simulator shows a finding. Its text is the part of a sentence behind a colon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotShown {
    /// There is nothing to show: a warning or a remark.
    #[error("the check found no fault")]
    NoFault,
    /// The program deadlocks before.
    #[error("the program deadlocks")]
    Deadlock,
    /// The race needs a queue for each pair of ranks.
    #[error("hir-run executes the transfers of all pairs of ranks on one communicator")]
    OneCommunicator,
    /// Worlds of their own are made for the first findings only.
    #[error("the first findings have none")]
    FirstFindingsOnly,
    /// The simulator keeps storage until a program ends.
    #[error("the simulator does not free storage while a program runs")]
    StorageIsKept,
    /// The simulator has no step for one of the two accesses.
    #[error("the simulator has no step for what the caller or the allocator does there")]
    NoStep,
    /// The steps of the simulator have one order only.
    #[error("the order of the simulator's steps allows only one order of the two accesses")]
    OneOrder,
    /// A transfer is posted again before the copying rank has waited.
    #[error("the rank that copies waits too early: no order of steps shows this")]
    WaitsTooEarly,
    /// The capture of the program fails.
    #[error("the capture fails, so that there is no graph to run")]
    CaptureFails,
    /// A graph lacks a communication that another rank waits for.
    #[error("the graph waits forever for a communication that a rank does not record")]
    GraphDeadlocks,
    /// The executor's order of kernels is one of those without a fault.
    #[error("hir-run starts the kernels of several communicators in issue order")]
    IssueOrder,
    /// The fault does not depend on the order of steps.
    #[error("elements that nothing writes are unwritten in every order")]
    InEveryOrder,
    /// The fault does not depend on the order of steps.
    #[error("the calls are swapped in every order")]
    Swapped,
    /// The runs cannot be combined.
    #[error(transparent)]
    NotReplayable(#[from] NotReplayable),
    /// The orders of steps are too many to look for one.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}
