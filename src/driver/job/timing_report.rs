//! Formats the measured times of a job on GPUs as tables and as JSON.

use std::time::Duration;

use super::gpu::GpuRunResult;
use crate::session::Report;
use hir_executor::{CallCost, Executor, ExecutorError, HostProfile, LineProfile, Timing};
use hir_plan::Plan;

/// Formats a timing as a table in the format of nccl-tests: one row for the whole program, whose size is that
/// of all outputs of one rank, and one row for each source line.
pub fn timing_table(timing: &Timing, lines: &[LineProfile], plans: &[Plan]) -> Vec<Report> {
    let bytes = |plan: &Plan| -> usize {
        plan.outputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.len() * it.dtype.size())).sum()
    };
    let size = plans.iter().map(bytes).max().unwrap_or(0);
    let [median, p99, least, most] = [0.5, 0.99, 0.0, 1.0].map(|it| timing.quantile(it));
    let rate = size as f64 / median.max(1e-3) / 1e3;
    let how = match timing.nodes {
        Some(nodes) => format!("one graph of {nodes} nodes"),
        None => "step by step".to_owned(),
    };
    let mut rows = vec![
        Report::Note(format!(
            "{} timed runs, {how}; events after a barrier of all ranks, MAX over ranks",
            timing.runs.len()
        )),
        Report::Note(format!(
            "{:>14} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "size(B)", "time(us)", "p99(us)", "min(us)", "max(us)", "algbw(GB/s)"
        )),
        Report::Output(format!(
            "  {size:>14} {median:>12.2} {p99:>12.2} {least:>12.2} {most:>12.2} {rate:>12.2}"
        )),
        Report::note("by line, step by step, each on its own stream: lines overlap"),
        Report::Note(format!(
            "{:>6} {:<14} {:>6} {:>14} {:>12} {:>12} {:>12}",
            "line", "what", "count", "size(B)", "time(us)", "algbw(GB/s)", "busbw(GB/s)"
        )),
    ];
    rows.extend(lines.iter().map(|it| {
        let LineProfile {
            line,
            work: what,
            count,
            bytes,
            microseconds: time,
            bus_factor: bus,
            fused_into: within,
        } = it;
        // Work without a kernel of its own names the line whose time includes its time.
        let time_text = within.map_or_else(|| format!("{time:.2}"), |line| format!("in line {line}"));
        let rate = *bytes as f64 / time.max(1e-3) / 1e3;
        let rates = if *bytes == 0 || within.is_some() {
            format!("{:>12} {:>12}", "-", "-")
        } else {
            format!("{rate:>12.2} {:>12.2}", rate * bus)
        };
        Report::Output(format!("  {line:>6} {what:<14} {count:>6} {bytes:>14} {time_text:>12} {rates}"))
    }));
    rows
}

/// Formats the cost of issuing the plan on the host as a table.
pub fn host_table(host: &HostProfile, ranks: usize) -> Vec<Report> {
    let of = if ranks > 1 { format!(", rank {}, the furthest of {ranks}", host.rank) } else { String::new() };
    let mut rows = vec![
        Report::Note(format!(
            "host{of}: bare calls in loops of their own, medians of {} measurements in turns",
            host.rounds
        )),
        Report::Note(format!("{:<14} {:>8} {:>12} {:>12}", "call", "count", "each(us)", "sum(us)")),
    ];
    rows.extend(host.calls.iter().map(|it| {
        let sum = it.count as f64 * it.microseconds;
        Report::Output(format!("  {:<14} {:>8} {:>12.3} {:>12.2}", it.name, it.count, it.microseconds, sum))
    }));
    let [median, least] = host.run;
    rows.push(Report::Note(format!(
        "host: {median:.2} us a run step by step (at least {least:.2}), bare calls {:.2} us, ratio {:.2}",
        host.bare_cost(),
        host.ratio()
    )));
    rows.extend(host.graph.zip(host.graph_ratio()).map(|(([median, least], nodes), ratio)| {
        Report::Note(format!(
            "host: {median:.2} us a replay (at least {least:.2}) of one graph of {nodes} nodes, ratio {ratio:.2} to the bare calls"
        ))
    }));
    rows
}

/// Formats the time spent in each phase of the process.
pub fn phase_summary(phases: &[(String, Duration)]) -> Report {
    let phase = |(what, time): &(String, Duration)| format!("{what} {:.2} s", time.as_secs_f64());
    Report::Note(format!("rank 0: {}", phases.iter().map(phase).collect::<Vec<_>>().join(", ")))
}

/// Returns the measurements as JSON.
pub fn json(ran: &GpuRunResult, ranks: usize) -> serde_json::Map<String, serde_json::Value> {
    let mut value = serde_json::Map::from_iter([("ranks".to_owned(), ranks.into())]);
    let mut add = |more: serde_json::Value| {
        if let serde_json::Value::Object(more) = more {
            value.extend(more);
        }
    };
    if let Some((timing, lines)) = &ran.timing {
        add(times(timing, lines));
    }
    if let Some(host) = &ran.host {
        let call =
            |it: &CallCost| serde_json::json!({ "call": it.name, "count": it.count, "us": it.microseconds });
        let calls: Vec<serde_json::Value> = host.calls.iter().map(call).collect();
        add(serde_json::json!({ "host": {
            "rank": host.rank,
            "calls": calls,
            "run_us": host.run[0],
            "run_min_us": host.run[1],
            "bare_us": host.bare_cost(),
            "ratio": host.ratio(),
            "rounds": host.rounds,
            "graph_launch_us": host.graph.map(|it| it.0[0]),
            "graph_nodes": host.graph.map(|it| it.1),
            "graph_ratio": host.graph_ratio(),
        }}));
    }
    if let Some(why) = &ran.capture_obstacle {
        add(serde_json::json!({ "not_captured": why }));
    }
    value
}

/// Returns the GPU and the libraries of this rank as JSON. `nccl` is null if the program does not call it.
///
/// # Errors
/// cuBLASLt is missing, or a call of the driver fails.
pub fn machine_json(engine: &dyn Executor) -> Result<serde_json::Value, ExecutorError> {
    let (machine, nccl) = engine.own_machine()?;
    Ok(serde_json::json!({
        "gpu": machine.gpu, "driver": machine.driver, "cublaslt": machine.cublaslt, "nccl": nccl,
    }))
}

fn times(timing: &Timing, lines: &[LineProfile]) -> serde_json::Value {
    let line = |it: &LineProfile| {
        serde_json::json!({
            "line": it.line, "what": it.work, "count": it.count, "bytes": it.bytes, "us": it.microseconds,
            "bus_factor": it.bus_factor, "in": it.fused_into,
        })
    };
    let lines: Vec<serde_json::Value> = lines.iter().map(line).collect();
    serde_json::json!({
        "graph_nodes": timing.nodes,
        "lines": lines,
        "runs_us": timing.runs,
        "median_us": timing.quantile(0.5),
        "p99_us": timing.quantile(0.99),
        "min_us": timing.quantile(0.0),
        "max_us": timing.quantile(1.0),
    })
}
