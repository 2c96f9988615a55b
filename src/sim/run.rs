//! Runs the plans of all ranks.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use hir_plan::{InstKind, Plan, World, sync::InstRef};
use hir_tensor::data::Data;

use crate::{
    RunNotes, Schedule, SimError, SimOptions, SimOutcome, machine,
    memory::{BufferData, Memory, UnwrittenBuffers},
    outcome::line_and_location,
    step::Memories,
};

/// Runs the plans of all ranks to completion. `inputs` holds each rank's part of each input, row-major, by rank and input. Ranks
/// that share a part share the memory of it.
///
/// Reading an unwritten element is not an error. The masks of the outputs show which elements depend on it.
///
/// # Errors
/// A deadlock, an invalid or unsupported program, or inconsistent plans.
pub fn run(
    world: &World,
    inputs: Vec<Vec<Arc<Data>>>,
    schedule: &Schedule,
    options: &SimOptions,
) -> Result<SimOutcome, SimError> {
    let plans = world.plans();
    for (rank, plan) in plans.iter().enumerate() {
        if plan.rank != rank || plan.world != plans.len() {
            return Err(SimError::Internal(format!(
                "plan {rank} is for rank {} of {}",
                plan.rank, plan.world
            )));
        }
        if let Some(inst) = plan.code.iter().position(|it| it.stream as usize >= plan.streams.len()) {
            return Err(SimError::Internal(format!("rank {rank}: instruction {inst} has no stream")));
        }
    }
    for plan in plans {
        if let Some((inst, call)) = plan.first_opaque_call() {
            let rank = plan.rank;
            let (line, place) = line_and_location(plans, InstRef { rank, inst });
            return Err(SimError::Unsupported { rank, line, place, message: call.reason() });
        }
    }
    let memories = initial_memories(plans, inputs)?;
    let is_synchronous = *schedule == Schedule::Program || world.deadlocked_state().is_some();
    let mut machine = machine::Machine::new(world, memories, schedule, is_synchronous)?;
    machine.semaphores = Arc::clone(&options.semaphores);
    machine.outcome.trace = options.trace.then(Vec::new);
    machine.outcome.notes.exactness.shadows = !options.without_shadows;
    machine.run(options)
}

/// Returns the memory of all ranks before the first instruction.
fn initial_memories(plans: &[Plan], inputs: Vec<Vec<Arc<Data>>>) -> Result<Vec<Memory>, SimError> {
    let internal = |rank: usize, message: String| SimError::Internal(format!("rank {rank}: {message}"));
    let (mut memories, mut unwritten) = (Vec::new(), UnwrittenBuffers::default());
    let mut shared: FxHashMap<*const Data, Arc<BufferData>> = FxHashMap::default();
    for (plan, inputs) in plans.iter().zip(&inputs) {
        let rank = plan.rank;
        let mut memory =
            unwritten.memory(&plan.buffers).map_err(|it| unsupported_buffer(plans, rank, &it.to_string()))?;
        if inputs.len() != plan.inputs.len() {
            let (given, wanted) = (inputs.len(), plan.inputs.len());
            return Err(internal(rank, format!("{given} inputs given, {wanted} expected")));
        }
        let mut space = Memories::Private(&mut memory);
        for (port, data) in plan.inputs.iter().zip(inputs) {
            if let Some(view) = &port.shard.view {
                let contents = || Arc::new(BufferData::full(Data::clone(data)));
                let block = shared.entry(Arc::as_ptr(data)).or_insert_with(contents);
                space
                    .store_shared(rank, view, block, &mut RunNotes::default())
                    .map_err(|it| internal(rank, format!("input {}: {it}", port.name)))?;
            }
        }
        memories.push(memory);
    }
    if memories.len() < plans.len() {
        return Err(SimError::Internal("fewer inputs than ranks".to_owned()));
    }
    Ok(memories)
}

/// Returns the error for the first buffer that the simulator cannot store, at the instruction that allocates
/// it.
fn unsupported_buffer(plans: &[Plan], rank: usize, message: &str) -> SimError {
    let plan = &plans[rank];
    let buffer = plan.buffers.iter().position(|it| Data::zeros(it.dtype, 0).is_err()).unwrap_or(0);
    let alloc = |it: &InstKind| matches!(it, InstKind::Alloc { buffer: it, .. } if *it as usize == buffer);
    let inst = plan.code.iter().position(|it| alloc(&it.kind));
    let (line, place) =
        inst.map_or((0, "input".to_owned()), |inst| line_and_location(plans, InstRef { rank, inst }));
    let name = plan.buffers.get(buffer).map_or("?", |it| it.name.as_str());
    SimError::Unsupported { rank, line, place, message: format!("`{name}`: {message}") }
}
