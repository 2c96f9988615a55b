//! Views of the shards of all ranks as an executor maps them, instead of the copies that plans contain.
//!
//! nvFuser maps the memory of all ranks into one range of addresses: hosts exchange handles, and each later
//! access to the view is one to the memory of a peer (`csrc/multidevice/symmetric_tensor.cpp`, `setupContiguousView`). The world that this
//! module returns has a barrier of hosts for the statement, and then a copy of the own shard on the current stream. `Plan::mapped_reads`
//! says what a read of the view reads in the memory of all ranks. The cache of handles holds the shards to the end of the job
//! (`csrc/multidevice/ipc_handle.h`, `SymmetricMemoryHandleCache::KeyType`), as a communication that nothing waits for does.

use grammar::Op;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Arg, InstKind, MappedView, Plan, View, ViewOnRank, World};

impl World {
    /// Returns the world in which views of the shards of all ranks are mapped. Instructions keep their numbers. Returns `None` if
    /// the program makes no such view.
    pub fn with_mapped_views(&self) -> Option<Self> {
        let has_any = self.iter().any(|it| !it.gathered_views.is_empty());
        has_any.then(|| Self::new(self.iter().map(|plan| plan_with_mapped_views(plan, self)).collect()))
    }
}

fn plan_with_mapped_views(plan: &Plan, world: &[Plan]) -> Plan {
    let mut mapped = plan.clone();
    // A statement exchanges the handles of a shard once.
    let mut exchanged = FxHashSet::default();
    for (number, own) in plan.gathered_views.iter().enumerate() {
        let shard = |it: &Plan| {
            let view = it.gathered_views.get(number)?.shard.clone();
            Some(ViewOnRank { rank: it.rank, view })
        };
        let shards = world.iter().filter_map(shard).collect();
        for it in mapped.allocations.iter_mut().filter(|it| it.buffer == own.shard.buffer) {
            (it.is_held, it.freed) = (true, None);
        }
        let is_whole = own.view == View::contiguous(own.view.buffer, own.view.shape.clone());
        let is_allocated = plan.allocations.iter().any(|it| it.buffer == own.shard.buffer);
        let mut exchange = None;
        let mut awaited = FxHashMap::default();
        for (at, inst) in mapped.code.iter_mut().enumerate() {
            match inst.kind {
                InstKind::Collective(ref it) if it.work == own.work => {
                    inst.kind = InstKind::Barrier;
                    let stmt = plan.origins[inst.origin as usize].stmt;
                    exchange = (exchanged.insert((stmt, own.shard.buffer)) && is_allocated).then_some(at);
                }
                InstKind::WaitEvent { event } => _ = awaited.insert(inst.stream, event),
                // A queue waits for the communication before its next kernel: nothing is left to wait for.
                InstKind::Wait { work }
                    if work == own.work && !plan.streams[inst.stream as usize].is_in_program() =>
                {
                    let known = awaited.get(&inst.stream).copied();
                    inst.kind = known.map_or(InstKind::Barrier, |event| InstKind::WaitEvent { event });
                }
                InstKind::Wait { work } if work == own.work => {
                    let (args, out) = (vec![Arg::View(own.shard.clone())], Box::new(own.view.clone()));
                    inst.kind = InstKind::Map { op: Op::Abs, args, out };
                }
                _ => (),
            }
        }
        mapped.mapped_views.push(MappedView { buffer: own.view.buffer, is_whole, shards, exchange });
    }
    mapped
}

impl Plan {
    /// Returns what a read of a view reads in the memory of all ranks, besides the view: the elements of one shard, or all elements of
    /// several.
    pub fn mapped_reads(&self, view: &View) -> Vec<ViewOnRank> {
        let Some((start, end)) = view.bounds() else { return Vec::new() };
        let mut found = Vec::new();
        for it in self.mapped_views.iter().filter(|it| it.buffer == view.buffer) {
            let len = it.shards.first().map_or(1, |it| it.view.shape.iter().product::<usize>()).max(1);
            let (first, last) =
                if it.is_whole { (start / len, end / len) } else { (0, it.shards.len().saturating_sub(1)) };
            let read = it.shards.get(first..).unwrap_or_default().iter().take(last + 1 - first);
            found.extend(read.map(|shard| {
                match View::contiguous(shard.view.buffer, shard.view.shape.clone()) {
                    whole if it.is_whole && first == last && whole.strides == shard.view.strides => {
                        let offset = shard.view.offset + view.offset - first * len;
                        ViewOnRank {
                            view: View { buffer: shard.view.buffer, offset, ..view.clone() },
                            ..*shard
                        }
                    }
                    _ => shard.clone(),
                }
            }));
        }
        found
    }
}
