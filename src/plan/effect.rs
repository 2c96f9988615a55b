//! The effect of an instruction on the synchronization of ranks, hosts and streams, and the class of its
//! cost. `access` describes its reads and writes.

use super::{
    Communication, CommunicatorNo, CostClass, CostInfo, EventNo, InstKind, MemHandle, Reshard, SignalId,
    WorkNo,
};

/// The effect of an instruction on synchronization.
#[derive(Clone, Copy, Debug)]
pub enum SyncEffect<'p> {
    /// Blocks the host until each peer has published the matching handle.
    ShareMemHandles(&'p [MemHandle]),
    /// Blocks the host until the hosts of all ranks have reached the barrier with the same number.
    Barrier,
    /// Blocks the host until an event has been recorded.
    HostWait(EventNo),
    /// No effect: the instruction only accesses memory.
    Compute,
    /// Records an event when the stream reaches the instruction.
    RecordEvent(EventNo),
    /// Blocks the stream until an event has been recorded.
    WaitEvent(EventNo),
    /// Blocks the stream until a posted communication is complete.
    Wait(WorkNo),
    /// Sets a signal when the stream reaches the instruction.
    Signal(SignalId),
    /// Blocks the stream until a signal is set.
    WaitSignal(SignalId),
    /// Posts to the queue of a communicator; the stream continues.
    Post(Communication<'p>),
    /// Blocks the stream until all members of the team have reached the instruction.
    Reshard(&'p Reshard),
    /// Reads the outputs.
    ReadOutputs,
}

/// The effects of events, signals and Waits, as a pattern for matches that name all effects.
#[macro_export]
macro_rules! stream_sync_effects {
    () => {
        $crate::SyncEffect::RecordEvent(_)
            | $crate::SyncEffect::WaitEvent(_)
            | $crate::SyncEffect::Wait(_)
            | $crate::SyncEffect::Signal(_)
            | $crate::SyncEffect::WaitSignal(_)
    };
}

/// The effects that block the host, as a pattern for matches that name all effects.
#[macro_export]
macro_rules! host_effects {
    () => {
        $crate::SyncEffect::ShareMemHandles(_) | $crate::SyncEffect::Barrier | $crate::SyncEffect::HostWait(_)
    };
}

/// Where an instruction completes.
#[derive(Clone, Copy, Debug)]
pub enum ExecutionSite<'p> {
    /// On the host, which is blocked until then.
    Host,
    /// On the stream on which it is issued.
    Stream,
    /// On the queue of its communicator, after the stream has posted it.
    Queue(Communication<'p>),
}

impl<'p> SyncEffect<'p> {
    /// Returns where the instruction completes.
    pub fn execution_site(self) -> ExecutionSite<'p> {
        match self {
            Self::ShareMemHandles(_) | Self::Barrier | Self::HostWait(_) => ExecutionSite::Host,
            Self::Post(it) => ExecutionSite::Queue(it),
            crate::stream_sync_effects!() | Self::Compute | Self::Reshard(_) | Self::ReadOutputs => {
                ExecutionSite::Stream
            }
        }
    }

    /// Returns whether the host executes the instruction, instead of a stream.
    pub fn runs_on_host(self) -> bool {
        matches!(self.execution_site(), ExecutionSite::Host)
    }
}

impl InstKind {
    /// Returns true for an allocation without zeroing: it changes only which storage a name has.
    pub fn does_nothing_on_stream(&self) -> bool {
        matches!(self, Self::Alloc { zeroed: None, .. })
    }

    /// Returns the effect of the instruction on synchronization.
    pub fn effect(&self) -> SyncEffect<'_> {
        match self {
            crate::local_insts!() => SyncEffect::Compute,
            Self::Collective(it) => SyncEffect::Post(Communication::Collective(it)),
            Self::P2pGroup(it) => SyncEffect::Post(Communication::P2pGroup(it)),
            Self::Wait { work } => SyncEffect::Wait(*work),
            Self::Signal { signal } => SyncEffect::Signal(*signal),
            Self::WaitSignal { signal } => SyncEffect::WaitSignal(*signal),
            Self::RecordEvent { event } => SyncEffect::RecordEvent(*event),
            Self::WaitEvent { event } => SyncEffect::WaitEvent(*event),
            Self::ShareMemHandles { handles } => SyncEffect::ShareMemHandles(handles),
            Self::Barrier => SyncEffect::Barrier,
            Self::HostWait { event } => SyncEffect::HostWait(*event),
            Self::Reshard(it) => SyncEffect::Reshard(it),
            Self::ReadOutputs => SyncEffect::ReadOutputs,
        }
    }

    /// Returns the cost of the instruction.
    pub fn cost_info(&self) -> CostInfo {
        let nothing = CostInfo { class: CostClass::Ordering, label: None, reduction_len: 1 };
        let cost = |class, word| CostInfo { class, label: Some(word), reduction_len: 1 };
        match self {
            Self::Copy { .. } => cost(CostClass::DataMovement, "copy"),
            Self::Fill { .. } => cost(CostClass::DataMovement, "fill"),
            Self::Iota { .. } => cost(CostClass::DataMovement, "iota"),
            Self::Constant { .. } => cost(CostClass::DataMovement, "constant"),
            Self::Alloc { zeroed: Some(_), .. } => cost(CostClass::DataMovement, "zero"),
            crate::computation_insts!() => self.computation().map_or(nothing, |it| it.cost_info()),
            Self::Map { op, .. } => cost(CostClass::Compute, op.name()),
            Self::PeerReduce { parts, .. } => {
                CostInfo { reduction_len: parts.len(), ..cost(CostClass::PeerAccess, "peer_reduce") }
            }
            Self::Signal { .. } => cost(CostClass::PeerAccess, "signal"),
            Self::WaitSignal { .. } => cost(CostClass::PeerAccess, "wait_signal"),
            Self::Collective(it) => cost(CostClass::Ordering, it.kind.op_name()),
            Self::P2pGroup(_) => cost(CostClass::Ordering, "transfer"),
            Self::Alloc { zeroed: None, .. }
            | Self::Wait { .. }
            | Self::RecordEvent { .. }
            | Self::WaitEvent { .. }
            | Self::ShareMemHandles { .. }
            | Self::Barrier
            | Self::HostWait { .. }
            | Self::Reshard(_)
            | Self::ReadOutputs => nothing,
        }
    }

    /// Returns the communication that the instruction posts, if it posts one.
    pub fn communication(&self) -> Option<Communication<'_>> {
        if let ExecutionSite::Queue(it) = self.effect().execution_site() { Some(it) } else { None }
    }

    /// Returns the communicator and the work number of the communication that the instruction posts, if it
    /// posts one.
    pub(super) fn communication_numbers_mut(&mut self) -> Option<(&mut CommunicatorNo, &mut WorkNo)> {
        match self {
            Self::Collective(it) => Some((&mut it.communicator, &mut it.work)),
            Self::P2pGroup(it) => Some((&mut it.communicator, &mut it.work)),
            crate::local_insts!() | Self::Reshard(_) | crate::ordering_insts!() => None,
        }
    }
}
