//! Races as the checker reports them: two unordered accesses.

use super::overlap::ElementRange;
use hir_plan::{
    BufferNo,
    sync::{InstRef, P2pQueues},
};

/// The code that performs one access of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// An instruction of the program.
    Inst(InstRef),
    /// One operation of a send/receive group: the group instruction, and the statement of the operation as an
    /// index into `Plan::origins`.
    Operation(InstRef, u32),
    /// The free of storage on the stream of its ALLOCATE, after an instruction of that stream: the statement that frees it, as an
    /// index into `Plan::origins`.
    Free(InstRef, u32),
    /// The caller before program entry, which writes the inputs.
    CallerBefore,
    /// The caller after `ReadOutputs` of a rank. It may read the outputs, and overwrite or free all memory
    /// that it owns.
    CallerAfter(InstRef),
}

/// Two accesses that no synchronization orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// The rank that owns the memory.
    pub rank: usize,
    /// The buffer that both access. If storage is reused, the earlier buffer or the later one.
    pub buffer: BufferNo,
    /// The first contiguous range of elements that both access.
    pub elements: ElementRange,
    /// Both parties, and whether each writes, in the order in which `plan::sync::happens_before` visits them.
    pub parties: [(Party, bool); 2],
    /// Set if the accesses are to different buffers that share storage.
    pub reused: Option<ReusedStorage>,
    /// True if the second access belongs to the next run of the program.
    pub between_runs: bool,
    /// The communicators of sends and receives with which it was found.
    pub p2p: P2pQueues,
    /// True if ALLOCATE and Deallocate count as work of a stream (`AccessRules::frees_in_stream_order`), and for symmetric memory.
    pub is_stream_ordered: bool,
}

impl Race {
    /// Returns a race of one run on one buffer, of a rank, with communicators of teams.
    pub(super) fn new(
        (rank, buffer): (usize, BufferNo),
        elements: ElementRange,
        parties: [(Party, bool); 2],
    ) -> Self {
        Self {
            rank,
            buffer,
            elements,
            parties,
            reused: None,
            between_runs: false,
            p2p: P2pQueues::Communicator,
            is_stream_ordered: false,
        }
    }
}

/// Two buffers that occupy the same storage one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReusedStorage {
    /// The buffer that occupies the storage first.
    pub earlier: BufferNo,
    /// The buffer that occupies the storage later; `None` is the caller, after the program has returned.
    pub later: Option<BufferNo>,
    /// The statement that frees `earlier`, as an index into `Plan::origins`; `None` is the end of the
    /// program.
    pub freed_by: Option<u32>,
    /// True if an ALLOCATE of the next run may get it, if that run is issued and not replayed.
    pub by_next_run: bool,
    /// True if no Wait frees it, but the next communication after those that hold it have ended.
    pub by_next_call: bool,
    /// True if a capture frees it, which drops the communications that hold it.
    pub in_capture: bool,
    /// True if the host unmaps it, which waits for no stream.
    pub is_unmapped: bool,
}
