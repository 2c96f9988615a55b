//! Synchronization of ranks: which instructions communicate with each other, in what order instructions
//! execute, and where ranks deadlock.
//!
//! | module | contents |
//! |---|---|
//! | `matching` | matches communications across ranks |
//! | `agreement` | checks that matched communications agree on kind, root, element count and dtype |
//! | `waits` | what each instruction waits for, in the guaranteed, the blocking and the connecting order |
//! | `machine` | executes streams and queues, and in the blocking order also hosts, without memory |
//! | `happens_before` | the order that every executor guarantees (for races): the machine with clocks |
//! | `memory_groups` | the groups of ranks that share no memory, in each of which races are found alone |
//! | `symmetry` | classes of ranks that do the same at the same times (for estimates) |
//! | `step` | the steps in which an instruction accesses memory |
//! | `comm_order` | checks that all ranks start the kernels of their communicators in the same order |
//! | `swapped_calls` | finds collectives of one team that ranks call in different orders |
//! | `p2p_queues` | on which communicator sends and receives run that are in no group |
//! | `world` | the plans of all ranks with their matched communications, and their progress |
//! | `wait_graph` | the wait-for graph in a given state (for deadlocks and jobs that do not proceed) |
//! | `deadlock_detection` | decides whether the plans deadlock |
//! | `explain`, `deadlock`, `report_text`, `blocked_wait` | explain a deadlock |
//! | `host_rules`, `connections` | the calls in which hosts block |
//! | `host_blocks` | deadlocks of hosts that block there |
//! | `host_waits` | hosts that wait for work of their GPU: where symmetric memory is allocated or freed, and at exchanges of handles |
//! | `skipped` | finds the statement that a rank skips and others wait for |
//! | `skip_edit` | the change with which all ranks post a communication that one of them skips |
//! | `peer_edit` | the peer with which a send or a receive meets its partner |
//! | `progress` | explains why a running job makes no progress |
//!
//! The guaranteed order and the blocking order are never mixed: the root of a broadcast is not guaranteed to
//! wait for any member, but it may wait for all.

mod agreement;
mod blocked_wait;
mod comm_order;
mod connections;
mod deadlock;
mod deadlock_detection;
mod explain;
pub mod happens_before;
mod host_blocks;
mod host_rules;
mod host_waits;
mod machine;
mod matching;
mod memory_groups;
mod p2p_queues;
mod peer_edit;
mod progress;
mod report_text;
mod skip_edit;
mod skipped;
mod step;
mod swapped_calls;
mod symmetry;
mod wait_graph;
mod waits;
mod world;

pub(super) use agreement::agreement;
pub use blocked_wait::{BlockedWait, lines_by_rank, ranks_text};
pub use comm_order::{
    CommOrderCycle, CommOrderEdge, LaunchOrder, OrderOfRuns, TooManyComms, comm_order_cycle, order_of_runs,
    own_orders_exclude_cycles, shared_pads,
};
pub use deadlock::{Cause, Deadlock, HeadToHead, MissingPost};
pub use explain::explain;
pub use host_rules::HostRule;
pub use matching::{
    CommGroup, CommKey, CommMatching, CommNo, CommPart, CommRole, GroupNo, InstRef, MatchedComm,
};
pub use memory_groups::{MemoryGroups, is_large_world};
pub use p2p_queues::P2pQueues;
pub use progress::{JobState, RankProgress};
use skipped::Alignment;
pub use step::{
    Step, StepAccess, acquire_step, begin_end_steps, collective_members, copy_halves, deliver_step,
    next_receives, release_step,
};
pub use swapped_calls::SwappedCalls;
pub use symmetry::Symmetry;
pub use wait_graph::{Blocker, WaitGraph};
pub use waits::{Actor, Event, WaitOrder, Waits};
pub use world::{Position, World, WorldState};
