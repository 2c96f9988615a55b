//! A program of a text.

use std::sync::Arc;

use grammar::{Binding, LineIndex, Source, TensorId, apply_bindings, has_errors, ir};
use hir::PassError;
use hir_check::Checks;
use hir_plan::smallest_world;
use pyo3::{exceptions::PyIndexError, prelude::*};

use crate::{error, interruptible, world::World};

/// A program with the text that it was read from.
#[pyclass(frozen)]
pub(crate) struct Program {
    pub(crate) source: Arc<Source>,
    pub(crate) program: Arc<ir::Program>,
}

/// Reads a container of a text; `fusions` are the names and texts of files with fusions. Returns the program and its warnings, as JSON lines.
#[pyfunction]
pub(crate) fn read(
    py: Python<'_>,
    text: String,
    name: String,
    container: Option<usize>,
    fusions: Vec<(String, String)>,
) -> PyResult<(Program, String)> {
    let (source, programs, diagnostics) = interruptible::run(py, move || {
        let files = fusions.into_iter().map(|(name, text)| Source::new(name, text));
        let source = hir_front::source(name, text);
        let source = files.fold(source, |source, file| source.with_fusions(&file));
        let (programs, diagnostics) = source.programs();
        (source, programs, diagnostics)
    })?;
    if has_errors(&diagnostics) {
        return Err(error::rejected(py, &diagnostics, &source));
    }
    let count = programs.len();
    let at = match (container, count) {
        (None, 1) => 0,
        (None, _) => {
            return Err(error::failed(
                py,
                format!("the text has {count} containers: choose one with `container=`"),
            ));
        }
        (Some(at), _) => at,
    };
    let Some(program) = programs.into_iter().nth(at) else {
        return Err(PyIndexError::new_err(format!("container {at} of a text with {count}")));
    };
    let (_, warnings) = error::texts(&diagnostics, &source);
    Ok((Program { source: Arc::new(source), program: Arc::new(program) }, warnings))
}

#[pymethods]
impl Program {
    /// The canonical text.
    fn text(&self, py: Python<'_>) -> String {
        py.detach(|| grammar::print(&self.program))
    }

    /// The short text.
    fn short(&self, py: Python<'_>) -> PyResult<String> {
        let mut out = Vec::new();
        py.detach(|| grammar::write_short(&self.program, &mut out))?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// The names and the texts of the inputs.
    fn inputs(&self) -> Vec<(String, String)> {
        self.tensors(ir::Program::tensors_of(&self.program.inputs))
    }

    /// The names and the texts of the outputs.
    fn outputs(&self) -> Vec<(String, String)> {
        self.tensors(ir::Program::tensors_of(&self.program.outputs))
    }

    /// The smallest number of ranks with all meshes and teams.
    fn ranks(&self) -> usize {
        smallest_world(&self.program)
    }

    /// The program with values of scalars.
    fn bind(&self, py: Python<'_>, values: Vec<(String, String)>) -> PyResult<Self> {
        let mut program = (*self.program).clone();
        let bindings: Vec<Binding> =
            values.into_iter().map(|(name, value)| Binding { name, value, is_optional: false }).collect();
        match apply_bindings(&mut program, &bindings) {
            Ok(()) => Ok(self.with(program)),
            Err(fault) => Err(error::rejected(py, &[fault.1], &fault.0)),
        }
    }

    /// The program after passes.
    fn run_passes(&self, py: Python<'_>, list: String) -> PyResult<Self> {
        let mut program = (*self.program).clone();
        let stated = list.clone();
        let done = interruptible::run(py, move || match hir::run_passes(&mut program, &stated) {
            Ok(()) => Ok(program),
            Err(fault) => Err(fault),
        })?;
        match done {
            Ok(program) => Ok(self.with(program)),
            Err(fault) => match fault.error.diagnostics() {
                [] => Err(error::failed(py, fault)),
                // These are places in the list of passes.
                diagnostics if matches!(fault.error, PassError::BadOption(_)) => {
                    Err(error::rejected(py, diagnostics, &Source::new("passes".to_owned(), list)))
                }
                diagnostics => Err(error::rejected(py, diagnostics, &self.source)),
            },
        }
    }

    /// The canonical text with the edits that remove its races, and a line about each edit.
    fn fix(&self, py: Python<'_>) -> PyResult<(String, Vec<String>)> {
        let text = grammar::print(&self.program);
        let plan = |program: &mut ir::Program, lines: &LineIndex| {
            hir_plan::build(program, lines, smallest_world(program)).ok()
        };
        let fixed = interruptible::run(py, move || hir_check::fix(&text, 0, Checks::ALL_FAULTS, &plan))?;
        let edits = fixed.edits.into_iter().map(|it| format!("line {}: {}", it.line, it.description));
        Ok((fixed.text, edits.collect()))
    }

    /// The plans of a number of ranks.
    fn world(&self, py: Python<'_>, ranks: usize) -> PyResult<World> {
        let (program, source) = (Arc::clone(&self.program), Arc::clone(&self.source));
        match interruptible::run(py, move || hir::plan(&program, &source, ranks))? {
            Ok(world) => {
                let (source, program) = (Arc::clone(&self.source), Arc::clone(&self.program));
                Ok(World { source, program, world: Arc::new(world) })
            }
            Err(diagnostics) => Err(error::rejected(py, &diagnostics, &self.source)),
        }
    }
}

impl Program {
    fn with(&self, program: ir::Program) -> Self {
        Self { source: Arc::clone(&self.source), program: Arc::new(program) }
    }

    fn tensors(&self, tensors: impl Iterator<Item = TensorId>) -> Vec<(String, String)> {
        tensors
            .map(|it| (self.program.tensor_name(it).to_string(), grammar::tensor_text(&self.program, it)))
            .collect()
    }
}
