//! The streams that the program records for tensors (`RecordStream`).
//!
//! PyTorch's allocator notes the stream for the block. Where the block is freed, it records an event on each such stream, and reuses the block
//! once the host has seen these events: what gets the storage follows the work that the streams had then. It ignores the stream of the
//! ALLOCATE. Source: `c10/cuda/CUDACachingAllocator.cpp`, `recordStream`, `insert_events`, `process_events`.

use grammar::{StreamId, TensorId};
use rustc_hash::FxHashSet;

use super::{
    BufferNo, EarlyRelease, EventNo, InstKind, StreamNo,
    context::{PlanBuilder, Result},
};

impl PlanBuilder<'_> {
    /// Records that a stream uses the storage of a tensor.
    pub(super) fn record_stream(&mut self, tensor: TensorId, stream: StreamId) -> Result<()> {
        if !self.holds_part(tensor) {
            return Ok(());
        }
        let buffer = self.view(tensor)?.buffer;
        let stream = self.stream(stream)?;
        let Some(it) = self.allocator.live(&mut self.plan.allocations, buffer) else { return Ok(()) };
        if it.pool.stream != stream && !it.is_symmetric {
            it.is_recorded = true;
            let all = self.recorded.entry(buffer).or_default();
            if !all.contains(&stream) {
                all.push(stream);
            }
        }
        Ok(())
    }

    /// Records, where a buffer is freed, an event on each stream that is recorded for it.
    pub(super) fn events_of_recorded(&mut self, buffer: BufferNo) -> Vec<EventNo> {
        let mut events = Vec::new();
        for stream in self.recorded.get(&buffer).cloned().unwrap_or_default() {
            let event = self.plan.event_count as u32;
            self.plan.event_count += 1;
            self.emit_on(stream, InstKind::RecordEvent { event });
            events.push(event);
        }
        events
    }

    /// Frees a buffer behind the work of the streams that are recorded for it, at a statement.
    pub(super) fn free_recorded(&mut self, buffer: BufferNo, at: (u32, StreamNo)) {
        if !self.recorded.contains_key(&buffer) {
            return;
        }
        let Some(freed) = self.allocator.free_early(&self.plan.allocations, buffer, at) else { return };
        let recorded = self.events_of_recorded(buffer);
        self.recorded.remove(&buffer);
        self.plan.early_releases.push(EarlyRelease { freed, buffer, works: Vec::new(), recorded });
    }

    /// Frees, at the end of the program, the buffers with recorded streams that nothing frees before, and that the caller does not keep.
    pub(super) fn free_recorded_at_end(&mut self) {
        let kept: FxHashSet<BufferNo> = self.plan.caller_buffers().collect();
        let mut left: Vec<BufferNo> = self.recorded.keys().copied().filter(|it| !kept.contains(it)).collect();
        left.sort_unstable();
        let at = (self.origin_no(), self.current);
        left.into_iter().for_each(|it| self.free_recorded(it, at));
    }
}
