//! Plans and checks programs.

use grammar::{Diagnostic, LineIndex, Program, Source, apply_bindings, count_text, has_errors};
use hir_certify::Settings;
use hir_check::Checks;
use hir_ir::search::Budget;
use hir_plan::{
    World, assume_scalars, smallest_world,
    timeline::{
        Timeline,
        estimator::{Estimator, Planned},
        overlap::Overlap,
    },
};
use serde_json::{Value, json};

use crate::{
    LIMITS,
    reading::{diagnostics, only_program, source},
};

/// The most instructions that are estimated to say what communications cost.
const MAX_ESTIMATED: usize = 1_000_000;

/// Plans the only program of a text for all of its ranks. Scalars without a value get the one that fits, as the check says.
///
/// # Errors
/// Why there are no plans.
pub(crate) fn planned(text: &str) -> Result<World, String> {
    planned_program(text).map(|it| it.2)
}

/// As `planned`, with the program and its text.
///
/// # Errors
/// Why there are no plans.
pub(crate) fn planned_program(text: &str) -> Result<(Source, Program, World), String> {
    let (source, mut program) = only_program(text)?;
    assume_scalars(&mut program, &source, None, &LIMITS);
    let world = plan(&program, &source.lines).map_err(|faults| {
        faults.first().map_or("it cannot be planned".to_owned(), |it| {
            let line = it.labels.first().map_or(0, |it| source.lines.line(it.0.start));
            format!("line {line}: [{}] {}", it.code.text(), it.message)
        })
    })?;
    Ok((source, program, world))
}

/// Estimates the times of a program that has these plans; `None` if it has too many streams. The page has no executor of GPUs, so each
/// instruction counts as a kernel.
pub(crate) fn estimated(world: &World, program: &Program, lines: &LineIndex) -> Option<Timeline> {
    let estimator = Estimator { lower: passes::lowered, ..Estimator::default() };
    let (text, mut budget) = (Planned { program, lines, limits: &LIMITS }, Budget::new(MAX_ESTIMATED));
    estimator.gains(world, Some(text), &mut |it| budget.admits(it)).ok().map(|it| it.0)
}

fn plan(program: &Program, lines: &LineIndex) -> Result<World, Vec<Diagnostic>> {
    hir_plan::build_with_limits(program, lines, smallest_world(program), &LIMITS)
}

/// Checks all programs of a text.
///
/// # Errors
/// The text is rejected or has no program.
pub(crate) fn check(text: &str) -> Result<Value, String> {
    let source = source(text);
    let (programs, found) = source.programs();
    if has_errors(&found) {
        return Err("the text has errors: correct them first".to_owned());
    }
    if programs.is_empty() {
        return Err("the text has no program".to_owned());
    }
    let (mut found, mut verdicts, mut overlaps, mut not_checked) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for mut program in programs {
        found.extend(assume_scalars(&mut program, &source, None, &LIMITS));
        let world = match plan(&program, &source.lines) {
            Ok(world) => world,
            Err(faults) => {
                found.extend(faults);
                verdicts.push("not checked: it has no plans".to_owned());
                continue;
            }
        };
        let report = hir_check::check(&world, Checks::DEFAULT);
        let findings = report.diagnostics(&world, std::slice::from_ref(&source));
        let faults = findings.iter().filter(|it| it.1.is_error()).count();
        found.extend(findings.into_iter().map(|it| it.1));
        let verdict = match (faults, report.not_checked.is_empty()) {
            (0, true) => "no race, no deadlock, every output written".to_owned(),
            (0, false) => "no fault in what could be checked".to_owned(),
            (_, _) => count_text(faults, "fault"),
        };
        verdicts.push(format!("{}: {verdict}", count_text(world.len(), "rank")));
        not_checked.extend(report.not_checked.iter().map(ToString::to_string));
        // A program that deadlocks has no end, and one with too many streams no estimate.
        if world.deadlock().is_none()
            && let Some(timeline) = estimated(&world, &program, &source.lines)
        {
            overlaps.extend(Overlap::of(&timeline).report(&timeline));
            overlaps.extend(timeline.what_if.values().map(|it| format!("  {it}")));
        }
    }
    Ok(json!({
        "diagnostics": diagnostics(&found, &source),
        "verdicts": verdicts,
        "not_checked": not_checked,
        "overlap": overlaps,
    }))
}

/// The number of evaluations of a certificate: that of `hir certify`.
const RUNS: u32 = 3;

/// Certifies that a program computes what that of a text computes, with random numbers of the browser: two of 32 bits.
///
/// # Errors
/// One of the texts has not one program.
pub(crate) fn certify(text: &str, program: &str, seed: &Value) -> Result<Value, String> {
    let number = |at: usize| seed[at].as_u64().filter(|it| *it <= u64::from(u32::MAX));
    let seed = number(0).zip(number(1)).map(|it| it.0 << 32 | it.1).ok_or("there are no random numbers")?;
    let (before, original) = only_program(text)?;
    let (after, lowered) = only_program(program).map_err(|it| format!("the second text: {it}"))?;
    let settings = Settings { runs: RUNS, ranks: None, seed: Some(seed) };
    Ok(match hir_certify::certify(&original, &lowered, &settings) {
        Ok(claim) => json!({ "lines": claim.lines(RUNS), "diagnostics": [] }),
        Err(it) => {
            let of = if it.is_of_original { &before } else { &after };
            json!({ "is_of_original": it.is_of_original, "diagnostics": diagnostics(&[*it.diagnostic], of) })
        }
    })
}

/// Makes the edits that remove the races of all programs.
///
/// # Errors
/// No single edit removes one.
pub(crate) fn fix(text: &str) -> Result<Value, String> {
    let planner = |program: &mut Program, lines: &LineIndex| {
        let bindings = hir_plan::proposed_bindings(program, lines, smallest_world(program), &LIMITS);
        apply_bindings(program, &bindings).ok()?;
        plan(program, lines).ok()
    };
    let (mut text, mut edits) = (text.to_owned(), Vec::new());
    for number in 0..grammar::read(&text).0.len() {
        let fixed = hir_check::fix(&text, number, Checks::DEFAULT, &planner);
        edits.extend(fixed.edits.iter().map(|it| format!("line {}: {}", it.line, it.description)));
        text = fixed.text;
    }
    if edits.is_empty() {
        return Err("no single edit removes these races: the help of each one says what to decide".to_owned());
    }
    Ok(json!({ "text": text, "edits": edits }))
}
