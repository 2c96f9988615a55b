//! Reads, checks, transforms and runs multi-GPU Host IR programs.
//!
//! `grammar` parses a text into a program, `passes` rewrite it, `plan` lowers it to one plan for each rank,
//! `sim` runs the plans of all ranks in one process, and `cuda` runs the plan of one rank on a GPU. `check` proves that
//! plans have no races. The binaries `hir-opt`, `hir-run` and `hir-reduce` combine these with the help of `driver`.
//!
//! Each is a package of its own. This one names them together.

pub use grammar;
pub use hir_check as check;
#[cfg(feature = "cuda")]
pub use hir_cuda as cuda;
pub use hir_driver as driver;
#[cfg(feature = "launch")]
pub use hir_launch as launch;
pub use hir_plan as plan;
pub use hir_plan::timeline;
pub use hir_process as process;
pub use hir_sim as sim;
pub use hir_tensor as tensor;
pub use passes;
