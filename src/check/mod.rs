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
//! | `ShareMemHandles` and barriers order hosts. Streams run behind their hosts, so these order no memory access. | CUDA C++ Programming Guide, Asynchronous Concurrent Execution |
//! | Storage may be used after the work that the stream of its `ALLOCATE` had by then, and is handed out again to that stream once no tensor and no communication holds it. | PyTorch, `Tensor.record_stream` |
//! | The caller writes inputs before the stream that is current at entry begins; inputs, outputs and freed storage are its own once the stream that is current at exit has done its work. | the same rule, with the caller's current stream; a convention of this project |
//!
//! # What is found
//!
//! `race`: two accesses to an element, one a write, that nothing orders. `memory`: elements that are read, or returned, and that nothing
//! has written. `comm`: a deadlock; since nothing that comes after it runs, it is reported whatever was asked for. `excess`: what the
//! program could do without, as remarks.

mod conflict;
mod excess;
mod excess_text;
mod explain;
mod finding;
mod history;
mod memory;
mod overlap;
mod race;
mod reason;
mod side;
mod storage;
mod written;

pub use conflict::{Party, Race};
pub use excess::{Excess, ExcessKind};
pub use explain::UNWRITTEN_HELP;
pub use finding::{Checks, Finding, Report};
pub use memory::Unwritten;
pub use overlap::Range;

use crate::plan::{
    Plan,
    sync::{
        Matched, explain,
        order::{self, Unordered},
        stuck,
    },
};

/// Checks the plans of all ranks.
pub fn check(plans: &[Plan], checks: Checks) -> Report {
    let mut report = Report::default();
    let matched = Matched::of(plans);
    if let Some(state) = stuck(plans, &matched) {
        // What comes after a deadlock never runs: nothing else can be said.
        report.findings.push(Finding::Deadlock(Box::new(explain(plans, &matched, &state))));
        return report;
    }
    if !checks.any_access() {
        return report;
    }
    let (mut races, mut memory) = (race::Races::new(plans), memory::Memory::new(plans));
    let (mut unread, mut excessive) = (excess::Unread::new(plans), Vec::new());
    let walked = order::walk(plans, &matched, &mut |it| {
        // Excess is judged where there is no race.
        if checks.race || checks.excess {
            races.visit(&it);
        }
        if checks.excess {
            unread.visit(&it);
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
    if checks.excess {
        let is_clean = races.found.is_empty() && races.not_compared == 0;
        let (found, not_searched) = excess::excess(plans, &matched, is_clean.then_some(unread), &races.found);
        // Whoever asked for races sees them.
        if is_clean || !checks.race {
            report.not_searched = not_searched;
        }
        excessive = found;
    }
    if !checks.race {
        races.found.clear();
        races.not_compared = 0;
    }
    if races.not_compared > 0 {
        report
            .not_checked
            .push(format!("{} pairs of views that have too many pieces to compare", races.not_compared));
    }
    if memory.not_checked > 0 {
        report
            .not_checked
            .push(format!("{} reads and writes that have too many pieces to record", memory.not_checked));
    }
    memory.finish();
    report.add(plans, races.found, memory.found);
    report.findings.extend(excessive.into_iter().map(|it| Finding::Excess(Box::new(it))));
    report
}
