//! Errors as Python exceptions: `hir.HirError`, with the diagnostics as JSON lines if there are any.

use grammar::{
    Diagnostic, Source,
    render::{Format, Style, render},
};
use pyo3::{prelude::*, types::PyType};

/// Returns diagnostics as a user reads them, and as JSON, one line each.
pub(crate) fn texts(diagnostics: &[Diagnostic], source: &Source) -> (String, String) {
    let text = |format| {
        let mut out = Vec::new();
        // Writing into memory does not fail.
        let _ = render(diagnostics, &source.name, &source.text, format, Style::default(), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    (text(Format::Human), text(Format::Json))
}

/// Returns the exception for diagnostics about a text.
pub(crate) fn rejected(py: Python<'_>, diagnostics: &[Diagnostic], source: &Source) -> PyErr {
    let (text, json) = texts(diagnostics, source);
    raise(py, &text, &json)
}

/// Returns the exception for an error that has no place in a text.
pub(crate) fn failed(py: Python<'_>, error: impl std::fmt::Display) -> PyErr {
    raise(py, &error.to_string(), "")
}

fn raise(py: Python<'_>, text: &str, json: &str) -> PyErr {
    let class =
        || py.import("hir._diagnostic")?.getattr("HirError")?.cast_into::<PyType>().map_err(PyErr::from);
    match class().and_then(|class| class.call1((text, json))) {
        Ok(it) => PyErr::from_value(it),
        Err(fault) => fault,
    }
}
