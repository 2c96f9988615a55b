//! An open document: its text, which the editor changes, the text as it was read last, and what its check has found.

use std::sync::Arc;

use grammar::{Diagnostic, Span};
use lsp_types::{TextDocumentContentChangeEvent, Uri};

use crate::{
    check::{CheckReport, RunningCheck},
    positions::Positions,
    snapshot::Snapshot,
};

/// A document that is open in the editor.
pub(crate) struct Document {
    /// The name that the editor uses.
    pub(crate) uri: Uri,
    /// The version that the editor gave to the text.
    version: i32,
    text: String,
    positions: Positions,
    /// The text as it was read; `None` after a change that was not read yet.
    snapshot: Option<Arc<Snapshot>>,
    /// Whether the editor knows what the reader says about the text.
    pub(crate) is_reported: bool,
    /// Whether the editor knows what the check says about the text.
    pub(crate) is_checked: bool,
    /// What the check has found. Positions follow the changes of the text since then.
    pub(crate) report: CheckReport,
    /// The check of the text, while it runs.
    pub(crate) check: Option<RunningCheck>,
}

impl Document {
    /// Opens a document.
    pub(crate) fn new(uri: Uri, version: i32, text: String) -> Self {
        let positions = Positions::new(&text);
        Self {
            uri,
            version,
            text,
            positions,
            snapshot: None,
            is_reported: false,
            is_checked: false,
            report: CheckReport::default(),
            check: None,
        }
    }

    /// Returns the last part of the document's name.
    fn file_name(&self) -> &str {
        self.uri.as_str().rsplit('/').next().unwrap_or_default()
    }

    /// Returns whether the text has changed since it was read.
    pub(crate) fn is_changed(&self) -> bool {
        self.snapshot.is_none()
    }

    /// Returns the text as it was read; reads it if it has changed.
    pub(crate) fn snapshot(&mut self) -> Arc<Snapshot> {
        if let Some(known) = &self.snapshot {
            return Arc::clone(known);
        }
        let (text, positions) = (self.text.clone(), self.positions.clone());
        let read = Arc::new(Snapshot::read(self.file_name(), self.version, text, positions));
        if read.is_rejected() {
            self.report = CheckReport::default();
        }
        Arc::clone(self.snapshot.insert(read))
    }

    /// Applies changes in order. Each refers to the text after the one before it.
    pub(crate) fn change(&mut self, version: i32, changes: Vec<TextDocumentContentChangeEvent>) {
        for change in changes {
            match change.range {
                None => {
                    self.text = change.text;
                    self.report = CheckReport::default();
                }
                Some(range) => {
                    let span = self.positions.span(&self.text, range);
                    self.text.replace_range(span.start as usize..span.end as usize, &change.text);
                    self.report.findings.retain_mut(|it| follow_change(it, span, change.text.len() as u32));
                }
            }
            self.positions = Positions::new(&self.text);
        }
        self.version = version;
        self.snapshot = None;
        self.is_reported = false;
        self.is_checked = false;
        self.check = None;
        self.report.not_checked.clear();
        self.report.summaries.clear();
    }
}

/// Moves a finding along with a change that replaces `changed` by `length` bytes. Returns false if the change concerns the
/// finding, which then may no longer hold.
fn follow_change(finding: &mut Diagnostic, changed: Span, length: u32) -> bool {
    // Edits were made for the text before the change.
    finding.fixes.clear();
    let concerned = |span: &Span| span.start < changed.end.max(changed.start + 1) && changed.start < span.end;
    if finding.labels.iter().any(|(span, _)| concerned(span)) {
        return false;
    }
    let moved = |at: u32| at - (changed.end - changed.start) + length;
    for (span, _) in finding.labels.iter_mut().filter(|(span, _)| span.start >= changed.end) {
        *span = Span { start: moved(span.start), end: moved(span.end) };
    }
    true
}
