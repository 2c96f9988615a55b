//! Hangs of PyTorch jobs.

use std::path::PathBuf;

use grammar::{Diagnostic, Source};
use hir_hang::{
    diagnostics::{diagnostic, unreadable},
    files, report,
};
use pyo3::{exceptions::PyOSError, prelude::*};

use crate::{error, interruptible};

/// What the dumps of a job show, for `hir.HangReport`.
#[pyclass(frozen, get_all)]
pub(crate) struct Hang {
    is_hang: bool,
    verdict: String,
    notes: Vec<String>,
    table: Vec<String>,
    text: String,
    json: String,
}

/// Reads dumps and explains them.
#[pyfunction]
pub(crate) fn hang(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Hang> {
    let explained = interruptible::run(py, move || {
        let dumps = files::load(&paths)?;
        let found = report::report(&dumps);
        let skipped = dumps.skipped.iter().map(unreadable);
        let findings = skipped.chain(found.findings.iter().map(|it| diagnostic(it, &dumps)));
        let texts: (String, String) =
            findings.map(|it: (Source, Diagnostic)| error::texts(&[it.1], &it.0)).unzip();
        let table = report::table(&found);
        let mut notes = vec![found.summary()];
        notes.extend(found.notes.iter().cloned());
        Ok(Hang {
            is_hang: found.is_hang,
            verdict: found.verdict(),
            notes,
            table,
            text: texts.0,
            json: texts.1,
        })
    })?;
    explained.map_err(|fault: files::LoadError| match fault {
        files::LoadError::Read { .. } => PyOSError::new_err(fault.to_string()),
        fault => error::failed(py, fault),
    })
}
