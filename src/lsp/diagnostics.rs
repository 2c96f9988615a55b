//! Turns hir's diagnostics into those of the protocol.

use grammar::{Code, Diagnostic, Severity, Span};
use lsp_types::{
    CodeDescription, DiagnosticRelatedInformation, DiagnosticSeverity, DiagnosticTag, Location,
    NumberOrString, Uri,
};
use serde::{Deserialize, Serialize};

use crate::{check::CheckReport, snapshot::Snapshot};

/// Whom the editor names beside a diagnostic.
const SOURCE: &str = "hir";

/// Returns everything that is known about a text: what the reader reports, then what the check has found.
pub(crate) fn all(uri: &Uri, snapshot: &Snapshot, report: &CheckReport) -> Vec<lsp_types::Diagnostic> {
    let known = snapshot.diagnostics.iter().chain(&report.findings);
    let mut shown: Vec<_> = known.flat_map(|it| converted(uri, snapshot, it)).collect();
    shown.extend(report.not_checked.iter().map(|(header, reason)| lsp_types::Diagnostic {
        range: snapshot.range(*header),
        severity: Some(DiagnosticSeverity::INFORMATION),
        source: Some(SOURCE.to_owned()),
        message: format!("not checked: {reason}"),
        ..Default::default()
    }));
    shown
}

/// Returns a diagnostic at its main position and, for a finding about several statements, one at each of the others, too: a
/// race has two statements, and both are marked.
pub(crate) fn converted(uri: &Uri, snapshot: &Snapshot, it: &Diagnostic) -> Vec<lsp_types::Diagnostic> {
    let marked = if concerns_all_labels(it.code) { it.labels.len() } else { 1 };
    let labels = it.labels.iter().enumerate();
    let one = |(at, (span, label)): (usize, &(Span, String))| lsp_types::Diagnostic {
        range: snapshot.range(*span),
        severity: Some(severity(it.severity())),
        code: Some(NumberOrString::String(it.code.text().to_owned())),
        source: Some(SOURCE.to_owned()),
        message: message(it, label),
        related_information: related(uri, snapshot, it, at),
        tags: is_unneeded(it.code).then(|| vec![DiagnosticTag::UNNECESSARY]),
        ..Default::default()
    };
    labels.take(marked.max(1)).map(one).collect()
}

/// What the code of a diagnostic means: `hir/explain`, which a client sends that shows texts of the server.
pub(crate) enum ExplainRequest {}

/// The code of `hir/explain`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExplainParams {
    /// As `E0701`.
    pub(crate) code: String,
}

impl lsp_types::request::Request for ExplainRequest {
    type Params = ExplainParams;
    type Result = String;
    const METHOD: &'static str = "hir/explain";
}

/// Makes the code of a diagnostic a link, for whose text the client sends `hir/explain`.
pub(crate) fn add_link(it: &mut lsp_types::Diagnostic) {
    if let Some(NumberOrString::String(code)) = &it.code {
        let href = format!("hir-answer:/{code}.txt").parse().ok();
        it.code_description = href.map(|href| CodeDescription { href });
    }
}

/// Returns the message with the label, notes and help that other tools print below it.
fn message(it: &Diagnostic, label: &str) -> String {
    let mut text = it.message.clone();
    if !label.is_empty() {
        text += &format!("\nhere: {label}");
    }
    it.notes.iter().for_each(|note| text += &format!("\nnote: {note}"));
    it.help.iter().for_each(|help| text += &format!("\nhelp: {help}"));
    it.remedy.iter().for_each(|flags| text += &format!("\non the command line: {flags}"));
    text
}

/// Returns the positions of a diagnostic other than the one with index `at`.
fn related(
    uri: &Uri,
    snapshot: &Snapshot,
    it: &Diagnostic,
    at: usize,
) -> Option<Vec<DiagnosticRelatedInformation>> {
    let others = it.labels.iter().enumerate().filter(|(other, _)| *other != at);
    let related: Vec<_> = others
        .map(|(_, (span, label))| DiagnosticRelatedInformation {
            location: Location::new(uri.clone(), snapshot.range(*span)),
            message: label.clone(),
        })
        .collect();
    (!related.is_empty()).then_some(related)
}

fn severity(it: Severity) -> DiagnosticSeverity {
    match it {
        Severity::Error => DiagnosticSeverity::ERROR,
        Severity::Warning => DiagnosticSeverity::WARNING,
        Severity::Remark => DiagnosticSeverity::INFORMATION,
    }
}

/// Returns whether each position of a diagnostic is as much at fault as the first one.
fn concerns_all_labels(code: Code) -> bool {
    is_race(code) || code == Code::CommunicatorOrder
}

/// Returns whether a diagnostic reports a race.
pub(crate) fn is_race(code: Code) -> bool {
    matches!(code, Code::Race | Code::RaceWithCaller | Code::RaceBetweenRuns | Code::StorageRace)
}

/// Returns whether a diagnostic says that its statement has no effect, so that the editor can fade it.
fn is_unneeded(code: Code) -> bool {
    matches!(code, Code::ImpliedWait | Code::UnneededWait | Code::UnreadWrite | Code::RedundantAllocate)
}
