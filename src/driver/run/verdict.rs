//! What the outputs of a program are compared with, and by which tolerance. Runs programs on simulated ranks
//! for their outputs.

mod judge;

use std::sync::Arc;

use super::{
    RunError,
    compare::{RtolAtol, Tolerance},
    failure::{JobFailure, Result},
    inputs::InputSpec,
    memory_limit::output_bytes,
    prepare::{PrepareOptions, prepare},
    program_files::ProgramFiles,
    results,
};
use hir_plan::{CallerUses, InstKind, Plan, World};
use hir_sim::{RunNotes, Schedule, SimLimits, SimOutcome};
use hir_tensor::{
    data::{Data, NdArray, Shadow},
    dense::DenseTensor,
    shape_match::is_regrouping,
};

pub use judge::{OutputVerdict, judge_outputs};

/// A tensor that an output is compared with.
pub struct Expectation {
    /// Description of the source, for the verdict.
    pub source_name: String,
    /// The output to compare.
    pub output: OutputRef,
    /// The expected value.
    pub tensor: NdArray,
    /// The f64 shadow of the value, if it comes from a simulated run that rounded.
    pub shadow: Option<Shadow>,
    /// How the expected value was computed.
    pub source: ExpectationSource,
}

/// How the expected value of an output was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectationSource {
    /// Given by the user, as a file or a literal.
    UserProvided,
    /// Computed by the simulator from the plans under test.
    Simulated {
        /// True if that run rounded nothing.
        exact: bool,
    },
    /// Computed by the simulator from another program.
    Reference {
        /// True if that run rounded nothing.
        exact: bool,
    },
}

impl ExpectationSource {
    /// Returns true if the value was computed without rounding, as far as that is known.
    fn is_exact(self) -> bool {
        match self {
            Self::UserProvided => true,
            Self::Simulated { exact } | Self::Reference { exact } => exact,
        }
    }
}

/// The criteria that select a tolerance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Criteria {
    /// The tolerance given by the user.
    pub user_tolerance: Option<RtolAtol>,
    /// Whether the run under test rounded nothing; `None` if unknown.
    pub exact: Option<bool>,
    /// True if inputs were read from files.
    pub reads_files: bool,
    /// True if the results come from GPUs, which compute no shadows.
    pub on_gpus: bool,
    /// True if the user asks for a comparison, so that one has to take place.
    pub compares: bool,
    /// True if there are inputs, and all are 0.
    pub zero_inputs: bool,
}

impl Criteria {
    /// Returns the tolerance for a comparison. A user tolerance takes precedence. Otherwise the values must
    /// be equal if nothing was rounded; else they are compared by their shadows if both runs were simulated;
    /// else within the tolerance of the element type and the rounding error of the program. The last rule
    /// also applies if inputs come from files, or if the run rounds without a shadow.
    pub fn tolerance_for(&self, basis: ExpectationSource, has_shadows: bool) -> Tolerance {
        let is_exact = self.exact == Some(true);
        match (self.user_tolerance, basis) {
            (Some(tolerance), _) => Tolerance::Within(tolerance),
            (None, ExpectationSource::UserProvided) if is_exact && !self.reads_files => Tolerance::Equal,
            (None, ExpectationSource::UserProvided) => Tolerance::Rounded,
            (None, ExpectationSource::Simulated { .. } | ExpectationSource::Reference { .. })
                if !self.on_gpus =>
            {
                if has_shadows || is_exact {
                    Tolerance::Shadows
                } else {
                    Tolerance::Rounded
                }
            }
            (None, _) if is_exact => Tolerance::Equal,
            (None, ExpectationSource::Simulated { .. }) => Tolerance::Engines,
            (None, ExpectationSource::Reference { .. }) => Tolerance::Rounded,
        }
    }
}

/// Identifies an output.
pub enum OutputRef {
    /// Position in the program header.
    Position(usize),
    /// Name of the tensor.
    Name(String),
    /// Position in the program header, and the rank whose part is meant.
    RankPart(usize, usize),
}

impl OutputRef {
    /// Returns the rank, if only its part is meant.
    fn rank(&self) -> Option<usize> {
        match self {
            Self::RankPart(_, rank) => Some(*rank),
            Self::Position(_) | Self::Name(_) => None,
        }
    }
}

/// The source name of outputs under schedule `program`.
pub(super) const PROGRAM_ORDER: &str = "schedule program";

/// Returns a program's own outputs under schedule `program`. If no other expectation is given, runs under
/// other schedules are compared with these: a program whose outputs depend on the schedule has a race.
///
/// # Errors
/// The run fails, or its outputs are faulty under this schedule.
pub fn program_order_expectations(
    world: &World,
    inputs: Vec<Vec<Arc<Data>>>,
    limits: SimLimits<'_>,
) -> Result<Vec<Expectation>> {
    simulated_expectations(world, inputs, PROGRAM_ORDER, limits).map(|it| it.0)
}

/// Returns the simulator's outputs under schedule `program`, with `origin` as their source name, and the
/// notes of the run.
///
/// # Errors
/// The errors of `program_order_expectations`.
pub fn simulated_expectations(
    world: &World,
    inputs: Vec<Vec<Arc<Data>>>,
    origin: &str,
    limits: SimLimits<'_>,
) -> Result<(Vec<Expectation>, RunNotes)> {
    scheduled_expectations(world, inputs, &Schedule::Program, (origin, limits))
}

/// As `simulated_expectations`, under another schedule.
///
/// # Errors
/// The errors of `program_order_expectations`.
pub fn scheduled_expectations(
    world: &World,
    inputs: Vec<Vec<Arc<Data>>>,
    schedule: &Schedule,
    (origin, limits): (&str, SimLimits<'_>),
) -> Result<(Vec<Expectation>, RunNotes)> {
    limits.work.take(hir_sim::work(world, 1)).map_err(RunError::from)?;
    let outcome = simulate(world, inputs, schedule, limits.memory)?;
    Ok((outcome_expectations(world, &outcome, origin)?, outcome.notes))
}

/// Returns the outputs of a simulated run as expectations of other runs, with `origin` as their source name.
///
/// # Errors
/// An output is faulty.
pub(super) fn outcome_expectations(
    plans: &[Plan],
    outcome: &SimOutcome,
    origin: &str,
) -> Result<Vec<Expectation>> {
    let outputs = results::outputs(plans, outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(JobFailure::WrongResult(fault.clone()));
    }
    let exact = outcome.notes.exactness.is_exact();
    Ok(expectations(outputs, origin, ExpectationSource::Simulated { exact }))
}

/// Returns a message if the inputs of `found` differ from those of `wanted`. Inputs correspond by position
/// and must be the same tensors; their sharding may differ.
pub(super) fn input_mismatch(wanted: &[Plan], found: &[Plan]) -> Option<String> {
    let (mine, theirs) = (wanted.first()?, found.first()?);
    if let Some(message) = input_count_mismatch(mine.inputs.len(), found) {
        return Some(message);
    }
    mine.inputs.iter().zip(&theirs.inputs).find_map(|(a, b)| {
        let (have, want) = (&b.shard.layout.shape, &a.shard.layout.shape);
        (a.dtype != b.dtype || !is_regrouping(have, want)).then(|| {
            format!(
                "takes {} {have:?} where the program's {} is {} {want:?}",
                b.dtype.short_name(),
                a.name,
                a.dtype.short_name()
            )
        })
    })
}

/// Returns a message if `found` does not have `wanted` inputs.
pub(super) fn input_count_mismatch(wanted: usize, found: &[Plan]) -> Option<String> {
    let count = found.first()?.inputs.len();
    (count != wanted).then(|| format!("has {count} inputs and the program {wanted}"))
}

/// Converts outputs to expectations of another run. Outputs that are judged per rank give one expectation for
/// each rank.
pub fn expectations(
    outputs: Vec<results::OutputTensor>,
    origin: &str,
    basis: ExpectationSource,
) -> Vec<Expectation> {
    let origin = || origin.to_owned();
    let mut found = Vec::new();
    for (position, output) in outputs.into_iter().enumerate() {
        if !output.per_rank {
            let (tensor, shadow) = (output.whole.tensor, output.whole.shadow);
            let output = OutputRef::Position(position);
            found.push(Expectation { source_name: origin(), output, tensor, shadow, source: basis });
            continue;
        }
        found.extend(output.parts.into_iter().map(|(rank, block)| {
            let DenseTensor { shape, data, shadow, .. } = Arc::unwrap_or_clone(block);
            let (tensor, output) = (NdArray { shape, data }, OutputRef::RankPart(position, rank));
            Expectation { source_name: origin(), output, tensor, shadow, source: basis }
        }));
    }
    found
}

/// Bytes per element of an output of another run with its shadow.
const EXPECTED_WITH_SHADOW: usize = 96;

/// The number of runs with whose outputs a run is compared at most: a reference, the program without shardings, and another order.
const MOST_OTHERS: usize = 3;

/// Returns the simulator options for the plans. f64 shadows are disabled if they might exceed the memory limit, in bytes, together
/// with those of the runs that this one is compared with.
pub fn simulation_options(plans: &[Plan], memory_limit: usize) -> hir_sim::SimOptions {
    let found = hir_sim::footprint(plans);
    let others = output_bytes(plans, |_| EXPECTED_WITH_SHADOW).saturating_mul(MOST_OTHERS);
    let bytes = found.bytes.saturating_add(found.shadow_bytes).saturating_add(others);
    hir_sim::SimOptions { without_shadows: bytes > memory_limit, ..hir_sim::SimOptions::default() }
}

/// Simulates a program once with `simulation_options`.
///
/// # Errors
/// The faults that the simulator reports.
pub fn simulate(
    world: &World,
    inputs: Vec<Vec<Arc<Data>>>,
    schedule: &Schedule,
    memory_limit: usize,
) -> Result<SimOutcome, RunError> {
    Ok(hir_sim::run(world, inputs, schedule, &simulation_options(world, memory_limit))?)
}

/// Runs the reference program at `path` on the same inputs, under schedule `program`, and returns its outputs
/// as expectations.
///
/// # Errors
/// The errors of `prepare` and `simulate`. The outputs of the reference are faulty themselves.
pub fn reference_expectations(
    path: &str,
    setup: &PrepareOptions<'_>,
    limits: SimLimits<'_>,
    input_spec: &InputSpec,
    plans: &[Plan],
) -> Result<Vec<Expectation>> {
    // The outputs correspond by position.
    let outputs = plans.first().map_or(&[][..], |it| &it.outputs);
    let is_compared_per_rank =
        |position: usize, _: &str| outputs.get(position).is_some_and(|it| it.is_compared_per_rank);
    let uses = CallerUses { is_compared_per_rank: &is_compared_per_rank, ..CallerUses::default() };
    let setup = PrepareOptions { uses, ..*setup };
    let prepared = prepare(&ProgramFiles::One(path.to_owned()), &setup)?;
    prepared.check_memory(&prepared.world, limits.memory, input_spec.differs_by_rank(), 1, 0)?;
    if let Some(message) = input_mismatch(plans, &prepared.world) {
        return Err(JobFailure::Unsuitable(format!("the reference `{path}` {message}")));
    }
    let inputs = input_spec.fill_corresponding(plans, &prepared.world)?;
    limits.work.take(hir_sim::work(&prepared.world, 1)).map_err(RunError::from)?;
    let outcome = simulate(&prepared.world, inputs, &Schedule::Program, limits.memory)?;
    let outputs = results::outputs(&prepared.world, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(JobFailure::Unsuitable(format!(
            "the outputs of the reference `{path}` are faulty: {fault}"
        )));
    }
    let exact = outcome.notes.exactness.is_exact();
    Ok(expectations(outputs, path, ExpectationSource::Reference { exact }))
}

/// Returns a note if the stream at the end of the program is not the stream at its entry. The caller reads
/// the outputs on the stream at the end.
pub fn final_stream_note(plans: &[Plan]) -> Option<String> {
    let plan = plans.first()?;
    let last = plan.code.last().filter(|inst| inst.kind == InstKind::ReadOutputs)?;
    (last.stream != 0).then(|| {
        let name = &plan.streams[last.stream as usize];
        format!("the program ends on {name}, not on the stream it began on: outputs are read on {name}")
    })
}
