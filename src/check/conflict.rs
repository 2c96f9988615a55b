//! A race as it is found: two sides that nothing orders.

use super::overlap::ElementRange;
use crate::plan::{BufferNo, sync::InstRef};

/// One side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// An instruction of the program.
    Inst(InstRef),
    /// One operation of a group of sends and receives: the group, and the statement of the operation, an index into `Plan::origins`.
    Operation(InstRef, u32),
    /// The caller, before the program begins: it has written the inputs.
    CallerBefore,
    /// The caller, after `Finish` of a rank: it may read the outputs, and overwrite or free everything that is its own.
    CallerAfter(InstRef),
}

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// The rank whose memory it is.
    pub rank: usize,
    /// The buffer.
    pub buffer: BufferNo,
    /// Elements of the buffer that both access: the first run of them.
    pub elements: ElementRange,
    /// Both sides and whether they write, in the order in which `order` visits them.
    pub parties: [(Party, bool); 2],
    /// Where the two access different buffers, one of which gets the storage of the other.
    pub reused: Option<ReusedStorage>,
    /// Whether the second side is one of the next run of the program.
    pub between_runs: bool,
}

/// Two buffers that get the same storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReusedStorage {
    /// The buffer that has it first.
    pub earlier: BufferNo,
    /// The buffer that has it later; `None`: the caller, once the program has returned.
    pub later: Option<BufferNo>,
    /// The statement that frees it, an index into `Plan::origins`; `None`: the end of the program.
    pub freed_by: Option<u32>,
}
