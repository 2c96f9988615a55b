//! `--remarks`: which remarks of passes are printed, and whether a missed overlap fails.

use clap::ValueEnum;
use grammar::{codes::Code, diagnostic::Diagnostic};

/// The value of `--remarks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RemarkLevel {
    /// Print which communications a pipeline left whole, and why.
    Missed,
    /// Print those that it overlapped too.
    All,
    /// Print which communications were left whole, and fail if there are any.
    Error,
}

/// `--remarks`, as the tools have it.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct RemarkFlags {
    /// Print what passes report about communications that they did not overlap; `error`: fail if there are any.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "missed")]
    remarks: Option<RemarkLevel>,
}

impl RemarkFlags {
    /// The remarks to print.
    pub fn select(self, remarks: &[Diagnostic]) -> impl Iterator<Item = &Diagnostic> {
        remarks.iter().filter(move |it| match self.remarks {
            None => false,
            Some(RemarkLevel::All) => true,
            Some(RemarkLevel::Missed | RemarkLevel::Error) => it.code == Code::MissedOverlap,
        })
    }

    /// Why the remarks make the program fail, if they do.
    pub fn failure_message(self, remarks: &[Diagnostic]) -> Option<String> {
        let missed = remarks.iter().filter(|it| it.code == Code::MissedOverlap).count();
        (self.remarks == Some(RemarkLevel::Error) && missed > 0)
            .then(|| format!("{missed} communications do not overlap (`--remarks=error`)"))
    }

    /// The name of the level.
    pub fn level_name(self) -> Option<String> {
        Some(self.remarks?.to_possible_value()?.get_name().to_owned())
    }
}
