//! What a plan needs on a GPU, made by all ranks together: what one cannot do all refuse.

use std::sync::Arc;

use super::{Input, Output};
use crate::{
    cuda::{
        CudaError, Peers, buffer_assignment,
        comm::Comms,
        device::{Device, Stream, Taken},
        executable::{self, Executable},
        libraries::Libraries,
        memory::Memory,
    },
    plan::Plan,
};

/// A plan with its memory, communicators and steps.
pub(super) struct Prepared {
    pub first: Stream,
    pub memory: Memory,
    pub comms: Comms,
    pub executable: Executable,
    pub inputs: Vec<Option<Input>>,
    pub outputs: Vec<Option<Output>>,
}

impl Prepared {
    /// Prepares a plan on a GPU that has had another one (`again`) or not; all ranks have to call this.
    ///
    /// # Errors
    /// What is missing, what some rank's plan asks for in vain.
    pub fn of(
        plans: &Arc<Vec<Plan>>,
        peers: &dyn Peers,
        device: &Device,
        libraries: &mut Libraries,
        again: bool,
    ) -> Result<Self, CudaError> {
        match Self::attempt(plans, peers, device, libraries) {
            // What is kept of earlier plans may be in the way.
            Err(CudaError::OutOfMemory { .. }) if again => {
                device.release(&Taken::default(), peers)?;
                libraries.joined.leave()?;
                device.free(peers)?;
                Self::attempt(plans, peers, device, libraries)
            }
            made => made,
        }
    }

    fn attempt(
        plans: &Arc<Vec<Plan>>,
        peers: &dyn Peers,
        device: &Device,
        libraries: &mut Libraries,
    ) -> Result<Self, CudaError> {
        let rank = peers.rank();
        let first = device.stream(false)?;
        let mut memory = agreed(Memory::new(device, plans, rank, first), peers)?;
        peers.phase("mapping the other ranks' memory");
        memory.map(device, peers, first)?;
        let comms = Comms::new(plans, peers, &mut libraries.joined)?;
        peers.phase("preparing the program for its GPU");
        let plan = &plans[rank];
        let executable = executable::prepare(device, plan, &mut memory, &comms, libraries, first);
        let written = buffer_assignment::written(plans, rank);
        let made = executable.and_then(|executable| {
            let inputs = inputs(plan, &written, device, &mut memory)?;
            Ok((executable, inputs, outputs(plan, &written, device, &memory)?))
        });
        let (executable, inputs, outputs) = agreed(made, peers)?;
        Ok(Self { first, memory, comms, executable, inputs, outputs })
    }
}

fn inputs(
    plan: &Plan,
    written: &[bool],
    device: &Device,
    memory: &mut Memory,
) -> Result<Vec<Option<Input>>, CudaError> {
    let mut inputs = Vec::new();
    for port in &plan.inputs {
        inputs.push(match &port.shard.view {
            None => None,
            Some(view) => {
                let bytes = view.len() * port.dtype.size();
                let kept = match written[view.buffer as usize] {
                    true => Some(memory.scratch(device, bytes)?),
                    false => None,
                };
                Some(Input { address: memory.view(plan.rank, view)?, bytes, kept })
            }
        });
    }
    Ok(inputs)
}

fn outputs(
    plan: &Plan,
    written: &[bool],
    device: &Device,
    memory: &Memory,
) -> Result<Vec<Option<Output>>, CudaError> {
    let mut outputs = Vec::new();
    for port in &plan.outputs {
        outputs.push(match &port.shard.view {
            None => None,
            Some(view) => {
                memory.view(plan.rank, view)?;
                let bytes = memory.layout.ranks[plan.rank].spots[view.buffer as usize].bytes;
                let (address, dtype) =
                    (memory.buffer(plan.rank, view.buffer)?, memory.dtype(plan.rank, view));
                let (written, host) = (written[view.buffer as usize], device.host(bytes)?);
                Some(Output { view: view.clone(), dtype, address, bytes, written, host })
            }
        });
    }
    Ok(outputs)
}

/// What one rank refuses all refuse, in the words of the first. What fails otherwise fails alone: the others are told by
/// whoever guards the job.
fn agreed<T>(made: Result<T, CudaError>, peers: &dyn Peers) -> Result<T, CudaError> {
    let mine = match &made {
        Ok(_) => String::new(),
        Err(CudaError::Unsupported { place, message, .. }) => format!("{place}\n{message}"),
        Err(CudaError::OutOfMemory { message, .. }) => format!("\n{message}"),
        Err(other) => return Err(other.clone()),
    };
    let all = peers.all_gather(mine.as_bytes())?;
    let refused = all.iter().enumerate().find_map(|(rank, bytes)| {
        let text = String::from_utf8_lossy(bytes);
        let (place, message) = text.split_once('\n')?;
        let (place, message) = (place.to_owned(), message.to_owned());
        Some(match place.is_empty() {
            true => CudaError::OutOfMemory { rank, message },
            false => CudaError::Unsupported { rank, place, message },
        })
    });
    refused.map_or(made, Err)
}
