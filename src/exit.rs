//! Exit codes of the tools: the program's faults, the user's and ours are told apart.

use std::{ops::ControlFlow, process::ExitCode};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT};

/// How a tool ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "u8", from = "u8")]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// The program is rejected: reading, verification, a pass, planning.
    Rejected = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The result is wrong.
    WrongResult = 3,
    /// A hang, diagnosed.
    Hang = 4,
    /// CUDA or NCCL failed.
    Device = 5,
    /// The environment does not fit: too few ranks or GPUs, a file that cannot be read.
    Environment = 6,
    /// The schedule check found a race, a deadlock or a lifetime error.
    Check = 7,
    /// Our bug.
    InternalError = 101,
    /// Stopped by SIGHUP.
    HungUp = 129,
    /// Stopped by SIGINT.
    Interrupted = 130,
    /// Stopped by SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// The exit of a process's code; a code that no tool ends with is our bug.
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
    /// How a process ends that a signal stops: 128 and its number, as shells have it.
    pub fn from_signal(signal: i32) -> Self {
        match signal {
            SIGHUP => Self::HungUp,
            SIGINT => Self::Interrupted,
            _ => Self::Terminated,
        }
    }

    /// Whether a signal stopped the process.
    pub fn is_signal(self) -> bool {
        matches!(self, Self::HungUp | Self::Interrupted | Self::Terminated)
    }

    /// Whether another program can follow in the same process, or not: a context that has met an error keeps it.
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

    /// Ends the process here and now: what runs at exit may wait for a device that hangs, or for other threads.
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

/// The exit code of a failure: never `Exit::Success`, whatever a message from another process contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Exit", into = "Exit")]
pub struct FailureExit(Exit);

impl FailureExit {
    /// A hang.
    pub const HANG: Self = Self(Exit::Hang);
    /// The environment does not fit.
    pub const ENVIRONMENT: Self = Self(Exit::Environment);
    /// Our bug.
    pub const INTERNAL_ERROR: Self = Self(Exit::InternalError);
}

/// A failure that claims success is our bug.
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
