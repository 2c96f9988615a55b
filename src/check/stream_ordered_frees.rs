//! Finds uses of storage that `cudaFreeAsync` does not follow.
//!
//! A free is work of the stream of the ALLOCATE. The end of the program frees what the program does not free, each tensor on this
//! stream, too. CUDA defines the storage up to the beginning of the free, so all uses have to happen before it, whether or not
//! anything gets the storage later. A later ALLOCATE that gets it follows the free: the driver sees to that on any stream. So if
//! every use follows its ALLOCATE and precedes its free, uses of tensors that share storage are ordered. Neither the driver nor NCCL
//! holds the operands of a communication. PyTorch and nvFuser hold some (`plan::held_operands`): they free them where the program waits, or, if the
//! program never waits, after the end of the job. Source: CUDA Runtime API and CUDA C++ Programming Guide, Stream Ordered Memory Allocator; `StorageModel`.
//!
//! Symmetric memory is not stream-ordered, and no block of an allocator: nvFuser's `SymmetricTensor` maps memory of its own (`cuMemCreate`, `cuMemMap`),
//! and `cuMemUnmap` frees it where its last tensor goes (`csrc/multidevice/symmetric_tensor.cpp`). No document says that `cuMemUnmap` waits for
//! work, and PyTorch waits before it (`c10/cuda/CUDACachingAllocator.cpp`, `unmapHandles`). So the host has to have waited for all uses before a
//! Deallocate. An executor that frees with cudaFreeAsync (`StorageModel::CudaAsync`) lets its own GPU finish, as `cudaFree` does: it only has to
//! follow the uses by peers. So has the end of the program, behind which the caller frees the memory.
//!
//! A free is no instruction of a plan. It follows what is issued before it to one stream, or to all streams. The last instruction of
//! each of them is visited in its place.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, ReusedStorage},
    ordering_model::AccessRules,
    storage::StorageConflict,
};
use hir_plan::{
    Allocation, BufferNo, EventNo, ExecutionSite, InstKind, Plan,
    sync::{InstRef, happens_before::Occurrence},
};

/// The storage of all ranks.
pub struct StreamOrderedFrees {
    tensors: FxHashMap<(usize, BufferNo), Lifetime>,
    /// The buffers whose free follows an instruction, by rank and instruction.
    freed_after: FxHashMap<(usize, usize), Vec<BufferNo>>,
}

/// The uses of a buffer up to its free.
struct Lifetime {
    free: Party,
    /// The statement that frees it, as an index into `Plan::origins`; `None` is the end of the program.
    freed_by: Option<u32>,
    /// The last use by each actor that no visited instruction follows: its number, who uses it, and whether it writes.
    uses: BTreeMap<u32, (u32, (Party, bool))>,
    /// The number of instructions that the free follows and that were not visited. It is freed when none is left.
    not_visited: usize,
    /// Whether the free follows all work of its own rank.
    follows_own: bool,
    /// Whether the host frees it and waits for nothing.
    is_unmapped: bool,
}

/// What a rank has issued.
struct Issued {
    /// The last instruction of each stream.
    last: Vec<Option<usize>>,
    /// The instructions for which the host has waited, and so for what is before them.
    by_host: Vec<usize>,
    /// By buffer: the events of its recorded streams, for which PyTorch lets the stream of the free wait (`CUDAMallocAsyncAllocator.cpp`,
    /// `free_impl`).
    recorded: FxHashMap<BufferNo, Vec<usize>>,
}

impl StreamOrderedFrees {
    /// Creates the state before the first instruction, by `rules`; `None` if no free is to be compared.
    pub fn new(plans: &[Plan], rules: AccessRules) -> Option<Self> {
        if rules.reuses_in_order() {
            return None;
        }
        let mut it = Self { tensors: FxHashMap::default(), freed_after: FxHashMap::default() };
        plans.iter().for_each(|plan| it.add(plan, rules));
        (!it.tensors.is_empty()).then_some(it)
    }

    fn add(&mut self, plan: &Plan, rules: AccessRules) {
        let is_held = rules.holds_operands();
        let kept: FxHashSet<BufferNo> = plan.caller_buffers().collect();
        // Where the program frees it.
        let free_of = |it: &Allocation| match it.freed {
            _ if !is_held => it.unbound.map(|it| it.origin),
            freed => freed.map(|it| it.origin),
        };
        let is_freed = |it: &&Allocation| {
            let is_never_freed = it.is_empty || is_held && it.is_held;
            let is_block = !it.is_symmetric && !rules.frees_in_stream_order();
            !is_never_freed && !is_block && (free_of(it).is_some() || !kept.contains(&it.buffer))
        };
        let mut freed: Vec<&Allocation> = plan.allocations.iter().filter(is_freed).collect();
        freed.sort_by_key(|it| free_of(it).unwrap_or(u32::MAX));
        let mut freed = freed.into_iter().peekable();
        if freed.peek().is_none() {
            return;
        }
        let exit = plan.exit();
        let of_recorded = plan.early_releases.iter().filter(|it| is_held && it.works.is_empty());
        let of_recorded: FxHashMap<EventNo, BufferNo> =
            of_recorded.flat_map(|it| it.recorded.iter().map(|event| (*event, it.buffer))).collect();
        let last = vec![None; plan.streams.len()];
        let mut issued = Issued { last, by_host: Vec::new(), recorded: FxHashMap::default() };
        let mut recorded = FxHashMap::default();
        for (at, inst) in plan.code.iter().enumerate() {
            while let Some(it) = freed.next_if(|it| free_of(it).is_some_and(|free| free < inst.origin)) {
                self.free((plan, rules), (it, free_of(it)), &issued, exit);
            }
            match inst.kind {
                InstKind::RecordEvent { event } => {
                    recorded.insert(event, at);
                    if let Some(buffer) = of_recorded.get(&event) {
                        issued.recorded.entry(*buffer).or_default().push(at);
                    }
                }
                InstKind::HostWait { event } => issued.by_host.extend(recorded.get(&event)),
                _ => (),
            }
            if let ExecutionSite::Stream = inst.kind.effect().execution_site() {
                issued.last[inst.stream as usize] = Some(at);
            }
        }
        freed.for_each(|it| self.free((plan, rules), (it, free_of(it)), &issued, exit));
    }

    /// Adds the free of a buffer by a statement, or by the end of the program. `issued` is what is before it, and `exit` the instruction that
    /// reads the outputs.
    fn free(
        &mut self,
        (plan, rules): (&Plan, AccessRules),
        (it, freed_by): (&Allocation, Option<u32>),
        issued: &Issued,
        exit: Option<usize>,
    ) {
        let own = it.pool.stream as usize;
        let is_unmapped = it.is_symmetric && freed_by.is_some() && rules.unmaps_symmetric_memory();
        let last = if is_unmapped { issued.last.iter().flatten().max().copied() } else { issued.last[own] };
        let Some(inst) = last else { return };
        let at = InstRef { rank: plan.rank, inst };
        let end = InstRef { inst: exit.unwrap_or(inst), ..at };
        let free = freed_by.map_or(Party::CallerAfter(end), |origin| Party::Free(at, origin));
        let follows_own = it.is_symmetric && !is_unmapped;
        let all = issued.last.iter().enumerate().filter(|(stream, _)| follows_own || *stream == own);
        let follows: Vec<usize> =
            if is_unmapped { issued.by_host.clone() } else { all.filter_map(|(_, last)| *last).collect() };
        let recorded = issued.recorded.get(&it.buffer).into_iter().flatten().copied();
        let follows: Vec<usize> = follows.into_iter().chain(recorded).collect();
        let lifetime = Lifetime {
            free,
            freed_by,
            uses: BTreeMap::new(),
            not_visited: follows.len(),
            follows_own,
            is_unmapped,
        };
        self.tensors.insert((plan.rank, it.buffer), lifetime);
        for inst in follows {
            self.freed_after.entry((plan.rank, inst)).or_default().push(it.buffer);
        }
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
        if tensor.follows_own && it.rank == rank {
            return None;
        }
        if tensor.not_visited == 0 {
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
            tensor.uses.retain(|actor, (number, _)| *actor != it.actor && it.clock.ended(*actor) < *number);
            tensor.not_visited = tensor.not_visited.saturating_sub(1);
            if tensor.not_visited == 0 {
                let left = std::mem::take(&mut tensor.uses);
                found.extend(left.into_values().map(|(_, side)| (it.rank, tensor.conflict(*buffer, side))));
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
            reused: ReusedStorage {
                earlier: buffer,
                later: None,
                freed_by: self.freed_by,
                by_next_run: false,
                by_next_call: false,
                in_capture: false,
                is_unmapped: self.is_unmapped,
            },
        }
    }
}
