//! Prepares a plan on the GPUs of all ranks together: an error on one rank is an error on all.

use std::sync::Arc;

use super::{Input, Output};
use crate::{
    ExecutorError, ProcessGroup, Result,
    buffer_assignment::{self, PortMemory},
    comm::Communicators,
    device::{Device, ResourceMark, Stream},
    exchange::gather,
    executable::{self, Executable},
    library_state::LibraryState,
    memory::{DeviceMemory, without_size},
};
use hir_plan::{Plan, World};

/// A plan with its memory, communicators and commands.
pub(super) struct Prepared {
    pub first: Stream,
    pub memory: DeviceMemory,
    pub comms: Communicators,
    pub executable: Executable,
    pub inputs: Vec<Option<Input>>,
    pub outputs: Vec<Option<Output>>,
}

impl Prepared {
    /// Prepares a plan. `again` says that the GPU has run another plan before. All ranks have to call this.
    ///
    /// # Errors
    /// A library is missing, or some rank's plan requires something that this executor does not support.
    pub fn of(
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        device: &Device,
        libraries: &mut LibraryState,
        again: bool,
        ports: PortMemory,
    ) -> Result<Self> {
        match Self::attempt(world, peers, device, libraries, ports) {
            // Resources kept from earlier plans may occupy the memory: free them and try again.
            Err(ExecutorError::OutOfMemory { .. }) if again => {
                device.release(&ResourceMark::default(), peers)?;
                libraries.comm_cache.destroy_all()?;
                device.free_memory(peers)?;
                Self::attempt(world, peers, device, libraries, ports)
            }
            made => made,
        }
    }

    fn attempt(
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        device: &Device,
        libraries: &mut LibraryState,
        ports: PortMemory,
    ) -> Result<Self> {
        let rank = peers.rank();
        let first = device.stream(false)?;
        let memory = executable::assign_memory(world, ports)
            .map_err(|it| without_size(world, it))
            .and_then(|layout| DeviceMemory::new(device, world, rank, first, (layout, ports)));
        let mut memory = agree_on_errors(memory, peers)?;
        peers.report_phase("mapping the other ranks' memory");
        memory.map_peers(device, peers, first)?;
        let comms = Communicators::new(world, peers, &mut libraries.comm_cache)?;
        peers.report_phase("preparing the program for its GPU");
        let plan = &world[rank];
        let executable = executable::lower(device, plan, &mut memory, &comms, libraries, first);
        let written = buffer_assignment::written_buffers(world, rank);
        let made = executable.and_then(|executable| {
            if matches!(ports, PortMemory::Caller { .. }) {
                return Ok((executable, Vec::new(), Vec::new()));
            }
            let inputs = inputs(plan, &written, device, &mut memory)?;
            Ok((executable, inputs, outputs(plan, &written, device, &memory)?))
        });
        let (executable, inputs, outputs) = agree_on_errors(made, peers)?;
        Ok(Self { first, memory, comms, executable, inputs, outputs })
    }
}

fn inputs(
    plan: &Plan,
    written: &[bool],
    device: &Device,
    memory: &mut DeviceMemory,
) -> Result<Vec<Option<Input>>> {
    let mut inputs = Vec::new();
    for port in &plan.inputs {
        inputs.push(match &port.shard.view {
            None => None,
            Some(view) => {
                let bytes = view.len() * port.dtype.size();
                let kept = if written[view.buffer as usize] {
                    Some(memory.allocate_scratch(device, bytes)?)
                } else {
                    None
                };
                Some(Input { address: memory.view_address(plan.rank, view)?, bytes, backup: kept })
            }
        });
    }
    Ok(inputs)
}

fn outputs(
    plan: &Plan,
    written: &[bool],
    device: &Device,
    memory: &DeviceMemory,
) -> Result<Vec<Option<Output>>> {
    let mut outputs = Vec::new();
    for port in &plan.outputs {
        outputs.push(match &port.shard.view {
            None => None,
            Some(view) => {
                memory.view_address(plan.rank, view)?;
                let bytes = memory.assignment.ranks[plan.rank].buffers[view.buffer as usize].bytes;
                let (address, dtype) =
                    (memory.buffer_address(plan.rank, view.buffer)?, memory.view_dtype(plan.rank, view));
                let (written, host) = (written[view.buffer as usize], device.allocate_pinned(bytes)?);
                Some(Output {
                    view: view.clone(),
                    dtype,
                    address,
                    bytes,
                    is_written: written,
                    host_buffer: host,
                })
            }
        });
    }
    Ok(outputs)
}

/// Returns the error of the lowest failing rank on every rank, if it is `Unsupported` or `OutOfMemory`. Any
/// other error is returned on the failing rank alone; the watchdog of the job notifies the others.
fn agree_on_errors<T>(made: Result<T>, peers: &dyn ProcessGroup) -> Result<T> {
    let mine = match &made {
        Ok(_) => None,
        Err(refused @ (ExecutorError::Unsupported { .. } | ExecutorError::OutOfMemory { .. })) => {
            Some(refused.clone())
        }
        Err(other) => return Err(other.clone()),
    };
    let refused = gather(peers, &mine)?.into_iter().flatten().next();
    refused.map_or(made, Err)
}
