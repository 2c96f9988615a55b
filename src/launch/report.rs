//! The report of a lost job.

use super::{LaunchError, progress::RankProgress};

/// The report of a lost job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// The cause.
    pub cause: String,
    /// More about the cause, and what the ranks were doing, line by line.
    pub notes: Vec<String>,
}

impl JobReport {
    /// Creates a report from its lines, the cause first.
    pub fn from_lines(lines: impl IntoIterator<Item = String>) -> Self {
        let mut lines = lines.into_iter();
        Self { cause: lines.next().unwrap_or_default(), notes: lines.collect() }
    }
}

/// Builds the report from the fault and the progress of every rank, by rank; `None` for a rank of which nothing is known.
/// The caller supplies it, because only the caller knows the plans.
pub type ReportBuilder = Box<dyn Fn(&LaunchError, &[Option<RankProgress>]) -> JobReport + Send>;
