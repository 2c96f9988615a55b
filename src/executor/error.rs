//! Why a plan does not run on the device of a rank.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use grammar::Code;
use hir_plan::{Inst, LOOP_LIMIT, Plan};

/// The reason why a plan does not run on the device of this rank.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ExecutorError {
    /// A library, a device or another process is missing or does not fit.
    #[error("{0}")]
    Environment(String),
    /// A call failed.
    #[error("{}{place}{function} failed: {text} (code {code})", rank.map_or(String::new(), |it| format!("rank {it}: ")))]
    Call {
        /// The name of the function.
        function: String,
        /// The status code.
        code: u32,
        /// The library's description of the status.
        text: String,
        /// The rank, if an instruction is involved.
        rank: Option<usize>,
        /// `line 3: `, or empty if no instruction is involved.
        place: String,
    },
    /// The program requires something that this executor does not support.
    #[error("rank {rank}: {place}: {message}")]
    Unsupported {
        /// The rank.
        rank: usize,
        /// The line and the iteration.
        place: String,
        /// What is not supported.
        message: String,
    },
    /// The condition of a loop still holds behind its last iteration.
    #[error("rank {rank}: {place}: {LOOP_LIMIT}")]
    LoopLimit {
        /// The rank.
        rank: usize,
        /// The line of the condition.
        line: u32,
        /// The line and the iteration, for messages.
        place: String,
    },
    /// A device has less memory than the program needs.
    #[error("rank {rank}: {message}")]
    OutOfMemory {
        /// The rank.
        rank: usize,
        /// The number of bytes requested and available.
        message: String,
    },
    /// A bug in this program.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ExecutorError {
    /// Returns the error of a failed call, without a location.
    pub fn failed_call(function: &str, code: u32, text: &str) -> Self {
        Self::Call {
            function: function.to_owned(),
            code,
            text: text.to_owned(),
            rank: None,
            place: String::new(),
        }
    }

    /// Adds the instruction that was being prepared or issued.
    pub fn at_inst(self, plan: &Plan, inst: &Inst) -> Self {
        self.placed(plan.rank, format!("{}: ", plan.location(inst)))
    }

    /// Adds the instruction that was running when the device failed, as far as it is known.
    pub fn near_inst(self, plan: &Plan, inst: Option<&Inst>) -> Self {
        let place = inst.map_or(String::new(), |it| format!("at {} or later: ", plan.location(it)));
        self.placed(plan.rank, place)
    }

    fn placed(mut self, of: usize, at: String) -> Self {
        if let Self::Call { rank, place, .. } = &mut self {
            (*rank, *place) = (Some(of), at);
        }
        self
    }

    /// Returns the message without its rank, for a text that names the rank itself.
    pub fn without_rank(&self) -> String {
        match self {
            Self::Call { .. } => {
                let mut it = self.clone();
                if let Self::Call { rank, .. } = &mut it {
                    *rank = None;
                }
                it.to_string()
            }
            Self::Unsupported { place, message, .. } => format!("{place}: {message}"),
            Self::LoopLimit { place, .. } => format!("{}: {place}: {LOOP_LIMIT}", Code::LoopLimit.text()),
            Self::OutOfMemory { message, .. } => message.clone(),
            Self::Environment(_) | Self::Internal(_) => self.to_string(),
        }
    }

    /// Returns the error for an instruction that requires something that this executor does not support.
    pub fn unsupported(plan: &Plan, inst: &Inst, reason: impl Display) -> Self {
        Self::Unsupported { rank: plan.rank, place: plan.location(inst), message: reason.to_string() }
    }
}
