//! The compiled part of the Python package `hir`: programs and worlds, with texts, JSON and arrays for Python's part
//! (`python/hir`), which has the documented classes. It decides nothing of its own.

// `#[pyfunction]` and `#[pymethods]` generate code without documentation.
#![allow(missing_docs, reason = "PyO3 generates public items")]

mod arrays;
mod builder;
mod error;
mod gpu;
mod hang;
mod interruptible;
mod lent_memory;
mod program;
mod tools;
mod world;

use pyo3::prelude::*;

#[pymodule]
mod _hir {
    use super::{Bound, PyModule, PyResult};

    #[pymodule_export]
    use super::{
        builder::Builder,
        gpu::{Gpu, GpuProgram},
        hang::{Hang, hang},
        lent_memory::{end_loan, lend_memory, loan_functions},
        program::{Program, read},
        tools::run_tool,
        world::World,
    };

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        hir::install_backend();
        Ok(())
    }
}
