//! Exit codes of the tools, which distinguish errors in the program, in the command line or environment, and
//! in the tools.

use std::{ops::ControlFlow, process::ExitCode};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT};

macro_rules! exit_codes {
    ($($name:ident = $code:literal $meaning:literal,)+) => {
        /// The exit code of a tool.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(into = "u8", from = "u8")]
        #[repr(u8)]
        pub enum Exit {
            $(#[doc = $meaning] $name = $code,)+
        }

        impl Exit {
            /// All exit codes, with what they mean. `docs/exit-codes.md` says what to do about each.
            pub const ALL: &[(Self, &'static str)] = &[$((Self::$name, $meaning)),+];
        }
    };
}

exit_codes! {
    Success = 0 "success",
    Rejected = 1 "the program is rejected, or does not fail in the way that hir reduce is given",
    Usage = 2 "wrong command line, or a wrong option of a pass",
    WrongResult = 3 "wrong result",
    Hang = 4 "hang or deadlock",
    Device = 5 "CUDA or NCCL error",
    Environment = 6 "environment: a file, a library, a GPU or another rank is missing",
    Check = 7 "the check found a race, a deadlock or an unwritten output",
    Undecided = 8 "not decided: too little was compared",
    OnARange = 9 "certified where conditions on inputs hold",
    InternalError = 101 "internal error",
    HungUp = 129 "stopped by SIGHUP",
    Interrupted = 130 "stopped by SIGINT",
    Terminated = 143 "stopped by SIGTERM",
}

impl Exit {
    /// Converts the exit code of a process; a code that no tool uses is an internal error.
    pub fn from_code(code: u8) -> Self {
        Self::ALL.iter().find(|it| it.0 as u8 == code).map_or(Self::InternalError, |it| it.0)
    }

    /// Returns the exit code of a process that a signal stopped: 128 plus the signal number, as in shells.
    pub fn from_signal(signal: i32) -> Self {
        match signal {
            SIGHUP => Self::HungUp,
            SIGINT => Self::Interrupted,
            _ => Self::Terminated,
        }
    }

    /// Returns whether the tool has done its work, and the code is what it found.
    pub fn is_verdict(self) -> bool {
        match self {
            Self::Success
            | Self::Rejected
            | Self::WrongResult
            | Self::Hang
            | Self::Check
            | Self::Undecided
            | Self::OnARange => true,
            Self::Usage
            | Self::Device
            | Self::Environment
            | Self::InternalError
            | Self::HungUp
            | Self::Interrupted
            | Self::Terminated => false,
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
            | Self::Check
            | Self::Undecided
            | Self::OnARange => ControlFlow::Continue(self),
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
