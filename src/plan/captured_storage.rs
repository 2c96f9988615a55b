//! Plans with the storage that a capture into a CUDA graph gets from PyTorch.
//!
//! Operands of communications that nothing waits for are freed where the program drops them (`held_operands`), and tensors with recorded
//! streams not before the capture has ended. Source: PyTorch, `ProcessGroupNCCL.cpp`, `workEnqueue`; `c10/cuda/CUDACachingAllocator.cpp`, `free`,
//! `needs_events_deferred_until_no_capture`.

use super::World;

impl World {
    /// Returns the plans as captures execute them; `None` if a capture frees nothing earlier than a run that is issued.
    pub fn with_captured_storage(&self) -> Option<Self> {
        if self.iter().all(|plan| plan.allocations.iter().all(|it| it.left.is_none())) {
            return None;
        }
        let mut plans = self.to_vec();
        for plan in &mut plans {
            plan.early_releases.clear();
            for it in &mut plan.allocations {
                if it.is_recorded {
                    (it.is_held, it.freed) = (true, None);
                } else if it.left.is_some() {
                    (it.is_held, it.freed) = (false, it.left);
                }
            }
        }
        Some(Self::new(plans))
    }
}
