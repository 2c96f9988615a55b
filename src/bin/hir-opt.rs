//! Checks, transforms and prints Host IR programs.

hir::program!("hir-opt", opt);
