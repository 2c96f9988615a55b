//! One job: a program on a world of simulated ranks, and what its results are judged by.

use super::{
    RunError,
    compare::{Agreement, compare},
    inputs::Filling,
    per_rank,
    prepare::{Failure, Setup, Texts, prepare},
    results::{self, blame},
};
use crate::{
    exit::Exit,
    io::{
        data::{Data, Tensor},
        shape_match::is_regrouping,
    },
    plan::{InstKind, Place, Plan},
    sim::{self, Notes, Outcome, Schedule},
};

/// A tensor that results are compared with.
pub struct Expectation {
    /// Where it comes from, for the verdict.
    pub origin: String,
    /// The output that it is for: by position, or by name.
    pub output: Target,
    /// Its value.
    pub tensor: Tensor,
}

/// Names an output.
pub enum Target {
    /// By place in the header.
    Position(usize),
    /// By name.
    Name(String),
    /// By place in the header, a rank's own part of it.
    Part(usize, usize),
}

/// What a program's own results are under the plainest schedule. A program whose results depend on the schedule has a
/// race, so runs under other schedules are compared with it where nothing else is given.
///
/// # Errors
/// As the run itself; results that are faulty even so.
pub fn self_reference(plans: &[Plan], inputs: Vec<Vec<Data>>) -> Result<Vec<Expectation>, Failure> {
    simulated(plans, inputs, "schedule program").map(|it| it.0)
}

/// The simulator's results under the plainest schedule, named `origin`, and what it noted about the run.
///
/// # Errors
/// As `self_reference`.
pub fn simulated(
    plans: &[Plan],
    inputs: Vec<Vec<Data>>,
    origin: &str,
) -> Result<(Vec<Expectation>, Notes), Failure> {
    let outcome = simulate(plans, inputs, Schedule::Program, Vec::new())?;
    let outputs = results::outputs(plans, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(Failure::Other(Exit::WrongResult, format!("under schedule program: {fault}")));
    }
    Ok((expectations(outputs, origin), outcome.notes))
}

/// How a program's inputs differ from those of the program that it has to agree with. Inputs correspond by position: they
/// have to be the same tensors, whatever their sharding.
pub(super) fn inputs_differ(wanted: &[Plan], found: &[Plan]) -> Option<String> {
    let (mine, theirs) = (wanted.first()?, found.first()?);
    if mine.inputs.len() != theirs.inputs.len() {
        return Some(format!("has {} inputs and the program {}", theirs.inputs.len(), mine.inputs.len()));
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

/// Outputs as what is expected of another run; by rank where they are judged so.
pub(crate) fn expectations(outputs: Vec<results::Result>, origin: &str) -> Vec<Expectation> {
    let origin = || origin.to_owned();
    let mut found = Vec::new();
    for (position, output) in outputs.into_iter().enumerate() {
        if !output.per_rank {
            let output = (Target::Position(position), output.whole.tensor);
            found.push(Expectation { origin: origin(), output: output.0, tensor: output.1 });
            continue;
        }
        found.extend(output.parts.into_iter().map(|(rank, block)| Expectation {
            origin: origin(),
            output: Target::Part(position, rank),
            tensor: Tensor { shape: block.shape, data: block.data },
        }));
    }
    found
}

/// Runs a program once.
///
/// # Errors
/// What the simulator finds.
pub fn simulate(
    plans: &[Plan],
    inputs: Vec<Vec<Data>>,
    schedule: Schedule,
    watch: Vec<Place>,
) -> Result<Outcome, RunError> {
    Ok(sim::run(plans, inputs, schedule, &sim::Options { watch, trace: false })?)
}

/// Runs a specification on the same inputs, in program order, and takes its outputs as what is expected.
///
/// # Errors
/// As `prepare` and `simulate`; a specification whose own results are faulty.
pub fn reference(
    path: &str,
    setup: &Setup<'_>,
    memory_limit: usize,
    filling: &Filling,
    plans: &[Plan],
) -> Result<Vec<Expectation>, Failure> {
    let mut prepared = prepare(&Texts::One(path.to_owned()), setup)?;
    per_rank::mark_alike(&mut prepared.plans, plans);
    prepared.fits(&prepared.plans, memory_limit)?;
    if let Some(message) = inputs_differ(plans, &prepared.plans) {
        return Err(Failure::Other(Exit::Rejected, format!("the reference `{path}` {message}")));
    }
    let inputs = filling.fill_other(plans, &prepared.plans)?;
    let outcome = simulate(&prepared.plans, inputs, Schedule::Program, Vec::new())?;
    let outputs = results::outputs(&prepared.plans, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(Failure::Other(
            Exit::Rejected,
            format!("the reference `{path}` is faulty itself: {fault}"),
        ));
    }
    Ok(expectations(outputs, path))
}

/// The verdict on one run.
pub struct Verdict {
    /// The exit code.
    pub exit: Exit,
    /// The last line.
    pub line: String,
    /// The outputs.
    pub outputs: Vec<results::Result>,
    /// The output that is wrong, by position.
    pub wrong: Option<usize>,
}

/// Judges the outputs of a run. `exact` tells whether any number was rounded on the way, if that is known.
///
/// # Errors
/// Parts that do not fit together.
pub fn judge(
    plans: &[Plan],
    outcome: &Outcome,
    expectations: &[Expectation],
    agreement: Agreement,
    exact: Option<bool>,
) -> Result<Verdict, RunError> {
    let outputs = results::outputs(plans, outcome)?;
    let failed = |message: String, outputs, wrong| Verdict {
        exit: Exit::WrongResult,
        line: format!("[FAILED] {message}"),
        outputs,
        wrong,
    };
    if let Some((at, fault)) = outputs.iter().enumerate().find_map(|(at, it)| Some((at, it.fault.clone()?))) {
        return Ok(failed(fault, outputs, Some(at)));
    }
    let mut compared = 0;
    let mut parts = Parts::default();
    let mut origins: Vec<&str> = Vec::new();
    for expectation in expectations {
        let found = outputs.iter().enumerate().find(|(at, output)| match &expectation.output {
            Target::Position(position) | Target::Part(position, _) => at == position,
            Target::Name(name) => output.name == *name,
        });
        let Some((at, output)) = found else {
            return Ok(failed(
                format!("{} has an output more than the program", expectation.origin),
                outputs,
                None,
            ));
        };
        let tolerance = agreement.tolerance(output.whole.tensor.data.dtype());
        let whole = &output.whole;
        let (name, own, difference) = match &expectation.output {
            Target::Position(_) | Target::Name(_) if output.per_rank && whole.conflict.is_some() => {
                let message = "ranks hold different values, and one whole tensor is expected".to_owned();
                (output.name.clone(), None, Err(message))
            }
            Target::Position(_) | Target::Name(_) => {
                (output.name.clone(), None, compare(&whole.tensor, &expectation.tensor, tolerance))
            }
            Target::Part(_, rank) => {
                let part = output.part(*rank).ok_or_else(|| "it holds nothing".to_owned());
                let difference = part.and_then(|it| compare(&it, &expectation.tensor, tolerance));
                (format!("{} of rank {rank}", output.name), Some(*rank), difference)
            }
        };
        match difference {
            Ok(None) if own.is_some() => parts.add(&output.name, &expectation.origin),
            Ok(None) => compared += expectation.tensor.data.len(),
            Ok(Some(mismatch)) => {
                let rank = own.or(whole.owners.get(mismatch.flat).copied().flatten()).unwrap_or(0);
                let why = blame(plans, outcome, rank, at);
                return Ok(failed(format!("{name}: {mismatch} (rank {rank}{why})"), outputs, Some(at)));
            }
            Err(message) => return Ok(failed(format!("{name}: {message}"), outputs, Some(at))),
        }
        if own.is_none() && !origins.contains(&expectation.origin.as_str()) {
            origins.push(&expectation.origin);
        }
    }
    if expectations.iter().any(|it| matches!(it.output, Target::Position(_))) {
        let covers = |at: usize| {
            expectations
                .iter()
                .any(|it| matches!(it.output, Target::Position(to) | Target::Part(to, _) if to == at))
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
    // A part that nothing was compared with must not pass beside parts that were.
    let missing = outputs.iter().enumerate().find_map(|(at, output)| {
        let expected = |rank: usize| {
            expectations
                .iter()
                .any(|it| matches!(it.output, Target::Part(to, own) if to == at && own == rank))
        };
        let (has, lacks): (Vec<usize>, Vec<usize>) =
            output.parts.iter().map(|(rank, _)| *rank).partition(|rank| expected(*rank));
        lacks.first().filter(|_| !has.is_empty()).map(|rank| (at, *rank))
    });
    if let Some((at, rank)) = missing {
        let message = format!("{} of rank {rank}: nothing is expected of this rank", outputs[at].name);
        return Ok(failed(message, outputs, Some(at)));
    }
    let mut claims = Vec::new();
    if !origins.is_empty() {
        claims.push(format!("{compared} elements equal to {}", origins.join(", ")));
    }
    claims.extend(parts.claims());
    let claims = claims.join("; ");
    let line = match expectations.is_empty() {
        true => "[SUCCESS] ran, complete, not compared".to_owned(),
        false if exact == Some(true) => format!("[SUCCESS] {claims} (exact)"),
        false => format!(
            "[SUCCESS] {claims}{}",
            match agreement {
                Agreement::Equal if exact.is_none() => "",
                Agreement::Equal => ", not exact: some sums were rounded",
                Agreement::Within(_) | Agreement::Sums { .. } | Agreement::Machines { .. } =>
                    " within the tolerance",
            }
        ),
    };
    Ok(Verdict { exit: Exit::Success, line, outputs, wrong: None })
}

/// How many ranks' own parts of each output were found equal to what.
#[derive(Default)]
struct Parts(Vec<(String, String, usize)>);

impl Parts {
    fn add(&mut self, name: &str, origin: &str) {
        match self.0.iter_mut().find(|it| it.0 == name && it.1 == origin) {
            Some(it) => it.2 += 1,
            None => self.0.push((name.to_owned(), origin.to_owned(), 1)),
        }
    }

    /// `T3@local: 4 ranks' own parts equal to @ref.%r.npy`.
    fn claims(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, origin, ranks)| match ranks {
            1 => format!("{name}@local: 1 rank's own part equal to {origin}"),
            _ => format!("{name}@local: {ranks} ranks' own parts equal to {origin}"),
        })
    }
}

/// Whether the program ends on another stream than the one it began on: its caller reads the outputs there.
pub fn ends_elsewhere(plans: &[Plan]) -> Option<String> {
    let plan = plans.first()?;
    let last = plan.code.last().filter(|inst| inst.kind == InstKind::Finish)?;
    (last.stream != 0).then(|| {
        let name = &plan.streams[last.stream as usize];
        format!("the program ends on {name}, not on the one it began on: outputs are read there")
    })
}
