//! Finds work that a capture into a CUDA graph does not record, or that ends the capture with an error.
//!
//! A capture begins on the stream that is current at entry. Another stream takes part once it has waited for an event of
//! a stream that takes part; work that it gets before runs at once and is not in the graph. A stream that takes part
//! must not wait for one that does not (`cudaErrorStreamCaptureIsolation`), and all streams that take part must be
//! joined to the first one at the end (`cudaErrorStreamCaptureUnjoined`). A communication runs on a stream of its
//! communicator, which waits for the stream that posts it, and a Wait joins it (PyTorch, `ProcessGroupNCCL`). Source:
//! CUDA C++ Programming Guide, Creating a Graph Using Stream Capture. The host allocates and frees symmetric memory as `cudaMalloc` and
//! `cudaFree` do, which a capture refuses in its default mode, and waits for all streams. Source: CUDA Runtime API,
//! `cudaThreadExchangeStreamCaptureMode`. What the end of the program frees is freed behind the capture.
//!
//! Where storage is allocated by `cudaMallocAsync`, an ALLOCATE on a stream that takes part is a part of the graph. The program does not free the
//! outputs, and a graph is not launched again while memory that it has allocated is not freed, unless it is instantiated to free it. Source: CUDA
//! C++ Programming Guide, Graph Memory Nodes, Graph Reuse; CUDA Runtime API, `cudaGraphInstantiateFlagAutoFreeOnLaunch`.
//!
//! The order of the host decides, so one pass over the instructions of a rank finds all.

use rustc_hash::{FxHashMap, FxHashSet};

use super::execution_fault::{ExecutionFault, ExecutionFaultKind};
use hir_plan::{Allocation, BufferNo, EventNo, InstKind, Plan, SyncEffect, WorkNo};

/// How far a stream or communicator knows the others: by actor, the number of instructions that it follows.
type Known = Vec<u32>;

/// A stream or the queue of a communicator.
#[derive(Clone, Default)]
struct Actor {
    takes_part: bool,
    known: Known,
    /// The number of instructions, and the last one.
    count: u32,
    last: Option<usize>,
}

/// What a capture of a rank does.
#[derive(Default)]
pub struct Capture {
    /// The faults, one for each stream that has work before it takes part, and the first of the others.
    pub faults: Vec<ExecutionFault>,
    /// The instructions that run at once and are not in the graph, with the Waits for them.
    pub not_recorded: Vec<usize>,
    /// The first ALLOCATE that is in the graph and whose storage the program does not free. It is a fault if the graph allocates.
    pub not_freed: Option<ExecutionFault>,
}

/// Returns what a capture of a rank does.
pub fn capture(plan: &Plan) -> Capture {
    let streams = plan.streams.len();
    let count = streams + plan.communicators.len();
    let mut actors = vec![Actor { known: vec![0; count], ..Actor::default() }; count];
    let Some(first) = actors.first_mut() else { return Capture::default() };
    first.takes_part = true;
    let mut events: FxHashMap<EventNo, Option<Known>> = FxHashMap::default();
    let mut works: FxHashMap<WorkNo, Option<Known>> = FxHashMap::default();
    let mut faults: Vec<ExecutionFault> = Vec::new();
    let mut not_recorded = Vec::new();
    let mut add = |origin: u32, kind: ExecutionFaultKind| {
        let is_new = faults.iter().all(|it| it.kind != kind);
        if is_new {
            faults.push(ExecutionFault { rank: plan.rank, origin, kind, again: None });
        }
    };
    let symmetric: Vec<&Allocation> =
        plan.allocations.iter().filter(|it| it.is_symmetric && !it.is_empty).collect();
    let kept: FxHashSet<BufferNo> = plan.caller_buffers().collect();
    let blocks =
        plan.allocations.iter().filter(|it| !it.is_symmetric && !it.is_empty && it.unbound.is_none());
    let kept: FxHashSet<BufferNo> = blocks.map(|it| it.buffer).filter(|it| kept.contains(it)).collect();
    let mut not_freed = None;
    for (at, inst) in plan.code.iter().enumerate() {
        let stream = inst.stream as usize;
        if let InstKind::Alloc { buffer, .. } = inst.kind
            && actors[stream].takes_part
            && kept.contains(&buffer)
        {
            let kind = ExecutionFaultKind::NotFreed;
            not_freed.get_or_insert(ExecutionFault {
                rank: plan.rank,
                origin: inst.origin,
                kind,
                again: None,
            });
        }
        if let InstKind::Alloc { buffer, .. } = inst.kind
            && symmetric.iter().any(|it| it.buffer == buffer)
        {
            add(inst.origin, ExecutionFaultKind::SymmetricMemory { frees: false });
        }
        match inst.kind.effect() {
            SyncEffect::RecordEvent(event) => _ = events.insert(event, snapshot(&actors, stream)),
            SyncEffect::WaitEvent(event) => {
                if let Some(recorded) = events.get(&event)
                    && !join(&mut actors[stream], recorded.as_ref())
                {
                    add(inst.origin, ExecutionFaultKind::Isolation);
                }
            }
            SyncEffect::Wait(work) => {
                if matches!(works.get(&work), Some(None)) {
                    not_recorded.push(at);
                }
                if let Some(posted) = works.get(&work)
                    && !join(&mut actors[stream], posted.as_ref())
                {
                    add(inst.origin, ExecutionFaultKind::Isolation);
                }
            }
            SyncEffect::Post(it) => {
                let queue = streams + it.communicator() as usize;
                let posted = snapshot(&actors, stream);
                if posted.is_none() {
                    not_recorded.push(at);
                    add(inst.origin, ExecutionFaultKind::NotRecorded(inst.stream));
                }
                join(&mut actors[queue], posted.as_ref());
                step(&mut actors[queue], at);
                works.insert(it.work(), snapshot(&actors, queue));
            }
            SyncEffect::Compute
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::Reshard(_) => {
                if !inst.kind.does_nothing_on_stream() {
                    if !actors[stream].takes_part {
                        not_recorded.push(at);
                        add(inst.origin, ExecutionFaultKind::NotRecorded(inst.stream));
                    }
                    step(&mut actors[stream], at);
                }
            }
            SyncEffect::HostWait(_) => add(inst.origin, ExecutionFaultKind::HostWait),
            SyncEffect::ReadOutputs | SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier => (),
        }
    }
    let end = actors.first().map(|it| it.known.clone()).unwrap_or_default();
    for (number, actor) in actors.iter().enumerate().skip(1) {
        if let Some(last) = actor.last.filter(|_| actor.takes_part && end[number] < actor.count) {
            add(plan.code[last].origin, ExecutionFaultKind::Unjoined);
        }
    }
    if let Some(origin) = symmetric.iter().filter_map(|it| Some(it.freed?.origin)).min() {
        add(origin, ExecutionFaultKind::SymmetricMemory { frees: true });
    }
    Capture { faults, not_recorded, not_freed }
}

fn step(actor: &mut Actor, at: usize) {
    actor.count += 1;
    actor.last = Some(at);
}

/// Returns what an event of an actor knows; `None` if the actor does not take part.
fn snapshot(actors: &[Actor], number: usize) -> Option<Known> {
    let actor = &actors[number];
    let mut known = actor.known.clone();
    known[number] = actor.count;
    actor.takes_part.then_some(known)
}

/// Lets an actor wait for an event. Returns false if this ends the capture with an error.
fn join(actor: &mut Actor, event: Option<&Known>) -> bool {
    let Some(event) = event else { return !actor.takes_part };
    actor.takes_part = true;
    actor.known.iter_mut().zip(event).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
    true
}
