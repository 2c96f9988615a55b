//! The operands that posted communications keep allocated, also behind a Deallocate, until the program waits for them.
//!
//! NCCL and UCC: all operands. PyTorch records the streams that use them or stashes them up to the wait (`ProcessGroupNCCL`,
//! `TensorShelf`). CUDA backend: nvFuser's caches of memory handles keep the buffers that they map, which are those of a transfer and
//! the output of a collective (`csrc/multidevice/ipc_handle.h`, `IpcHandle::tensor_` and the keys of both caches). Nothing keeps the input
//! of a collective, which its member copies from without a handle (`cuda_p2p.cpp`).

use rustc_hash::FxHashSet;

use super::{Backend, BufferNo, Communication, InstKind, WorkNo, context::PlanBuilder};

impl PlanBuilder<'_> {
    /// Lets a communication that is posted keep its operands.
    pub(super) fn hold_operands(&mut self, kind: &InstKind) {
        let Some(posted) = kind.communication() else { return };
        let held = self.kept_by(kind, posted);
        for buffer in &held {
            *self.name_counts.entry(*buffer).or_default() += 1;
            *self.hold_counts.entry(*buffer).or_default() += 1;
        }
        self.held.insert(posted.work(), held);
    }

    /// Returns the buffers that a communication keeps, with one entry for each access.
    fn kept_by(&self, kind: &InstKind, posted: Communication<'_>) -> Vec<BufferNo> {
        let backend = self.plan.communicators[posted.communicator() as usize].backend;
        let mut all = Vec::new();
        match (backend, posted) {
            (Backend::Cuda, Communication::Collective(it)) => {
                all.extend(it.output.as_ref().map(|it| it.buffer));
            }
            (Backend::Cuda | Backend::Nccl | Backend::Ucc, _) => {
                kind.visit_accesses(self.plan.rank, &mut |it| all.push(it.view.buffer));
            }
        }
        all
    }

    /// Releases what a communication keeps: the program waits for it.
    pub(super) fn release_operands(&mut self, work: WorkNo) {
        for buffer in self.held.remove(&work).unwrap_or_default() {
            self.hold_counts.entry(buffer).and_modify(|it| *it -= 1);
            self.release(buffer);
        }
    }

    /// Marks, at the end of the program, the allocations that are kept by communications that nothing waits
    /// for. They are never freed.
    pub(super) fn mark_held_allocations(&mut self) {
        let held: FxHashSet<BufferNo> = self.held.values().flatten().copied().collect();
        for it in &mut self.plan.allocations {
            it.is_held = held.contains(&it.buffer);
        }
    }
}
