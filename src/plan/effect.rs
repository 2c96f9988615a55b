//! What an instruction does to the synchronisation of ranks, hosts and streams, and what kind of work it is. `access` says what it reads
//! and writes.

use super::{Communication, EventNo, InstKind, MemHandle, Reshard, SignalId, WorkNo};

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstClass {
    /// None: it orders others, allocates, or posts what runs on a queue.
    Ordering,
    /// It writes memory of one rank, without arithmetic.
    DataMovement,
    /// It moves data or signals between ranks.
    Communication,
    /// It computes.
    Compute,
}

/// What kind of work an instruction is.
#[derive(Clone, Copy, Debug)]
pub struct WorkInfo {
    /// The kind.
    pub kind: InstClass,
    /// What reports of times call it; `None`: nothing that takes time on a stream.
    pub label: Option<&'static str>,
    /// How many products or elements are summed into one element.
    pub reduction_len: usize,
}

/// What an instruction does to the synchronisation.
#[derive(Clone, Copy, Debug)]
pub enum SyncEffect<'p> {
    /// Blocks the host until each peer has published the matching handle.
    ShareMemHandles(&'p [MemHandle]),
    /// Blocks the host until the hosts of all ranks are at their barrier of the same number.
    Barrier,
    /// None: it only touches memory.
    Compute,
    /// Sets an event once the stream is here.
    RecordEvent(EventNo),
    /// Blocks the stream until an event is set.
    WaitEvent(EventNo),
    /// Blocks the stream until a posted communication is complete.
    Wait(WorkNo),
    /// Raises a flag once the stream is here.
    Signal(SignalId),
    /// Blocks the stream until a flag is raised.
    WaitSignal(SignalId),
    /// Posts on a communicator's queue; the stream goes on.
    Post(Communication<'p>),
    /// Blocks the stream until the whole team is here.
    Reshard(&'p Reshard),
    /// Reads the outputs.
    ReadOutputs,
}

/// Where an instruction completes.
#[derive(Clone, Copy, Debug)]
pub enum ExecutionSite<'p> {
    /// On the host, which blocks in it.
    Host,
    /// On the stream that it is issued to.
    Stream,
    /// On the queue of its communicator, once the stream has posted it.
    Queue(Communication<'p>),
}

impl<'p> SyncEffect<'p> {
    /// Where the instruction completes.
    pub fn execution_site(self) -> ExecutionSite<'p> {
        match self {
            Self::ShareMemHandles(_) | Self::Barrier => ExecutionSite::Host,
            Self::Post(it) => ExecutionSite::Queue(it),
            Self::Compute
            | Self::RecordEvent(_)
            | Self::WaitEvent(_)
            | Self::Wait(_)
            | Self::Signal(_)
            | Self::WaitSignal(_)
            | Self::Reshard(_)
            | Self::ReadOutputs => ExecutionSite::Stream,
        }
    }

    /// Whether the host executes the instruction, and no stream.
    pub fn runs_on_host(self) -> bool {
        matches!(self.execution_site(), ExecutionSite::Host)
    }
}

impl InstKind {
    /// What the instruction does to the synchronisation.
    pub fn effect(&self) -> SyncEffect<'_> {
        match self {
            Self::Alloc { .. }
            | Self::Copy { .. }
            | Self::Fill { .. }
            | Self::Iota { .. }
            | Self::Gemm(_)
            | Self::Map { .. }
            | Self::Reduce(_)
            | Self::PeerReduce { .. } => SyncEffect::Compute,
            Self::Collective(it) => SyncEffect::Post(Communication::Collective(it)),
            Self::Transfer(it) => SyncEffect::Post(Communication::Transfer(it)),
            Self::Wait { work } => SyncEffect::Wait(*work),
            Self::Signal { signal: slot } => SyncEffect::Signal(*slot),
            Self::WaitSignal { signal: slot } => SyncEffect::WaitSignal(*slot),
            Self::RecordEvent { event } => SyncEffect::RecordEvent(*event),
            Self::WaitEvent { event } => SyncEffect::WaitEvent(*event),
            Self::ShareMemHandles { handles } => SyncEffect::ShareMemHandles(handles),
            Self::Barrier => SyncEffect::Barrier,
            Self::Reshard(it) => SyncEffect::Reshard(it),
            Self::ReadOutputs => SyncEffect::ReadOutputs,
        }
    }

    /// What kind of work the instruction is.
    pub fn work_info(&self) -> WorkInfo {
        let work = |kind, word| WorkInfo { kind, label: Some(word), reduction_len: 1 };
        match self {
            Self::Copy { .. } => work(InstClass::DataMovement, "copy"),
            Self::Fill { .. } => work(InstClass::DataMovement, "fill"),
            Self::Iota { .. } => work(InstClass::DataMovement, "iota"),
            Self::Alloc { zero: true, .. } => work(InstClass::DataMovement, "zero"),
            Self::Gemm(it) => WorkInfo {
                reduction_len: it.a.shape.last().copied().unwrap_or(1),
                ..work(InstClass::Compute, "gemm")
            },
            Self::Map { op, .. } => work(InstClass::Compute, op.name()),
            Self::Reduce(it) => {
                let summed = it.axes.iter().map(|axis| it.input.shape[*axis]).product();
                WorkInfo { reduction_len: summed, ..work(InstClass::Compute, "reduce") }
            }
            Self::PeerReduce { parts, .. } => {
                WorkInfo { reduction_len: parts.len(), ..work(InstClass::Communication, "combine") }
            }
            Self::Signal { .. } => work(InstClass::Communication, "signal"),
            Self::WaitSignal { .. } => work(InstClass::Communication, "await"),
            Self::Collective(it) => work(InstClass::Ordering, it.kind.op_name()),
            Self::Transfer(_) => work(InstClass::Ordering, "transfer"),
            Self::Alloc { zero: false, .. }
            | Self::Wait { .. }
            | Self::RecordEvent { .. }
            | Self::WaitEvent { .. }
            | Self::ShareMemHandles { .. }
            | Self::Barrier
            | Self::Reshard(_)
            | Self::ReadOutputs => WorkInfo { kind: InstClass::Ordering, label: None, reduction_len: 1 },
        }
    }

    /// The communication that the instruction posts.
    pub fn communication(&self) -> Option<Communication<'_>> {
        if let ExecutionSite::Queue(it) = self.effect().execution_site() { Some(it) } else { None }
    }
}
