//! Finds uses of storage that `cudaFreeAsync` does not follow.
//!
//! A free is work of a stream: that of the ALLOCATE, or the stream that is current at exit for what the program does not
//! free. CUDA defines the storage up to the beginning of the free, so all uses have to happen before it, whether or not
//! anything gets the storage later. A later ALLOCATE that gets it follows the free: the driver sees to that on any stream. So if
//! every use follows its ALLOCATE and precedes its free, uses of tensors that share storage are ordered. Source: CUDA C++ Programming
//! Guide, Stream Ordered Memory Allocator.
//!
//! A free is no instruction of a plan. It follows what is issued to its stream before it, the last of which is visited in its place.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, ReusedStorage},
    storage::StorageConflict,
};
use hir_plan::{
    BufferNo, ExecutionSite, Freed, InstKind, Plan,
    sync::{InstRef, happens_before::Occurrence},
};

/// The storage of all ranks.
pub struct StreamOrderedFrees {
    tensors: FxHashMap<(usize, BufferNo), Lifetime>,
    /// The buffers that are freed behind an instruction, by rank and instruction.
    freed_after: FxHashMap<(usize, usize), Vec<BufferNo>>,
}

/// The uses of a buffer up to its free.
struct Lifetime {
    free: Party,
    /// The statement that frees it, as an index into `Plan::origins`; `None` is the end of the program.
    freed_by: Option<u32>,
    /// The last use by each actor: its number, who uses it, and whether it writes.
    uses: BTreeMap<u32, (u32, (Party, bool))>,
    /// Whether the free was visited.
    is_freed: bool,
}

impl StreamOrderedFrees {
    /// Creates the state before the first instruction.
    pub fn new(plans: &[Plan]) -> Self {
        let mut it = Self { tensors: FxHashMap::default(), freed_after: FxHashMap::default() };
        plans.iter().for_each(|plan| it.add(plan));
        it
    }

    fn add(&mut self, plan: &Plan) {
        let kept: FxHashSet<BufferNo> = plan.caller_buffers().collect();
        let all = plan.allocations.iter().filter(|it| !it.is_empty);
        let mut freed: Vec<_> =
            all.clone().filter_map(|it| Some((it.freed?, it.buffer, it.pool.stream))).collect();
        freed.sort_unstable_by_key(|it| it.0.origin);
        let mut freed = freed.into_iter().peekable();
        let mut last = vec![None; plan.streams.len()];
        for (at, inst) in plan.code.iter().enumerate() {
            while let Some((free, buffer, stream)) = freed.next_if(|it| it.0.origin < inst.origin) {
                self.free(plan, (buffer, Some(free)), last[stream as usize]);
            }
            if let ExecutionSite::Stream = inst.kind.effect().execution_site() {
                last[inst.stream as usize] = Some(at);
            }
        }
        for (free, buffer, stream) in freed {
            self.free(plan, (buffer, Some(free)), last[stream as usize]);
        }
        let exit = plan.code.iter().rposition(|it| matches!(it.kind, InstKind::ReadOutputs));
        for it in all.filter(|it| it.freed.is_none() && !it.is_held && !kept.contains(&it.buffer)) {
            self.free(plan, (it.buffer, None), exit);
        }
    }

    /// Adds the free of a buffer behind the instruction `at`.
    fn free(&mut self, plan: &Plan, (buffer, freed): (BufferNo, Option<Freed>), at: Option<usize>) {
        let Some(inst) = at else { return };
        let at = InstRef { rank: plan.rank, inst };
        let freed_by = freed.map(|it| it.origin);
        let free = freed_by.map_or(Party::CallerAfter(at), |origin| Party::Free(at, origin));
        let it = Lifetime { free, freed_by, uses: BTreeMap::new(), is_freed: false };
        self.tensors.insert((plan.rank, buffer), it);
        self.freed_after.entry((plan.rank, inst)).or_default().push(buffer);
    }

    /// Records a use of a buffer. Returns a conflict if the free may be earlier.
    pub fn access(
        &mut self,
        it: &Occurrence,
        side: (Party, bool),
        rank: usize,
        buffer: BufferNo,
    ) -> Option<StorageConflict> {
        if let Party::CallerBefore | Party::CallerAfter(_) = side.0 {
            return None;
        }
        let tensor = self.tensors.get_mut(&(rank, buffer))?;
        if tensor.is_freed {
            return Some(tensor.conflict(buffer, side));
        }
        tensor.uses.insert(it.actor, (it.number, side));
        None
    }

    /// Frees what is freed behind an instruction. Returns the conflicts with uses that may still run, with the rank of each.
    pub fn visited(&mut self, it: &Occurrence) -> Vec<(usize, StorageConflict)> {
        let Some(buffers) = self.freed_after.get(&(it.rank, it.inst)) else { return Vec::new() };
        let mut found = Vec::new();
        for buffer in buffers {
            let Some(tensor) = self.tensors.get_mut(&(it.rank, *buffer)) else { continue };
            tensor.is_freed = true;
            for (actor, (number, side)) in std::mem::take(&mut tensor.uses) {
                if actor != it.actor && it.clock.ended(actor) < number {
                    found.push((it.rank, tensor.conflict(*buffer, side)));
                }
            }
        }
        found
    }
}

impl Lifetime {
    fn conflict(&self, buffer: BufferNo, side: (Party, bool)) -> StorageConflict {
        StorageConflict {
            earlier: side,
            later: (self.free, true),
            reused: ReusedStorage { earlier: buffer, later: None, freed_by: self.freed_by },
        }
    }
}
