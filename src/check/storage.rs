//! Finds storage that is reused while something still uses it.
//!
//! An allocator associates one stream with each block, that of its ALLOCATE. It reuses a freed block
//! immediately on that stream, and gives it to the caller once the program has returned. So every use of a
//! block must happen before every use by a later owner. Frameworks hold the operands of a communication until
//! the program waits for it, on any stream. After that the block is free, and is reused without waiting for
//! the stream that waited.
//!
//! Uses that happen before a later use are dropped: a use that is unordered with them is also unordered with
//! the later one.

use rustc_hash::{FxHashMap, FxHashSet};

use super::conflict::{Party, ReusedStorage};
use hir_plan::{
    BufferNo, Plan,
    sync::{InstRef, happens_before::Occurrence},
};

/// A use of a block of storage.
struct BlockUse {
    party: Party,
    writes: bool,
    actor: u32,
    number: u32,
    /// Index of the owner among the block's owners, in program order.
    owner: u32,
}

/// The position of a buffer in its block.
#[derive(Clone, Copy)]
struct BlockOwner {
    block: u32,
    /// Index among the block's owners.
    number: u32,
}

/// A block of storage on one rank.
#[derive(Default)]
struct Block {
    /// The buffers that occupy the block, in program order, each with the statement that frees it.
    owners: Vec<(BufferNo, Option<u32>)>,
    uses: Vec<BlockUse>,
}

/// The blocks of storage of all ranks.
pub struct StorageBlocks<'p> {
    plans: &'p [Plan],
    owners: FxHashMap<(usize, BufferNo), BlockOwner>,
    blocks: FxHashMap<(usize, u32), Block>,
}

/// Two unordered uses of a block by different owners.
pub struct StorageConflict {
    /// The use by the earlier owner, and whether it writes.
    pub earlier: (Party, bool),
    /// The use by the later owner, and whether it writes.
    pub later: (Party, bool),
    /// The two owners.
    pub reused: ReusedStorage,
}

impl<'p> StorageBlocks<'p> {
    /// Creates the state before the first instruction.
    pub fn new(plans: &'p [Plan]) -> Self {
        let mut it = Self { plans, owners: FxHashMap::default(), blocks: FxHashMap::default() };
        for plan in plans {
            for allocation in &plan.allocations {
                let block = it.blocks.entry((plan.rank, allocation.block)).or_default();
                let owner = BlockOwner { block: allocation.block, number: block.owners.len() as u32 };
                block.owners.push((allocation.buffer, allocation.freed_by));
                it.owners.insert((plan.rank, allocation.buffer), owner);
            }
        }
        it
    }

    /// Records an access to a buffer after all accesses that happen before it, and returns its conflicts.
    pub fn access(
        &mut self,
        it: &Occurrence,
        (party, writes): (Party, bool),
        rank: usize,
        buffer: BufferNo,
    ) -> Vec<StorageConflict> {
        let Some(owner) = self.owners.get(&(rank, buffer)) else { return Vec::new() };
        if let Party::CallerBefore | Party::CallerAfter(_) = party {
            return Vec::new();
        }
        let Some(block) = self.blocks.get_mut(&(rank, owner.block)) else { return Vec::new() };
        let (actor, number) = (it.actor, it.number);
        let new = BlockUse { party, writes, actor, number, owner: owner.number };
        block.add(it, new)
    }

    /// Records the end of a rank. The caller continues on the stream of `ReadOutputs` and gets the storage
    /// that was allocated on it.
    pub fn finish(&mut self, it: &Occurrence) -> Vec<StorageConflict> {
        let plan = &self.plans[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        let stream = plan.code[it.inst].stream;
        let kept: FxHashSet<BufferNo> = plan.caller_buffers().collect();
        let mut found = Vec::new();
        for allocation in plan.allocations.iter().filter(|it| it.stream == stream) {
            let Some(block) = self.blocks.get_mut(&(it.rank, allocation.block)) else { continue };
            let is_last = block.owners.last().is_some_and(|it| it.0 == allocation.buffer);
            let is_kept =
                allocation.freed_by.is_none() && (allocation.is_held || kept.contains(&allocation.buffer));
            if !is_last || is_kept {
                continue;
            }
            let new = BlockUse {
                party: Party::CallerAfter(at),
                writes: true,
                actor: it.actor,
                number: it.number,
                owner: block.owners.len() as u32,
            };
            found.extend(block.add(it, new));
        }
        found
    }
}

impl Block {
    /// Compares a use with the earlier ones and stores it.
    fn add(&mut self, it: &Occurrence, new: BlockUse) -> Vec<StorageConflict> {
        let mut found = Vec::new();
        let owners = &self.owners;
        self.uses.retain(|known| {
            let is_ordered = (known.actor, known.number) == (new.actor, new.number)
                || it.clock.ended(known.actor) >= known.number;
            let (earlier, later) = if known.owner < new.owner { (known, &new) } else { (&new, known) };
            if earlier.owner != later.owner && (!is_ordered || earlier.owner == new.owner) {
                let (buffer, freed) = owners[earlier.owner as usize];
                let next = owners.get(later.owner as usize).map(|it| it.0);
                found.push(StorageConflict {
                    earlier: (earlier.party, earlier.writes),
                    later: (later.party, later.writes),
                    reused: ReusedStorage { earlier: buffer, later: next, freed_by: freed },
                });
            }
            !is_ordered
        });
        self.uses.push(new);
        found
    }
}
