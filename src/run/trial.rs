//! One run of a world, and what went wrong in it: for those who judge many runs, and not for one verdict.

use grammar::ir::StmtId;

use super::{
    RunError,
    job::{Criteria, Expectation, judge, simulate},
    results::{self, suspect},
};
use crate::{
    exit::Exit,
    io::data::Data,
    plan::{
        Plan,
        sync::{Cause, Deadlock},
    },
    sim::{Fault, InstRef, Schedule},
};

/// What went wrong in a run.
#[derive(Clone, Debug)]
pub struct Mishap {
    /// Under which schedule.
    pub schedule: Schedule,
    /// Of what kind it is.
    pub trouble: Trouble,
    /// What happened, in a line.
    pub message: String,
    /// More lines about it.
    pub report: Vec<String>,
    /// The instruction to look at.
    pub at: Option<InstRef>,
    /// The output that is wrong, by position.
    pub output: Option<usize>,
}

/// Kinds of things that go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Trouble {
    /// A deadlock: a rank waits for what never happens.
    Starved,
    /// A deadlock: a rank waits for itself.
    SelfLocked,
    /// A deadlock: ranks wait for each other.
    Interlocked,
    /// An output differs from what is expected.
    Different,
    /// An output has elements that nothing wrote.
    Unwritten,
    /// An output has elements of which ranks hold different values.
    Conflict,
    /// The program stops: it asks for something that has no meaning or is not supported.
    Stopped,
}

/// What a run gave.
pub struct Ran {
    /// The outputs.
    pub outputs: Vec<results::Result>,
    /// Whether no number was rounded.
    pub exact: bool,
}

/// Runs a world once on `exact` inputs.
///
/// # Errors
/// What went wrong.
pub fn trial(
    plans: &[Plan],
    inputs: &[Vec<Data>],
    schedule: &Schedule,
    expectations: &[Expectation],
) -> Result<Ran, Box<Mishap>> {
    let stopped = |fault: RunError| Box::new(Mishap::stopped(schedule, &fault));
    let outcome = simulate(plans, inputs.to_vec(), schedule, Vec::new()).map_err(stopped)?;
    let exact = outcome.notes.exactness.is_exact();
    let criteria = Criteria { exact: Some(exact), ..Criteria::default() };
    let verdict = judge(plans, &outcome, expectations, &criteria).map_err(stopped)?;
    if verdict.exit == Exit::Success {
        return Ok(Ran { outputs: verdict.outputs, exact });
    }
    let output = verdict.wrong.and_then(|at| verdict.outputs.get(at));
    let is_unwritten =
        |it: &results::Result| it.parts.iter().any(|(_, block)| block.written.first_missing().is_some());
    let trouble = match output.filter(|it| it.fault.is_some()) {
        Some(it) if is_unwritten(it) => Trouble::Unwritten,
        Some(_) => Trouble::Conflict,
        None => Trouble::Different,
    };
    let at =
        verdict.wrong.and_then(|it| (0..plans.len()).find_map(|rank| suspect(plans, &outcome, rank, it)));
    Err(Box::new(Mishap {
        schedule: schedule.clone(),
        trouble,
        message: verdict.line.trim_start_matches("[FAILED] ").to_owned(),
        report: Vec::new(),
        at,
        output: verdict.wrong,
    }))
}

impl Mishap {
    fn stopped(schedule: &Schedule, fault: &RunError) -> Self {
        let text = fault.to_string();
        let mut lines = text.lines().map(str::to_owned);
        let message = lines.next().unwrap_or_default();
        let (trouble, at) = match fault {
            RunError::Fault(Fault::Deadlock(it)) => {
                let trouble = match &it.cause {
                    Cause::Never { .. } => Trouble::Starved,
                    Cause::Cycle { ranks, .. } if ranks.len() < 2 => Trouble::SelfLocked,
                    Cause::Cycle { .. } => Trouble::Interlocked,
                };
                (trouble, blocked(it))
            }
            RunError::Fault(
                Fault::Program { .. } | Fault::Unsupported { .. } | Fault::Steps(_) | Fault::Internal(_),
            )
            | RunError::Io(_)
            | RunError::Given { .. }
            | RunError::Tensor(_)
            | RunError::Dtype(_)
            | RunError::Shard(_) => (Trouble::Stopped, None),
        };
        Self { schedule: schedule.clone(), trouble, message, report: lines.collect(), at, output: None }
    }

    /// The statement to look at.
    pub fn stmt(&self, plans: &[Plan]) -> Option<(usize, StmtId)> {
        let at = self.at?;
        let plan = plans.get(at.rank)?;
        Some((at.rank, plan.origins[plan.code.get(at.inst)?.origin as usize].stmt?))
    }
}

/// The instruction that waits for what never happens, or the first of those that wait for each other.
fn blocked(deadlock: &Deadlock) -> Option<InstRef> {
    let wait = match &deadlock.cause {
        Cause::Cycle { ranks, .. } => deadlock.waits.iter().find(|it| ranks.contains(&it.at.rank)),
        Cause::Never { wait, .. } => deadlock.waits.get(*wait),
    };
    wait.map(|it| it.at)
}
