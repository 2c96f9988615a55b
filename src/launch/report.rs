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

/// The function that builds the report from the fault and every rank's progress, by rank. The progress is `None` if
/// nothing is known of the rank.
pub type ReportBuilder = Box<dyn Fn(&LaunchError, &[Option<RankProgress>]) -> JobReport + Send>;
