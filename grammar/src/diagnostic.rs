//! Errors, warnings and remarks as data; `render` prints them.
//!
//! Invariant: every diagnostic has a code of the `codes` table. Those about the text of a program have at least one position in it.

use crate::{
    codes::{Code, Severity},
    span::Span,
};

/// The help for a text that ends too early.
pub(crate) const TRUNCATED_HELP: &str =
    "if the text was cut off, copy all of it: a container ends with `} // %HostIrContainer`";

/// An edit of the text that replaces `span` by `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// The replaced range; empty for an insertion.
    pub span: Span,
    /// The replacement text.
    pub text: String,
}

/// One error, warning or remark.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The code of the diagnostic; `--explain` prints its paragraph.
    pub code: Code,
    /// The message; begins in lower case and has no full stop at its end.
    pub message: String,
    /// Positions with a label each: the main position first, then related positions. Empty if there is no text.
    pub labels: Vec<(Span, String)>,
    /// Additional information, such as the report of a deadlock. A note may have several lines.
    pub notes: Vec<String>,
    /// The number of further errors of the same kind that this one stands for; a note names their lines.
    pub alike: u32,
    /// Advice to the user, if there is any.
    pub help: Option<Box<str>>,
    /// Edits that correct the error or state explicitly what was inferred; empty if only the user can decide.
    /// `fix` applies them.
    pub fixes: Vec<Fix>,
    /// Command-line flags that resolve all diagnostics of this report; printed as its last line.
    pub remedy: Option<Box<str>>,
}

impl Diagnostic {
    /// Creates a diagnostic with one position; the label says what was expected there.
    pub fn new(code: Code, span: Span, message: impl Into<String>, label: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            labels: vec![(span, label.into())],
            notes: Vec::new(),
            alike: 0,
            help: None,
            fixes: Vec::new(),
            remedy: None,
        }
    }

    /// Creates a diagnostic about a whole file, or about something that is in no file.
    pub fn without_place(code: Code, message: impl Into<String>) -> Self {
        Self { labels: Vec::new(), ..Self::new(code, Span::default(), message, "") }
    }

    /// Sets the help text.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into().into_boxed_str());
        self
    }

    /// Adds a note.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds a related position.
    pub fn label(mut self, span: Span, label: impl Into<String>) -> Self {
        self.labels.push((span, label.into()));
        self
    }

    /// Adds an edit.
    pub fn fix(mut self, span: Span, text: impl Into<String>) -> Self {
        self.fixes.push(Fix { span, text: text.into() });
        self
    }

    /// Returns the severity of the diagnostic's code.
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// Returns whether the diagnostic is an error.
    pub fn is_error(&self) -> bool {
        self.severity() == Severity::Error
    }

    /// Returns the main position.
    pub fn span(&self) -> Span {
        self.labels.first().map(|(span, _)| *span).unwrap_or_default()
    }
}

/// Returns whether any of the diagnostics is an error.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(Diagnostic::is_error)
}
