//! Runs a Host IR program and verifies its results.

hir::program!("hir-run", run);
