//! The operands that posted communications keep allocated, also behind a Deallocate.
//!
//! NCCL and UCC: all operands, until the program waits for the communication. PyTorch records the streams that use them or stashes them up
//! to the wait (`ProcessGroupNCCL`, `TensorShelf`). CUDA backend: nvFuser's caches of memory handles keep the buffers that they map, which
//! are those of a transfer and the output of a collective, to the end of the job, since they never remove an entry
//! (`csrc/multidevice/ipc_handle.h`, `IpcHandle::tensor_` and the keys of both caches). Nothing keeps the input of a collective, which its
//! member copies from without a handle (`cuda_p2p.cpp`).

use rustc_hash::FxHashSet;

use super::{Backend, BufferNo, Communication, InstKind, WorkNo, context::PlanBuilder};

impl PlanBuilder<'_> {
    /// Lets a communication that is posted keep its operands.
    pub(super) fn hold_operands(&mut self, kind: &InstKind) {
        let Some(posted) = kind.communication() else { return };
        let backend = self.plan.communicators[posted.communicator() as usize].backend;
        // With one entry for each access.
        let mut held = Vec::new();
        match (backend, posted) {
            (Backend::Cuda, Communication::Collective(it)) => {
                held.extend(it.output.as_ref().map(|it| it.buffer));
            }
            (Backend::Cuda | Backend::Nccl | Backend::Ucc, _) => {
                kind.visit_accesses(self.plan.rank, &mut |it| held.push(it.view.buffer));
            }
        }
        for buffer in &held {
            *self.name_counts.entry(*buffer).or_default() += 1;
            *self.hold_counts.entry(*buffer).or_default() += 1;
        }
        if backend == Backend::Cuda {
            // A Deallocate of symmetric memory unmaps it, so that only the transfer itself may delay it.
            let is_block = |it: &BufferNo| !self.allocator.is_symmetric(&self.plan.allocations, *it);
            let (blocks, symmetric): (Vec<_>, Vec<_>) = held.into_iter().partition(is_block);
            self.held_by_handles.extend(blocks);
            held = symmetric;
        }
        self.held.insert(posted.work(), held);
    }

    /// Releases what a communication keeps up to its Wait: the program waits for it.
    pub(super) fn release_operands(&mut self, work: WorkNo) {
        for buffer in self.held.remove(&work).unwrap_or_default() {
            self.hold_counts.entry(buffer).and_modify(|it| *it -= 1);
            self.release(buffer);
        }
    }

    /// Marks, at the end of the program, the allocations that are kept by handles, or by communications that nothing waits for. They are
    /// never freed.
    pub(super) fn mark_held_allocations(&mut self) {
        let by_works = self.held.values().flatten().copied();
        let held: FxHashSet<BufferNo> = by_works.chain(self.held_by_handles.iter().copied()).collect();
        for it in &mut self.plan.allocations {
            it.is_held = held.contains(&it.buffer);
        }
    }
}
