//! The operands that posted communications keep allocated, also behind a Deallocate.
//!
//! NCCL and UCC: all operands, until the program waits for the communication. PyTorch records the streams that use them or stashes them up
//! to the wait (`ProcessGroupNCCL`, `TensorShelf`). CUDA backend: nvFuser's caches of memory handles keep the buffers that they map, which
//! are those of a transfer and the output of a collective, to the end of the job, since they never remove an entry
//! (`csrc/multidevice/ipc_handle.h`, `IpcHandle::tensor_` and the keys of both caches). Nothing keeps the input of a collective, which its
//! member copies from without a handle (`cuda_p2p.cpp`).
//!
//! PyTorch releases the operands of a communication of NCCL also without a wait: once its watchdog has seen the end of the communication, the
//! next call of the process group does so (`ProcessGroupNCCL.cpp`, `shelvesToUnstash_`). So a buffer to which no tensor is bound may be free from
//! there on, if all that hold it have ended: `EarlyRelease`. The watchdog does not see communications that are captured, so those that nothing
//! waits for release their operands as soon as the program drops them (`workEnqueue`): `Allocation::left`.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Allocation, Backend, BufferNo, Communication, EarlyRelease, InstKind, StreamNo, WorkNo,
    context::PlanBuilder,
};

/// The end of the program, as an index into `Plan::origins`.
const END_OF_PROGRAM: u32 = 0;

impl PlanBuilder<'_> {
    /// Lets a communication that is posted keep its operands.
    pub(super) fn hold_operands(&mut self, kind: &InstKind) {
        let Some(posted) = kind.communication() else { return };
        let backend = self.plan.communicators[posted.communicator() as usize].backend;
        if backend == Backend::Nccl {
            self.watch_last_calls(&posted);
        }
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
            *self.firm_holds.entry(*buffer).or_default() += 1;
        }
        if backend == Backend::Cuda {
            // A Deallocate of symmetric memory unmaps it, so that only the transfer itself may delay it.
            let is_symmetric = |it: &Allocation| it.is_symmetric;
            let all = &mut self.plan.allocations;
            let (symmetric, blocks): (Vec<_>, Vec<_>) = held
                .into_iter()
                .partition(|it| self.allocator.live(all, *it).is_some_and(|it| is_symmetric(it)));
            self.held_by_handles.extend(blocks);
            held = symmetric;
        }
        self.held.insert(posted.work(), held);
    }

    /// Releases what a communication keeps up to its Wait: the program waits for it.
    pub(super) fn release_operands(&mut self, work: WorkNo) {
        let is_watched = self.watched.remove(&work);
        for buffer in self.held.remove(&work).unwrap_or_default() {
            self.firm_holds.entry(buffer).and_modify(|it| *it -= usize::from(!is_watched));
            self.hold_counts.entry(buffer).and_modify(|it| *it -= 1);
            self.release(buffer);
            self.leave_to_works(buffer);
        }
    }

    /// The next call on a communicator releases what the calls before it hold, if these have ended.
    fn watch_last_calls(&mut self, next: &Communication<'_>) {
        let calls = self.last_calls.entry(next.communicator()).or_default();
        for work in std::mem::replace(calls, vec![next.work()]) {
            let Some(held) = self.held.get(&work).cloned() else { continue };
            self.watched.insert(work);
            for buffer in held {
                self.firm_holds.entry(buffer).and_modify(|it| *it -= 1);
                self.release_early(buffer);
            }
        }
    }

    /// Records that a buffer may be free, if no tensor is bound to it and only communications hold it whose operands PyTorch may have released.
    pub(super) fn release_early(&mut self, buffer: BufferNo) {
        let count = |of: &FxHashMap<BufferNo, usize>| of.get(&buffer).copied().unwrap_or_default();
        let holds = count(&self.hold_counts);
        if holds == 0 || count(&self.firm_holds) > 0 || count(&self.name_counts) > holds {
            return;
        }
        let at = (self.origin_no(), self.current);
        self.add_early_release(buffer, at);
    }

    fn add_early_release(&mut self, buffer: BufferNo, at: (u32, StreamNo)) {
        let Some(freed) = self.allocator.free_early(&self.plan.allocations, buffer, at) else { return };
        let holding = self.held.iter().filter(|it| it.1.contains(&buffer));
        let works = holding.map(|it| *it.0).collect();
        let recorded = self.events_of_recorded(buffer);
        self.plan.early_releases.push(EarlyRelease { freed, buffer, works, recorded });
    }

    /// Records that only communications hold a buffer, if no tensor is bound to it.
    pub(super) fn leave_to_works(&mut self, buffer: BufferNo) {
        let count = |of: &FxHashMap<BufferNo, usize>| of.get(&buffer).copied().unwrap_or_default();
        let holds = count(&self.hold_counts);
        if holds == 0 || count(&self.name_counts) > holds {
            return;
        }
        let at = (self.origin_no(), self.current);
        let freed = self.allocator.free_early(&self.plan.allocations, buffer, at);
        if let Some(it) = self.allocator.live(&mut self.plan.allocations, buffer) {
            it.left = freed;
        }
    }

    /// Marks, at the end of the program, the allocations that are kept by handles, or by communications that nothing waits for. They are
    /// never freed, unless PyTorch may have released them from all of these.
    pub(super) fn mark_held_allocations(&mut self) {
        let by_works: BTreeSet<BufferNo> = self.held.values().flatten().copied().collect();
        let kept: FxHashSet<BufferNo> =
            self.plan.caller_buffers().chain(self.held_by_handles.iter().copied()).collect();
        for it in &mut self.plan.allocations {
            let is_shown = self.held_by_handles.contains(&it.buffer);
            it.is_held = by_works.contains(&it.buffer) || is_shown;
            it.left = it.left.filter(|_| it.is_held && !is_shown);
        }
        let is_firm = |it: &BufferNo| self.firm_holds.get(it).is_none_or(|count| *count > 0);
        let is_known = |it: &BufferNo| self.plan.early_releases.iter().any(|of| of.buffer == *it);
        let released = by_works.into_iter().filter(|it| !is_firm(it) && !kept.contains(it) && !is_known(it));
        for buffer in released.collect::<Vec<_>>() {
            self.add_early_release(buffer, (END_OF_PROGRAM, self.current));
        }
    }
}
