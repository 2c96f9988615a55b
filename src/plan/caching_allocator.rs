//! What the documented rules of PyTorch's caching allocator say about storage that tensors may share, for each
//! rank of a program.
//!
//! The allocator keeps free blocks for each stream, in two pools by size. It gives a freed block to a later
//! request on the stream on which the block was allocated, without synchronization. It splits blocks, merges
//! free neighbours, and a pool also contains blocks that the program did not free itself (those of the caller
//! and of earlier runs), so a program does not determine which block a request gets. Two tensors of one pool
//! may therefore share storage exactly if one is freed before the other is allocated. Source:
//! `torch.Tensor.record_stream`; "CUDA semantics, memory management" in the manual of PyTorch, and the comment
//! at the top of `CUDACachingAllocator.cpp`.

use rustc_hash::FxHashMap;

use super::{Allocation, BufferNo, Freed, StoragePool, StreamNo};

/// The largest size, in bytes, of a request that the pool for small blocks serves (`kSmallSize`).
const MAX_SMALL_REQUEST: usize = 1 << 20;

/// The allocations of one rank so far.
#[derive(Default)]
pub(super) struct CachingAllocator {
    /// The allocation of each live buffer, as an index into `Plan::allocations`.
    live: FxHashMap<BufferNo, usize>,
    /// Number of buffers freed so far, by stream.
    freed: FxHashMap<StreamNo, u32>,
}

impl CachingAllocator {
    /// Allocates a buffer of `bytes` bytes on a stream.
    pub(super) fn allocate(
        &mut self,
        all: &mut Vec<Allocation>,
        buffer: BufferNo,
        bytes: usize,
        stream: StreamNo,
    ) {
        let pool = StoragePool { stream, is_small: bytes <= MAX_SMALL_REQUEST, named: None };
        self.live.insert(buffer, all.len());
        let frees_before = self.freed.get(&stream).copied().unwrap_or(0);
        all.push(Allocation {
            buffer,
            pool,
            is_empty: bytes == 0,
            frees_before,
            is_symmetric: false,
            unbound: None,
            freed: None,
            is_held: false,
            is_recorded: false,
            left: None,
        });
    }

    /// Returns the allocation of a live buffer; `None` for one that no statement allocates.
    pub(super) fn live<'a>(&self, all: &'a mut [Allocation], buffer: BufferNo) -> Option<&'a mut Allocation> {
        self.live.get(&buffer).and_then(|at| all.get_mut(*at))
    }

    /// Returns where a buffer may be freed before `free`, at the statement of `free`; `None` if it is no block of the allocator. What is
    /// allocated afterwards may get its storage.
    pub(super) fn free_early(
        &mut self,
        all: &[Allocation],
        buffer: BufferNo,
        (origin, current): (u32, StreamNo),
    ) -> Option<Freed> {
        let it = self.live.get(&buffer).and_then(|at| all.get(*at)).filter(|it| !it.is_symmetric)?;
        let next = self.freed.entry(it.pool.stream).or_default();
        let number = *next;
        *next += 1;
        Some(Freed { origin, number, current })
    }

    /// Frees a buffer to which no tensor is bound any more, and which no communication holds. `origin` is the statement that releases it, an
    /// index into `Plan::origins`, and `current` the stream that is current there.
    pub(super) fn free(
        &mut self,
        all: &mut [Allocation],
        buffer: BufferNo,
        (origin, current): (u32, StreamNo),
    ) {
        // Buffers that no statement allocates have no block to reuse.
        let Some(it) = self.live.remove(&buffer).and_then(|at| all.get_mut(at)) else { return };
        let number = self.freed.entry(it.pool.stream).or_default();
        it.freed = Some(Freed { origin, number: *number, current });
        *number += 1;
    }
}
