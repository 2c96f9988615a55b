//! Errors, warnings and remarks as data; `render` draws them.
//!
//! Invariant: every diagnostic has a code of the `codes` table and at least one place in the text.

use crate::{
    codes::{Code, Severity},
    span::Span,
};

/// An edit of the text: `span` becomes `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What is replaced; empty where something is put in.
    pub span: Span,
    /// What stands there then.
    pub text: String,
}

/// One error, warning or remark.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Which kind of fault, with its paragraph in `--explain`.
    pub code: Code,
    /// What is wrong, lower case, no final stop.
    pub message: String,
    /// The main place first, then related ones, each with what to see there.
    pub labels: Vec<(Span, String)>,
    /// What else there is to know, such as the report of a deadlock: each may have several lines.
    pub notes: Vec<String>,
    /// The way out, when one is known.
    pub help: Option<Box<str>>,
    /// The edits that write down what was guessed; none where only the user knows. `fix` applies them.
    pub fixes: Vec<Fix>,
    /// Command-line flags that resolve everything reported together with this; the last line of the report.
    pub remedy: Option<Box<str>>,
}

impl Diagnostic {
    /// A diagnostic at one place; the label says what was expected there.
    pub fn new(code: Code, span: Span, message: impl Into<String>, label: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            labels: vec![(span, label.into())],
            notes: Vec::new(),
            help: None,
            fixes: Vec::new(),
            remedy: None,
        }
    }

    /// Adds the way out.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into().into_boxed_str());
        self
    }

    /// Adds what else there is to know.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a related place.
    pub fn label(mut self, span: Span, label: impl Into<String>) -> Self {
        self.labels.push((span, label.into()));
        self
    }

    /// Adds an edit that says what was guessed.
    pub fn fix(mut self, span: Span, text: impl Into<String>) -> Self {
        self.fixes.push(Fix { span, text: text.into() });
        self
    }

    /// Error, warning or remark, as the code says.
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// The main place.
    pub fn span(&self) -> Span {
        self.labels.first().map(|(span, _)| *span).unwrap_or_default()
    }
}

/// Whether any of them rejects the program.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(|it| it.severity() == Severity::Error)
}
