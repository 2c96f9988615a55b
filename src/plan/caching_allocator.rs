//! What a caching allocator would do with the storage of a program. PyTorch's keeps free blocks for each stream, in two pools by size, and
//! hands a block out again to the stream that it was first allocated on, without synchronization (`torch.Tensor.record_stream`; the
//! comment at the top of `CUDACachingAllocator.cpp`).
//!
//! Blocks are neither split nor merged here: only that a whole block is handed out again is modelled.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Allocation, BufferNo, StreamNo};

/// Sizes are multiples of this many bytes.
const GRANULARITY: usize = 512;
/// The largest size of the pool for small blocks.
const MAX_SMALL_BLOCK: usize = 1 << 20;

/// Free blocks of a stream and pool.
type Pool = (StreamNo, bool);

/// The storage of a rank.
#[derive(Default)]
pub(super) struct CachingAllocator {
    /// The allocation of each buffer, an index into the plan's, and the size of its block.
    known: FxHashMap<BufferNo, (usize, usize)>,
    blocks: u32,
    /// Free blocks by size; the one that was freed last is handed out first.
    free: FxHashMap<Pool, BTreeMap<usize, Vec<u32>>>,
}

impl CachingAllocator {
    /// Allocates a buffer on a stream: in the smallest free block of its pool that is large enough, or in a new one.
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

    /// The smallest free block of a pool with at least this size, and its size.
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

    /// Frees a buffer that no tensor is bound to; `origin` is the statement.
    pub(super) fn free(&mut self, all: &mut [Allocation], buffer: BufferNo, origin: u32) {
        // What no statement allocates is not handed out.
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
