//! What a process keeps from one program to the next: its GPU, the communicators that it has joined, the handle of cuBLASLt,
//! compiled kernels, and the last plan as it lies on the GPU.
//!
//! Starting them takes seconds on a host of eight GPUs; a job of many programs pays that once. Of plans there is one: the GPU's
//! memory is for one program at a time. The next one finds it where program, bindings and passes lead to the same plans.

use std::{rc::Rc, sync::Arc};

use super::{
    CudaError, Engine, ProcessGroup,
    device::{Device, ResourceMark},
    library_state::LibraryState,
};
use crate::plan::Plan;

/// The GPU of this rank, which no other rank takes, for one plan after another.
pub struct Gpu {
    /// Its number among those that this process sees.
    ordinal: usize,
    device: Option<Rc<Device>>,
    libraries: LibraryState,
    engine: Option<Engine>,
}

impl Gpu {
    pub(super) fn new(ordinal: usize) -> Self {
        Self { ordinal, device: None, libraries: LibraryState::default(), engine: None }
    }

    /// The plans of all ranks, this rank's ready to run; all ranks have to call this.
    ///
    /// # Errors
    /// A GPU that does not start, what the plan asks for and this executor lacks, a rank that does not answer.
    pub fn engine(
        &mut self,
        plans: &Arc<Vec<Plan>>,
        peers: &dyn ProcessGroup,
    ) -> Result<&mut Engine, CudaError> {
        // Ranks may hold texts of one program that differ in blanks: plans tell lines apart.
        let is_same = self.engine.as_ref().is_some_and(|it| it.runs_plans(plans));
        let is_kept = peers.all_gather(&[u8::from(is_same)])?.iter().all(|it| *it == [1]);
        let engine = match self.engine.take().filter(|_| is_kept) {
            Some(mut kept) => {
                kept.reuse(peers)?;
                kept
            }
            None => {
                peers.report_phase("starting its GPU");
                let (device, again) = match self.device.take() {
                    None => (Rc::new(Device::open(self.ordinal)?), false),
                    Some(device) => {
                        device.release(&ResourceMark::default(), peers)?;
                        (device, true)
                    }
                };
                let device = Rc::clone(self.device.insert(device));
                Engine::new(plans, peers, device, &mut self.libraries, again)?
            }
        };
        Ok(self.engine.insert(engine))
    }
}
