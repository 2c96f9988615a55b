//! What the tools use of this package.

use std::sync::Arc;

use hir_executor::{AttentionLibrary, Backend, InProcessDevice, ProcessGroup, RankDevice};
use hir_plan::{World, timeline::cost::FusedInsts};

use super::{
    Result,
    device_assignment::assign_device,
    discover,
    executable::{fused_instructions, memory_report},
    in_process::InProcessGpu,
    set_environment,
};

/// The GPUs of NVIDIA.
pub static CUDA: &dyn Backend = &Cuda;

struct Cuda;

impl Backend for Cuda {
    fn set_environment(&self) {
        set_environment();
    }

    fn device_names(&self) -> Result<Vec<String>> {
        discover::device_names()
    }

    fn assign_device(&self, peers: &dyn ProcessGroup) -> Result<Box<dyn RankDevice>> {
        Ok(Box::new(assign_device(peers)?))
    }

    fn open_in_process(
        &self,
        ordinal: usize,
        peers: &dyn ProcessGroup,
        attention: Option<Arc<dyn AttentionLibrary>>,
    ) -> Result<Arc<dyn InProcessDevice>> {
        Ok(Arc::new(InProcessGpu::open(ordinal, peers, attention)?))
    }

    fn memory_report(&self, world: &World) -> Result<Vec<String>, String> {
        memory_report(world)
    }

    fn fused_instructions(&self, world: &World) -> Vec<FusedInsts> {
        fused_instructions(world)
    }
}
