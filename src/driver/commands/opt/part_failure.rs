//! The failure of a part of the input.

use std::fmt;

use hir_process::exit::Exit;

/// Why a part has no result, in addition to the diagnostics about it.
pub struct PartFailure {
    /// How the process ends.
    pub exit: Exit,
    summary: String,
    /// What follows for the rest of the text.
    consequence: Option<String>,
}

impl PartFailure {
    /// A failure with its summary: part of a sentence, without a period.
    pub fn new(exit: Exit, summary: impl Into<String>) -> Self {
        Self { exit, summary: summary.into(), consequence: None }
    }

    /// Adds what follows for the rest of the text if the check has found faults.
    pub fn add_consequence(&mut self, text: &str) {
        if self.exit == Exit::Check {
            self.consequence = Some(text.to_owned());
        }
    }
}

impl fmt::Display for PartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary)?;
        self.consequence.as_ref().map_or(Ok(()), |it| write!(f, "; {it}"))
    }
}
