//! The Chrome trace format, which Perfetto and `chrome://tracing` read.
//!
//! Source: "Trace Event Format", the document of the Chromium project. A rank is a process and a row is a
//! thread; arrows (`s`, `f`) lead from the work that was waited for to the work that waited. A slice that never
//! ends has a beginning (`B`) without an end.

use serde_json::{Value, json};

use super::{Arrow, Slice, Timeline};

/// Returns the trace as JSON.
pub fn trace(timeline: &Timeline) -> String {
    let mut events = Vec::new();
    for (row, it) in timeline.rows.iter().enumerate() {
        let name = |kind: &str, name: &str| json!({"ph": "M", "name": kind, "pid": it.rank, "tid": row, "args": {"name": name}});
        if row == 0 || timeline.rows[row - 1].rank != it.rank {
            events.push(name("process_name", &format!("rank {}", it.rank)));
        }
        events.push(name("thread_name", &it.name));
        events.push(json!({"ph": "M", "name": "thread_sort_index", "pid": it.rank, "tid": row, "args": {"sort_index": row}}));
    }
    for (number, it) in timeline.slices.iter().enumerate() {
        events.push(slice(timeline, it));
        events.extend(timeline.arrow_to(number).into_iter().flat_map(|it| arrow(timeline, it)));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"times": timeline.source}})
        .to_string()
}

fn slice(timeline: &Timeline, it: &Slice) -> Value {
    let mut event = json!({
        "ph": if it.end.is_some() { "X" } else { "B" },
        "name": format!("{} ({})", it.label, it.location()),
        "cat": it.kind.name(),
        "pid": timeline.rows[it.row].rank,
        "tid": it.row,
        "ts": it.begin,
        "args": {"line": it.line, "iteration": it.iteration},
    });
    if let Some(end) = it.end {
        event["dur"] = json!(end - it.begin);
    }
    event
}

fn arrow(timeline: &Timeline, it: Arrow) -> [Value; 2] {
    let end = |phase: &str, slice: usize, time: f64| {
        let row = timeline.slices[slice].row;
        let rank = timeline.rows[row].rank;
        // `bp: e` binds the arrow to the slice around its end, not to the next one.
        json!({"ph": phase, "bp": "e", "id": it.to, "name": "waits for", "cat": "order", "pid": rank, "tid": row, "ts": time})
    };
    [end("s", it.from, it.from_time), end("f", it.to, it.to_time)]
}
