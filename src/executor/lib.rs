//! Runs the plan of one rank on a device: what the tools ask of every vendor's executor, and the values that both exchange.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! A `Backend` finds the devices of a host and assigns a `RankDevice` to each rank. The device prepares one plan after another as an
//! `Executor`, which loads inputs, runs, times, tunes and profiles. A process that uses the device for other work opens an
//! `InProcessDevice` instead. `ProcessGroup` is what executors ask of the job. `src/bin` installs the backend with which a program
//! is linked.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hir_executor::{ExecutorError, SingleProcess, backend};
//! use hir_plan::World;
//!
//! /// Runs the plan of the only rank of a world, with the inputs that its memory has.
//! fn run(world: &Arc<World>) -> Result<usize, ExecutorError> {
//!     let peers = SingleProcess;
//!     let mut device = backend()?.assign_device(&peers)?;
//!     let outputs = device.executor(world, &peers)?.run()?;
//!     Ok(outputs.len())
//! }
//!
//! // No backend is installed.
//! assert!(matches!(run(&Arc::default()), Err(ExecutorError::Environment(_))));
//! ```
//!
//! The package knows no vendor. `sim` defines the meaning of every instruction.

mod algorithms;
mod attention;
mod backend;
mod error;
mod executor;
mod in_process;
mod measurement;
mod process_group;

pub use algorithms::{AlgorithmUse, Machine, MatmulAlgorithm, TuneOptions, TunedProduct, Tuning};
pub use attention::{AttentionLibrary, AttentionTask, DeviceTensor};
pub use backend::{Backend, RankDevice, backend, install_backend};
pub use error::ExecutorError;
pub use executor::{Executor, RunProgress};
pub use in_process::{CallerPort, CallerPorts, InProcessDevice, InProcessProgram, LoadOptions, PortBuffer};
pub use measurement::{CallCost, HostProfile, InstTime, LineProfile, RunTimes, TimedRuns, Timing, WarmUp};
pub use process_group::{ProcessGroup, SingleProcess};
