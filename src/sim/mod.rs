//! Runs the plans of all ranks in one process. What the simulator does for an instruction is what it means.
//!
//! `machine` holds the state of all ranks, `advance`, `queue` and `member` say what may happen next, `schedule` chooses; `step`,
//! `collective` and `reshard` touch `memory` by means of `kernels`; `plan::sync` explains why nothing may happen any more.
//!
//! Under schedule `program`, and in programs that deadlock, a communication happens at once for all who take part (`queue`). Under all
//! others each rank begins and ends it by itself, and waits for nobody whose data it does not get (`member`).
//!
//! Invariant: a run depends on the plans, the inputs and the schedule, and on nothing else.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use thiserror::Error;

use crate::{
    io::{data::Data, dense::DenseTensor},
    plan::{
        BufferNo, InstKind, Plan, ViewOnRank,
        sync::{CommMatching, Deadlock, Step, deadlocked_state},
    },
};

mod advance;
mod collective;
mod conditions;
mod footprint;
pub mod kernels;
mod machine;
mod member;
pub mod memory;
mod progress_query;
mod queue;
mod reshard;
pub mod schedule;
mod step;
#[cfg(test)]
mod tests;

pub use crate::plan::sync::InstRef;
use kernels::Exactness;
use memory::{Memory, WrittenMask};
use step::Memories;
pub use {
    footprint::{Footprint, footprint, shadow_bytes},
    progress_query::ProgressQuery,
    schedule::{Schedule, ScheduleError, ScheduleSet},
};

/// What to do besides running.
#[derive(Clone, Debug, Default)]
pub struct SimOptions {
    /// Views whose contents are wanted when everything has run.
    pub watch: Vec<ViewOnRank>,
    /// Whether to list the instructions in the order in which they completed.
    pub trace: bool,
    /// Whether to leave out the f64 shadows of inexact values, which take 24 bytes an element.
    pub without_shadows: bool,
    /// Whether the plans deadlock, if that is known: it costs a walk through all instructions.
    pub deadlocks: Option<bool>,
    /// Who may ask how far the run is.
    pub progress_query: Option<Arc<ProgressQuery>>,
}

/// What a run leaves.
#[derive(Clone, Debug)]
pub struct SimOutcome {
    /// By rank and output: what `Finish` read; `None` where the rank holds no part of it.
    pub outputs: Vec<Vec<Option<DenseTensor>>>,
    /// By rank: instructions that had not run when the outputs were read, its own and others' that write to its
    /// memory.
    pub pending: Vec<Vec<InstRef>>,
    /// The contents of `Options::watch`.
    pub watched: Vec<DenseTensor>,
    /// What the numbers and the masks went through.
    pub notes: RunNotes,
    /// Choices made.
    pub steps: u64,
    /// Each instruction once, in the order of completion, if asked for.
    pub trace: Option<Vec<InstRef>>,
}

/// What instructions had to do that a caller may want to know.
#[derive(Clone, Debug, Default)]
pub struct RunNotes {
    /// Roundings that changed a value.
    pub exactness: Exactness,
    /// The first instruction that rounded.
    pub first_inexact: Option<InstRef>,
    /// Reads of elements that nothing had written yet, in order.
    pub unwritten: Vec<UnwrittenRead>,
    /// Buffers, by rank, into which an instruction has stored elements that come from unwritten ones.
    tainted: FxHashSet<(usize, BufferNo)>,
    /// The instruction that is running.
    current: Option<InstRef>,
}

/// A read of elements that nothing had written yet, of a buffer into which no unwritten elements were stored either: their first
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwrittenRead {
    /// Who read; of a communication or reshard, one of those who took part.
    pub reader: InstRef,
    /// Whose memory.
    pub rank: usize,
    /// Which buffer.
    pub buffer: BufferNo,
    /// How many elements of the view had not been written.
    pub missing: usize,
    /// How many elements the view has.
    pub elements: usize,
}

/// Why a run has no outcome.
#[derive(Clone, Debug, Error)]
pub enum SimError {
    /// Nothing may happen and not all is done.
    #[error("{0}")]
    Deadlock(Box<Deadlock>),
    /// The program asks for something that has no meaning.
    #[error("rank {rank}: {place}: {message}")]
    Program {
        /// The rank.
        rank: usize,
        /// The line in the text; 0 for the end of the program.
        line: u32,
        /// The line and the iteration.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// The program asks for something that the simulator does not do.
    #[error("rank {rank}: {place}: {message}")]
    Unsupported {
        /// The rank.
        rank: usize,
        /// The line in the text; 0 for the end of the program.
        line: u32,
        /// The line and the iteration.
        place: String,
        /// What is not supported.
        message: String,
    },
    /// A given step may not happen when its turn comes.
    #[error(
        "step {} of instruction {} on rank {} is not ready at this point of the given order: the order is that of another program, \
         or of another number of ranks",
        .0.index, .0.inst_ref.inst, .0.inst_ref.rank
    )]
    StepNotReady(Step),
    /// The plans are inconsistent: our bug.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Runs all ranks' plans to the end. `matched` holds the plans' communications (`Matched::of`), `inputs` each rank's part of each
/// input, row-major, by rank and input.
///
/// Reading an element that nothing wrote is no fault: the masks of the outputs tell what depends on it.
///
/// # Errors
/// A deadlock, a program that has no meaning or asks for too much, or plans that contradict themselves.
pub fn run(
    plans: &[Plan],
    matched: &CommMatching,
    inputs: Vec<Vec<Data>>,
    schedule: &Schedule,
    options: &SimOptions,
) -> Result<SimOutcome, SimError> {
    for (rank, plan) in plans.iter().enumerate() {
        if plan.rank != rank || plan.world != plans.len() {
            return Err(SimError::Internal(format!("plan {rank} is rank {} of {}", plan.rank, plan.world)));
        }
        if let Some(inst) = plan.code.iter().position(|it| it.stream as usize >= plan.streams.len()) {
            return Err(SimError::Internal(format!("rank {rank}: instruction {inst} is on no stream")));
        }
    }
    let memories = initial_memories(plans, inputs)?;
    let deadlocks = || options.deadlocks.unwrap_or_else(|| deadlocked_state(plans, matched).is_some());
    let meets = *schedule == Schedule::Program || deadlocks();
    let mut machine = machine::Machine::new(plans, matched, memories, schedule, meets)?;
    machine.outcome.trace = options.trace.then(Vec::new);
    machine.outcome.notes.exactness.shadows = !options.without_shadows;
    machine.run(options)
}

/// Memory before the first instruction.
fn initial_memories(plans: &[Plan], inputs: Vec<Vec<Data>>) -> Result<Vec<Memory>, SimError> {
    let internal = |rank: usize, message: String| SimError::Internal(format!("rank {rank}: {message}"));
    let mut memories = Vec::new();
    for (plan, inputs) in plans.iter().zip(inputs) {
        let rank = plan.rank;
        let mut memory =
            Memory::new(&plan.buffers).map_err(|it| unsupported_buffer(plans, rank, &it.to_string()))?;
        if inputs.len() != plan.inputs.len() {
            let (given, wanted) = (inputs.len(), plan.inputs.len());
            return Err(internal(rank, format!("{given} inputs given, {wanted} wanted")));
        }
        let mut space = Memories::Private(&mut memory);
        for (port, data) in plan.inputs.iter().zip(inputs) {
            if let Some(view) = &port.shard.view {
                let block = DenseTensor::full(vec![data.len()], data);
                space
                    .store(rank, view, &block, &mut RunNotes::default())
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

/// The first buffer that the simulator cannot hold, at the instruction that brings it into being.
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

/// Instructions among `pending` that write to the storage of an output of `rank`: why it may be incomplete.
pub fn late_writers(plans: &[Plan], outcome: &SimOutcome, rank: usize, output: usize) -> Vec<InstRef> {
    let port = plans.get(rank).and_then(|it| it.outputs.get(output));
    let Some(view) = port.and_then(|it| it.shard.view.as_ref()) else { return Vec::new() };
    let hits = |it: &&InstRef| {
        let accesses = plans[it.rank].code[it.inst].kind.accesses(it.rank);
        accesses.iter().any(|it| it.is_write && it.rank == rank && it.view.buffer == view.buffer)
    };
    outcome.pending.get(rank).map(|it| it.iter().filter(hits).copied().collect()).unwrap_or_default()
}

/// `line 24, streamIdx=3 on stream 3`.
pub fn describe(plans: &[Plan], at: InstRef) -> String {
    let plan = &plans[at.rank];
    let stream = plan.streams.get(plan.code[at.inst].stream as usize).map_or("no stream", |it| it);
    format!("{} on {stream}", line_and_location(plans, at).1)
}

impl SimOutcome {
    /// Nothing yet.
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
    /// The instruction that is running reads a view of which some elements have not been written.
    fn read_unwritten(&mut self, rank: usize, buffer: BufferNo, written: &WrittenMask) {
        if let Some(at) = self.current.filter(|_| !self.tainted.contains(&(rank, buffer))) {
            let (missing, elements) = (written.unwritten_count(), written.len());
            self.unwritten.push(UnwrittenRead { reader: at, rank, buffer, missing, elements });
        }
    }
}

impl SimError {
    /// A fault of the program, at an instruction.
    fn program(plans: &[Plan], at: InstRef, message: String) -> Self {
        let (line, place) = line_and_location(plans, at);
        Self::Program { rank: at.rank, line, place, message }
    }
}

/// The line of an instruction, and its place for people.
fn line_and_location(plans: &[Plan], at: InstRef) -> (u32, String) {
    let plan = &plans[at.rank];
    let inst = &plan.code[at.inst];
    (plan.origins[inst.origin as usize].line, plan.location(inst))
}
