//! The flag `--remarks`, which selects the remarks of passes to print and whether a missed overlap is an
//! error.

use clap::ValueEnum;
use grammar::{Code, Diagnostic};

use passes::PassCall;

use crate::{auto, tool};

/// The value of `--remarks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RemarkLevel {
    /// Print the communications that a pipeline did not overlap, and the passes that had no effect, and why.
    Missed,
    /// Print the communications that it overlapped, too.
    All,
    /// Print the same as for `missed`, and fail if a communication was not overlapped.
    Error,
}

/// The flag `--remarks`, shared by the tools.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct RemarkFlags {
    /// Print the remarks of passes about communications that they did not overlap, and of passes that had no
    /// effect; `error`: fail if a communication was not overlapped [without a value: missed].
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "missed")]
    remarks: Option<RemarkLevel>,
}

impl RemarkFlags {
    /// Returns whether remarks are printed, or fail the run.
    pub fn is_requested(self) -> bool {
        self.remarks.is_some()
    }

    /// Returns the remarks of some passes to print. If `auto` is one of them, all `PassRemark`s are printed: those of `auto` say what it has
    /// chosen.
    pub fn select<'r>(
        self,
        remarks: &'r [Diagnostic],
        calls: &[PassCall],
    ) -> impl Iterator<Item = &'r Diagnostic> {
        let chooses = calls.iter().any(|it| it.pass.name == auto::PASS.name);
        remarks.iter().filter(move |it| match self.remarks {
            None => it.code == Code::OtherKept || chooses && it.code == Code::PassRemark,
            Some(RemarkLevel::All) => true,
            Some(RemarkLevel::Missed | RemarkLevel::Error) => it.code != Code::Overlapped,
        })
    }

    /// Returns an error message if the remarks make the run fail.
    pub fn failure_message(self, remarks: &[Diagnostic]) -> Option<String> {
        let missed = remarks.iter().filter(|it| it.code == Code::MissedOverlap).count();
        let kept = remarks.iter().any(|it| it.code == Code::OtherKept);
        let message = match missed {
            0 if kept => "the program without overlap is kept".to_owned(),
            0 => return None,
            1 => "1 communication does not overlap".to_owned(),
            _ => format!("{missed} communications do not overlap"),
        };
        (self.remarks == Some(RemarkLevel::Error)).then(|| format!("{message} (`--remarks=error`)"))
    }

    /// Returns the value of the flag, if it is given.
    pub fn level_name(self) -> Option<String> {
        self.remarks.map(tool::value_name)
    }
}
