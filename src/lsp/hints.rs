//! Inlay hints: what a statement does not state itself. The stream on which it is issued, how long it takes, what a Wait waits for, and
//! the domains that the reader has inferred.

use grammar::{OpClass, Place, Program, Span, Stmt, StmtId, attr, axis_text, summary};
use hir_ir::streams::StreamFacts;
use lsp_types::{InlayHint, InlayHintLabel};
use rustc_hash::FxHashMap;

use crate::{
    estimate::Summary,
    snapshot::Snapshot,
    streams::{CurrentStream, current_stream},
};

/// The longest description of a communication in a hint, in characters.
const MAX_LABEL: usize = 60;

/// Returns the hints of a part of a text. `summaries` are those of the check.
pub(crate) fn hints(snapshot: &Snapshot, summaries: &[Summary], shown: Span) -> Vec<InlayHint> {
    let of = |program: &Program| {
        let summary = summaries.iter().find(|it| it.header == program.spans.header);
        hints_of(snapshot, program, summary, shown)
    };
    snapshot.programs.iter().flat_map(of).collect()
}

fn hints_of(
    snapshot: &Snapshot,
    program: &Program,
    summary: Option<&Summary>,
    shown: Span,
) -> Vec<InlayHint> {
    let streams = StreamFacts::of(program);
    let posts = posts(program);
    let mut found = Vec::new();
    let mut add = |at: u32, label: String, tooltip: &str| {
        if shown.start <= at && at <= shown.end {
            found.push(InlayHint {
                position: snapshot.positions.position(snapshot.text(), at),
                label: InlayHintLabel::String(label),
                kind: None,
                text_edits: None,
                tooltip: Some(tooltip.to_owned().into()),
                padding_left: Some(true),
                padding_right: None,
                data: None,
            });
        }
    };
    for (place, span) in program.places() {
        let Place::Stmt(stmt) = place else { continue };
        let Stmt::Op(it) = &program.stmts[stmt] else { continue };
        let number = it.get(attr::WORK).filter(|_| it.op.def().class == OpClass::Wait);
        if let Some(number) = number {
            let mut before = posts.get(&number).into_iter().flatten();
            let post = before.rfind(|it| program.stmt_span(**it).start < span.start);
            if let Some(post) = post {
                let line = snapshot.source.lines.line(program.stmt_span(*post).start);
                add(span.end, format!("⟵ line {line}: {}", described(program, *post)), "what this waits for");
            }
            continue;
        }
        let line = |stmt| snapshot.source.lines.line(program.stmt_span(stmt).start);
        let (mut labels, mut tooltips) = (Vec::new(), Vec::new());
        if let Some(CurrentStream::Set(stream, by)) = current_stream(program, &streams, stmt)
            && it.op.def().class != OpClass::Allocate
        {
            labels.push(stream);
            tooltips.push(match by {
                Some(by) => format!("the stream that line {} makes current", line(by)),
                None => "the stream that is current on all paths".to_owned(),
            });
        }
        let time = summary.and_then(|it| it.times.get(&line(stmt)));
        if let Some(time) = time.filter(|it| **it > 0.0) {
            labels.push(format!("{time:.1} µs"));
            tooltips.push("the estimated time of all iterations, on the rank where it is longest".to_owned());
        }
        if !labels.is_empty() {
            add(span.end, labels.join(" · "), &tooltips.join("; "));
        }
    }
    if program.spans.are_domains_inferred {
        for tensor in program.tensors.ids().filter(|it| !program.has_plain_domains(*it)) {
            let axes: Vec<String> = program.dimensions(tensor).map(|it| axis_text(program, it)).collect();
            let at = program.mesh_span(tensor).map_or(program.tensor_span(tensor).end, |it| it.end);
            add(at, format!("logical({})", axes.join(", ")), "inferred: the text does not state this domain");
        }
    }
    found
}

/// Returns the statements that post each number, in the order of the text.
fn posts(program: &Program) -> FxHashMap<u32, Vec<StmtId>> {
    let mut found: FxHashMap<u32, Vec<StmtId>> = FxHashMap::default();
    for stmt in program.stmts.ids() {
        if let Some(number) = program.posted_work(stmt) {
            found.entry(number).or_default().push(stmt);
        }
    }
    found.values_mut().for_each(|it| it.sort_by_key(|stmt| program.stmt_span(*stmt)));
    found
}

/// Describes a communication briefly: its type and its tensors.
fn described(program: &Program, stmt: StmtId) -> String {
    let Stmt::Op(it) = &program.stmts[stmt] else { return String::new() };
    let name = |tensor| program.tensor_name(tensor);
    let kind = it.get(attr::TYPE).map(|it| it.to_string());
    let kind = kind.or_else(|| it.get(attr::P2P_TYPE).map(|it| it.to_string()));
    let kind = kind.unwrap_or_else(|| it.op.name().to_owned());
    match (it.get(attr::INPUT), it.get(attr::OUTPUT), it.get(attr::BUFFER)) {
        (Some(input), Some(output), _) if input == output => format!("{kind} of {}", name(input)),
        (Some(input), Some(output), _) => format!("{kind} of {} to {}", name(input), name(output)),
        (_, _, Some(buffer)) => format!("{kind} of {}", name(buffer)),
        _ => summary(program, stmt).chars().take(MAX_LABEL).collect(),
    }
}
