//! Loads Chrome traces into Perfetto's own trace processor, and compares what it shows with the timelines.
//!
//! `HIR_PERFETTO` is the folder of Perfetto's user interface, which contains the trace processor as WebAssembly.
//! The trials run it with Node.js. Without the variable they are ignored.

use std::{fmt::Write, fs, path::Path, process::Command};

use grammar::span::LineIndex;
use hir_plan::timeline::{Timeline, estimator::Estimator};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;

use super::{ROOT, emulator, timeline};
use crate::{pipelines::lowered, rng::Rng, timeout::RunWithTimeout};

/// Slices: rank, row, name of the rank, name of the row, nanoseconds of begin and duration, name, line, iteration. The
/// duration of a slice that never ends is -1.
const SLICES: &str = "SELECT pid, tid, process.name, thread.name, ts, slice.dur, slice.name, \
     EXTRACT_ARG(slice.arg_set_id, 'args.line'), EXTRACT_ARG(slice.arg_set_id, 'args.iteration') \
     FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) \
     JOIN process USING (upid) WHERE depth = 0";
/// Arrows: rank, row, begin and name of the slice at each end. An arrow may lead to a slice within one.
const ARROWS: &str = "SELECT p1.pid, t1.tid, s1.ts, s1.name, p2.pid, t2.tid, s2.ts, s2.name FROM flow \
     JOIN slice s1 ON slice_out = s1.id JOIN thread_track k1 ON s1.track_id = k1.id \
     JOIN thread t1 ON k1.utid = t1.utid JOIN process p1 ON t1.upid = p1.upid \
     JOIN slice s2 ON COALESCE((SELECT parent_id FROM slice WHERE id = slice_in), slice_in) = s2.id \
     JOIN thread_track k2 ON s2.track_id = k2.id \
     JOIN thread t2 ON k2.utid = t2.utid JOIN process p2 ON t2.upid = p2.upid";
/// Slices within slices to which no arrow leads, or that begin when no slice does that such an arrow leaves.
const USELESS: &str = "SELECT part.name FROM slice part WHERE depth > 0 AND (depth > 1 OR NOT EXISTS \
     (SELECT 1 FROM flow JOIN slice cause ON slice_out = cause.id WHERE slice_in = part.id AND cause.ts = part.ts))";
/// What the trace processor could not read.
const FAULTS: &str = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0";

/// A deadlock, and programs with waits for communications that wait for others themselves.
const MORE: &[(&str, &str)] = &[
    ("tests/cases/deadlock/one-rank-skips.hir", "canonicalize"),
    ("samples/pipeline.hir", "@overlap"),
    ("samples/pipeline-sendrecv.hir", "canonicalize"),
    ("tests/cases/stream/meshes.hir", "@lower"),
];
/// Number of times that the durations and clocks of each program are drawn at random.
const DRAWS: usize = 2;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let is_missing = std::env::var_os("HIR_PERFETTO").is_none();
    let trial = |(file, pipeline): &(&'static str, &'static str)| {
        let (file, pipeline) = (*file, *pipeline);
        let name = format!("perfetto::{file} {pipeline}");
        Trial::test(name, move || shows_the_timeline(file, pipeline)).with_ignored_flag(is_missing)
    };
    let mut trials: Vec<Trial> = timeline::LOWERED.iter().chain(MORE).map(trial).collect();
    trials.push(
        Trial::test("perfetto::of_emulated_gpus", of_emulated_gpus)
            .with_ignored_flag(is_missing || emulator::is_missing()),
    );
    trials
}

/// Every row, slice and arrow of a timeline is in Perfetto's tables, and nothing else: of the estimated one, and of
/// some whose times are fractions of nanoseconds and differ between ranks.
fn shows_the_timeline(file: &str, pipeline: &str) -> Result<(), Failed> {
    let text = fs::read_to_string(Path::new(ROOT).join(file))?;
    let (program, _) = lowered(pipeline, &text)?.ok_or("not lowered")?;
    let plans = hir_plan::build(&program, &LineIndex::new(&text), hir_plan::smallest_world(&program));
    let plans = plans.map_err(|faults| format!("{faults:?}"))?;
    let exact = Estimator::default().timeline(&plans, None).map_err(|_| "too many streams")?;
    compare(&exact)?;
    let mut rng = Rng(16);
    for _ in 0..DRAWS {
        let stretch = 1.0 + rng.below(1_000_000) as f64 / 1e6;
        let clock = |_| rng.below(9_000_000) as f64 / 1e6;
        let clocks: Vec<f64> = plans.iter().map(clock).collect();
        let shown = timeline::with_clocks(&plans, &exact, stretch, &clocks)?;
        compare(&shown)?;
    }
    Ok(())
}

fn compare(shown: &Timeline) -> Result<(), Failed> {
    let found = query(&timeline::files_of(shown)?.trace.to_string(), &[SLICES, ARROWS, USELESS])?;
    let (slices, arrows) = expected(shown);
    equal("slices", slices, &found[0])?;
    equal("arrows", arrows, &found[1])?;
    equal("slices without a purpose", Vec::new(), &found[2])
}

/// Returns the rows that `SLICES` and `ARROWS` have to find.
fn expected(timeline: &Timeline) -> (Vec<String>, Vec<String>) {
    // Times of a trace are microseconds.
    let nanoseconds = |time: f64| (time * 1000.0).round() as i64;
    let name = |slice: usize| timeline.slices[slice].title();
    let (mut slices, mut arrows) = (Vec::new(), Vec::new());
    for (number, it) in timeline.slices.iter().enumerate() {
        let row = &timeline.rows[it.row];
        let duration = it.end.map_or(-1, |end| nanoseconds(end) - nanoseconds(it.begin));
        let (rank, name_of_row, begin) = (row.rank, row.lane.to_string(), nanoseconds(it.begin));
        slices.push(format!(
            "{rank} {} rank {rank} {name_of_row} {begin} {duration} {} {} {}",
            it.row,
            name(number),
            it.line.unwrap_or(0),
            it.iteration
        ));
        // An arrow needs a bar with a length at each end.
        let is_visible = |from: f64, to: Option<f64>| to.is_none_or(|to| nanoseconds(from) < nanoseconds(to));
        let arrow = timeline.arrow_to(number).filter(|arrow| {
            let cause = &timeline.slices[arrow.from];
            is_visible(cause.begin, cause.end) && is_visible(it.begin.max(cause.begin), it.end)
        });
        if let Some(arrow) = arrow {
            let end = |slice: usize| {
                let it = &timeline.slices[slice];
                let rank = timeline.rows[it.row].rank;
                format!("{rank} {} {} {}", it.row, nanoseconds(it.begin), name(slice))
            };
            arrows.push(format!("{} {}", end(arrow.from), end(arrow.to)));
        }
    }
    (slices, arrows)
}

/// Fails with the rows that only one side has.
fn equal(what: &str, mut expected: Vec<String>, found: &[Vec<Value>]) -> Result<(), Failed> {
    let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
    let mut found: Vec<String> =
        found.iter().map(|row| row.iter().map(text).collect::<Vec<_>>().join(" ")).collect();
    expected.sort_unstable();
    found.sort_unstable();
    if expected == found {
        return Ok(());
    }
    let mut message = format!("{} {what} expected, {} found\n", expected.len(), found.len());
    for it in expected.iter().filter(|it| !found.contains(it)) {
        let _ = writeln!(message, "missing: {it}");
    }
    for it in found.iter().filter(|it| !expected.contains(it)) {
        let _ = writeln!(message, "found:   {it}");
    }
    Err(message.into())
}

/// Perfetto reads a trace of measured times without faults, and shows each of its slices and arrows.
fn of_emulated_gpus() -> Result<(), Failed> {
    let arguments = ["--ranks", "4", "--device=cuda"];
    let files = timeline::run("tests/cases/launch/loop.hir", &arguments, &emulator::environment()?)?;
    let events = files.trace["traceEvents"].as_array().ok_or("no events")?;
    let count = |phase: &str| events.iter().filter(|it| it["ph"] == phase && it["cat"] != "while").count();
    let found = query(&files.trace.to_string(), &[SLICES, ARROWS])?;
    if (found[0].len(), found[1].len()) == (count("X"), count("s")) && count("s") > 0 {
        Ok(())
    } else {
        Err(format!("{} slices, {} arrows: {events:?}", found[0].len(), found[1].len()).into())
    }
}

/// Loads a trace and returns the rows of each query. Fails if the trace processor could not read all of it.
fn query(trace: &str, queries: &[&str]) -> Result<Vec<Vec<Vec<Value>>>, Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trace.json");
    fs::write(&file, trace)?;
    let mut node = Command::new("node");
    node.arg(Path::new(ROOT).join("tests/suite/perfetto/query.js"))
        .arg(std::env::var_os("HIR_PERFETTO").unwrap_or_default())
        .arg(&file)
        .arg(FAULTS)
        .args(queries);
    let out = node.output_with_timeout().map_err(|fault| format!("node: {fault}"))?;
    let lines = String::from_utf8_lossy(&out.stdout);
    let mut results: Vec<Vec<Vec<Value>>> =
        lines.lines().map(serde_json::from_str).collect::<Result<_, _>>().unwrap_or_default();
    if !out.status.success() || results.len() != queries.len() + 1 {
        return Err(format!("{:?}: {}", out.status, String::from_utf8_lossy(&out.stderr)).into());
    }
    let faults = results.remove(0);
    if faults.is_empty() {
        Ok(results)
    } else {
        Err(format!("Perfetto reports faults of the trace: {faults:?}").into())
    }
}
