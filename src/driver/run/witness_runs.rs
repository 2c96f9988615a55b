//! Runs the program in the order of a witness, with generated inputs, to see whether the order changes a result.

use std::sync::Arc;

use super::{
    inputs::InputSpec,
    replay::ReplayRun,
    verdict::{Criteria, judge_outputs, program_order_expectations, simulation_options},
};
use hir_check::{NextRun, Witness};
use hir_plan::World;
use hir_sim::{Schedule, SimError, SimLimits, SimOptions, WorkBudget};
use hir_tensor::{data::Data, generate::InputKind};

/// The work of all runs for one file, in elements: some seconds.
const WORK: u64 = 100_000_000;

/// The result of a run in the order of a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WitnessResult {
    /// It has a wrong output, or ends in a fault.
    Wrong,
    /// All outputs are right.
    Right,
    /// The simulator cannot execute the steps in this order: another rank has to do more before them.
    NotRun,
    /// The run would need too much work or memory, or hir-run refuses it.
    Unknown,
}

/// The runs that look for an order that changes a result.
pub struct WitnessRuns {
    memory: usize,
    work: WorkBudget,
}

impl WitnessRuns {
    /// Creates runs that may use so many bytes each.
    pub fn new(memory: usize) -> Self {
        Self { memory, work: WorkBudget::of(WORK) }
    }

    /// Runs `first` in the order of a witness, if `next` follows.
    pub fn result(&self, witness: &Witness, first: &World, next: Option<NextRun<'_>>) -> WitnessResult {
        match self.run(witness, first, next) {
            None => WitnessResult::Unknown,
            Some(Ok(true))
            | Some(Err(SimError::Deadlock(_) | SimError::SemaphoreLost { .. } | SimError::Program { .. })) => {
                WitnessResult::Wrong
            }
            Some(Ok(false)) => WitnessResult::Right,
            Some(Err(_)) => WitnessResult::NotRun,
        }
    }

    /// Returns whether outputs are wrong, or why the run fails; `None` if the runs need too much work or memory, or if hir-run refuses them.
    fn run(
        &self,
        witness: &Witness,
        first: &World,
        next: Option<NextRun<'_>>,
    ) -> Option<Result<bool, SimError>> {
        let limits = SimLimits { memory: self.memory, work: &self.work };
        let next = next.or(witness.setting.has_second_run.then_some(NextRun::Same));
        let mut inputs = generated_inputs(first, 0)?;
        if let Some(next) = next {
            let second = if let NextRun::Other(world, _) = next { world } else { first };
            inputs.iter_mut().zip(generated_inputs(second, 1)?).for_each(|(mine, more)| mine.extend(more));
        }
        let replay = if witness.setting.is_plain() {
            None
        } else {
            Some(ReplayRun::of(&witness.setting, first, next, (inputs.clone(), limits)).ok()?)
        };
        let (world, expectations, semaphores) = match replay {
            Some(it) => (it.world, it.expectations, it.semaphores),
            None => {
                let expected = program_order_expectations(first, inputs.clone(), limits).ok()?;
                (Arc::new(first.clone()), expected, Arc::default())
            }
        };
        self.work.take(hir_sim::work(&world, 1)).ok()?;
        let schedule = Schedule::Steps { name: "witness".into(), steps: witness.steps.clone().into() };
        let options = SimOptions { semaphores, ..simulation_options(&world, self.memory) };
        let outcome = match hir_sim::run(&world, inputs, &schedule, &options) {
            Ok(outcome) => outcome,
            Err(fault) => return Some(Err(fault)),
        };
        let criteria = Criteria { exact: Some(outcome.notes.exactness.is_exact()), ..Criteria::default() };
        judge_outputs(&world, &outcome, &expectations, &criteria).ok().map(|it| Ok(!it.is_right))
    }
}

/// Returns the inputs that hir-run generates without options.
fn generated_inputs(world: &World, seed: u64) -> Option<Vec<Vec<Arc<Data>>>> {
    InputSpec::new(InputKind::Exact, seed, world).fill(world).ok()
}
