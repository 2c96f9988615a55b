//! A model of PyTorch's caching allocator, applied to the storage of a program. PyTorch's allocator keeps
//! free blocks for each stream, in two pools by size, and reuses a block for the stream on which the block
//! was first allocated, without synchronization (`torch.Tensor.record_stream`; the comment at the top of
//! `CUDACachingAllocator.cpp`).
//!
//! The model does not split or merge blocks. It reuses whole blocks only.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Allocation, BufferNo, StreamNo};

/// Block sizes are multiples of this number of bytes.
const GRANULARITY: usize = 512;
/// The largest block size, in bytes, of the pool for small blocks.
const MAX_SMALL_BLOCK: usize = 1 << 20;

/// A pool of free blocks: the stream, and whether the blocks are small.
type Pool = (StreamNo, bool);

/// The allocator state of one rank.
#[derive(Default)]
pub(super) struct CachingAllocator {
    /// The allocation of each live buffer, as an index into `Plan::allocations`, and the size of its block in
    /// bytes.
    known: FxHashMap<BufferNo, (usize, usize)>,
    blocks: u32,
    /// Free blocks by size in bytes. The most recently freed block is reused first.
    free: FxHashMap<Pool, BTreeMap<usize, Vec<u32>>>,
}

impl CachingAllocator {
    /// Allocates a buffer on a stream, in the smallest free block of the pool that is large enough, or in a
    /// new block.
    pub(super) fn allocate(
        &mut self,
        all: &mut Vec<Allocation>,
        buffer: BufferNo,
        bytes: usize,
        stream: StreamNo,
    ) {
        let size = bytes.next_multiple_of(GRANULARITY);
        let reused = self.take_free_block((stream, size <= MAX_SMALL_BLOCK), size).filter(|_| size > 0);
        let (block, size) = reused.unwrap_or_else(|| {
            self.blocks += 1;
            (self.blocks - 1, size)
        });
        self.known.insert(buffer, (all.len(), size));
        all.push(Allocation { buffer, block, stream, freed_by: None, is_held: false });
    }

    /// Removes and returns the smallest free block of a pool that has at least `size` bytes, with its size.
    fn take_free_block(&mut self, pool: Pool, size: usize) -> Option<(u32, usize)> {
        let free = self.free.get_mut(&pool)?;
        let size = *free.range(size..).next()?.0;
        let same_size = free.get_mut(&size)?;
        let block = same_size.pop()?;
        if same_size.is_empty() {
            free.remove(&size);
        }
        Some((block, size))
    }

    /// Frees a buffer to which no tensor is bound any more. `origin` is the statement that releases it, an
    /// index into `Plan::origins`.
    pub(super) fn free(&mut self, all: &mut [Allocation], buffer: BufferNo, origin: u32) {
        // Buffers that no statement allocates, and empty buffers, have no block to reuse.
        let Some((at, size)) = self.known.remove(&buffer).filter(|it| it.1 > 0) else { return };
        let Some(it) = all.get_mut(at) else { return };
        it.freed_by = Some(origin);
        self.free
            .entry((it.stream, size <= MAX_SMALL_BLOCK))
            .or_default()
            .entry(size)
            .or_default()
            .push(it.block);
    }
}
