//! Implements `hir-run`: prepares inputs, runs plans and judges outputs. `oracle` compares the outputs of a
//! program before and after a pass. `driver::job` runs programs in jobs with one process per rank.
//!
//! Invariant: a verdict of success states whether the outputs were compared.

pub mod batch_file;
pub mod command_line;
pub mod compare;
pub(crate) mod exact_range;
mod extents;
pub mod failure;
pub mod files;
mod index_inputs;
pub mod inputs;
pub(crate) mod memory_limit;
pub mod option_files;
pub mod oracle;
pub mod output;
pub mod per_rank;
pub mod pipeline_tuning;
pub mod prepare;
pub mod program_files;
pub mod replay;
pub mod results;
pub mod schedule_file;
pub mod schedules;
pub mod timelines;
pub mod trial;
pub mod unsharded;
pub mod unwritten;
pub mod verdict;
pub mod witness_runs;

#[cfg(test)]
mod tests;

use crate::tensor_file::IoError;
use hir_process::threads::ThreadRefused;
use hir_sim::{OverBudget, SimError};
use hir_tensor::{data::UnsupportedDtype, shard::ShardError};

/// An error that prevents a verdict on the outputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A tensor could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The value of a flag is not a tensor.
    #[error("`{flag}`: {error}")]
    InvalidFlagValue {
        /// The option and the name of the tensor.
        flag: String,
        /// The error in the value.
        error: IoError,
    },
    /// A flag names an unknown tensor or gives it a wrong shape.
    #[error("{0}")]
    Tensor(String),
    /// An element type has no arithmetic.
    #[error(transparent)]
    Dtype(#[from] UnsupportedDtype),
    /// The parts of a tensor do not fit together.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The run would exceed the work that is allowed.
    #[error("{0} ({help})", help = .0.help())]
    OverBudget(#[from] OverBudget),
    /// The system has refused a thread for computations.
    #[error(transparent)]
    Threads(#[from] ThreadRefused),
    /// The simulated run failed.
    #[error(transparent)]
    Fault(#[from] SimError),
}
