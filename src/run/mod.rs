//! What `hir-run` does between the command line and the verdict: fill inputs, run plans, check results. `oracle` asks
//! the same of the programs before and after a pass. `ranks` is all of it where each rank has a process of its own.
//!
//! Invariant: a result that nobody compared is never called a success without saying so.

pub mod compare;
mod digests;
mod distributed_check;
mod extents;
pub mod gpu;
pub mod inputs;
pub mod oracle;
pub mod output;
pub mod per_rank;
pub mod precheck;
pub mod prepare;
pub mod rank_process;
pub mod results;
pub mod schedules;
pub mod timing_report;
pub mod trial;
pub mod unsharded;
pub mod unwritten;
pub mod verdict;

#[cfg(test)]
mod tests;

use crate::{
    io::{data::UnsupportedDtype, file::IoError, shard::ShardError},
    sim::SimError,
};

/// Why a run has no result to judge.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A tensor did not come in or go out.
    #[error(transparent)]
    Io(#[from] IoError),
    /// What a flag gives is no tensor.
    #[error("`{flag}`: {error}")]
    InvalidFlagValue {
        /// The flag, with the tensor's name.
        flag: String,
        /// What is wrong.
        error: IoError,
    },
    /// A flag names a tensor that is not there, or gives it another shape.
    #[error("{0}")]
    Tensor(String),
    /// An element type without arithmetic.
    #[error(transparent)]
    Dtype(#[from] UnsupportedDtype),
    /// Parts of a tensor do not fit together.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The run itself failed.
    #[error(transparent)]
    Fault(#[from] SimError),
}
