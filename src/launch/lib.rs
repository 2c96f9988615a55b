//! Connects the processes of a job, and detects the loss of one of them.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! `environment` determines the rank of this process, `secret` obtains the job secret, `rendezvous` connects
//! the process with the others over an encrypted `session`, and `channel` keeps them connected for the whole
//! run. `handshake` checks that all ranks run the same job. `watchdog` ends a lost job with a `report`, which the caller builds
//! from what every rank was doing. `job_rank` combines these for one process. `spawn` starts the ranks of a job if
//! no launcher does.
//!
//! ```
//! use hir_launch::environment::detect;
//!
//! // What Slurm and torchrun set for rank 3 of 8.
//! let variables = |name: &str| match name {
//!     "RANK" => Some("3".to_owned()),
//!     "WORLD_SIZE" => Some("8".to_owned()),
//!     "LOCAL_RANK" => Some("3".to_owned()),
//!     "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
//!     "MASTER_PORT" => Some("29500".to_owned()),
//!     _ => None,
//! };
//! let place = detect(variables)?.map(|it| (it.rank, it.world));
//! assert_eq!(place, Some((3, 8)));
//! // Without a launcher, the process is not one of a job.
//! assert!(detect(|_| None)?.is_none());
//! # Ok::<(), hir_launch::LaunchError>(())
//! ```
//!
//! Invariant: nothing here depends on devices or plans: messages are opaque bytes, and progress is numbers of instructions.

pub mod channel;
pub mod environment;
pub mod handshake;
pub mod job_rank;
pub mod message;
pub mod parent_death;
pub mod progress;
pub mod rendezvous;
pub mod report;
pub mod report_claim;
pub mod secret;
pub mod session;
pub mod spawn;
pub mod stop;
pub mod watchdog;
pub mod watcher;

#[cfg(test)]
mod tests;

use std::io;

use serde::{Deserialize, Serialize};

use hir_process::exit::FailureExit;

/// What the ranks of a job agree on, or why they are not connected.
type Result<T, E = LaunchError> = std::result::Result<T, E>;

/// The reason why the ranks of a job are not, or no longer, connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The launcher's environment is inconsistent or incomplete.
    #[error("{0}")]
    Environment(String),
    /// The ranks did not find each other.
    #[error("rendezvous at {address}: {message}")]
    Rendezvous {
        /// The address of the rendezvous.
        address: String,
        /// The cause.
        message: String,
    },
    /// A rank's process ended, or left the job, while others needed it.
    #[error("rank {rank} is silent: its connection closed, its process was killed or has ended")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// A rank is connected and sends nothing.
    #[error("rank {rank} is silent for {seconds} s: its process is stopped, or its host is lost")]
    Silent {
        /// The rank.
        rank: usize,
        /// Time since its last message, in seconds.
        seconds: u64,
    },
    /// A rank aborted the job.
    #[error("rank {rank}: {reason}")]
    Aborted {
        /// The rank.
        rank: usize,
        /// The exit code of the job.
        exit: FailureExit,
        /// The reason.
        reason: String,
    },
    /// A rank sent a message that no process of this version sends.
    #[error("rank {rank} violated the job protocol: {fault}")]
    Protocol {
        /// The rank.
        rank: usize,
        /// The violation.
        fault: String,
    },
    /// Ranks are alive and did not reach a common step.
    #[error("ranks {ranks:?} did not reach a common step within {seconds} s")]
    Late {
        /// The missing ranks.
        ranks: Vec<usize>,
        /// Time that the others waited, in seconds.
        seconds: u64,
    },
    /// Ranks run their plans, and none makes progress.
    #[error("no rank made progress for {seconds} s")]
    Stalled {
        /// Time without progress, in seconds.
        seconds: u64,
    },
}

impl LaunchError {
    /// Converts an error that a rank finds in its connection with a peer.
    fn of_connection([own, rank]: [usize; 2], fault: &io::Error) -> Self {
        match fault.kind() {
            io::ErrorKind::InvalidData
                if fault.get_ref().is_some_and(|it| it.is::<session::InvalidRecord>()) =>
            {
                Self::Environment(format!(
                    "rank {own}: the connection with rank {rank} is not intact: {fault}"
                ))
            }
            io::ErrorKind::InvalidData => Self::Protocol { rank, fault: fault.to_string() },
            _ => Self::Gone { rank },
        }
    }

    /// Returns the exit code for this error.
    pub fn exit(&self) -> FailureExit {
        match self {
            Self::Environment(_) | Self::Rendezvous { .. } => FailureExit::ENVIRONMENT,
            Self::Gone { .. } | Self::Silent { .. } | Self::Late { .. } | Self::Stalled { .. } => {
                FailureExit::HANG
            }
            Self::Protocol { .. } => FailureExit::INTERNAL_ERROR,
            Self::Aborted { exit, .. } => *exit,
        }
    }
}
