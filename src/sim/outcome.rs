//! The options, the result and the errors of a run.

use std::sync::Arc;

use grammar::Code;
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;

use hir_plan::{
    BufferNo, Plan, SignalId, ViewOnRank,
    sync::{Deadlock, InstRef, Step},
};
use hir_tensor::dense::DenseTensor;

use crate::{kernels::Exactness, memory::WrittenMask, progress_query::ProgressQuery};

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
    /// The transfers over peer memory that share a semaphore of one word: by signal, the number of the semaphore, and whether the
    /// signal says that the transfer is posted; otherwise it has ended. Of two posts before the first transfer has ended, the second one is
    /// lost. Without semaphores, signals are counted.
    pub semaphores: Arc<FxHashMap<SignalId, (usize, bool)>>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
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
    pub(crate) tainted: FxHashSet<(usize, BufferNo)>,
    /// The current instruction.
    pub(crate) current: Option<InstRef>,
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
    /// A rank waits forever for a semaphore of one word, since a value of it is lost (`SimOptions::semaphores`).
    #[error(
        "{post} on rank {rank} writes its semaphore before the transfer before has ended, so one of the two values is lost, and rank {waiting} \
         waits forever"
    )]
    SemaphoreLost {
        /// The rank that posts the transfer.
        rank: usize,
        /// The statement.
        post: String,
        /// The rank that waits.
        waiting: usize,
    },
    /// The program is invalid at this instruction.
    #[error("rank {rank}: {place}: {message}")]
    Program {
        /// Its code; `None` if it has none.
        code: Option<Code>,
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
            ..Self::default()
        }
    }
}

impl RunNotes {
    /// Records that the current instruction reads a view with unwritten elements.
    pub(crate) fn read_unwritten(&mut self, rank: usize, buffer: BufferNo, written: &WrittenMask) {
        if let Some(at) = self.current.filter(|_| !self.tainted.contains(&(rank, buffer))) {
            let (missing, elements) = (written.unwritten_count(), written.len());
            self.unwritten.push(UnwrittenRead { reader: at, rank, buffer, missing, elements });
        }
    }
}

impl SimError {
    /// Returns the error of an invalid program at an instruction.
    pub(crate) fn program(plans: &[Plan], at: InstRef, message: String) -> Self {
        let (line, place) = line_and_location(plans, at);
        Self::Program { code: None, rank: at.rank, line, place, message }
    }
}

/// Returns the line of an instruction, and its location for messages.
pub(crate) fn line_and_location(plans: &[Plan], at: InstRef) -> (u32, String) {
    let plan = &plans[at.rank];
    let inst = &plan.code[at.inst];
    (plan.origins[inst.origin as usize].line, plan.location(inst))
}
