//! State that a process keeps from program to program: its GPU, NCCL communicators, the cuBLASLt handle,
//! compiled kernels, and the last plan on the GPU.
//!
//! Starting these takes seconds on a host with eight GPUs; a job of many programs pays for it once. Only one
//! plan is kept, because the GPU's memory serves one program at a time. The next program reuses it if
//! program, bindings and passes lead to the same plans.

use std::{ffi::c_int, rc::Rc, sync::Arc};

use super::{
    Engine, Result,
    device::{Device, ResourceMark},
    discover,
    engine::machine,
    library,
    library_state::LibraryState,
};
use hir_executor::{Executor, Machine, ProcessGroup, RankDevice};
use hir_plan::World;

/// The GPU of this rank.
pub(super) struct Gpu {
    /// Its ordinal among the GPUs that this process sees.
    ordinal: usize,
    device: Option<Rc<Device>>,
    libraries: LibraryState,
    engine: Option<Engine>,
}

impl Gpu {
    pub(super) fn new(ordinal: usize) -> Self {
        Self { ordinal, device: None, libraries: LibraryState::default(), engine: None }
    }
}

impl RankDevice for Gpu {
    fn machine(&self) -> Result<Machine> {
        let driver = library::driver()?;
        machine(driver, discover::handle(driver, self.ordinal as c_int)?)
    }

    fn executor(&mut self, world: &Arc<World>, peers: &dyn ProcessGroup) -> Result<&mut dyn Executor> {
        // The texts of a program may differ in white space between ranks. Comparing plans detects different
        // line numbers.
        let is_same = self.engine.as_ref().is_some_and(|it| it.runs_plans(world));
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
                Engine::new(world, peers, device, &mut self.libraries, again)?
            }
        };
        Ok(self.engine.insert(engine))
    }
}
