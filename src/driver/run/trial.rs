//! Runs a world once and classifies failures, for callers that judge many runs.

use std::sync::Arc;

use grammar::StmtId;

use super::{
    RunError,
    results::{self, culprit},
    verdict::{Criteria, Expectation, judge_outputs, simulate},
};
use hir_plan::{
    Plan, World,
    sync::{Cause, Deadlock},
};
use hir_sim::{InstRef, Schedule, SimError};
use hir_tensor::data::Data;

/// A failed run.
#[derive(Clone, Debug)]
pub struct RunFailure {
    /// The schedule of the run.
    pub schedule: Schedule,
    /// The kind of failure.
    pub kind: FailureKind,
    /// A one-line message.
    pub message: String,
    /// The deadlock, if the run ends in one.
    pub deadlock: Option<Box<Deadlock>>,
    /// The instruction to inspect, if known.
    pub inst_ref: Option<InstRef>,
    /// Position of the wrong output, if any.
    pub output: Option<usize>,
}

/// Kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailureKind {
    /// A deadlock: a rank waits for an operation that no rank ever performs.
    NeverCompletes,
    /// A deadlock: a rank waits for itself.
    SelfWait,
    /// A deadlock: ranks wait for each other in a cycle.
    CyclicWait,
    /// An output differs from the expected value.
    WrongOutput,
    /// An output has elements that nothing wrote.
    UnwrittenOutput,
    /// An output has elements for which ranks hold different values.
    ReplicasDiffer,
    /// The program stops: it has no defined behaviour, or an operation is not supported.
    ProgramError,
}

/// The result of a successful run.
pub struct RunResult {
    /// The outputs.
    pub outputs: Vec<results::OutputTensor>,
    /// True if no value was rounded.
    pub exact: bool,
}

/// Runs a world once, with f64 shadows if they fit in the memory limit, in bytes.
///
/// # Errors
/// The failure of the run.
pub fn run_trial(
    world: &World,
    inputs: &[Vec<Arc<Data>>],
    schedule: &Schedule,
    expectations: &[Expectation],
    memory_limit: usize,
) -> Result<RunResult, Box<RunFailure>> {
    let stopped = |fault: RunError| Box::new(RunFailure::stopped(schedule, &fault));
    let outcome = simulate(world, inputs.to_vec(), schedule, memory_limit).map_err(stopped)?;
    let exact = outcome.notes.exactness.is_exact();
    let criteria = Criteria { exact: Some(exact), ..Criteria::default() };
    let verdict = judge_outputs(world, &outcome, expectations, &criteria).map_err(stopped)?;
    if verdict.is_right() {
        return Ok(RunResult { outputs: verdict.outputs, exact });
    }
    let output = verdict.wrong_output.and_then(|at| verdict.outputs.get(at));
    let is_unwritten = |it: &results::OutputTensor| {
        it.parts.iter().any(|(_, block)| block.written.first_unwritten().is_some())
    };
    let trouble = match output.filter(|it| it.fault.is_some()) {
        Some(it) if is_unwritten(it) => FailureKind::UnwrittenOutput,
        Some(_) => FailureKind::ReplicasDiffer,
        None => FailureKind::WrongOutput,
    };
    let at = verdict
        .wrong_output
        .and_then(|it| (0..world.len()).find_map(|rank| culprit(world, &outcome, rank, it)));
    Err(Box::new(RunFailure {
        schedule: schedule.clone(),
        kind: trouble,
        message: verdict.line.text,
        deadlock: None,
        inst_ref: at,
        output: verdict.wrong_output,
    }))
}

impl RunFailure {
    fn stopped(schedule: &Schedule, fault: &RunError) -> Self {
        let (trouble, at, deadlock) = match fault {
            RunError::Fault(SimError::Deadlock(it)) => {
                let trouble = match &it.cause {
                    Cause::NeverSatisfied { .. } => FailureKind::NeverCompletes,
                    Cause::Cycle { ranks, .. } if ranks.len() < 2 => FailureKind::SelfWait,
                    Cause::Cycle { .. } => FailureKind::CyclicWait,
                };
                (trouble, waiting_inst(it), Some(it.clone()))
            }
            RunError::Fault(
                SimError::SemaphoreLost { .. }
                | SimError::Program { .. }
                | SimError::Unsupported { .. }
                | SimError::StepNotReady(_)
                | SimError::Internal(_),
            )
            | RunError::Io(_)
            | RunError::InvalidFlagValue { .. }
            | RunError::Tensor(_)
            | RunError::Dtype(_)
            | RunError::Shard(_)
            | RunError::OverBudget(_)
            | RunError::Threads(_) => (FailureKind::ProgramError, None, None),
        };
        Self {
            schedule: schedule.clone(),
            kind: trouble,
            message: deadlock.as_ref().map_or_else(|| fault.to_string(), |it| it.message()),
            deadlock,
            inst_ref: at,
            output: None,
        }
    }

    /// Returns the rank and the statement to inspect.
    pub fn stmt(&self, plans: &[Plan]) -> Option<(usize, StmtId)> {
        let at = self.inst_ref?;
        let plan = plans.get(at.rank)?;
        Some((at.rank, plan.origins[plan.code.get(at.inst)?.origin as usize].stmt?))
    }
}

/// Returns the instruction that waits forever, or the first instruction of a cycle.
fn waiting_inst(deadlock: &Deadlock) -> Option<InstRef> {
    let wait = match &deadlock.cause {
        Cause::Cycle { ranks, .. } => deadlock.waits.iter().find(|it| ranks.contains(&it.inst_ref.rank)),
        Cause::NeverSatisfied { wait, .. } => deadlock.waits.get(*wait),
    };
    wait.map(|it| it.inst_ref)
}
