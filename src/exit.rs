//! Exit codes of the tools, which distinguish errors in the program, in the command line or environment, and
//! in the tools.

use std::{ops::ControlFlow, process::ExitCode};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT};

/// The exit code of a tool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "u8", from = "u8")]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Success = 0,
    /// The program is rejected by the parser, the verifier, a pass or the planner.
    Rejected = 1,
    /// The command line is invalid.
    Usage = 2,
    /// The result is wrong.
    WrongResult = 3,
    /// A hang, with a diagnosis.
    Hang = 4,
    /// CUDA or NCCL failed.
    Device = 5,
    /// The environment is unsuitable: too few ranks or GPUs, or a file that cannot be read.
    Environment = 6,
    /// The schedule check found a race, a deadlock or a lifetime error.
    Check = 7,
    /// An internal error: a bug in the tools.
    InternalError = 101,
    /// Stopped by SIGHUP.
    HungUp = 129,
    /// Stopped by SIGINT.
    Interrupted = 130,
    /// Stopped by SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// Converts the exit code of a process; a code that no tool uses is an internal error.
    pub fn from_code(code: u8) -> Self {
        let all = [
            Self::Success,
            Self::Rejected,
            Self::Usage,
            Self::WrongResult,
            Self::Hang,
            Self::Device,
            Self::Environment,
            Self::Check,
            Self::HungUp,
            Self::Interrupted,
            Self::Terminated,
        ];
        all.into_iter().find(|it| *it as u8 == code).unwrap_or(Self::InternalError)
    }
}

impl Exit {
    /// Returns the exit code of a process that a signal stopped: 128 plus the signal number, as in shells.
    pub fn from_signal(signal: i32) -> Self {
        match signal {
            SIGHUP => Self::HungUp,
            SIGINT => Self::Interrupted,
            _ => Self::Terminated,
        }
    }

    /// Returns whether a signal stopped the process.
    pub fn is_signal(self) -> bool {
        matches!(self, Self::HungUp | Self::Interrupted | Self::Terminated)
    }

    /// Returns `Continue` if another program can run in the same process, and `Break` if not: a CUDA context
    /// stays unusable after an error.
    pub fn flow(self) -> ControlFlow<Self, Self> {
        match self {
            Self::Device | Self::InternalError | Self::HungUp | Self::Interrupted | Self::Terminated => {
                ControlFlow::Break(self)
            }
            Self::Success
            | Self::Rejected
            | Self::Usage
            | Self::WrongResult
            | Self::Hang
            | Self::Environment
            | Self::Check => ControlFlow::Continue(self),
        }
    }

    /// Ends the process immediately. Exit handlers are skipped because they may wait for a device that hangs
    /// or for other threads.
    pub fn exit_process(self) -> ! {
        signal_hook::low_level::exit(i32::from(self as u8))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> Self {
        exit as u8
    }
}

impl From<u8> for Exit {
    fn from(code: u8) -> Self {
        Self::from_code(code)
    }
}

/// The exit code of a failure: never `Exit::Success`, even if a message from another process claims that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Exit", into = "Exit")]
pub struct FailureExit(Exit);

impl FailureExit {
    /// A hang.
    pub const HANG: Self = Self(Exit::Hang);
    /// The environment is unsuitable.
    pub const ENVIRONMENT: Self = Self(Exit::Environment);
    /// An internal error.
    pub const INTERNAL_ERROR: Self = Self(Exit::InternalError);
}

/// A failure that claims success is an internal error.
impl From<Exit> for FailureExit {
    fn from(exit: Exit) -> Self {
        if exit == Exit::Success { Self::INTERNAL_ERROR } else { Self(exit) }
    }
}

impl From<FailureExit> for Exit {
    fn from(failure: FailureExit) -> Self {
        failure.0
    }
}
