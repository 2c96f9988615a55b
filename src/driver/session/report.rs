//! What a run reports on standard output.

use std::fmt;

use hir_process::exit::Exit;

/// A line of the report of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Commentary, which `--quiet` omits. It is printed after `# `.
    Note(String),
    /// What options ask for: tensors and rows of tables.
    Output(String),
    /// The result of the run, the last line.
    Verdict(Verdict),
}

impl Report {
    /// Returns a note.
    pub fn note(text: impl Into<String>) -> Self {
        Self::Note(text.into())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(text) => write!(f, "# {text}"),
            Self::Output(text) => f.write_str(text),
            Self::Verdict(verdict) => verdict.fmt(f),
        }
    }
}

/// The result of a run in one line: `[SUCCESS] …`, `[FAILED] …`, `[STOPPED] …` or, if what is at hand does not decide it, `[UNDECIDED] …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    kind: VerdictKind,
    /// The text after the kind.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerdictKind {
    Success,
    Failed,
    Stopped,
    Undecided,
}

impl Verdict {
    /// Returns the verdict on a run that ends with this exit code.
    pub fn of(exit: Exit, text: impl Into<String>) -> Self {
        let kind = match exit {
            Exit::Success => VerdictKind::Success,
            Exit::Undecided => VerdictKind::Undecided,
            _ if exit.is_signal() => VerdictKind::Stopped,
            _ => VerdictKind::Failed,
        };
        Self { kind, text: text.into() }
    }

    /// Returns the verdict on a run that found nothing wrong and could not show that all is right.
    pub fn undecided(text: impl Into<String>) -> Self {
        Self { kind: VerdictKind::Undecided, text: text.into() }
    }

    /// Returns the verdict on a run that failed.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { kind: VerdictKind::Failed, text: text.into() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            VerdictKind::Success => "SUCCESS",
            VerdictKind::Failed => "FAILED",
            VerdictKind::Stopped => "STOPPED",
            VerdictKind::Undecided => "UNDECIDED",
        };
        write!(f, "[{kind}] {}", self.text)
    }
}
