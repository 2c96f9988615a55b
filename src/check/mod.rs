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
//! has written. `comm`: a deadlock; since nothing that comes after it runs, it is reported whatever was asked for.

mod apply;
mod conflict;
mod edit;
mod explain;
mod finding;
mod fix;
mod history;
mod memory;
mod overlap;
mod race;
mod reason;
mod side;
mod storage;
mod written;

pub use conflict::{Party, Race};
pub use edit::{Edit, Place, Statement, WaitedStream};
pub use explain::UNWRITTEN_HELP;
pub use finding::{Checks, Finding, Report};
pub use fix::{Fixed, Made, Planner, fix};
pub use memory::Unwritten;
pub use overlap::Range;

use side::RaceSide;

use crate::plan::{
    Plan,
    sync::{
        Deadlock, Matched, explain,
        order::{self, Unordered},
        stuck,
    },
};

/// What the checks find, before it is folded into a report.
#[derive(Clone, Debug, Default)]
struct Examined {
    deadlock: Option<Box<Deadlock>>,
    races: Vec<Race>,
    reads: Vec<Unwritten>,
    not_checked: Vec<String>,
}

/// Checks the plans of all ranks.
pub fn check(plans: &[Plan], checks: Checks) -> Report {
    examine(plans, checks).report(plans)
}

fn examine(plans: &[Plan], checks: Checks) -> Examined {
    let mut found = Examined::default();
    let matched = Matched::of(plans);
    if let Some(state) = stuck(plans, &matched) {
        // What comes after a deadlock never runs: nothing else can be said.
        found.deadlock = Some(Box::new(explain(plans, &matched, &state)));
        return found;
    }
    if !checks.any_access() {
        return found;
    }
    let (mut races, mut memory) = (race::Races::new(plans), memory::Memory::new(plans));
    let walked = order::walk(plans, &matched, &mut |it| {
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
            found.not_checked.push("races and memory: too many streams and communicators".to_owned());
            return found;
        }
        Err(Unordered::Stuck) => {
            found.not_checked.push("races and memory: no order of all instructions was found".to_owned());
            return found;
        }
    }
    if races.not_compared > 0 {
        found
            .not_checked
            .push(format!("{} pairs of views that have too many pieces to compare", races.not_compared));
    }
    if memory.not_checked > 0 {
        found
            .not_checked
            .push(format!("{} reads and writes that have too many pieces to record", memory.not_checked));
    }
    memory.finish();
    (found.races, found.reads) = (races.found, memory.found);
    found
}

impl Examined {
    /// Whether nothing is wrong: reads of unwritten elements, outputs excepted, are no faults.
    fn is_clean(&self) -> bool {
        let Self { deadlock, races, reads, not_checked } = self;
        let is_whole = reads.iter().all(|it| it.output.is_none());
        deadlock.is_none() && races.is_empty() && is_whole && not_checked.is_empty()
    }

    fn report(self, plans: &[Plan]) -> Report {
        let mut report = Report { findings: Vec::new(), not_checked: self.not_checked };
        report.findings.extend(self.deadlock.map(Finding::Deadlock));
        report.add(plans, self.races, self.reads);
        report
    }
}
