//! Reads, checks, transforms and runs multi-GPU Host IR programs.
//!
//! `grammar` parses a text into a program, `passes` rewrite it, `plan` lowers it to one plan for each rank,
//! `sim` runs the plans of all ranks in one process, and `cuda` runs the plan of one rank on a GPU. `io`
//! reads and writes tensors. `check` proves that plans have no races. `reduce` shrinks programs that fail.
//! The binaries `hir-opt`, `hir-run` and `hir-reduce` combine these.
//!
//! Invariant: dependencies have one direction: `grammar` ← `passes` ← `hir`; executors read only plans.

pub mod source;

pub use hir_plan as plan;
pub use hir_plan::timeline;

pub mod tensor_file;

pub use hir_check as check;
pub use hir_process as process;
pub use hir_sim as sim;
pub use hir_tensor as tensor;

pub mod cuda;

pub mod launch;
pub mod run;

pub mod reduce;

pub mod tool;
