//! Why a request has no answer, as a sentence for the user.

use grammar::Diagnostic;
use hir_sim::SampleRunError;
use passes::PipelineError;

use crate::format::FormatError;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The text has errors.
    #[error("the text has errors: correct them first")]
    Rejected,
    /// The text has no program.
    #[error("the text has no program")]
    NoProgram,
    /// There is no name at the offset that can be changed.
    #[error("there is no name to change here")]
    NoName,
    /// The new name is one of another kind.
    #[error("`{name}` is not the name of {kind}")]
    OtherKind {
        /// The new name.
        name: String,
        /// What is renamed, with an example.
        kind: &'static str,
    },
    /// Something of this kind has the new name.
    #[error("the program has `{0}` already")]
    NameTaken(String),
    /// The renamed text cannot be read, or means something else.
    #[error("with the name `{name}`, line {line} would have [{}] {}", fault.code.text(), fault.message)]
    NameRejected {
        /// The new name.
        name: String,
        /// The line, counted from 1.
        line: u32,
        /// What does not fit.
        fault: Box<Diagnostic>,
    },
    /// The renamed text has other programs.
    #[error("with the name `{0}`, the text has another number of programs")]
    OtherPrograms(String),
    /// A list of passes cannot be read.
    #[error("`{list}`: {}: {}", fault.message, fault.labels.first().map_or("", |it| it.1.as_str()))]
    PassList {
        /// The list.
        list: String,
        /// Why.
        fault: Box<Diagnostic>,
    },
    /// The passes cannot rewrite the program.
    #[error("{}: {}", .0, reasons(.0.error.diagnostics()))]
    Passes(Box<PipelineError>),
    /// The program has no plans.
    #[error("{}", reasons(.0.get(..1).unwrap_or_default()))]
    Plans(Vec<Diagnostic>),
    /// No single edit removes the races.
    #[error("no single edit removes these races: the help of each one says what to decide")]
    NoEdit,
    /// There is no estimate.
    #[error("the ranks have too many streams")]
    TooManyStreams,
    /// The text cannot be rewritten.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The program does not run.
    #[error(transparent)]
    Run(#[from] SampleRunError),
}

fn reasons(found: &[Diagnostic]) -> String {
    let all: Vec<String> = found.iter().map(|it| format!("[{}] {}", it.code.text(), it.message)).collect();
    all.join("; ")
}
