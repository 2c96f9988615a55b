//! The plans of all ranks of a program: what is checked, simulated and estimated.

use std::{str::FromStr, sync::Arc};

use grammar::{DType, Named, Source};
use hir_check::{Checks, OrderingModel};
use hir_driver::{
    auto::{edits::Estimates, machine::MachineFlag},
    run::{RunError, inputs::InputSpec, results, timelines::overlap_json, verdict},
    session::remove_allowed_by_comments,
};
use hir_plan::{
    limits::{DEFAULT_MEMORY_LIMIT, Limits},
    plan_text,
    sync::{LaunchOrder, P2pQueues},
    timeline::{Timeline, estimator::Planned, file::TimelineFile, overlap::Overlap},
};
use hir_process::threads::start_workers;
use hir_sim::Schedule;
use hir_tensor::{data::NdArray, generate::InputKind};
use pyo3::{
    exceptions::{PyIndexError, PyValueError},
    prelude::*,
    types::PyDict,
};

use crate::{arrays, error, interruptible};

/// The plans of all ranks, with the text of the program.
#[pyclass(frozen)]
pub(crate) struct World {
    pub(crate) source: Arc<Source>,
    pub(crate) program: Arc<grammar::ir::Program>,
    pub(crate) world: Arc<hir_plan::World>,
}

#[pymethods]
impl World {
    /// Checks the plans. Returns the findings as text and as JSON lines, and what was not checked.
    fn check(
        &self,
        py: Python<'_>,
        checks: &str,
        model: &str,
        p2p: Option<&str>,
    ) -> PyResult<(String, String, Vec<String>)> {
        let mut checks = Checks::from_str(checks).map_err(invalid)?;
        let Some(model) = OrderingModel::of_name(model) else {
            return Err(PyValueError::new_err(format!("`{model}` is not a model: expected nccl or hir")));
        };
        checks.model = model;
        let unknown = |name| PyValueError::new_err(format!("`{name}` is not communicator or pair"));
        let queues = |name| P2pQueues::of_name(name).ok_or_else(|| unknown(name));
        (checks.nccl, checks.p2p) = (LaunchOrder::Explicit, p2p.map(queues).transpose()?);
        let world = Arc::clone(&self.world);
        let report = interruptible::run(py, move || hir_check::check(&world, checks))?;
        // Findings are indexed by program; all ranks run that of one text.
        let sources = std::slice::from_ref(&*self.source);
        let mut diagnostics: Vec<_> =
            report.diagnostics(&self.world, sources).into_iter().map(|it| it.1).collect();
        remove_allowed_by_comments(&self.source, &mut diagnostics);
        let (text, json) = error::texts(&diagnostics, &self.source);
        Ok((text, json, report.not_checked.iter().map(ToString::to_string).collect()))
    }

    /// Runs all ranks. Returns every output by name, as an array and the float type whose bits it has.
    fn simulate<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<(String, Bound<'py, PyAny>, Option<String>)>,
        seed: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tensor = |(name, array, float): (String, Bound<'py, PyAny>, Option<String>)| {
            // numpy itself has no bfloat16: arrays of its bits are accepted.
            let ports = || self.world.iter().flat_map(|plan| &plan.inputs);
            let is_bfloat = ports().any(|it| it.name == name && it.dtype == DType::BFloat);
            let float = float.as_deref().or(is_bfloat.then_some("bfloat16"));
            Ok((name, arrays::from_numpy(&array, float)?))
        };
        let tensors = inputs.into_iter().map(tensor).collect::<PyResult<Vec<_>>>()?;
        let world = Arc::clone(&self.world);
        let outputs = interruptible::run(py, move || simulate(&world, tensors, seed))?;
        let arrays = PyDict::new(py);
        for (name, tensor) in outputs.map_err(|fault| error::failed(py, fault))? {
            arrays.set_item(name, arrays::into_numpy(py, tensor)?)?;
        }
        Ok(arrays)
    }

    /// The plan of a rank.
    fn plan(&self, rank: usize) -> PyResult<String> {
        let plan = self.world.get(rank);
        let count = self.world.len();
        plan.map(plan_text).ok_or_else(|| PyIndexError::new_err(format!("rank {rank} of {count} ranks")))
    }

    /// The text of a timeline for a file of this name.
    fn timeline(&self, py: Python<'_>, path: &str, title: &str, machine: Option<&str>) -> PyResult<String> {
        let file = TimelineFile::from_str(path).map_err(invalid)?;
        let timeline = self.estimate(py, machine)?;
        let report = Overlap::of(&timeline).report(&timeline);
        file.text(&timeline, title, &report).map_err(|fault| error::failed(py, fault))
    }

    /// How much communication is hidden, as JSON; times in microseconds.
    fn overlap(&self, py: Python<'_>, machine: Option<&str>) -> PyResult<String> {
        Ok(overlap_json(&self.estimate(py, machine)?).to_string())
    }

    /// What each communication costs, as JSON; times in microseconds.
    fn gains(&self, py: Python<'_>, machine: Option<&str>) -> PyResult<String> {
        let (machine, world) = (machine_of(machine)?, Arc::clone(&self.world));
        let (source, program) = (Arc::clone(&self.source), Arc::clone(&self.program));
        let gains = interruptible::run(py, move || {
            let (lines, limits) = (&source.lines, &Limits::default());
            Estimates { lines, ranks: world.len(), limits, machine: &machine }.gains(&program, &world)
        })?;
        let gains = gains.ok().and_then(|it| it.1).ok_or_else(|| {
            error::failed(py, "no estimate: the ranks have too many streams, or the program never ends")
        })?;
        Ok(gains.json().to_string())
    }
}

/// Returns the machine of a name or a file, as `--machine`.
fn machine_of(name: Option<&str>) -> PyResult<MachineFlag> {
    name.map_or_else(|| Ok(MachineFlag::or_default(None).clone()), |it| it.parse().map_err(invalid))
}

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl World {
    fn estimate(&self, py: Python<'_>, machine: Option<&str>) -> PyResult<Timeline> {
        let (machine, Self { source, program, world }) = (machine_of(machine)?, self);
        let (source, program, world) = (Arc::clone(source), Arc::clone(program), Arc::clone(world));
        let timeline = interruptible::run(py, move || {
            let text = Planned { program: &program, lines: &source.lines, limits: &Limits::default() };
            machine.estimator().timeline(&world, Some(text))
        })?;
        timeline.map_err(|_| error::failed(py, "no timeline: the ranks have too many streams"))
    }
}

/// Runs all ranks on these whole tensors, and on generated values for all other inputs.
fn simulate(
    world: &hir_plan::World,
    tensors: Vec<(String, NdArray)>,
    seed: u64,
) -> Result<Vec<(String, NdArray)>, RunError> {
    start_workers()?;
    let inputs = InputSpec::new(InputKind::Exact, seed, world).with_tensors(tensors).fill(world)?;
    let outcome = verdict::simulate(world, inputs, &Schedule::Program, DEFAULT_MEMORY_LIMIT)?;
    let outputs = results::outputs(world, &outcome)?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.clone()) {
        return Err(RunError::Tensor(fault));
    }
    Ok(outputs.into_iter().map(|it| (it.name, it.whole.tensor)).collect())
}
