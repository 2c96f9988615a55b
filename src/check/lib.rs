//! Proves that the plans of all ranks are free of races, deadlocks and reads of unwritten memory, or reports
//! where they are not. Nothing is executed.
//!
//! The checker reads only the plans: `plan::sync` provides the matched communications and the happens-before
//! order, and `InstKind::visit_accesses` provides the accesses of each instruction. Loops are unrolled and
//! all ranks are present. A finding therefore names one iteration and one rank, and the absence of findings
//! is a proof for this program, this number of ranks and these values of `--set`.
//!
//! # What orders two accesses
//!
//! Only the guarantees that CUDA, NCCL and PyTorch document; docs/checker.md has a table of sources by code and option. An order that an executor happens to provide
//! beyond these does not count.
//!
//! * Work on one stream runs in issue order. Source: CUDA C++ Programming Guide, Streams.
//! * `Synchronize(S)` records an event on S, and the current stream waits for it. Source: CUDA Runtime API,
//!   `cudaEventRecord`, `cudaStreamWaitEvent`.
//! * A stream that waits for a memory value continues after the work that precedes the write of that value:
//!   by default the write has fence semantics. Source: CUDA Driver API, Stream Memory Operations. A GPU that may reorder
//!   remote writes has to flush them after the wait: `hir_cuda`'s `signals`.
//! * A communication starts after the work issued on its stream before it was posted. A stream waits for it
//!   only by a `Wait`. Source: PyTorch, `ProcessGroupNCCL`, `Work.wait`.
//! * Communications of one communicator run in posting order: a communicator has one stream. Source: PyTorch,
//!   `ProcessGroupNCCL`. Sends and receives that are in no group run on that of all ranks, or on one for each pair of
//!   ranks: `P2pQueues`.
//! * A communication ends on a member once that member has received its data. A member that receives nothing
//!   from a peer does not wait for it: the root of a broadcast may end early. NCCL documents no barrier
//!   between members: only the data orders them. Source: NCCL User Guide, Collective Operations.
//! * The operations of a group run concurrently: a receive may write before a send of the same group has
//!   read. Messages between two ranks arrive in the order in which they are posted. Source: NCCL User Guide,
//!   Point-to-point communication.
//! * A collective may write its output before it has read its input, unless it is in place. Source: NCCL User
//!   Guide, In-place Operations.
//! * Operations on different communicators must start in the same order on all ranks: their kernels
//!   occupy the GPU while they wait for each other. Source: NCCL User Guide, Using multiple NCCL
//!   communicators concurrently. Two that nothing orders on the GPU start in any order, or with
//!   `NCCL_LAUNCH_ORDER_IMPLICIT=1` (NCCL 2.26) in issue order, also in and between CUDA graphs. Source: NCCL User Guide, Environment
//!   variables; `src/enqueue.cc`, `ncclLaunchPrepare`; `src/misc/strongstream.cc`; `LaunchOrder`.
//! * A transfer over peer memory has one semaphore for each peer, buffer and P2PCommunication, so it is not posted again
//!   before it has ended. Source: nvFuser, `csrc/multidevice/ipc_handle.cpp`, `cuda_p2p.cpp`; `semaphores`.
//! * What the host issues after it has waited for a stream follows the work of that stream. Source: CUDA Runtime API,
//!   `cudaStreamSynchronize`.
//! * A view of the shards of all ranks is mapped memory of peers: what reads it reads their shards. Source: nvFuser,
//!   `csrc/multidevice/symmetric_tensor.cpp`; `plan::mapped_views`.
//! * `ShareMemHandles` and barriers order host threads. Streams run asynchronously to the host, so these
//!   order no memory access. Source: CUDA C++ Programming Guide, Asynchronous Concurrent Execution.
//! * Storage may be used after the work issued on the stream of its `ALLOCATE` up to then. It is reused on
//!   that stream, as a whole or in parts, as soon as no tensor and no communication holds it. Source: PyTorch,
//!   `Tensor.record_stream`, and `CUDACachingAllocator.cpp` for its two pools and for blocks that are split and merged; `plan::caching_allocator`. `StorageModel` selects other allocators: with `cudaMallocAsync`, the
//!   stream executes allocation and free, and each use is between the two (`stream_ordered_frees`).
//! * Streams that wait for semaphores share the hardware queues of a GPU. Source: CUDA C++ Programming Guide, Environment Variables,
//!   `CUDA_DEVICE_MAX_CONNECTIONS`; `semaphores`.
//! * A capture into a CUDA graph records the streams that have waited for its origin, and they have to join it. Source: CUDA C++ Programming
//!   Guide, Creating a Graph Using Stream Capture; `capture`.
//! * The caller writes the inputs before the stream that is current at entry begins. Inputs, outputs and
//!   freed storage belong to the caller again once the stream that is current at exit has finished. Source:
//!   the previous rule, applied to the caller's current stream; a convention of this project.
//!
//! With `OrderingModel::Hir` (`--check-model=hir`) the following orders count as well. hir's executor on GPUs
//! provides them. So does the simulator, in which every buffer has its own memory:
//!
//! * All streams of all ranks begin after the inputs are in memory on all ranks. Implementation:
//!   `Engine::load_inputs` ends with a barrier of all ranks, `Engine::reset_between_runs` with
//!   `Engine::rank_barrier`; in `Engine::begin` every stream waits for the first.
//! * At exit the caller reads the outputs, on the stream that is current there. Nothing of the program is
//!   overwritten or freed until all streams of all ranks have finished. Implementation:
//!   `Engine::join_streams`, then `Engine::rank_barrier` at the start of `Engine::reset_between_runs`;
//!   `driver::job::gpu::run` fills the inputs again only after all ranks have returned their outputs.
//! * A view of the shards of all ranks is a copy of them. Implementation: `plan::symmetric_view`.
//! * A buffer reuses the memory of another only if every use of the other, on all ranks, happens before every
//!   use of it. Implementation: `cuda::buffer_assignment`, by `plan::sync::happens_before`.
//!
//! # Checks
//!
//! * `race`: two accesses to an element, one of them a write, that nothing orders.
//! * `memory`: elements that are read, or returned, before anything has written them, and outputs that are
//!   computed from such elements.
//! * `repeat`: races between two consecutive runs, and kernels of several communicators that consecutive runs start in contradictory orders.
//! * `capture`: work that a capture into a CUDA graph does not record, or that ends it with an error.
//! * `comm`: communicators that ranks use in contradictory orders. Deadlocks are always reported, because no
//!   instruction after a deadlock executes.
//! * `excess`: statements that the program does not need, as remarks.
//!
//! ```
//! use hir_check::{Checks, Finding, check};
//!
//! // Nobody waits for the all-reduce, so its result may be read before it is written.
//! let plans = hir_plan::plans_of_text(
//!     "
//! %HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{4}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS1{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
//!   Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{4}] (DeviceMesh{0 1}), output=T1_g_float[iS1{4}] (DeviceMesh{0 1}), backend=NCCL)
//! } // %HostIrContainer
//! ",
//!     2,
//! )
//! .map_err(|faults| faults[0].message.clone())?;
//! let report = check(&plans, Checks::ALL_FAULTS);
//! assert!(matches!(report.findings[..], [Finding::Race { .. }]));
//! # Ok::<(), String>(())
//! ```
//!
//! The package knows no executor, no file and no command line.

mod access_checks;
mod apply;
mod between_runs;
mod capture;
mod checker;
mod conflict;
mod deliveries;
mod diagnostics;
mod edit;
mod edit_help;
mod editable_text;
mod excess;
mod excess_diagnostics;
mod execution_fault;
mod explanation;
mod finding;
mod first_access;
mod fix;
mod fixable_race;
mod history;
mod iteration_storage;
mod joined_runs;
mod kernels_of_runs;
mod line_changes;
mod loop_edits;
mod memory;
mod merge;
mod missing_write;
mod not_checked;
mod not_compared;
mod not_shown;
mod numbered_lines;
mod order_edits;
mod ordering_model;
mod orders;
mod overlap;
mod plan_index;
mod progress_diagnostics;
mod race;
mod race_side;
mod reader_edits;
mod removal;
mod repeat;
mod replay;
mod semaphores;
mod sequence;
mod shared_buffers;
mod stmt_places;
mod storage;
mod storage_explanation;
mod storage_sharing;
mod stream_operand;
mod stream_ordered_frees;
mod stream_waits;
mod two_runs;
mod wait_cycle;
mod wait_edits;
mod witness;
mod written;

pub use conflict::{Party, Race};
pub use diagnostics::UNWRITTEN_HELP;
pub use edit::{Edit, InsertionPoint, NamedStmt, WaitedStream};
pub use excess::{Excess, ExcessKind, ExcessNotSearched};
pub use execution_fault::{ExecutionFault, ExecutionFaultKind};
pub use finding::{Checks, Finding, Report};
pub use fix::{AppliedEdit, FixResult, Planner, fix};
pub use memory::UnwrittenRead;
pub use not_checked::NotChecked;
pub use not_compared::NotCompared;
pub use not_shown::NotShown;
pub use ordering_model::{OrderingModel, StorageModel};
pub use orders::{Orders, StepOrder, TooLarge, Truncation};
pub use overlap::ElementRange;
pub use replay::{NextRun, NotReplayable, Replay, ReplayedStorage};
pub use semaphores::semaphores;
pub use storage_sharing::{NotShared, may_share};
pub use witness::{Witness, WitnessSetting, first_witness, witness_of_sequence};

use hir_plan::World;

/// Returns the races of the plans, one for each pair of statements and buffer, not merged over ranks and
/// iterations. If a later write covers an access, only the race with that write may be reported.
pub fn races(world: &World) -> Vec<Race> {
    checker::run_checks(world, Checks { memory: false, ..Checks::ALL_FAULTS }).races
}

/// As `races`, with each group of ranks that share no memory checked by itself first, whatever the size of the world. The races are the
/// same; `check` does so with large worlds. Returns `None` if the checks could not run.
pub fn races_in_groups(world: &World) -> Option<Vec<Race>> {
    let checks = Checks { memory: false, ..Checks::ALL_FAULTS };
    let found = checker::run_checks_in(world, checks, access_checks::Grouping::Always);
    found.not_checked.is_empty().then_some(found.races)
}

/// Checks the plans of all ranks as `check` does with those of a large world.
pub fn check_in_groups(world: &World, checks: Checks) -> Report {
    checker::run_checks_in(world, checks, access_checks::Grouping::Always).report(world)
}

pub use sequence::{
    Programs, Sequence, SequenceOrder, SequenceRace, SequencedProgram, order_of_sequence, races_of_sequence,
};

/// Checks the plans of all ranks.
pub fn check(world: &World, checks: Checks) -> Report {
    checker::run_checks(world, checks).report(world)
}
