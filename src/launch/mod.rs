//! How processes of one job find each other, and notice when one of them is lost.
//!
//! `environment` says who this process is, `secret` what only processes of the job know, `rendezvous` connects it with the
//! others over a `session` that nobody without the secret can open or read, and `channel` keeps them connected for the whole
//! run. `handshake` proves that all hold the same job, `watchdog` ends a job that is lost, with a `report` of what every rank
//! was doing; `member` is all of these for one process. `spawn` starts a job where no launcher does.
//!
//! Invariant: nothing here knows a device; it moves opaque bytes.

pub mod channel;
pub mod environment;
pub mod handshake;
pub mod job_rank;
pub mod message;
pub mod parent_death;
pub mod progress;
pub mod rendezvous;
pub mod report;
pub mod secret;
pub mod session;
pub mod spawn;
pub mod watchdog;

#[cfg(test)]
mod tests;

use std::io;

use serde::{Deserialize, Serialize};

use crate::exit::FailureExit;

/// Why the ranks of a job are not, or no longer, together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LaunchError {
    /// What the launcher says does not make sense, or says too little.
    #[error("{0}")]
    Environment(String),
    /// The ranks did not find each other.
    #[error("rendezvous at {address}: {message}")]
    Rendezvous {
        /// Where.
        address: String,
        /// What happened.
        message: String,
    },
    /// A rank's process ended, or left the job, while others needed it.
    #[error("rank {rank} is silent: its connection closed, its process was killed or has ended")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// A rank is connected and says nothing.
    #[error("rank {rank} is silent for {seconds} s: its process is stopped, or its host is lost")]
    Silent {
        /// The rank.
        rank: usize,
        /// Since when.
        seconds: u64,
    },
    /// A rank gave up, and with it the job.
    #[error("rank {rank}: {reason}")]
    Aborted {
        /// The rank.
        rank: usize,
        /// The exit code that it means.
        exit: FailureExit,
        /// Why.
        reason: String,
    },
    /// A rank sent what no process of this version sends.
    #[error("rank {rank} broke the protocol of the ranks: {fault}")]
    Protocol {
        /// The rank.
        rank: usize,
        /// What is wrong.
        fault: String,
    },
    /// Ranks are alive and did not come to a common step.
    #[error("after {seconds} s ranks {ranks:?} have not come to a common step")]
    Late {
        /// Those that are missing.
        ranks: Vec<usize>,
        /// How long the others waited.
        seconds: u64,
    },
    /// Ranks run their plans, and none gets any further.
    #[error("no rank got any further for {seconds} s")]
    Stalled {
        /// Since when.
        seconds: u64,
    },
}

impl LaunchError {
    /// What a fault of the connection with a rank means.
    fn of_connection(rank: usize, fault: &io::Error) -> Self {
        match fault.kind() {
            io::ErrorKind::InvalidData
                if fault.get_ref().is_some_and(|it| it.is::<session::InvalidRecord>()) =>
            {
                Self::Environment(format!("the connection with rank {rank} is not intact: {fault}"))
            }
            io::ErrorKind::InvalidData => Self::Protocol { rank, fault: fault.to_string() },
            _ => Self::Gone { rank },
        }
    }

    /// The exit code that it means.
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
