//! Runs a Host IR program and verifies its results.

hir_driver::program!("hir-run", run, hir::install_backend);
