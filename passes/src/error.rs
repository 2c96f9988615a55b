//! Errors of pipelines, and whether a pass or the program causes them.

use std::fmt::{self, Display};

use grammar::{Code, Diagnostic};

/// An error that stopped a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineError {
    /// The pass; `None` if the program given to the pipeline is at fault.
    pub pass: Option<&'static str>,
    /// What is wrong.
    pub error: PassError,
}

/// The kind of an error that stops a pipeline.
#[derive(Clone, Debug)]
pub enum PassError {
    /// The pass cannot rewrite this program, for these reasons.
    Rejected(Vec<Diagnostic>),
    /// The value of an option of the pass is wrong. The position lies in the text of the pipeline.
    BadOption(Diagnostic),
    /// The pass, or a check of its result, panicked with this message.
    Panicked(String),
    /// The verifier rejects the result of the pass.
    VerificationFailed(Vec<Diagnostic>),
    /// The pass reported no change, but the text changed.
    UnreportedChange,
    /// The printed program does not read back as itself. Holds the first line that differs, as printed and as
    /// read back.
    RoundTripMismatch(String, String),
    /// The program before the first pass cannot serve as a reference.
    InvalidReference(Vec<Diagnostic>),
    /// The check would exceed a limit of the tool, so it is not known whether the pass is right.
    Unverified(Diagnostic),
    /// The program is not equivalent to the one before the first pass.
    Miscompiled(Diagnostic),
}

impl PassError {
    /// Returns the error of a pass whose result is not equivalent to the reference, or cannot be compared with it. The
    /// comparison can show that the reference itself has a fault, which keeps its code.
    pub(crate) fn of_comparison(difference: Diagnostic) -> Self {
        match difference.code {
            Code::OverBudget => Self::Unverified(difference),
            Code::Miscompiled => Self::Miscompiled(difference),
            _ => Self::InvalidReference(vec![difference]),
        }
    }

    /// Returns true if the pass or the printer is wrong, and false if the program is.
    pub fn is_bug(&self) -> bool {
        match self {
            Self::Rejected(_) | Self::BadOption(_) | Self::InvalidReference(_) | Self::Unverified(_) => false,
            Self::Panicked(_)
            | Self::VerificationFailed(_)
            | Self::UnreportedChange
            | Self::RoundTripMismatch(..)
            | Self::Miscompiled(_) => true,
        }
    }

    /// Returns what is wrong, with locations in the text that the program was read from; for `BadOption`, in the
    /// text of the pipeline.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            Self::BadOption(it) | Self::Unverified(it) | Self::Miscompiled(it) => std::slice::from_ref(it),
            Self::Rejected(all) | Self::VerificationFailed(all) | Self::InvalidReference(all) => all,
            Self::Panicked(_) | Self::UnreportedChange | Self::RoundTripMismatch(..) => &[],
        }
    }
}

impl Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pass, &self.error) {
            (Some(pass), PassError::InvalidReference(faults))
                if faults.iter().all(|it| it.code == Code::OverBudget) =>
            {
                return write!(
                    f,
                    "the program before pass `{pass}` exceeds a limit, so no pass can be checked against it"
                );
            }
            (Some(pass), PassError::InvalidReference(_)) => {
                return write!(
                    f,
                    "the program before pass `{pass}` cannot run or already fails, so no pass can be checked against it"
                );
            }
            (Some(pass), _) => write!(f, "pass `{pass}` ")?,
            (None, _) => f.write_str("the program as read ")?,
        }
        match &self.error {
            PassError::Rejected(all) if all.iter().any(|it| it.code.is_about_program()) => {
                f.write_str("stops: the program is invalid, which its constants show")
            }
            PassError::Rejected(_) => f.write_str("cannot rewrite this program"),
            PassError::BadOption(it) => write!(f, "has a wrong option: {}", it.message),
            PassError::Panicked(message) => write!(f, "panicked: {message}"),
            PassError::VerificationFailed(_) => f.write_str("produced a program that the verifier rejects"),
            PassError::UnreportedChange => f.write_str("changed the program but reported no change"),
            PassError::RoundTripMismatch(printed, read) => {
                write!(f, "yields text that does not read back as printed: `{printed}` became `{read}`")
            }
            PassError::InvalidReference(_) => f.write_str("cannot run or already fails"),
            PassError::Unverified(_) => f.write_str("cannot be checked: the check exceeds a limit"),
            PassError::Miscompiled(_) => f.write_str("changed what the program means"),
        }
    }
}

impl std::error::Error for PipelineError {}
