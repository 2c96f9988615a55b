//! Why a job fails. `exit_code` has the exit code of each failure.

use std::path::PathBuf;

use grammar::{Diagnostic, InvalidOption, Source, visible_name};

use super::RunError;
use hir_process::exit::FailureExit;

/// What a part of a job returns, or why the job fails.
pub type Result<T, E = JobFailure> = std::result::Result<T, E>;

/// Why a job fails. `Display` is the message; if it has several lines, the first one is the summary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobFailure {
    /// A source text is rejected.
    #[error("{}: {}", .0.name, .1.iter().find(|it| it.is_error()).map_or("rejected", |it| it.message.as_str()))]
    Rejected(Source, Vec<Diagnostic>),
    /// A statement has failed while the program ran.
    #[error("{}: {}", .1.code.text(), .1.message)]
    Faulty(Source, Box<Diagnostic>),
    /// An option of the command line is wrong. The source is the text of the option.
    #[error("{}: {}", .0.name, .1.message)]
    BadOption(Source, Box<Diagnostic>),
    /// Options do not fit together, or do not fit the program.
    #[error("{0}")]
    Usage(String),
    /// The program does not fit its reference, or an option rejects its remarks.
    #[error("{0}")]
    Unsuitable(String),
    /// The result of passes is not certified, for this reason.
    #[error("no certificate is written to `{}`: {}: {}", .0.name, .1.code.text(), .1.message)]
    NotCertified(Source, Box<Diagnostic>),
    /// A file cannot be read.
    #[error("cannot read `{}`: {cause}", visible_name(path))]
    CannotRead {
        /// The file.
        path: String,
        /// Why.
        cause: String,
    },
    /// A file cannot be written.
    #[error("cannot write `{}`: {cause}", visible_name(&path.to_string_lossy()))]
    CannotWrite {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// There are too few ranks or GPUs, or a table of algorithms does not fit the machine.
    #[error("{0}")]
    Environment(String),
    /// The outputs are wrong under the schedule with which others are compared.
    #[error("under schedule program: {0}")]
    WrongResult(String),
    /// The run fails.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The ranks of the job are not connected.
    #[cfg(feature = "launch")]
    #[error(transparent)]
    Launch(#[from] hir_launch::LaunchError),
    /// The executor on GPUs fails.
    #[error(transparent)]
    Executor(#[from] hir_executor::ExecutorError),
    /// Another rank fails.
    #[error("rank {rank}: {summary}")]
    OtherRank {
        /// The rank.
        rank: usize,
        /// Its exit code.
        exit: FailureExit,
        /// The first line of its message.
        summary: String,
    },
    /// A bug in this program.
    #[error("{0}")]
    Internal(String),
}

impl From<InvalidOption> for JobFailure {
    fn from(reason: InvalidOption) -> Self {
        Self::Usage(reason.to_string())
    }
}

impl JobFailure {
    /// Returns the failure for a wrong option, whose text is the source.
    pub fn bad_option((source, fault): (Source, Diagnostic)) -> Self {
        Self::BadOption(source, Box::new(fault))
    }

    /// Returns the first line of the message.
    pub fn summary(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }
}
