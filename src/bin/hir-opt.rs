//! Checks, transforms and prints Host IR programs.

hir_driver::program!("hir-opt", opt, hir::install_backend);
