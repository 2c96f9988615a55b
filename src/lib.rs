//! Reads, checks, transforms and runs multi-GPU Host IR programs.
//!
//! A text becomes a program (`grammar`), passes rewrite it (`passes`), `plan` flattens it into one plan a rank, and `sim`
//! runs the plans of all ranks in one process, `cuda` one rank's on a GPU. `io` brings tensors in and out. `reduce` shrinks programs
//! that fail. `check` proves plans free of races. `hir-opt`, `hir-run` and `hir-reduce` wire these together.
//!
//! Invariant: dependencies point one way: `grammar` ← `passes` ← `hir`; executors read plans and nothing else.

pub mod atomic_file;
pub mod input_file;
pub mod source;

pub mod elementwise;
pub mod plan;

pub mod io;
pub mod sim;

pub mod check;

pub mod cuda;

pub mod launch;
pub mod run;

pub mod reduce;

pub mod exit;
pub mod interrupt;
pub mod out_of_memory;
pub mod threads;
pub mod tool;
pub mod tool_name;
