//! What goes wrong on a device.

use crate::plan::{Inst, Plan};

/// Why a plan does not run on this rank's GPU.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CudaError {
    /// A library, a device or another process is missing or does not fit.
    #[error("{0}")]
    Environment(String),
    /// A call failed.
    #[error("{place}{function} failed: {text} (code {code})")]
    Call {
        /// The function.
        function: String,
        /// Its status.
        code: u32,
        /// The library's words.
        text: String,
        /// `rank 0: line 3: `, or nothing where no instruction is concerned.
        place: String,
    },
    /// The program asks for something that this executor does not do.
    #[error("rank {rank}: {place}: {message}")]
    Unsupported {
        /// The rank.
        rank: usize,
        /// The line and the iteration.
        place: String,
        /// What is not supported.
        message: String,
    },
    /// A GPU has less memory than the program needs.
    #[error("rank {rank}: {message}")]
    OutOfMemory {
        /// The rank.
        rank: usize,
        /// How much is wanted and how much there is.
        message: String,
    },
    /// Our bug.
    #[error("internal error: {0}")]
    Internal(String),
}

impl CudaError {
    /// A failed call, wherever it was.
    pub(super) fn failed_call(function: &str, code: u32, text: &str) -> Self {
        Self::Call { function: function.to_owned(), code, text: text.to_owned(), place: String::new() }
    }

    /// Names the instruction that was being prepared or issued.
    pub(super) fn at_inst(self, plan: &Plan, inst: &Inst) -> Self {
        match self {
            Self::Call { function, code, text, .. } => {
                let place = format!("rank {}: {}: ", plan.rank, plan.location(inst));
                Self::Call { function, code, text, place }
            }
            other => other,
        }
    }

    /// Names the instruction that was running when the device failed, as far as that is known.
    pub(super) fn near_inst(self, plan: &Plan, inst: Option<&Inst>) -> Self {
        match self {
            Self::Call { function, code, text, .. } => {
                let line = inst.map_or(String::new(), |it| format!("at {} or later: ", plan.location(it)));
                Self::Call { function, code, text, place: format!("rank {}: {line}", plan.rank) }
            }
            other => other,
        }
    }

    /// What an instruction asks for and this executor lacks.
    pub(super) fn unsupported(plan: &Plan, inst: &Inst, message: impl Into<String>) -> Self {
        Self::Unsupported { rank: plan.rank, place: plan.location(inst), message: message.into() }
    }
}
