//! The kinds of failure that hir reduce preserves.

use grammar::InvalidOption;
use std::str::FromStr;

/// The failure to test for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureOracle {
    /// Unordered accesses, or results that depend on the schedule.
    Race,
    /// A deadlock under some schedule.
    Deadlock,
    /// Results that differ from a reference, or from the program before the passes.
    WrongResult,
    /// Passes that panic, or whose result fails a check.
    Crash,
    /// A shell command that exits with 0. The file replaces `%s`, or becomes the last argument.
    Command(String),
}

impl FromStr for FailureOracle {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        match text {
            "race" => Ok(Self::Race),
            "deadlock" => Ok(Self::Deadlock),
            "wrong-result" => Ok(Self::WrongResult),
            "crash" => Ok(Self::Crash),
            _ => match text.strip_prefix("cmd:").map(str::trim) {
                Some(command) if !command.is_empty() => Ok(Self::Command(command.to_owned())),
                Some(_) | None => {
                    Err("expected `race`, `deadlock`, `wrong-result`, `crash` or `cmd:COMMAND`".into())
                }
            },
        }
    }
}
