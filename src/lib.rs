//! Reads, checks, transforms and runs multi-GPU Host IR programs.

pub mod plan;
