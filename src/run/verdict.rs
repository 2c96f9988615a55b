//! Runs a program on simulated ranks and judges its outputs.

use super::{
    RunError,
    compare::{RtolAtol, Tolerance, compare},
    inputs::InputSpec,
    per_rank,
    prepare::{DEFAULT_MEMORY_LIMIT, JobFailure, PrepareOptions, ProgramFiles, prepare},
    results::{self, explain},
};
use crate::{
    exit::Exit,
    io::{
        data::{Data, NdArray, Shadow, ShadowedTensor},
        shape_match::is_regrouping,
    },
    plan::{InstKind, Plan, ViewOnRank, sync::CommMatching},
    sim::{self, RunNotes, Schedule, SimOutcome},
};

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

/// Returns a program's own outputs under schedule `program`. If no other expectation is given, runs under
/// other schedules are compared with these: a program whose outputs depend on the schedule has a race.
///
/// # Errors
/// The run fails, or its outputs are faulty under this schedule.
pub fn program_order_expectations(
    plans: &[Plan],
    inputs: Vec<Vec<Data>>,
) -> Result<Vec<Expectation>, JobFailure> {
    simulated_expectations(plans, inputs, "schedule program").map(|it| it.0)
}

/// Returns the simulator's outputs under schedule `program`, with `origin` as their source name, and the
/// notes of the run.
///
/// # Errors
/// The errors of `program_order_expectations`.
pub fn simulated_expectations(
    plans: &[Plan],
    inputs: Vec<Vec<Data>>,
    origin: &str,
) -> Result<(Vec<Expectation>, RunNotes), JobFailure> {
    let outcome = simulate(plans, inputs, &Schedule::Program, Vec::new())?;
    let outputs = results::outputs(plans, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(JobFailure::Other(Exit::WrongResult, format!("under schedule program: {fault}")));
    }
    let exact = outcome.notes.exactness.is_exact();
    Ok((expectations(outputs, origin, ExpectationSource::Simulated { exact }), outcome.notes))
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
        found.extend(output.parts.into_iter().map(|(rank, block)| Expectation {
            source_name: origin(),
            output: OutputRef::RankPart(position, rank),
            tensor: NdArray { shape: block.shape, data: block.data },
            shadow: block.shadow,
            source: basis,
        }));
    }
    found
}

/// Returns the simulator options for the plans. f64 shadows are disabled if they might exceed
/// `DEFAULT_MEMORY_LIMIT`.
pub fn simulation_options(plans: &[Plan], watch: Vec<ViewOnRank>) -> sim::SimOptions {
    let bytes = sim::footprint(plans).bytes.saturating_add(sim::shadow_bytes(plans));
    sim::SimOptions { watch, without_shadows: bytes > DEFAULT_MEMORY_LIMIT, ..sim::SimOptions::default() }
}

/// Simulates a program once with `simulation_options`.
///
/// # Errors
/// The faults that the simulator reports.
pub fn simulate(
    plans: &[Plan],
    inputs: Vec<Vec<Data>>,
    schedule: &Schedule,
    watch: Vec<ViewOnRank>,
) -> Result<SimOutcome, RunError> {
    Ok(sim::run(
        plans,
        &CommMatching::from_plans(plans),
        inputs,
        schedule,
        &simulation_options(plans, watch),
    )?)
}

/// Runs the reference program at `path` on the same inputs, under schedule `program`, and returns its outputs
/// as expectations.
///
/// # Errors
/// The errors of `prepare` and `simulate`. The outputs of the reference are faulty themselves.
pub fn reference_expectations(
    path: &str,
    setup: &PrepareOptions<'_>,
    memory_limit: usize,
    input_spec: &InputSpec,
    plans: &[Plan],
) -> Result<Vec<Expectation>, JobFailure> {
    let mut prepared = prepare(&ProgramFiles::One(path.to_owned()), setup)?;
    per_rank::mark_corresponding(&mut prepared.plans, plans);
    prepared.check_memory(&prepared.plans, memory_limit)?;
    if let Some(message) = input_mismatch(plans, &prepared.plans) {
        return Err(JobFailure::Other(Exit::Rejected, format!("the reference `{path}` {message}")));
    }
    let inputs = input_spec.fill_corresponding(plans, &prepared.plans)?;
    let outcome = simulate(&prepared.plans, inputs, &Schedule::Program, Vec::new())?;
    let outputs = results::outputs(&prepared.plans, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(JobFailure::Other(
            Exit::Rejected,
            format!("the outputs of the reference `{path}` are faulty: {fault}"),
        ));
    }
    let exact = outcome.notes.exactness.is_exact();
    Ok(expectations(outputs, path, ExpectationSource::Reference { exact }))
}

/// The verdict on the outputs of one run.
pub struct OutputVerdict {
    /// The exit code.
    pub exit: Exit,
    /// The verdict line.
    pub line: String,
    /// The outputs.
    pub outputs: Vec<results::OutputTensor>,
    /// Position of the wrong output, if any.
    pub wrong_output: Option<usize>,
}

/// Judges the outputs of a run.
///
/// # Errors
/// The parts of an output do not fit together.
pub fn judge_outputs(
    plans: &[Plan],
    outcome: &SimOutcome,
    expectations: &[Expectation],
    criteria: &Criteria,
) -> Result<OutputVerdict, RunError> {
    let outputs = results::outputs(plans, outcome)?;
    let failed = |message: String, outputs, wrong| OutputVerdict {
        exit: Exit::WrongResult,
        line: format!("[FAILED] {message}"),
        outputs,
        wrong_output: wrong,
    };
    if let Some((at, fault)) = outputs.iter().enumerate().find_map(|(at, it)| Some((at, it.fault.clone()?))) {
        return Ok(failed(fault, outputs, Some(at)));
    }
    let (mut compared, mut undetermined, mut is_exact) = (0, 0, criteria.exact == Some(true));
    let mut parts = ComparedParts::default();
    let mut origins: Vec<&str> = Vec::new();
    let mut allowed: Vec<String> = Vec::new();
    for expectation in expectations {
        let found = outputs.iter().enumerate().find(|(at, output)| match &expectation.output {
            OutputRef::Position(position) | OutputRef::RankPart(position, _) => at == position,
            OutputRef::Name(name) => output.name == *name,
        });
        let Some((at, output)) = found else {
            return Ok(failed(
                format!("{} has more outputs than the program", expectation.source_name),
                outputs,
                None,
            ));
        };
        let agreement = criteria.tolerance_for(expectation.source, outcome.notes.exactness.shadows);
        let whole = &output.whole;
        let expected = ShadowedTensor { tensor: &expectation.tensor, shadow: expectation.shadow.as_ref() };
        let (name, own, difference) = match &expectation.output {
            OutputRef::Position(_) | OutputRef::Name(_) if output.per_rank && whole.conflict.is_some() => {
                let message = "ranks hold different values, but one whole tensor is expected".to_owned();
                (output.name.clone(), None, Err(message))
            }
            OutputRef::Position(_) | OutputRef::Name(_) => {
                (output.name.clone(), None, compare(whole.shadowed(), expected, agreement))
            }
            OutputRef::RankPart(_, rank) => {
                let part = output.part(*rank).ok_or_else(|| "the rank holds no part of it".to_owned());
                let difference = part.and_then(|(tensor, shadow)| {
                    compare(ShadowedTensor { tensor: &tensor, shadow }, expected, agreement)
                });
                (format!("{} of rank {rank}", output.name), Some(*rank), difference)
            }
        };
        let difference = match difference {
            Ok(it) => it,
            Err(message) => return Ok(failed(format!("{name}: {message}"), outputs, Some(at))),
        };
        if let Some(mismatch) = difference.mismatch {
            let rank = own.or(whole.owners.get(mismatch.flat_index).copied().flatten()).unwrap_or(0);
            let why = explain(plans, outcome, rank, at);
            return Ok(failed(format!("{name}: {mismatch} (rank {rank}{why})"), outputs, Some(at)));
        }
        match own {
            Some(_) => parts.add(&output.name, &expectation.source_name),
            None => compared += expectation.tensor.data.len(),
        }
        undetermined += difference.undetermined;
        is_exact &= difference.is_equal && expectation.source.is_exact();
        if !allowed.contains(&difference.tolerance_text) {
            allowed.push(difference.tolerance_text);
        }
        if own.is_none() && !origins.contains(&expectation.source_name.as_str()) {
            origins.push(&expectation.source_name);
        }
    }
    if expectations.iter().any(|it| matches!(it.output, OutputRef::Position(_))) {
        let covers = |at: usize| {
            expectations.iter().any(
                |it| matches!(it.output, OutputRef::Position(to) | OutputRef::RankPart(to, _) if to == at),
            )
        };
        let given = (0..outputs.len()).filter(|at| covers(*at)).count();
        if given < outputs.len() {
            return Ok(failed(
                format!("the reference has {given} outputs and the program {}", outputs.len()),
                outputs,
                None,
            ));
        }
    }
    // If some parts of an output are compared, all must be. Otherwise a part without an expectation would
    // pass.
    let missing = outputs.iter().enumerate().find_map(|(at, output)| {
        let expected = |rank: usize| {
            expectations
                .iter()
                .any(|it| matches!(it.output, OutputRef::RankPart(to, own) if to == at && own == rank))
        };
        let (has, lacks): (Vec<usize>, Vec<usize>) =
            output.parts.iter().map(|(rank, _)| *rank).partition(|rank| expected(*rank));
        lacks.first().filter(|_| !has.is_empty()).map(|rank| (at, *rank))
    });
    if let Some((at, rank)) = missing {
        let message =
            format!("{} of rank {rank}: no expected value is given for this rank", outputs[at].name);
        return Ok(failed(message, outputs, Some(at)));
    }
    let mut claims = Vec::new();
    if !origins.is_empty() {
        claims.push(format!("{compared} elements equal to {}", origins.join(", ")));
    }
    claims.extend(parts.claims());
    let claims = claims.join("; ");
    if is_exact {
        allowed = vec!["exact".to_owned()];
    } else {
        // If the results are equal although rounding was allowed, "exact" is not reported.
        allowed.retain(|it| it != "exact");
    }
    if undetermined > 0 {
        allowed.push(format!("{undetermined} undetermined: rounding decides whether they are finite"));
    }
    let allowed = if allowed.is_empty() { String::new() } else { format!(" ({})", allowed.join("; ")) };
    let line = match expectations.is_empty() {
        true => "[SUCCESS] ran, complete, not compared".to_owned(),
        false => format!("[SUCCESS] {claims}{allowed}"),
    };
    Ok(OutputVerdict { exit: Exit::Success, line, outputs, wrong_output: None })
}

/// Number of ranks whose parts agreed, by output and source.
#[derive(Default)]
struct ComparedParts(Vec<(String, String, usize)>);

impl ComparedParts {
    fn add(&mut self, name: &str, origin: &str) {
        match self.0.iter_mut().find(|it| it.0 == name && it.1 == origin) {
            Some(it) => it.2 += 1,
            None => self.0.push((name.to_owned(), origin.to_owned(), 1)),
        }
    }

    /// Formats the results: `T3@local: 4 ranks' own parts equal to @ref.%r.npy`.
    fn claims(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, origin, ranks)| match ranks {
            1 => format!("{name}@local: 1 rank's own part equal to {origin}"),
            _ => format!("{name}@local: {ranks} ranks' own parts equal to {origin}"),
        })
    }
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
