//! What a caching allocator would do with the storage of a program: PyTorch's keeps free blocks by stream, and hands a block out again to
//! the stream that it was first allocated on, without waiting for anybody (CUDA semantics, Memory management).
//!
//! A block is not split, and neighbours are not merged: only that a whole block is handed out again is modelled.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{BufferNo, Reused, StreamNo};

/// Sizes are multiples of this many bytes.
const GRANULARITY: usize = 512;

/// The storage of a rank.
#[derive(Default)]
pub(super) struct Allocator {
    /// Where each buffer was allocated.
    streams: FxHashMap<BufferNo, StreamNo>,
    /// Free blocks by stream and size: their last buffer, and the statement that freed it. The last one is handed out first.
    free: FxHashMap<StreamNo, BTreeMap<usize, Vec<(BufferNo, u32)>>>,
}

impl Allocator {
    /// A buffer comes into being on a stream; it gets the smallest free block of that stream that is large enough.
    pub(super) fn allocate(&mut self, buffer: BufferNo, bytes: usize, stream: StreamNo) -> Option<Reused> {
        self.streams.insert(buffer, stream);
        let free = self.free.get_mut(&stream).filter(|_| bytes > 0)?;
        let size = *free.range(blocks(bytes)..).next()?.0;
        let same_size = free.get_mut(&size)?;
        let (earlier, freed) = same_size.pop()?;
        if same_size.is_empty() {
            free.remove(&size);
        }
        Some(Reused { later: buffer, earlier, freed })
    }

    /// The last name of a buffer is gone.
    pub(super) fn free(&mut self, buffer: BufferNo, bytes: usize, origin: u32) {
        // What was not allocated by a statement is not handed out.
        if let Some(stream) = self.streams.get(&buffer).filter(|_| bytes > 0) {
            self.free.entry(*stream).or_default().entry(blocks(bytes)).or_default().push((buffer, origin));
        }
    }
}

fn blocks(bytes: usize) -> usize {
    bytes.div_ceil(GRANULARITY)
}
