//! Simulates all ranks in one process. The simulator defines the semantics of every instruction.
//!
//! `machine` holds the state of all ranks. `advance`, `queue` and `member` determine which steps may run
//! next, and `schedule` chooses one. `step`, `collective` and `reshard` access `memory` with the help of
//! `kernels`. `plan::sync` explains why no step may run.
//!
//! Under schedule `program`, and in programs that deadlock, a communication runs at once for all participants
//! (`queue`). Under all other schedules, each rank starts and completes it on its own, and waits only for the
//! ranks that it receives data from (`member`).
//!
//! ```
//! use std::sync::Arc;
//!
//! use hir_sim::{Schedule, SimOptions};
//! use hir_tensor::data::Data;
//!
//! let world = hir_plan::plans_of_text(
//!     "
//! %HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{4}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS1{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
//!   Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{4}] (DeviceMesh{0 1}), output=T1_g_float[iS1{4}] (DeviceMesh{0 1}), backend=NCCL)
//!   Wait(Communication 0)
//! } // %HostIrContainer
//! ",
//!     2,
//! )
//! .map_err(|faults| faults[0].message.clone())?;
//! let input = |value: f32| vec![Arc::new(Data::from(vec![value; 4]))];
//! let inputs = vec![input(1.0), input(2.0)];
//! let outcome = hir_sim::run(
//!     &world,
//!     inputs,
//!     &Schedule::Program,
//!     &SimOptions::default(),
//! )
//! .map_err(|fault| fault.to_string())?;
//! let sum = outcome.outputs[1][0].as_ref().ok_or("rank 1 has no output")?;
//! assert_eq!(sum.data, Data::from(vec![3f32; 4]));
//! # Ok::<(), String>(())
//! ```
//!
//! The package knows no file, no GPU and no process. Large products are computed on rayon's global pool.
//!
//! Invariant: a run depends only on the plans, the inputs and the schedule.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use hir_plan::{
    BufferNo, InstKind, Plan, ViewOnRank, World,
    sync::{Deadlock, Step},
};
use hir_tensor::{data::Data, dense::DenseTensor};

mod advance;
mod attention;
mod collective;
mod events;
mod footprint;
pub mod kernels;
mod machine;
mod member;
pub mod memory;
mod progress_query;
mod queue;
mod reshard;
mod sample_run;
pub mod schedule;
mod step;
#[cfg(test)]
mod tests;
mod work;

pub use hir_plan::sync::InstRef;
use kernels::Exactness;
use memory::{BufferData, Memory, UnwrittenBuffers, WrittenMask};
use step::Memories;
pub use {
    footprint::{Footprint, assembly_bytes, footprint, own_input_bytes},
    progress_query::ProgressQuery,
    sample_run::{SampleRunError, sample_run},
    schedule::{Schedule, ScheduleSet},
    work::{OverBudget, SimLimits, WorkBudget, work},
};

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct SimOptions {
    /// Views whose contents are returned after the run.
    pub watch: Vec<ViewOnRank>,
    /// True to record the instructions in the order of completion.
    pub trace: bool,
    /// True to omit the f64 shadows of inexact values, which take 24 bytes per element.
    pub without_shadows: bool,
    /// Answers progress queries of other threads.
    pub progress_query: Option<Arc<ProgressQuery>>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct SimOutcome {
    /// The outputs, by rank and output; `None` if the rank holds no part of the output. Ranks may share one.
    pub outputs: Vec<Vec<Option<Arc<DenseTensor>>>>,
    /// For each rank, the instructions that had not run when its outputs were read: its own, and those of
    /// other ranks that write to its memory.
    pub pending: Vec<Vec<InstRef>>,
    /// The contents of `SimOptions::watch`.
    pub watched: Vec<DenseTensor>,
    /// Roundings and reads of unwritten elements.
    pub notes: RunNotes,
    /// The number of scheduling choices.
    pub steps: u64,
    /// The instructions in the order of completion, if requested.
    pub trace: Option<Vec<InstRef>>,
}

/// Numerical events of a run that a caller may want to report.
#[derive(Clone, Debug, Default)]
pub struct RunNotes {
    /// Roundings that changed a value.
    pub exactness: Exactness,
    /// The first instruction that rounded.
    pub first_inexact: Option<InstRef>,
    /// Reads of elements that were not written yet, in order.
    pub unwritten: Vec<UnwrittenRead>,
    /// Buffers, by rank, that hold elements copied or computed from unwritten ones.
    tainted: FxHashSet<(usize, BufferNo)>,
    /// The current instruction.
    current: Option<InstRef>,
}

/// A read of unwritten elements. Reads of buffers that received unwritten elements from elsewhere are not
/// recorded, so this is the first read of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwrittenRead {
    /// The instruction that read. For a communication or a resharding operator, one of the participants.
    pub reader: InstRef,
    /// The rank whose memory was read.
    pub rank: usize,
    /// The buffer that was read.
    pub buffer: BufferNo,
    /// The number of unwritten elements in the view.
    pub missing: usize,
    /// The number of elements in the view.
    pub elements: usize,
}

/// An error that ends a run.
#[derive(Clone, Debug, Error)]
pub enum SimError {
    /// No step may run, and instructions remain.
    #[error("{0}")]
    Deadlock(Box<Deadlock>),
    /// The program is invalid at this instruction.
    #[error("rank {rank}: {place}: {message}")]
    Program {
        /// The rank.
        rank: usize,
        /// Line in the text; 0 at the end of the program.
        line: u32,
        /// The line and the iteration, for messages.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// The program needs something that the simulator does not support.
    #[error("rank {rank}: {place}: {message}")]
    Unsupported {
        /// The rank.
        rank: usize,
        /// Line in the text; 0 at the end of the program.
        line: u32,
        /// The line and the iteration, for messages.
        place: String,
        /// What is not supported.
        message: String,
    },
    /// A given step may not run when its turn comes.
    #[error(
        "step {} of instruction {} on rank {} is not ready at this point of the given order: the order belongs to another program \
         or to another number of ranks",
        .0.index, .0.inst_ref.inst, .0.inst_ref.rank
    )]
    StepNotReady(Step),
    /// The plans are inconsistent, which is a bug of this project.
    #[error("internal error: {0}")]
    Internal(String),
}

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

/// Returns the pending instructions that write to the storage of an output of `rank`. They are the reason why
/// the output may be incomplete.
pub fn late_writers(plans: &[Plan], outcome: &SimOutcome, rank: usize, output: usize) -> Vec<InstRef> {
    let port = plans.get(rank).and_then(|it| it.outputs.get(output));
    let Some(view) = port.and_then(|it| it.shard.view.as_ref()) else { return Vec::new() };
    let hits = |it: &&InstRef| {
        let accesses = plans[it.rank].code[it.inst].kind.accesses(it.rank);
        accesses.iter().any(|it| it.is_write && it.rank == rank && it.view.buffer == view.buffer)
    };
    outcome.pending.get(rank).map(|it| it.iter().filter(hits).copied().collect()).unwrap_or_default()
}

/// Describes an instruction, such as `line 24, streamIdx=3 on stream 3`.
pub fn describe(plans: &[Plan], at: InstRef) -> String {
    let plan = &plans[at.rank];
    let stream = plan.stream_name(&plan.code[at.inst]);
    format!("{} on {stream}", line_and_location(plans, at).1)
}

impl SimOutcome {
    /// Returns an empty result.
    pub fn new(plans: &[Plan]) -> Self {
        Self {
            outputs: plans.iter().map(|it| vec![None; it.outputs.len()]).collect(),
            pending: vec![Vec::new(); plans.len()],
            watched: Vec::new(),
            notes: RunNotes::default(),
            steps: 0,
            trace: None,
        }
    }
}

impl RunNotes {
    /// Records that the current instruction reads a view with unwritten elements.
    fn read_unwritten(&mut self, rank: usize, buffer: BufferNo, written: &WrittenMask) {
        if let Some(at) = self.current.filter(|_| !self.tainted.contains(&(rank, buffer))) {
            let (missing, elements) = (written.unwritten_count(), written.len());
            self.unwritten.push(UnwrittenRead { reader: at, rank, buffer, missing, elements });
        }
    }
}

impl SimError {
    /// Returns the error of an invalid program at an instruction.
    fn program(plans: &[Plan], at: InstRef, message: String) -> Self {
        let (line, place) = line_and_location(plans, at);
        Self::Program { rank: at.rank, line, place, message }
    }
}

/// Returns the line of an instruction, and its location for messages.
fn line_and_location(plans: &[Plan], at: InstRef) -> (u32, String) {
    let plan = &plans[at.rank];
    let inst = &plan.code[at.inst];
    (plan.origins[inst.origin as usize].line, plan.location(inst))
}
