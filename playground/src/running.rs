//! Runs programs on simulated ranks, draws timelines, and explains hangs.

use hir_hang::{diagnostics::diagnostic, files, report};
use hir_plan::{
    Plan,
    sync::InstRef,
    timeline::{html::page, overlap::Overlap, svg::picture},
};
use serde_json::{Value, json};

use crate::{
    checking::{estimated, planned, planned_program},
    reading::diagnostics,
};

/// The most steps and elements that the page shows.
const MAX_STEPS: usize = 20_000;
const MAX_ELEMENTS: usize = 16;

/// Runs a program in program order, on generated inputs whose sums are exact.
///
/// # Errors
/// It has no plans, does not end, or needs more than the page has.
pub(crate) fn run(text: &str) -> Result<Value, String> {
    let world = planned(text)?;
    let outcome = hir_sim::sample_run(&world).map_err(|it| it.to_string())?;
    let trace = outcome.trace.unwrap_or_default();
    let steps: Vec<Value> = trace.iter().take(MAX_STEPS).map(|it| step(&world, *it)).collect();
    let mut outputs = Vec::new();
    for (plan, parts) in world.iter().zip(&outcome.outputs) {
        for (port, part) in plan.outputs.iter().zip(parts) {
            let Some(part) = part else { continue };
            let values: Vec<String> =
                (0..part.data.len().min(MAX_ELEMENTS)).map(|at| part.data.text(at)).collect();
            outputs.push(json!({
                "rank": plan.rank,
                "name": port.name,
                "shape": part.shape,
                "values": values,
                "elements": part.data.len(),
                "unwritten": part.written.first_unwritten().is_some(),
            }));
        }
    }
    Ok(json!({ "ranks": world.len(), "steps": steps, "all_steps": trace.len(), "outputs": outputs }))
}

/// Describes a step: its rank, line, iteration and stream.
fn step(plans: &[Plan], at: InstRef) -> Value {
    let plan = &plans[at.rank];
    let inst = &plan.code[at.inst];
    json!({
        "rank": at.rank,
        "line": plan.origins[inst.origin as usize].line,
        "iteration": plan.iteration(inst),
        "stream": plan.stream_name(inst),
    })
}

/// Draws the timeline of a program.
///
/// # Errors
/// It has no plans, or its timeline is too large.
pub(crate) fn timeline(text: &str) -> Result<Value, String> {
    let (source, program, world) = planned_program(text)?;
    let timeline = estimated(&world, &program, &source.lines);
    let timeline = timeline.ok_or("no timeline: the ranks have too many streams")?;
    let mut overlap = Overlap::of(&timeline).report(&timeline);
    overlap.extend(timeline.what_if.values().map(|it| format!("  {it}")));
    let name = "program.hir";
    let svg = picture(&timeline, name).map_err(|it| it.to_string())?;
    Ok(json!({ "svg": svg, "html": page(&timeline, name, &overlap), "overlap": overlap }))
}

/// Explains the dumps of a flight recorder: `[path, bytes]` each, the bytes as characters up to U+00FF. Beside them may be the program, whose
/// lines are shown.
///
/// # Errors
/// No file is a dump.
pub(crate) fn hang(files: &Value) -> Result<Value, String> {
    let one = |it: &Value| {
        let bytes = it[1].as_str()?.chars().map(|it| u8::try_from(it).ok());
        Some((it[0].as_str()?.to_owned(), bytes.collect::<Option<Vec<u8>>>()?))
    };
    let files: Option<Vec<(String, Vec<u8>)>> = files.as_array().into_iter().flatten().map(one).collect();
    let dumps = files::read(&files.ok_or("these are no files")?).map_err(|it| it.to_string())?;
    let found = report::report(&dumps);
    let findings = found.findings.iter().map(|it| diagnostic(it, &dumps));
    let findings: Vec<Value> = findings.flat_map(|(source, it)| diagnostics(&[it], &source)).collect();
    Ok(json!({
        "is_hang": found.is_hang,
        "verdict": found.verdict(),
        "summary": found.summary(),
        "notes": found.notes,
        "table": report::table(&found),
        "diagnostics": findings,
    }))
}
