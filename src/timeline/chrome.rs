//! The Chrome trace format, which Perfetto and `chrome://tracing` read.
//!
//! Source: "Trace Event Format", the document of the Chromium project. A rank is a process and a row is a
//! thread; arrows (`s`, `f`) lead from the work that was waited for to the work that waited. A slice that never
//! ends has a beginning (`B`) without an end.
//!
//! An arrow names no slice: readers attach each end to the slice that is open on its row at its time, and events
//! with equal times take effect in the order of the file. So arrows follow all slices, and their ends lie before
//! the ends of their slices, where the next slice may begin.
//!
//! Perfetto turns an arrow around if the slice that it leads to begins first (`FlowTracker::End` in its
//! `flow_tracker.cc`), as a wait does whose cause begins later. Such an arrow leads to a slice within the wait,
//! `while gemm (line 8) runs on rank 0, stream 1`, which begins with the cause.

use serde_json::{Value, json};

use super::{Arrow, Slice, Timeline};

/// The resolution of Perfetto, in microseconds.
const NANOSECOND: f64 = 1e-3;

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
    events.extend(timeline.slices.iter().map(|it| slice(timeline, it)));
    let arrows: Vec<Arrow> = (0..timeline.slices.len()).filter_map(|it| timeline.arrow_to(it)).collect();
    events.extend(arrows.iter().filter_map(|it| inner_slice(timeline, it)));
    events.extend(arrows.iter().flat_map(|it| arrow(timeline, it)));
    json!({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"times": timeline.source}})
        .to_string()
}

fn slice(timeline: &Timeline, it: &Slice) -> Value {
    let name = format!("{} ({})", it.label, it.location());
    let mut event = bar(timeline, it, it.begin, name, it.kind.name());
    event["args"] = json!({"line": it.line, "iteration": it.iteration});
    event
}

/// Returns the part of a slice in which its cause runs, if its cause begins later than the slice.
fn inner_slice(timeline: &Timeline, arrow: &Arrow) -> Option<Value> {
    let (it, cause) = (&timeline.slices[arrow.to], &timeline.slices[arrow.from]);
    let row = &timeline.rows[cause.row];
    let name =
        format!("while {} ({}) runs on rank {}, {}", cause.label, cause.location(), row.rank, row.name);
    (it.begin < cause.begin).then(|| bar(timeline, it, cause.begin, name, "while"))
}

/// Returns a bar on the row of a slice that ends with the slice.
fn bar(timeline: &Timeline, it: &Slice, begin: f64, name: String, category: &str) -> Value {
    let mut event = json!({
        "ph": if it.end.is_some() { "X" } else { "B" },
        "name": name,
        "cat": category,
        "pid": timeline.rows[it.row].rank,
        "tid": it.row,
        "ts": begin,
    });
    if let Some(end) = it.end {
        event["dur"] = json!(end - begin);
    }
    event
}

fn arrow(timeline: &Timeline, it: &Arrow) -> [Value; 2] {
    let end = |phase: &str, slice: usize, time: f64| {
        let slice = &timeline.slices[slice];
        let (row, rank) = (slice.row, timeline.rows[slice.row].rank);
        let time = slice.end.map_or(time, |end| time.min(end - NANOSECOND)).max(slice.begin);
        // `bp: e` binds the arrow to the slice around its end, not to the next one.
        json!({"ph": phase, "bp": "e", "id": it.to, "name": "waits for", "cat": "order", "pid": rank, "tid": row, "ts": time})
    };
    [end("s", it.from, it.from_time), end("f", it.to, it.to_time)]
}
