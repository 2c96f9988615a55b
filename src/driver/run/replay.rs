//! Runs that show a finding of the checker: two runs without a barrier, tensors that share storage, semaphores of one word.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    failure::JobFailure,
    inputs::{self, InputSpec},
    prepare::{PrepareOptions, prepare},
    program_files::ProgramFiles,
    schedule_file::ScheduleFile,
    verdict::{Expectation, scheduled_expectations},
};
use hir_check::{NextRun, Replay, ReplayedStorage, StepOrder, WitnessSetting};
use hir_plan::{Plan, SignalId, World};
use hir_sim::{Schedule, SimLimits};
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
    /// Prepares what a file asks for, after `first`. The inputs of the second run have the next seed.
    ///
    /// # Errors
    /// The second program cannot be prepared, or the runs cannot be combined.
    pub fn new(
        file: &ScheduleFile,
        first: &World,
        setup: &PrepareOptions<'_>,
        (spec, limits): (&mut InputSpec, SimLimits<'_>),
    ) -> Result<Self, JobFailure> {
        let other = match &file.next {
            Some(it) => {
                let setup =
                    PrepareOptions { passes: &|_, _| Ok(()), container: None, is_reference: true, ..*setup };
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
    ) -> Result<Self, JobFailure> {
        let unsuitable =
            |fault: String| JobFailure::Unsuitable(format!("the order of `--schedule`: {fault}"));
        let replay = |next, storage: &[ReplayedStorage]| {
            Replay::new(first, next, storage).map_err(|it| unsuitable(it.to_string()))
        };
        // The caller has its storage to itself then.
        let of_caller: Vec<_> = setting.storage.iter().filter(|it| it.later.is_none()).copied().collect();
        let sequential = replay(next, &of_caller)?;
        let order = StepOrder::of(&sequential.world).map_err(|it| unsuitable(it.to_string()))?;
        let schedule = Schedule::Steps {
            name: "one run after the other".into(),
            steps: sequential.in_sequence(&order.steps).into(),
        };
        let origin = ("one run after the other", limits);
        let expected = scheduled_expectations(&sequential.world, inputs.clone(), &schedule, origin)?.0;
        let graph = setting.is_captured.then_some(NextRun::Captured);
        let combined = replay(graph.or(next), &setting.storage)?;
        let semaphores = setting.has_semaphores.then(|| hir_check::semaphores(&combined.world));
        Ok(Self {
            notes: Vec::new(),
            world: Arc::new(combined.world),
            inputs,
            expectations: expected,
            semaphores: Arc::new(semaphores.unwrap_or_default()),
        })
    }
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
