//! What a pipeline stops at, and who is to blame.

use std::fmt::{self, Display};

use grammar::diagnostic::Diagnostic;

/// A pipeline that did not come to its end.
#[derive(Clone, Debug)]
pub struct PipelineError {
    /// The pass; `None`: the program that the pipeline was given.
    pub pass: Option<&'static str>,
    /// What is wrong.
    pub error: PassError,
}

/// What a pipeline stops at.
#[derive(Clone, Debug)]
pub enum PassError {
    /// The pass cannot rewrite this program.
    Rejected(Diagnostic),
    /// The pass, or a check of what it left, panicked with this message.
    Panicked(String),
    /// The verifier rejects what the pass left.
    VerificationFailed(Vec<Diagnostic>),
    /// The pass said that it changed nothing, and the text differs.
    UnreportedChange,
    /// The printed program does not read back as itself: the first line that differs, as printed and as read back.
    RoundTripMismatch(String, String),
    /// The program before the first pass means nothing that passes could keep.
    InvalidReference(Vec<Diagnostic>),
    /// The program does not mean what it meant.
    Miscompiled(Diagnostic),
}

impl PassError {
    /// Whether the pass or the printer is to blame, and not the program.
    pub fn is_bug(&self) -> bool {
        match self {
            Self::Rejected(_) | Self::InvalidReference(_) => false,
            Self::Panicked(_)
            | Self::VerificationFailed(_)
            | Self::UnreportedChange
            | Self::RoundTripMismatch(..)
            | Self::Miscompiled(_) => true,
        }
    }

    /// What is wrong where, in the text that the program was read from.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            Self::Rejected(it) | Self::Miscompiled(it) => std::slice::from_ref(it),
            Self::VerificationFailed(all) | Self::InvalidReference(all) => all,
            Self::Panicked(_) | Self::UnreportedChange | Self::RoundTripMismatch(..) => &[],
        }
    }
}

impl Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pass, &self.error) {
            (Some(pass), PassError::InvalidReference(_)) => {
                return write!(
                    f,
                    "the program before pass `{pass}` cannot run or goes wrong already: no pass can be judged by it"
                );
            }
            (Some(pass), _) => write!(f, "pass `{pass}` ")?,
            (None, _) => f.write_str("the program as read ")?,
        }
        match &self.error {
            PassError::Rejected(_) => f.write_str("cannot rewrite this program"),
            PassError::Panicked(message) => write!(f, "panicked: {message}"),
            PassError::VerificationFailed(_) => f.write_str("left a program that the verifier rejects"),
            PassError::UnreportedChange => f.write_str("changed the program and said that it did not"),
            PassError::RoundTripMismatch(printed, read) => {
                write!(f, "does not read back as it is printed: `{printed}` became `{read}`")
            }
            PassError::InvalidReference(_) => f.write_str("cannot run or goes wrong already"),
            PassError::Miscompiled(_) => f.write_str("changed what the program means"),
        }
    }
}

impl std::error::Error for PipelineError {}
