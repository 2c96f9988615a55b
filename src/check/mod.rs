//! Proves that the plans of all ranks are free of races, deadlocks and lifetime errors, or shows where they are not. Nothing runs.
//!
//! The checker reads plans only: `plan::sync` says what communicates and what happens before what, `InstKind::visit_accesses` what each
//! instruction reads and writes. Loops are unrolled and every rank is present, so a finding names one iteration and one rank, and the
//! absence of findings is a proof for this program, this number of ranks and these values of `--set`.
//!
//! # What orders two accesses
//!
//! Only what CUDA and NCCL document. An order that an executor happens to give beyond this does not count.
//!
//! | order | source |
//! |---|---|
//! | Work on one stream runs in the order of issue. | CUDA C++ Programming Guide, Streams |
//! | `Synchronize` is an event: the waiting stream continues after all work that the other stream had when the event was recorded. | CUDA Runtime API, `cudaStreamWaitEvent` |
//! | A stream that waits on a memory value continues after the write of that value, and after the writes before it. | CUDA Driver API, Stream Memory Operations |
//! | A communication starts after what its stream had when it was posted; a stream continues after it only behind a `Wait`. | PyTorch, `ProcessGroupNCCL` and `Work::wait` |
//! | Communications of one communicator run in the order of posting. | NCCL User Guide, Using NCCL with CUDA Streams |
//! | A communication ends on a member once the data that this member receives is there. A member that receives nothing from a peer does not wait for it: the root of a broadcast ends early. | NCCL User Guide, Collective Operations |
//! | The operations of a group run concurrently: a receive may write before a send of the same group has read. | NCCL User Guide, Group Calls |
//! | `ShareMemHandles` and barriers order hosts. Streams run behind their hosts, so these order no memory access. | CUDA C++ Programming Guide, Asynchronous Concurrent Execution |
//! | Memory from `ALLOCATE` may be used after the work that the stream of the `ALLOCATE` had by then: a caching allocator hands out memory that this work still uses. | PyTorch, CUDA semantics, Memory management |
//! | The caller writes inputs before the stream that is current at entry begins; outputs and inputs are its own once the stream that is current at exit has done all its work. | PyTorch, CUDA semantics |
//!
//! # What is found
//!
//! `race`: two accesses to an element, one a write, that nothing orders. `memory`: elements that are read, or returned, and that nothing
//! has written. `comm`: ranks that wait for what never happens.

mod explain;
mod finding;
mod history;
mod memory;
mod overlap;
mod race;
mod reason;
mod side;
mod written;

pub use finding::{Checks, Finding, Report};
pub use memory::Unwritten;
pub use overlap::Range;
pub use race::{Party, Race};

use crate::plan::{
    Plan,
    sync::{
        deadlock,
        order::{self, Unordered},
    },
};

/// Checks the plans of all ranks.
pub fn check(plans: &[Plan], checks: Checks) -> Report {
    let mut report = Report::default();
    if let Some(it) = deadlock(plans) {
        // What happens behind a deadlock never happens.
        report.is_stuck = true;
        report
            .not_checked
            .extend(checks.any_access().then(|| "races and memory: the program deadlocks".to_owned()));
        report.findings.extend(checks.comm.then(|| Finding::Deadlock(Box::new(it))));
        return report;
    }
    if !checks.any_access() {
        return report;
    }
    let (mut races, mut memory) = (race::Races::new(plans), memory::Memory::new(plans));
    let walked = order::walk(plans, &mut |it| {
        if checks.race {
            races.visit(&it);
        }
        if checks.memory {
            memory.visit(&it);
        }
    });
    match walked {
        Ok(()) => (),
        Err(Unordered::Large) => {
            report.not_checked.push("races and memory: too many streams and communicators".to_owned());
            return report;
        }
        Err(Unordered::Stuck) => {
            report.not_checked.push("races and memory: no order of all instructions was found".to_owned());
            return report;
        }
    }
    if races.not_compared > 0 {
        report
            .not_checked
            .push(format!("{} pairs of views that have too many pieces to compare", races.not_compared));
    }
    if memory.not_checked > 0 {
        report.not_checked.push(format!("{} writes that have too many pieces to record", memory.not_checked));
    }
    report.add_races(plans, races.found);
    report.add_unwritten(plans, memory.found);
    report
}
