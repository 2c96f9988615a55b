//! Runs that show a finding of the checker: two runs without a barrier, tensors that share storage, semaphores of one word.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    RunError,
    failure::{JobFailure, Result},
    inputs::{self, InputSpec},
    prepare::{PrepareOptions, prepare},
    program_files::ProgramFiles,
    schedule_file::ScheduleFile,
    verdict::{Expectation, outcome_expectations, simulate},
};
use hir_check::{NextRun, Replay, StepOrder, WitnessSetting};
use hir_plan::{CallerUses, Plan, SignalId, World};
use hir_sim::{Schedule, SimLimits, SimOutcome};
use hir_tensor::data::Data;

/// What the simulator executes instead of a plain run.
pub struct ReplayRun {
    /// The plans of all runs.
    pub world: Arc<World>,
    /// The inputs of all runs.
    pub inputs: Vec<Vec<Arc<Data>>>,
    /// The outputs of the runs if each one ends before the next one begins, and if each tensor has storage of its own.
    pub expectations: Vec<Expectation>,
    /// The semaphores of one word (`SimOptions::semaphores`).
    pub semaphores: Arc<FxHashMap<SignalId, (usize, bool)>>,
    /// Lines for the report.
    pub notes: Vec<String>,
}

impl ReplayRun {
    /// Prepares what a file asks for, after `first`. The inputs of the second run have the next seed. The outputs `by_rank` of the second
    /// program are compared by rank.
    ///
    /// # Errors
    /// The second program cannot be prepared, or the runs cannot be combined.
    pub fn new(
        file: &ScheduleFile,
        first: &World,
        setup: &PrepareOptions<'_>,
        by_rank: &[&str],
        (spec, limits): (&mut InputSpec, SimLimits<'_>),
    ) -> Result<Self> {
        let other = match &file.next {
            Some(it) => {
                let is_compared_per_rank = |_, name: &str| by_rank.contains(&name);
                let setup = PrepareOptions {
                    passes: &|_, _| Ok(()),
                    container: None,
                    is_reference: true,
                    uses: CallerUses { is_compared_per_rank: &is_compared_per_rank, ..setup.uses },
                    ..*setup
                };
                Some(prepare(&ProgramFiles::One(it.file.clone()), &setup)?)
            }
            None => None,
        };
        let next = match (&other, &file.next) {
            (Some(it), Some(next)) => Some(NextRun::Other(&it.world, &next.shared)),
            _ => file.setting.has_second_run.then_some(NextRun::Same),
        };
        let graph = file.setting.is_captured.then_some(NextRun::Captured);
        file.check_sharing(first, graph.or(next))?;
        let mut inputs = spec.fill(first)?;
        if next.is_some() {
            let second = other.as_ref().map_or(first, |it| &it.world);
            let mut again = InputSpec::new(spec.generator.kind, spec.generator.seed.wrapping_add(1), second);
            let has_input =
                |name: &str| second.iter().flat_map(|it: &Plan| &it.inputs).any(|it| it.name == name);
            let flags = spec.flags.iter().filter(|it| has_input(&it.name)).cloned().collect();
            again = again.with_flags(flags, &setup.session.files);
            inputs = inputs::of_both_runs(inputs, again.fill(second)?);
        }
        let mut it = Self::of(&file.setting, first, next, (inputs, limits))?;
        it.notes = notes(file, first, other.as_ref().map(|it| it.world.plans()));
        Ok(it)
    }

    /// Prepares the runs of a setting: `first`, then `next`. The inputs are those of both.
    ///
    /// # Errors
    /// The runs cannot be combined, or they fail also if one follows the other.
    pub fn of(
        setting: &WitnessSetting,
        first: &World,
        next: Option<NextRun<'_>>,
        (inputs, limits): (Vec<Vec<Arc<Data>>>, SimLimits<'_>),
    ) -> Result<Self> {
        let (reference, outcome) = Self::reference(setting, first, next, (inputs.clone(), limits))?;
        Self::compared_with((&reference, &outcome), setting, (first, next), inputs)
    }

    /// As `of`, with the run that `reference` has returned.
    ///
    /// # Errors
    /// As for `of`.
    pub fn compared_with(
        (reference, outcome): (&World, &SimOutcome),
        setting: &WitnessSetting,
        (first, next): (&World, Option<NextRun<'_>>),
        inputs: Vec<Vec<Arc<Data>>>,
    ) -> Result<Self> {
        let expectations = outcome_expectations(reference, outcome, IN_SEQUENCE)?;
        let graph = setting.is_captured.then_some(NextRun::Captured);
        let combined = Replay::new(first, graph.or(next), &setting.storage).map_err(|it| unsuitable(&it))?;
        let semaphores = setting.has_semaphores.then(|| hir_check::semaphores(&combined.world));
        Ok(Self {
            notes: Vec::new(),
            world: Arc::new(combined.world),
            inputs,
            expectations,
            semaphores: Arc::new(semaphores.unwrap_or_default()),
        })
    }

    /// Runs `first`, and then `next`, with storage of its own for each tensor. Returns the plans of both runs, too.
    ///
    /// # Errors
    /// As for `of`.
    pub fn reference(
        setting: &WitnessSetting,
        first: &World,
        next: Option<NextRun<'_>>,
        (inputs, limits): (Vec<Vec<Arc<Data>>>, SimLimits<'_>),
    ) -> Result<(World, SimOutcome)> {
        // The caller has its storage to itself then.
        let of_caller: Vec<_> = setting.storage.iter().filter(|it| it.later.is_none()).copied().collect();
        let sequential = Replay::new(first, next, &of_caller).map_err(|it| unsuitable(&it))?;
        let order = StepOrder::of(&sequential.world).map_err(|it| unsuitable(&it))?;
        let steps = sequential.in_sequence(&order.steps).into();
        let schedule = Schedule::Steps { name: IN_SEQUENCE.into(), steps };
        limits.work.take(hir_sim::work(&sequential.world, 1)).map_err(RunError::from)?;
        let outcome = simulate(&sequential.world, inputs, &schedule, limits.memory)?;
        Ok((sequential.world, outcome))
    }
}

/// The source of the outputs that are right.
const IN_SEQUENCE: &str = "one run after the other";

fn unsuitable(fault: &dyn std::fmt::Display) -> JobFailure {
    JobFailure::Unsuitable(format!("the order of `--schedule`: {fault}"))
}

/// Describes what a file asks for.
fn notes(file: &ScheduleFile, first: &[Plan], other: Option<&[Plan]>) -> Vec<String> {
    let mut notes = Vec::new();
    match &file.next {
        Some(it) => notes.push(format!("a run of `{}` follows without a barrier", it.file)),
        None if file.setting.is_captured => {
            notes.push("a run, then the captured graph, without what the capture does not record".to_owned());
        }
        None if file.setting.has_second_run => {
            notes.push("two runs, without a barrier between them".to_owned());
        }
        None => (),
    }
    for it in &file.setting.storage {
        let name = |plans: &[Plan], number: u32| {
            plans
                .get(it.rank)
                .and_then(|it| it.buffers.get(number as usize))
                .map_or("?".to_owned(), |it| it.name.clone())
        };
        let later = match it.later {
            Some(later) => format!("`{}`", name(other.unwrap_or(first), later)),
            None => "the caller".to_owned(),
        };
        let when = if file.setting.has_second_run { " of the run before" } else { "" };
        notes.push(format!(
            "on rank {}, {later} gets the storage of `{}`{when}",
            it.rank,
            name(first, it.earlier)
        ));
    }
    if file.setting.has_semaphores {
        notes.push("each transfer over peer memory has a semaphore of one word".to_owned());
    }
    notes
}
