//! Proves that the plans of all ranks are free of races, deadlocks and lifetime errors, or shows where they are not. Nothing runs.
//!
//! The checker reads plans only: `plan::sync` says what communicates and what happens before what, `InstKind::visit_accesses` what each
//! instruction reads and writes. Loops are unrolled and every rank is present, so a finding names one iteration and one rank, and the
//! absence of findings is a proof for this program, this number of ranks and these values of `--set`.
//!
//! # What orders two accesses
//!
//! What CUDA, NCCL and PyTorch document, and no more: an order that an executor happens to give beyond this does not count.
//!
//! | order | source |
//! |---|---|
//! | Work on one stream runs in the order of issue. | CUDA C++ Programming Guide, Streams |
//! | `Synchronize(S)` records an event on S, and the current stream waits for it. | CUDA Runtime API, `cudaEventRecord`, `cudaStreamWaitEvent` |
//! | A stream that waits for a memory value continues after the work before the write of that value: the write fences, by its default flags. | CUDA Driver API, Stream Memory Operations |
//! | A communication starts after the work that its stream had when it was posted; a stream continues after it only by a `Wait`. | PyTorch, `ProcessGroupNCCL`, `Work.wait` |
//! | Communications of one communicator run in the order of posting: a communicator has one stream. | PyTorch, `ProcessGroupNCCL` with eager initialization; without it, sends and receives of each pair of ranks have a stream of their own, which is not modelled |
//! | A communication ends on a member once the data that this member receives is there. A member that receives nothing from a peer does not wait for it: the root of a broadcast may end early. | NCCL documents no barrier between members: only the data orders them |
//! | The operations of a group run concurrently: a receive may write before a send of the same group has read. | NCCL User Guide, Point-to-point communication |
//! | Operations on different communicators have to be submitted in the same order on all ranks: kernels wait for each other while they occupy a GPU. | NCCL User Guide, Using multiple NCCL communicators concurrently |
//! | `ShareMemHandles` and barriers order hosts. Streams run behind their hosts, so these order no memory access. | CUDA C++ Programming Guide, Asynchronous Concurrent Execution |
//! | Storage may be used after the work that the stream of its `ALLOCATE` had by then, and is handed out again to that stream once no tensor and no communication holds it. | PyTorch, `Tensor.record_stream` |
//! | The caller writes inputs before the stream that is current at entry begins; inputs, outputs and freed storage are its own once the stream that is current at exit has done its work. | the same rule, with the caller's current stream; a convention of this project |
//!
//! With `Model::Hir` (`--check-model=hir`) the following orders count, too. hir's executor on GPUs gives them; so does the simulator, where
//! every buffer has memory of its own:
//!
//! | order | place in the code |
//! |---|---|
//! | All streams of all ranks begin after the inputs are in memory on all ranks. | `Engine::fill` ends with a barrier of all ranks, `Engine::reset` with `Engine::meet`; in `Engine::begin` every stream waits for the first |
//! | At exit the outputs are read, on the stream that is current there. Until all streams of all ranks have ended, nothing of the program is overwritten or freed. | `Engine::join`, then `Engine::meet` at the start of `Engine::reset`; `run::gpu::run` fills memory again only after all ranks have given their outputs |
//! | A buffer gets the place of another only where every use of the other, by all ranks, happens before every use of it. | `cuda::buffer_assignment`, by `plan::sync::order` |
//!
//! # What is found
//!
//! `race`: two accesses to an element, one a write, that nothing orders. `memory`: elements that are read, or returned, and that nothing
//! has written. `repeat`: accesses of two consecutive runs that nothing orders. `comm`: a deadlock; since nothing that comes after it runs,
//! it is reported whatever was asked for. `excess`: what the program could do without, as remarks.

mod apply;
mod checker;
mod conflict;
mod diagnostics;
mod edit;
mod excess;
mod excess_diagnostics;
mod explanation;
mod finding;
mod fix;
mod history;
mod memory;
mod ordering_model;
mod orders;
mod overlap;
mod race;
mod race_side;
mod repeat;
mod storage;
mod written;

pub use conflict::{Party, Race};
pub use diagnostics::UNWRITTEN_HELP;
pub use edit::{Edit, InsertionPoint, NamedStmt, WaitedStream};
pub use excess::{Excess, ExcessKind, ExcessNotSearched};
pub use finding::{Checks, Finding, Report};
pub use fix::{AppliedEdit, FixResult, Planner, fix};
pub use memory::UnwrittenRead;
pub use ordering_model::OrderingModel;
pub use orders::{Orders, StepOrder, TooLarge, Truncation};
pub use overlap::ElementRange;

use crate::plan::Plan;

/// The races of plans, one for each pair of statements and buffer, not folded over ranks and iterations. Of accesses that a later write
/// covers, only the race with that write may be there.
pub fn races(plans: &[Plan]) -> Vec<Race> {
    checker::run_checks(plans, Checks { memory: false, ..Checks::ALL_FAULTS }).races
}

/// Checks the plans of all ranks.
pub fn check(plans: &[Plan], checks: Checks) -> Report {
    checker::run_checks(plans, checks).report(plans)
}
