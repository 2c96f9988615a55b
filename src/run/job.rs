//! One job: a program on a world of simulated ranks, and what its results are judged by.

use grammar::{
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
};

use super::{
    RunError,
    compare::{Tolerance, compare, is_integral},
    inputs::{Filling, InputFlag, bind_extents},
    results::{self, blame},
};
use crate::{
    exit::Exit,
    io::{
        data::{Data, Tensor},
        file::{self, File},
        generate::Kind,
    },
    plan::{self, InstKind, Place, Plan},
    sim::{self, Fault, Outcome, Schedule},
    source::{Binding, Source, bind},
};

/// Programs that are ready to run: one for all ranks, or one a rank.
pub struct Prepared {
    /// Their texts.
    pub sources: Vec<Source>,
    /// The plans, by rank.
    pub plans: Vec<Plan>,
    /// Warnings, by text.
    pub warnings: Vec<Vec<Diagnostic>>,
}

/// Which text each rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Texts {
    /// All ranks the same.
    One(String),
    /// Rank `r` runs the `r`th.
    Each(Vec<String>),
}

/// `--program 0=a.hir,1=b.hir`.
impl std::str::FromStr for Texts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ranks: Vec<Option<String>> = Vec::new();
        for item in text.split(',') {
            let usage = || format!("`{item}`: expected `RANK=FILE`, as in `0=a.hir,1=b.hir`");
            let (rank, path) = item.split_once('=').ok_or_else(usage)?;
            let rank: usize = rank.trim().parse().map_err(|_| usage())?;
            if rank > 4096 {
                return Err(format!("rank {rank} is out of reach"));
            }
            ranks.resize(ranks.len().max(rank + 1), None);
            if ranks[rank].replace(path.trim().to_owned()).is_some() {
                return Err(format!("rank {rank} has two programs"));
            }
        }
        let missing = ranks.iter().position(Option::is_none);
        match missing {
            Some(rank) => Err(format!("rank {rank} has no program")),
            None => Ok(Self::Each(ranks.into_iter().flatten().collect())),
        }
    }
}

/// Why a job ends without success.
pub enum Failure {
    /// Diagnostics about a text.
    Rejected(Source, Vec<Diagnostic>),
    /// Anything else, with the exit code that it means.
    Other(Exit, String),
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let exit = match &error {
            RunError::Io(it) | RunError::Given { error: it, .. } => match it {
                file::IoError::Flag { .. } | file::IoError::Dtype { .. } | file::IoError::Unsupported(_) => {
                    Exit::Usage
                }
                file::IoError::Read { .. } | file::IoError::Write { .. } | file::IoError::Format { .. } => {
                    Exit::Environment
                }
            },
            RunError::Tensor(_) => Exit::Usage,
            RunError::Dtype(_) => Exit::Rejected,
            RunError::Shard(_) => Exit::Bug,
            RunError::Fault(fault) => match fault {
                Fault::Deadlock(_) => Exit::Hang,
                Fault::Program { .. } | Fault::Unsupported { .. } => Exit::Rejected,
                Fault::Internal(_) => Exit::Bug,
            },
        };
        Self::Other(exit, error.to_string())
    }
}

/// What a program is prepared with.
pub struct Setup<'a> {
    /// Number of ranks; `None`: the smallest world that holds every mesh.
    pub ranks: Option<usize>,
    /// Which container of a text that holds several.
    pub container: Option<usize>,
    /// Bindings of symbols.
    pub bindings: &'a [Binding],
    /// Inputs that are given: they bind symbolic extents.
    pub inputs: &'a [InputFlag],
    /// Most bytes that the simulated ranks may hold together.
    pub memory_limit: usize,
    /// Rewrites the program before it is planned.
    pub passes: &'a dyn Fn(&mut Program, &Source) -> Result<(), Failure>,
}

/// Reads, verifies, rewrites and plans programs.
///
/// # Errors
/// A file that does not read, a program that is rejected, a world that is too small.
pub fn prepare(texts: &Texts, setup: &Setup<'_>) -> Result<Prepared, Failure> {
    let paths: Vec<&String> = match texts {
        Texts::One(path) => vec![path],
        Texts::Each(paths) => paths.iter().collect(),
    };
    let mut sources = Vec::with_capacity(paths.len());
    let mut programs = Vec::with_capacity(paths.len());
    let mut warnings = Vec::with_capacity(paths.len());
    for path in paths {
        let (source, program, diagnostics) = load(path, setup)?;
        sources.push(source);
        programs.push(program);
        warnings.push(diagnostics);
    }
    let smallest = programs.iter().map(plan::smallest_world).max().unwrap_or(1);
    let ranks = match texts {
        Texts::One(_) => setup.ranks.unwrap_or(smallest),
        Texts::Each(paths) => paths.len(),
    };
    if ranks < smallest || setup.ranks.is_some_and(|wanted| wanted != ranks) {
        let message = format!(
            "`{}` needs {smallest} ranks: its meshes and teams name rank {}; there are {ranks}",
            sources[0].name,
            smallest - 1
        );
        return Err(Failure::Other(Exit::Environment, message));
    }
    if ranks > plan::limits::RANKS {
        let message = format!(
            "`{}`: a world of {ranks} ranks; the largest has {}",
            sources[0].name,
            plan::limits::RANKS
        );
        return Err(Failure::Other(Exit::Environment, message));
    }
    let text_of = |rank: usize| rank.min(sources.len() - 1);
    let worlds: Vec<_> =
        (0..ranks).map(|rank| (&programs[text_of(rank)], &sources[text_of(rank)].lines)).collect();
    match plan::build_each(&worlds) {
        Ok(plans) => match too_much(&programs[0], &plans, setup.memory_limit) {
            Some(fault) => Err(Failure::Rejected(sources.swap_remove(0), vec![fault])),
            None => Ok(Prepared { sources, plans, warnings }),
        },
        Err(faults) => {
            let text = text_of(faults.first().map_or(0, |(rank, _)| *rank));
            let mut diagnostics = warnings.swap_remove(text);
            diagnostics
                .extend(faults.into_iter().filter(|(rank, _)| text_of(*rank) == text).map(|(_, it)| it));
            Err(Failure::Rejected(sources.swap_remove(text), diagnostics))
        }
    }
}

/// Why the ranks are not simulated, where they would hold more than the limit.
fn too_much(program: &Program, plans: &[Plan], limit: usize) -> Option<Diagnostic> {
    let found = sim::footprint(plans);
    if found.bytes <= limit {
        return None;
    }
    let gigabytes = |bytes: usize| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let message = format!(
        "the simulated ranks need {} of memory where {} are allowed",
        gigabytes(found.bytes),
        gigabytes(limit)
    );
    let label = match found.largest {
        Some((bytes, name, rank)) => format!("`{name}` has {} on rank {rank}", gigabytes(bytes)),
        None => "this program".to_owned(),
    };
    let it = Diagnostic::new(Code::TooLarge, program.spans.header, message, label);
    Some(it.help("bind smaller extents with `--set`, or allow more with `--memory-limit=GIB`"))
}

/// One program of a text, bound and rewritten, with the warnings about it.
fn load(path: &str, setup: &Setup<'_>) -> Result<(Source, Program, Vec<Diagnostic>), Failure> {
    let source = Source::open(path)
        .map_err(|fault| Failure::Other(Exit::Environment, format!("cannot read `{path}`: {fault}")))?;
    let (mut programs, mut diagnostics) = source.programs();
    // Nothing is guessed where the command line says it.
    if setup.bindings.iter().any(|it| it.name == "p2p_protocol") {
        diagnostics.retain(|it| it.code != Code::LossyProtocol);
    }
    if has_errors(&diagnostics) {
        return Err(Failure::Rejected(source, diagnostics));
    }
    let count = programs.len();
    let usage = |message: String| Failure::Other(Exit::Usage, message);
    let chosen = match setup.container {
        None if count > 1 => {
            let message =
                format!("`{path}` holds {count} containers: choose with `--container 0` to {}", count - 1);
            return Err(usage(message));
        }
        None => 0,
        Some(chosen) if chosen < count => chosen,
        Some(chosen) => return Err(usage(format!("`--container {chosen}`: `{path}` holds {count}"))),
    };
    let mut program = programs.swap_remove(chosen);
    if let Err(fault) = bind(&mut program, setup.bindings) {
        return Err(Failure::Rejected(source, vec![fault]));
    }
    bind_extents(&mut program, setup.inputs)?;
    (setup.passes)(&mut program, &source)?;
    Ok((source, program, diagnostics))
}

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
}

/// What a program's own results are under the plainest schedule. A program whose results depend on the schedule has a
/// race, so runs under other schedules are compared with it where nothing else is given.
///
/// # Errors
/// As the run itself; results that are faulty even so.
pub fn self_reference(plans: &[Plan], inputs: Vec<Vec<Data>>) -> Result<Vec<Expectation>, Failure> {
    let outcome = simulate(plans, inputs, Schedule::Program, Vec::new())?;
    let outputs = results::outputs(plans, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(Failure::Other(Exit::WrongResult, format!("{fault}, under schedule program")));
    }
    Ok(expectations(outputs, "schedule program"))
}

/// Inputs correspond by position: they have to be the same tensors, whatever their sharding.
fn same_inputs(path: &str, plans: &[Plan], specification: &[Plan]) -> Result<(), Failure> {
    let (Some(mine), Some(theirs)) = (plans.first(), specification.first()) else { return Ok(()) };
    let reject =
        |message: String| Err(Failure::Other(Exit::Rejected, format!("the reference `{path}` {message}")));
    if mine.inputs.len() != theirs.inputs.len() {
        return reject(format!("has {} inputs and the program {}", theirs.inputs.len(), mine.inputs.len()));
    }
    for (a, b) in mine.inputs.iter().zip(&theirs.inputs) {
        let (have, want) = (&b.shard.layout.shape, &a.shard.layout.shape);
        if a.dtype != b.dtype || have.iter().product::<usize>() != want.iter().product::<usize>() {
            return reject(format!(
                "takes {} {have:?} where the program's {} is {} {want:?}",
                b.dtype.short_name(),
                a.name,
                a.dtype.short_name()
            ));
        }
    }
    Ok(())
}

fn expectations(outputs: Vec<results::Result>, origin: &str) -> Vec<Expectation> {
    let expectation = |(position, output): (usize, results::Result)| Expectation {
        origin: origin.to_owned(),
        output: Target::Position(position),
        tensor: output.whole.tensor,
    };
    outputs.into_iter().enumerate().map(expectation).collect()
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
    filling: &Filling,
    plans: &[Plan],
) -> Result<Vec<Expectation>, Failure> {
    let prepared = prepare(&Texts::One(path.to_owned()), setup)?;
    same_inputs(path, plans, &prepared.plans)?;
    let mut filling = Filling { notes: Vec::new(), ..filling.clone() };
    // Inputs correspond by position; flags name the tensors of the program under test.
    filling.given.clear();
    let inputs = filling.fill(&prepared.plans)?;
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
}

/// Judges the outputs of a run.
///
/// # Errors
/// Parts that do not fit together.
pub fn judge(
    plans: &[Plan],
    outcome: &Outcome,
    expectations: &[Expectation],
    kind: Kind,
    tolerance: Option<Tolerance>,
    terms: usize,
) -> Result<Verdict, RunError> {
    let outputs = results::outputs(plans, outcome)?;
    let failed = |message: String, outputs| Verdict {
        exit: Exit::WrongResult,
        line: format!("[FAILED] {message}"),
        outputs,
    };
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.clone()) {
        return Ok(failed(fault, outputs));
    }
    let mut compared = 0;
    let mut origins: Vec<&str> = Vec::new();
    for expectation in expectations {
        let found = outputs.iter().enumerate().find(|(at, output)| match &expectation.output {
            Target::Position(position) => at == position,
            Target::Name(name) => output.name == *name,
        });
        let Some((at, output)) = found else {
            return Ok(failed(
                format!("{} has an output more than the program", expectation.origin),
                outputs,
            ));
        };
        let default = match kind == Kind::Random && !is_integral(&output.whole.tensor.data) {
            true => Tolerance::for_terms(output.whole.tensor.data.dtype(), terms),
            false => Tolerance::EXACT,
        };
        match compare(&output.whole.tensor, &expectation.tensor, tolerance.unwrap_or(default)) {
            Ok(None) => compared += output.whole.tensor.data.len(),
            Ok(Some(mismatch)) => {
                let rank = output.whole.owners.get(mismatch.flat).copied().flatten().unwrap_or(0);
                let why = blame(plans, outcome, rank, at);
                let line = format!("{}: {mismatch} (rank {rank}{why})", output.name);
                return Ok(failed(line, outputs));
            }
            Err(message) => return Ok(failed(format!("{}: {message}", output.name), outputs)),
        }
        if !origins.contains(&expectation.origin.as_str()) {
            origins.push(&expectation.origin);
        }
    }
    if expectations.iter().any(|it| matches!(it.output, Target::Position(_))) {
        let given = expectations.iter().filter(|it| matches!(it.output, Target::Position(_))).count();
        if given < outputs.len() {
            return Ok(failed(
                format!("the reference has {given} outputs and the program {}", outputs.len()),
                outputs,
            ));
        }
    }
    let exact = outcome.notes.exactness.is_exact();
    let line = match expectations.is_empty() {
        true => "[SUCCESS] ran, complete, not compared".to_owned(),
        false if exact => format!("[SUCCESS] {compared} elements equal to {} (exact)", origins.join(", ")),
        false => format!(
            "[SUCCESS] {compared} elements equal to {}{}",
            origins.join(", "),
            if tolerance.is_some() || kind == Kind::Random {
                " within the tolerance"
            } else {
                ", not exact: some sums were rounded"
            }
        ),
    };
    Ok(Verdict { exit: Exit::Success, line, outputs })
}

/// `--output NAME=…` or `--output NAME@local=…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFlag {
    /// The tensor.
    pub name: String,
    /// Whether each rank's own part goes to its own file.
    pub local: bool,
    /// `-` or a file.
    pub value: String,
}

impl std::str::FromStr for OutputFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "expected `NAME=@file.npy`, `NAME=@file.safetensors#key`, `NAME@local=@file.%r.npy` or `NAME=-`"
                .to_owned()
        };
        let flag: InputFlag = text.parse().map_err(|_| expected())?;
        if flag.value != "-" && flag.value.parse::<File>().is_err() {
            return Err(expected());
        }
        Ok(Self { name: flag.name, local: flag.local, value: flag.value })
    }
}

/// Where `--output` flags find their tensors when the program has run: bound names, every rank's.
///
/// # Errors
/// A name that is not bound at the end.
pub fn watches(plans: &[Plan], flags: &[OutputFlag]) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for flag in flags {
        let before = places.len();
        for plan in plans {
            let port = plan.named.iter().find(|port| port.name == flag.name);
            places.extend(
                port.and_then(|port| port.shard.view.clone()).map(|view| Place { rank: plan.rank, view }),
            );
        }
        if places.len() == before {
            let message =
                format!("`--output {}`: no tensor of this name is bound when the program ends", flag.name);
            return Err(Failure::Other(Exit::Usage, message));
        }
    }
    Ok(places)
}

/// Writes what `--output` asks for; `text` gets what goes to the terminal.
///
/// # Errors
/// A file that cannot be written, parts that do not make up a whole.
pub fn write_outputs(
    plans: &[Plan],
    outcome: &Outcome,
    flags: &[OutputFlag],
    text: &mut dyn FnMut(String),
) -> Result<(), Failure> {
    let mut blocks = outcome.watched.iter();
    let mut files: Vec<(File, Tensor)> = Vec::new();
    for flag in flags {
        let mut parts = Vec::new();
        for plan in plans {
            let port = plan.named.iter().find(|port| port.name == flag.name && port.shard.view.is_some());
            if let (Some(port), Some(block)) = (port, port.and_then(|_| blocks.next())) {
                parts.push((plan.rank, port, block.clone()));
            }
        }
        if flag.local {
            for (rank, _, block) in parts {
                let tensor = Tensor { shape: block.shape.clone(), data: block.data };
                let value = flag.value.replace("%r", &rank.to_string());
                emit(&flag.name, &value, tensor, &mut files, text)?;
            }
            continue;
        }
        let whole = results::gather(&parts)?.whole;
        if let Some(at) = whole.written.first_missing() {
            text(format!(
                "# {}: element {:?} is on no rank or was never written; such elements are written as 0",
                flag.name,
                crate::io::shard::unravel(at, &whole.tensor.shape)
            ));
        }
        emit(&flag.name, &flag.value, whole.tensor, &mut files, text)?;
    }
    let files: Vec<(File, &Tensor)> = files.iter().map(|(file, tensor)| (file.clone(), tensor)).collect();
    file::save(&files).map_err(|fault| Failure::from(RunError::Io(fault)))
}

fn emit(
    name: &str,
    value: &str,
    tensor: Tensor,
    files: &mut Vec<(File, Tensor)>,
    text: &mut dyn FnMut(String),
) -> Result<(), Failure> {
    if value == "-" {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let values: Vec<String> = (0..tensor.data.len()).map(|at| tensor.data.text(at)).collect();
        text(format!(
            "{name} {}x{}= {}",
            shape.join("x"),
            tensor.data.dtype().short_name(),
            values.join(" ")
        ));
        return Ok(());
    }
    files.push((value.parse().map_err(RunError::Io)?, tensor));
    Ok(())
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
