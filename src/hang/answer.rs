//! The answer for programs that ask: who is at fault, who waits, and for what call.

use serde_json::{Value, json};

use crate::{
    dumps::Dumps,
    explain::Label,
    record::{Peer, Rank},
    report::{RankRow, Report},
    site::call_name,
};

/// Returns the answer as one JSON object: `verdict` (`hang`, `no hang`, `undecided`), `confidence` (`high` if the records show a hang and the rank, or that all
/// calls have completed, `medium` if they show one of them, else `low`), `message`, and the ranks and the call that it is about.
pub fn answer(dumps: &Dumps, report: &Report) -> Value {
    let finding = report.findings.first();
    let guilty = finding.map_or(&[][..], |it| &it.ranks);
    let (verdict, confidence) = match (report.is_hang, report.proceeds) {
        (true, _) => ("hang", if guilty.is_empty() { "medium" } else { "high" }),
        (false, true) => ("no hang", "high"),
        (false, false) => ("undecided", if guilty.is_empty() { "low" } else { "medium" }),
    };
    let ranks = |state: &str| {
        let rows = report.rows.iter().filter(|it| it.state == state);
        let mut ranks: Vec<Rank> = rows.flat_map(|it| it.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        ranks
    };
    let row = |it: &RankRow| json!({"ranks": it.ranks, "state": it.state, "call": it.call, "place": it.place, "position": it.position});
    json!({
        "verdict": verdict, "confidence": confidence, "message": report.verdict(), "code": finding.map(|it| it.code.text()),
        "guilty": guilty, "waiting": ranks("waits"), "without_dump": ranks("no dump"),
        "call": finding.and_then(|it| it.labels.first()).and_then(|it| call(dumps, it)),
        "evidence": finding.map_or(&[][..], |it| &it.notes), "ranks": report.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn call(dumps: &Dumps, label: &Label) -> Option<Value> {
    let (rank, at) = label.record;
    let records = &dumps.records;
    let record = records.log(rank)?.records.get(at)?;
    let group = records.group(record.group);
    let is_message = record.peer != Peer::None;
    Some(json!({
        "rank": rank, "name": call_name(records, record), "group": group.name, "description": group.description,
        "place": label.site.as_ref().map(|it| format!("{}:{}", it.file, it.line)),
        "sequence_number": if is_message { record.p2p_seq } else { record.seq }, "is_message": is_message,
    }))
}
