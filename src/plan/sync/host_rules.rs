//! The rules by which hosts block inside a call until other ranks call, or until work of the GPU has ended: one list of the calls.
//!
//! Exchanges of handles, barriers and `Synchronize(host)` block for hosts in each blocking order (`waits`). These rules apply where the options of the
//! checker say so. Registration of windows, aborts and the destruction of communicators wait for the other ranks, too, and have no statement in
//! the language. Trials of all are in tests/gpu/rules/hosts.py.

/// A rule by which hosts block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRule {
    /// Creation of communicators: until all ranks of the team create it.
    Creation,
    /// The barrier of an exchange of handles: until the streams that are current there have done what is issued before, on all ranks.
    Exchange,
    /// First connection of two ranks, or of a collective, on a communicator: until these ranks call.
    Connection,
    /// Allocation and free of symmetric memory: until all streams of the GPU have ended what is issued before. Trials show it of the free only,
    /// CUDA's guide says it of both.
    SymmetricMemory,
}

impl HostRule {
    /// All rules. Of several that deadlock by themselves, the first one is reported.
    pub const ALL: [Self; 4] = [Self::Creation, Self::SymmetricMemory, Self::Exchange, Self::Connection];

    /// Returns the note of a deadlock that needs the rule: the setting, and which call of which library blocks.
    pub fn note(self) -> &'static str {
        match self {
            Self::Creation => {
                "with `--p2p=pair`: PyTorch without eager initialization creates a communicator in its first communication, and the \
                 host waits there for the other ranks"
            }
            Self::Exchange => {
                "an exchange of handles ends with `torch.distributed.barrier` on the current stream (nvFuser): the host waits there until this \
                 stream of each rank has done what it had"
            }
            Self::Connection => {
                "with `--nccl=connect-at-first-use` (NCCL's default): NCCL connects two ranks in their first send and receive, and a team \
                 in its first collective of a kind and size, and the hosts wait there for each other"
            }
            Self::SymmetricMemory => {
                "with `--storage=cuda-async`: the host waits for all streams of its GPU where it allocates or frees symmetric memory, as \
                 `cudaMalloc` and `cudaFree` do"
            }
        }
    }

    /// Returns what to change if hosts wait for each other by the rule.
    pub fn help(self) -> &'static str {
        match self {
            Self::Creation => {
                "let all ranks create their communicators in the same order: a communication of all ranks of the team first; \
                 or create them eagerly (`init_process_group(device_id=…)`) and check with `--p2p=communicator`"
            }
            Self::Exchange => {
                "exchange all handles before the first transfer; or check a program that has run before, and so has exchanged them, with \
                 `--nccl=connected`"
            }
            Self::Connection => {
                "let the ranks post it before one of them waits for what the other one issues later; or connect them before the program, by a \
                 communication of the same ranks, kind and size, and check with `--nccl=connected`"
            }
            Self::SymmetricMemory => {
                "allocate and free symmetric memory where the streams of the rank wait for no other rank"
            }
        }
    }
}
