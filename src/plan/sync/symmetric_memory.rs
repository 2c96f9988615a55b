//! Hosts that wait where symmetric memory is allocated or freed, as `cudaMalloc` and `cudaFree` do: until all work of the GPU that is issued
//! before has ended, also communications that nothing waits for. Source: CUDA C++ Programming Guide, Implicit Synchronization.

use rustc_hash::{FxHashMap, FxHashSet};

use super::World;
use crate::{BufferNo, Communication, Inst, InstKind, Plan, PlanStream, StreamNo, WorkNo};

impl World {
    /// Returns the world in which hosts wait where symmetric memory is allocated or freed.
    pub(super) fn with_waits_for_symmetric_memory(&self) -> Self {
        Self::new(self.iter().map(with_waits).collect())
    }
}

/// What a rank has issued.
#[derive(Default)]
struct Issued {
    streams: FxHashSet<StreamNo>,
    /// By communicator: its last communication.
    works: FxHashMap<StreamNo, WorkNo>,
}

/// Returns a plan in which the host waits. Each communicator has a stream, which waits for its communications.
fn with_waits(plan: &Plan) -> Plan {
    let symmetric = || plan.allocations.iter().filter(|it| it.is_symmetric && !it.is_empty);
    let allocated: FxHashSet<BufferNo> = symmetric().map(|it| it.buffer).collect();
    let mut frees: Vec<u32> = symmetric().filter_map(|it| Some(it.unbound?.origin)).collect();
    frees.sort_unstable();
    let mut frees = frees.into_iter().peekable();
    let mut result = Plan { code: Vec::with_capacity(plan.code.len()), ..plan.clone() };
    result.streams.extend(plan.communicators.iter().cloned().map(PlanStream::Queue));
    let mut issued = Issued::default();
    for inst in &plan.code {
        while let Some(origin) = frees.next_if(|free| *free < inst.origin) {
            wait(&mut result, &issued, plan.streams.len(), origin);
        }
        if matches!(inst.kind, InstKind::Alloc { buffer, .. } if allocated.contains(&buffer)) {
            wait(&mut result, &issued, plan.streams.len(), inst.origin);
        }
        issued.streams.insert(inst.stream);
        if let Some(it) = inst.kind.communication() {
            issued.works.insert(it.communicator(), Communication::work(it));
        }
        result.code.push(inst.clone());
    }
    result
}

/// Lets the host wait for what it has issued.
fn wait(plan: &mut Plan, issued: &Issued, streams: usize, origin: u32) {
    let mut queues: Vec<_> =
        issued.works.iter().map(|(of, work)| (*of + streams as u32, Some(*work))).collect();
    queues.extend(issued.streams.iter().map(|it| (*it, None)));
    queues.sort_unstable();
    for (stream, work) in queues {
        let event = plan.event_count as u32;
        plan.event_count += 1;
        let of_work = work.map(|work| InstKind::Wait { work });
        let record = [InstKind::RecordEvent { event }, InstKind::HostWait { event }];
        plan.code.extend(of_work.into_iter().chain(record).map(|kind| Inst { kind, stream, origin }));
    }
}
