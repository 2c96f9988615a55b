//! The answer for programs that ask: who is at fault, who waits, and for what call.

use serde_json::{Value, json};

use crate::{
    explain::Finding,
    queues::{Call, Job},
    record::{Peer, Rank},
    report::{RankRow, Report},
    site::call_name,
    wording::place,
};

/// Makes the answer from the first finding.
pub(crate) fn answer(job: &Job<'_>, finding: Option<&Finding>, rows: &[RankRow]) -> Value {
    let ranks = |state: &str| {
        let mut ranks: Vec<Rank> =
            rows.iter().filter(|it| it.state == state).flat_map(|it| it.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        ranks
    };
    let call = finding.and_then(|it| it.labels.first()).map(|it| it.record);
    let call = call.map(|(rank, at)| Call { rank, at: at as u32 });
    let of_call = call.map(|it| {
        let record = job.record(it);
        let group = job.records.group(record.group);
        let number = if record.peer == Peer::None { record.seq } else { record.p2p_seq };
        json!({
            "rank": it.rank, "name": call_name(job.records, record), "place": place(job, it),
            "group": group.name, "description": group.description, "sequence_number": number,
            "is_message": record.peer != Peer::None,
        })
    });
    let list = |rows: &[RankRow]| -> Vec<Value> {
        let row = |it: &RankRow| json!({"ranks": it.ranks, "state": it.state, "call": it.call, "place": it.place, "position": it.position});
        rows.iter().map(row).collect()
    };
    json!({
        "code": finding.map(|it| it.code.text()),
        "guilty": finding.map_or(&[][..], |it| &it.ranks), "waiting": ranks("waits"), "without_dump": ranks("no dump"),
        "call": of_call, "evidence": finding.map_or(&[][..], |it| &it.notes), "ranks": list(rows),
    })
}

impl Report {
    /// Returns the answer as one JSON object: `verdict` (`hang`, `no hang`, `undecided`), `confidence` (`high` if the records show a hang and the rank, or that all
    /// calls have completed, `medium` if they show one of them, else `low`), `message`, and the ranks and the call that it is about.
    pub fn to_json(&self) -> Value {
        let names = self.findings.first().is_some_and(|it| !it.ranks.is_empty());
        let (verdict, confidence) = match (self.is_hang, self.proceeds) {
            (true, _) => ("hang", if names { "high" } else { "medium" }),
            (false, true) => ("no hang", "high"),
            (false, false) => ("undecided", if names { "medium" } else { "low" }),
        };
        let mut object = self.answer.clone();
        object["verdict"] = json!(verdict);
        object["confidence"] = json!(confidence);
        object["message"] = json!(self.verdict());
        object
    }
}
