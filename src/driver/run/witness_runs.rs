//! Runs the program in the order of a witness, with generated inputs, to see whether the order changes a result.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    inputs::{self, InputSpec},
    replay::ReplayRun,
    results,
    verdict::{
        Criteria, Expectation, PROGRAM_ORDER, judge_outputs, outcome_expectations, simulate,
        simulation_options,
    },
};
use hir_check::{NextRun, Witness, name_in_program};
use hir_plan::{IoBinding, Plan, SignalId, World};
use hir_sim::{Schedule, SimError, SimLimits, SimOptions, SimOutcome, WorkBudget};
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

/// A run in the order of a witness.
pub struct WitnessRun {
    /// Its result.
    pub result: WitnessResult,
    /// The outputs of which each rank keeps its own values, as `--output` names them.
    pub by_rank: Vec<String>,
}

/// The runs of a program that look for an order that changes a result.
pub struct WitnessRuns<'w> {
    /// The program, whose outputs are compared by rank if ranks hold different values in its own order.
    first: Cow<'w, World>,
    memory: usize,
    work: WorkBudget,
    /// The outputs of the program in its own order; `None` if the run needs too much work or memory, or fails.
    expectations: Option<Vec<Expectation>>,
}

impl<'w> WitnessRuns<'w> {
    /// Creates runs of a program that may use so many bytes each.
    pub fn new(first: &'w World, memory: usize) -> Self {
        let work = WorkBudget::of(WORK);
        let (first, expectations) = in_program_order(first, SimLimits { memory, work: &work })
            .unwrap_or((Cow::Borrowed(first), None));
        Self { first, memory, work, expectations }
    }

    /// Runs the program in the order of a witness, if `next` follows.
    pub fn run(&self, witness: &Witness, next: Option<NextRun<'_>>) -> WitnessRun {
        let mut by_rank = outputs_by_rank(&self.first);
        let result = match self.compared_with_reference(witness, next, &mut by_rank) {
            None => WitnessResult::Unknown,
            Some(Ok(true))
            | Some(Err(SimError::Deadlock(_) | SimError::SemaphoreLost { .. } | SimError::Program { .. })) => {
                WitnessResult::Wrong
            }
            Some(Ok(false)) => WitnessResult::Right,
            Some(Err(_)) => WitnessResult::NotRun,
        };
        WitnessRun { result, by_rank: by_rank.into_iter().collect() }
    }

    /// Returns whether outputs are wrong, or why the run fails; `None` if the runs need too much work or memory, or if hir-run refuses them.
    /// Adds the outputs to `by_rank` of which ranks hold different values in the run with which the results are compared.
    fn compared_with_reference(
        &self,
        witness: &Witness,
        next: Option<NextRun<'_>>,
        by_rank: &mut BTreeSet<String>,
    ) -> Option<Result<bool, SimError>> {
        let first: &World = &self.first;
        let limits = SimLimits { memory: self.memory, work: &self.work };
        let next = next.or(witness.setting.has_second_run.then_some(NextRun::Same));
        let mut inputs = generated_inputs(first, 0)?;
        if let Some(next) = next {
            let second = if let NextRun::Other(world, _) = next { world } else { first };
            inputs = inputs::of_both_runs(inputs, generated_inputs(second, 1)?);
        }
        if witness.setting.is_plain() {
            return self.compared(witness, (first, inputs), self.expectations.as_deref()?, Arc::default());
        }
        let (reference, outcome) =
            ReplayRun::reference(&witness.setting, first, next, (inputs.clone(), limits)).ok()?;
        by_rank.extend(outputs_that_differ(&reference, &outcome)?);
        let first = with_outputs_by_rank(first, by_rank);
        let second;
        let next = match next {
            Some(NextRun::Other(world, shared)) => {
                second = with_outputs_by_rank(world, by_rank);
                Some(NextRun::Other(&second, shared))
            }
            it => it,
        };
        let reference = with_outputs_by_rank(&reference, by_rank);
        let it = ReplayRun::compared_with((&reference, &outcome), &witness.setting, (&first, next), inputs)
            .ok()?;
        self.compared(witness, (&it.world, it.inputs), &it.expectations, it.semaphores)
    }

    /// Runs plans in the order of a witness, and compares their outputs. The results are as those of `run`.
    fn compared(
        &self,
        witness: &Witness,
        (world, inputs): (&World, Vec<Vec<Arc<Data>>>),
        expectations: &[Expectation],
        semaphores: Arc<FxHashMap<SignalId, (usize, bool)>>,
    ) -> Option<Result<bool, SimError>> {
        self.work.take(hir_sim::work(world, 1)).ok()?;
        let schedule = Schedule::Steps { name: "witness".into(), steps: witness.steps.clone().into() };
        let options = SimOptions { semaphores, ..simulation_options(world, self.memory) };
        let outcome = match hir_sim::run(world, inputs, &schedule, &options) {
            Ok(outcome) => outcome,
            Err(fault) => return Some(Err(fault)),
        };
        let criteria = Criteria { exact: Some(outcome.notes.exactness.is_exact()), ..Criteria::default() };
        judge_outputs(world, &outcome, expectations, &criteria).ok().map(|it| Ok(!it.is_right()))
    }
}

/// Runs a program in its own order. Returns it with those outputs compared by rank of which ranks hold different values, and its outputs if they
/// have no fault; `None` if the run needs too much work or memory, or fails.
fn in_program_order<'w>(
    world: &'w World,
    limits: SimLimits<'_>,
) -> Option<(Cow<'w, World>, Option<Vec<Expectation>>)> {
    limits.work.take(hir_sim::work(world, 1)).ok()?;
    let outcome = simulate(world, generated_inputs(world, 0)?, &Schedule::Program, limits.memory).ok()?;
    let first = with_outputs_by_rank(world, &outputs_that_differ(world, &outcome)?);
    let expectations = outcome_expectations(&first, &outcome, PROGRAM_ORDER).ok();
    Some((first, expectations))
}

/// Returns the names of the outputs of which ranks hold different values, as their program names them; `None` if their parts do not fit
/// together.
fn outputs_that_differ(plans: &[Plan], outcome: &SimOutcome) -> Option<BTreeSet<String>> {
    let outputs = results::outputs(plans, outcome).ok()?;
    let differ = outputs.iter().filter(|it| it.whole.conflict.is_some());
    Some(differ.map(|it| name_in_program(&it.name).to_owned()).collect())
}

/// Returns the names of the outputs that are compared by rank.
fn outputs_by_rank(world: &World) -> BTreeSet<String> {
    let outputs = world.first().map_or(&[][..], |it| &it.outputs);
    outputs.iter().filter(|it| it.is_compared_per_rank).map(|it| it.name.clone()).collect()
}

/// Returns a program, or two runs, of which the named outputs are compared by rank, besides those that it compares so.
fn with_outputs_by_rank<'w>(world: &'w World, names: &BTreeSet<String>) -> Cow<'w, World> {
    let is_added = |it: &IoBinding| names.contains(name_in_program(&it.name)) && !it.is_compared_per_rank;
    if !world.iter().flat_map(|it| &it.outputs).any(is_added) {
        return Cow::Borrowed(world);
    }
    let mut plans: Vec<Plan> = world.plans().to_vec();
    let outputs = plans.iter_mut().flat_map(|it| &mut it.outputs);
    outputs.for_each(|it| it.is_compared_per_rank |= names.contains(name_in_program(&it.name)));
    Cow::Owned(World::new(plans))
}

/// Returns the inputs that hir-run generates without options.
fn generated_inputs(world: &World, seed: u64) -> Option<Vec<Vec<Arc<Data>>>> {
    InputSpec::new(InputKind::Exact, seed, world).fill(world).ok()
}
