//! The Chrome trace format, which Perfetto and `chrome://tracing` read.
//!
//! Source: "Trace Event Format", the document of the Chromium project. A rank is a process and a row is a
//! thread; arrows (`s`, `f`) lead from the work that was waited for to the work that waited. A slice that never
//! ends has a beginning (`B`) without an end.
//!
//! An arrow names no slice: readers attach each end to the innermost slice that is open on its row at its time, and
//! events with equal times take effect in the order of the file. So arrows follow all slices in the file, and both
//! ends are at the beginnings of their slices. Perfetto draws an arrow from the end of a slice to the beginning of
//! the other one, wherever its ends are.
//!
//! Perfetto turns an arrow around if the slice that it leads to begins first (`FlowTracker::End` in its
//! `flow_tracker.cc`), as a wait does whose cause begins later. Such an arrow leads to a slice within the wait,
//! `while gemm (line 8) runs on rank 0, stream 1`, which begins with the cause.
//!
//! Perfetto rounds times and durations to nanoseconds, separately, and drops a slice that then overlaps the one
//! before. So begins and ends are rounded here.

use serde_json::{Value, json};

use super::{Arrow, Slice, Timeline};

/// Returns a time in whole nanoseconds.
fn nanoseconds(microseconds: f64) -> i64 {
    (microseconds * 1e3).round() as i64
}

/// Returns nanoseconds as the microseconds of a trace.
fn time(nanoseconds: i64) -> Value {
    json!(nanoseconds as f64 / 1e3)
}

/// Returns the trace as JSON.
pub fn trace(timeline: &Timeline) -> String {
    let mut events = Vec::new();
    for (row, it) in timeline.rows.iter().enumerate() {
        let name = |kind: &str, name: &str| json!({"ph": "M", "name": kind, "pid": it.rank, "tid": row, "args": {"name": name}});
        if row == 0 || timeline.rows[row - 1].rank != it.rank {
            events.push(name("process_name", &format!("rank {}", it.rank)));
        }
        events.push(name("thread_name", &it.lane.to_string()));
        events.push(json!({"ph": "M", "name": "thread_sort_index", "pid": it.rank, "tid": row, "args": {"sort_index": row}}));
    }
    events.extend(timeline.slices.iter().map(|it| slice(timeline, it)));
    let arrows = (0..timeline.slices.len()).filter_map(|it| timeline.arrow_to(it));
    let arrows: Vec<Arrow> = arrows.filter(|it| joins_visible_slices(timeline, it)).collect();
    events.extend(arrows.iter().filter_map(|it| inner_slice(timeline, it)));
    events.extend(arrows.iter().flat_map(|it| arrow(timeline, it)));
    json!({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"times": timeline.source}})
        .to_string()
}

fn slice(timeline: &Timeline, it: &Slice) -> Value {
    let mut event = bar(timeline, it, it.begin, it.title(), it.kind.name());
    event["args"] = json!({"line": it.line, "iteration": it.iteration});
    event
}

/// Returns the part of a slice in which its cause runs, if its cause begins later than the slice.
fn inner_slice(timeline: &Timeline, arrow: &Arrow) -> Option<Value> {
    let (it, cause) = (&timeline.slices[arrow.to], &timeline.slices[arrow.from]);
    let row = &timeline.rows[cause.row];
    let name = format!("while {} runs on rank {}, {}", cause.title(), row.rank, row.lane);
    begins_later(it, cause).then(|| bar(timeline, it, cause.begin, name, "while"))
}

/// Returns true if the cause of a slice begins later than the slice.
fn begins_later(it: &Slice, cause: &Slice) -> bool {
    nanoseconds(it.begin) < nanoseconds(cause.begin)
}

/// Returns a bar on the row of a slice that ends with the slice.
fn bar(timeline: &Timeline, it: &Slice, begin: f64, name: String, category: &str) -> Value {
    let begin = nanoseconds(begin);
    let mut event = json!({
        "ph": if it.end.is_some() { "X" } else { "B" },
        "name": name,
        "cat": category,
        "pid": timeline.rows[it.row].rank,
        "tid": it.row,
        "ts": time(begin),
    });
    if let Some(end) = it.end {
        event["dur"] = time(nanoseconds(end) - begin);
    }
    event
}

fn arrow(timeline: &Timeline, arrow: &Arrow) -> [Value; 2] {
    let (it, cause) = (&timeline.slices[arrow.to], &timeline.slices[arrow.from]);
    let end = |phase: &str, slice: &Slice, begin: f64| {
        let rank = timeline.rows[slice.row].rank;
        // `bp: e` binds the arrow to the slice around its end, not to the next one.
        json!({
            "ph": phase, "bp": "e", "id": arrow.to, "name": "waits for", "cat": "order", "pid": rank,
            "tid": slice.row, "ts": time(nanoseconds(begin)),
        })
    };
    let reached = if begins_later(it, cause) { cause.begin } else { it.begin };
    [end("s", cause, cause.begin), end("f", it, reached)]
}

/// Returns true if the slices at both ends of an arrow, or what an inner slice is of them, are at least a nanosecond long.
/// A reader would attach an arrow at a shorter slice to the slice that follows.
fn joins_visible_slices(timeline: &Timeline, arrow: &Arrow) -> bool {
    let (it, cause) = (&timeline.slices[arrow.to], &timeline.slices[arrow.from]);
    let is_visible =
        |begin: f64, end: Option<f64>| end.is_none_or(|end| nanoseconds(begin) < nanoseconds(end));
    is_visible(cause.begin, cause.end) && is_visible(it.begin.max(cause.begin), it.end)
}
