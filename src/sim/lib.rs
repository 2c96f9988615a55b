//! Simulates all ranks in one process. The simulator defines the semantics of every instruction.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `machine` holds the state of all ranks. `advance`, `queue` and `member` determine which steps may run
//! next, and `schedule` chooses one. `step`, `collective` and `reshard` access `memory` with the help of
//! `kernels`. `plan::sync` explains why no step may run.
//!
//! Under schedule `program`, and in programs that deadlock, a communication runs at once for all participants
//! (`queue`). Under all other schedules, each rank starts and completes it on its own, and waits only for the
//! ranks that it receives data from (`member`).
//!
//! ```
//! use std::sync::Arc;
//!
//! use hir_sim::{Schedule, SimOptions};
//! use hir_tensor::data::Data;
//!
//! let world = hir_plan::plans_of_text(
//!     "
//! %HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{4}] (DeviceMesh{0 1})) :
//!   T1_g_float[iS1{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
//!   Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{4}] (DeviceMesh{0 1}), output=T1_g_float[iS1{4}] (DeviceMesh{0 1}), backend=NCCL)
//!   Wait(Communication 0)
//! } // %HostIrContainer
//! ",
//!     2,
//! )
//! .map_err(|faults| faults[0].message.clone())?;
//! let input = |value: f32| vec![Arc::new(Data::from(vec![value; 4]))];
//! let inputs = vec![input(1.0), input(2.0)];
//! let outcome = hir_sim::run(
//!     &world,
//!     inputs,
//!     &Schedule::Program,
//!     &SimOptions::default(),
//! )
//! .map_err(|fault| fault.to_string())?;
//! let sum = outcome.outputs[1][0].as_ref().ok_or("rank 1 has no output")?;
//! assert_eq!(sum.data, Data::from(vec![3f32; 4]));
//! # Ok::<(), String>(())
//! ```
//!
//! The package knows no file, no GPU and no process. Large products are computed on rayon's global pool.
//!
//! Invariant: a run depends only on the plans, the inputs and the schedule.

mod advance;
mod attention;
mod collective;
mod events;
mod footprint;
pub mod kernels;
mod machine;
mod member;
pub mod memory;
mod outcome;
mod progress_query;
mod queue;
mod reshard;
mod run;
mod sample_run;
pub mod schedule;
mod step;
#[cfg(test)]
mod tests;
mod work;

pub use hir_plan::sync::InstRef;
pub use {
    footprint::{Footprint, assembly_bytes, footprint, own_input_bytes},
    outcome::{RunNotes, SimError, SimOptions, SimOutcome, UnwrittenRead, describe, late_writers},
    progress_query::ProgressQuery,
    run::run,
    sample_run::{SampleRunError, sample_run},
    schedule::{Schedule, ScheduleSet},
    work::{OverBudget, SimLimits, WorkBudget, work},
};
