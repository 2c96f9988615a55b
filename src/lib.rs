//! Reads, checks, transforms and runs multi-GPU Host IR programs.

pub mod io;
pub mod plan;
pub mod sim;
