//! Hosts that wait for work of their GPU.
//!
//! Where symmetric memory is allocated or freed, as `cudaMalloc` and `cudaFree` do: until all work that is issued before has ended, also
//! communications that nothing waits for. Source: CUDA C++ Programming Guide, Implicit Synchronization.
//!
//! At the barrier of an exchange of handles: it is an all-reduce of all ranks on the stream that is current there, for whose end the host waits.
//! Source: nvFuser, `csrc/multidevice/ipc_handle.cpp`, `exchangeHandles`; PyTorch, `torch.distributed.barrier`.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{HostRule, World};
use crate::{Backend, BufferNo, Communication, Inst, InstKind, Plan, PlanStream, StreamNo, WorkNo};

impl World {
    /// Returns whether ranks exchange handles.
    pub fn exchanges_handles(&self) -> bool {
        self.iter().any(|plan| plan.exchanges().next().is_some())
    }

    /// Returns the world in which hosts wait for their GPUs by `rules`. Instructions have other numbers.
    pub fn with_host_waits(&self, rules: &[HostRule]) -> Self {
        Self::new(self.iter().map(|plan| with_waits(plan, rules)).collect())
    }
}

impl Plan {
    /// Returns the barriers of exchanges of handles.
    fn exchanges(&self) -> impl Iterator<Item = usize> {
        let shares = |it: &Inst| matches!(it.kind, InstKind::ShareMemHandles { .. });
        let behind = (1..self.code.len()).filter(move |at| shares(&self.code[at - 1]));
        behind.filter(|at| self.code[*at].kind == InstKind::Barrier)
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
fn with_waits(plan: &Plan, rules: &[HostRule]) -> Plan {
    let waits = rules.contains(&HostRule::SymmetricMemory);
    let symmetric = || plan.allocations.iter().filter(|it| waits && it.is_symmetric && !it.is_empty);
    let allocated: FxHashSet<BufferNo> = symmetric().map(|it| it.buffer).collect();
    let mut frees: Vec<u32> = symmetric().filter_map(|it| Some(it.unbound?.origin)).collect();
    frees.sort_unstable();
    let mut frees = frees.into_iter().peekable();
    let mut result = Plan { code: Vec::with_capacity(plan.code.len()), ..plan.clone() };
    result.streams.extend(plan.communicators.iter().cloned().map(PlanStream::Queue));
    let mut issued = Issued::default();
    let mut exchanges = plan.exchanges().peekable();
    for (at, inst) in plan.code.iter().enumerate() {
        while let Some(origin) = frees.next_if(|free| *free < inst.origin) {
            wait(&mut result, &issued, plan.streams.len(), origin);
        }
        if matches!(inst.kind, InstKind::Alloc { buffer, .. } if allocated.contains(&buffer)) {
            wait(&mut result, &issued, plan.streams.len(), inst.origin);
        }
        if exchanges.next_if_eq(&at).is_some() && rules.contains(&HostRule::Exchange) {
            let is_of_all = |it: &StreamNo| {
                let it = &plan.communicators[*it as usize];
                it.backend == Backend::Nccl && it.pair_of.is_none() && it.team.len() == plan.world
            };
            let works = issued.works.iter().filter(|it| is_of_all(it.0)).map(|it| (*it.0, *it.1)).collect();
            let before = Issued { streams: FxHashSet::from_iter([inst.stream]), works };
            wait(&mut result, &before, plan.streams.len(), inst.origin);
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
        // As at `Synchronize(host)`, what is issued behind it follows.
        let behind = (0..streams as StreamNo).filter(|it| *it != stream);
        plan.code.extend(behind.map(|stream| Inst { kind: InstKind::WaitEvent { event }, stream, origin }));
    }
}
