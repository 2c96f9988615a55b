//! Records the verdict on every program, and on every program without one of its synchronisations. A change
//! of the planner or the simulator then shows which verdicts and causes it changes.
//!
//! The programs are all samples and cases that run on the simulator, and the result of every pipeline on
//! those that are not lowered, where it differs from that of `@overlap`. A line of `tests/baseline/**/*.txt`
//! describes a program, or the program without one statement: the first failure, the schedule under which it
//! occurs, and the line that causes it; then the findings of the checker. `INSTA_UPDATE=always` writes the table again; review its difference.

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::{
    collections::HashSet,
    fmt::Write,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use grammar::{
    bindings::apply_bindings,
    codes::{Code, Severity},
    diagnostic::{Diagnostic, has_errors},
    ir::{Program, StmtId},
    ops::{Op, OpClass},
    span::LineIndex,
};
use hir_check as check;
use hir_driver::run::{
    inputs::InputSpec,
    oracle,
    trial::{FailureKind, RunFailure, run_trial},
    verdict::{ExpectationSource, expectations},
};
use hir_plan::World;
use hir_sim::footprint;
use hir_tensor::{data::Data, generate::InputKind};
use libtest_mimic::{Failed, Trial};

use crate::{
    part,
    pipelines::{self, bindings},
    setting, shown,
};

/// Larger programs take too long in a debug build: bytes, and instructions, of all ranks together.
const MEMORY: usize = 1 << 24;
const INSTRUCTIONS: usize = 10_000;
/// A wrong result for which the checker finds no cause. No row contains it.
const MISSED: &str = "MISSED";
/// Maximum number of simulated ranks.
const RANKS: usize = 16;

/// Returns one trial for the cases of each folder, and one for each pipeline, which has the cases of a part (`part`).
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let mut folders: Vec<(String, Vec<PathBuf>)> = Vec::new();
    for path in cases {
        let folder =
            path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        match folders.last_mut().filter(|it| it.0 == folder) {
            Some((_, paths)) => paths.push(path.clone()),
            None => folders.push((folder, vec![path.clone()])),
        }
    }
    let lowered = pipelines::lowering_pipelines().enumerate().map(|(at, pipeline)| {
        let is_mine = |number: usize| part::includes(number + at) || setting::updates();
        let split = cases.iter().cloned().enumerate().partition(|(number, _)| is_mine(*number));
        let (mine, others): (Vec<_>, Vec<_>) = split;
        let [mine, others] = [mine, others].map(|all| all.into_iter().map(|it| it.1).collect::<Vec<_>>());
        Trial::test(format!("baseline::{pipeline}"), move || table(pipeline, &mine, &others, Some(pipeline)))
    });
    let plain = folders.into_iter().map(|(folder, paths)| {
        Trial::test(format!("baseline::{folder}"), move || table(&folder, &paths, &[], None))
    });
    plain.chain(lowered).collect()
}

/// Compares the table of some programs with the recorded one, which has the rows of `others`, too.
fn table(name: &str, paths: &[PathBuf], others: &[PathBuf], pipeline: Option<&str>) -> Result<(), Failed> {
    let mut text = String::new();
    for path in paths {
        let outcome = catch_unwind(AssertUnwindSafe(|| rows(path, pipeline)));
        text += &outcome.map_err(|_| format!("{}: panicked, see above", shown(path)))??;
    }
    if let Some(row) = text.lines().find(|it| it.ends_with(MISSED)) {
        return Err(format!("the checker finds nothing: {row}").into());
    }
    let folder = if pipeline.is_some() { "tests/baseline/pipelines" } else { "tests/baseline" };
    let others: HashSet<String> = others.iter().map(|it| shown(it)).collect();
    // The rows below that of a program are indented.
    let mut is_compared = true;
    let is_compared = |row: &str| {
        if let Some((file, _)) = row.split_once(": ").filter(|_| !row.starts_with(' ')) {
            is_compared = !others.contains(file);
        }
        is_compared
    };
    setting::compare_rows(&format!("{folder}/{}.txt", name.trim_start_matches('@')), &text, is_compared)
}

/// Returns the rows of one file. Empty if no program of the file runs.
fn rows(path: &Path, pipeline: Option<&str>) -> Result<String, String> {
    let mut rows = String::new();
    for (program, lines) in programs(path, pipeline)? {
        let outcome = program_rows(&program, &lines);
        if !outcome.is_empty() {
            let _ = write!(rows, "{}: {outcome}", shown(path));
        }
    }
    Ok(rows)
}

/// The pipeline that all others are compared with: one that makes the same program is not tried again.
const REFERENCE: &str = "@overlap";

/// Returns the programs of a file, with the line indices of their texts. With a pipeline, returns its results
/// on the programs that are not lowered, except those that are the result of `REFERENCE` too.
pub fn programs(path: &Path, pipeline: Option<&str>) -> Result<Vec<(Program, LineIndex)>, String> {
    let text = fs::read_to_string(path).map_err(|it| it.to_string())?;
    let (programs, diagnostics) = grammar::read(&text);
    let mut found = Vec::new();
    if has_errors(&diagnostics) {
        return Ok(found);
    }
    for mut program in programs {
        // The RUN lines of the cases contain the bindings.
        if apply_bindings(&mut program, &bindings(&text)).is_err() || has_errors(&grammar::verify(&program)) {
            continue;
        }
        let lines = match pipeline {
            None => LineIndex::new(&text),
            Some(pipeline) => {
                if !pipelines::is_unlowered(&program) || text.len() > pipelines::BYTES {
                    continue;
                }
                let text = grammar::print(&program);
                let lowered = |pipeline: &str| -> Result<Option<String>, String> {
                    Ok(pipelines::lowered(pipeline, &text)?.map(|(it, _)| grammar::print(&it)))
                };
                let Some(printed) = lowered(pipeline)? else { continue };
                if pipeline != REFERENCE && lowered(REFERENCE)?.as_ref() == Some(&printed) {
                    continue;
                }
                program = grammar::read(&printed).0.pop().ok_or("no program")?;
                LineIndex::new(&printed)
            }
        };
        found.push((program, lines));
    }
    Ok(found)
}

/// Returns the rows of a program: its own, and one for each synchronisation that can be removed.
fn program_rows(program: &Program, lines: &LineIndex) -> String {
    let Some(plans) = plans_if_small(program, lines) else { return String::new() };
    let Ok(inputs) = InputSpec::new(InputKind::Exact, 0, &plans).fill(&plans) else {
        return String::new();
    };
    let mut wanted = Vec::new();
    for schedule in oracle::schedules() {
        match run_trial(&plans, &inputs, &schedule, &wanted, DEFAULT_MEMORY_LIMIT) {
            Ok(ran) if wanted.is_empty() => {
                wanted =
                    expectations(ran.outputs, "program", ExpectationSource::Simulated { exact: ran.exact });
            }
            Ok(_) => (),
            Err(mishap) => {
                return format!(
                    "{}{}\n",
                    describe_failure(&mishap, &plans),
                    confirming_findings(&mishap, &plans)
                );
            }
        }
    }
    let mut rows = format!("right{}\n", checker_findings(&plans));
    for (stmt, op) in synchronisations(program) {
        let mutant = without_statement(program, stmt);
        let outcome = row_without(&mutant, lines, |plans| {
            let found = oracle::schedules()
                .into_iter()
                .find_map(|it| run_trial(plans, &inputs, &it, &wanted, DEFAULT_MEMORY_LIMIT).err());
            match found {
                None => checked_prediction(None, plans, "right") + &checker_findings(plans),
                Some(it) => describe_failure(&it, plans) + &confirming_findings(&it, plans),
            }
        });
        let line = lines.line(program.stmt_span(stmt).start);
        let _ = writeln!(rows, "  without {} (line {line}): {outcome}", op.name());
    }
    rows
}

/// Returns a program without a statement.
pub fn without_statement(program: &Program, stmt: StmtId) -> Program {
    let mut mutant = program.clone();
    for block in mutant.blocks.ids().collect::<Vec<_>>() {
        mutant.blocks[block].retain(|it| *it != stmt);
    }
    mutant
}

/// Returns the outcome of a program that lacks a statement, or why it does not run.
fn row_without(program: &Program, lines: &LineIndex, run: impl Fn(&World) -> String) -> String {
    let refused = |all: &[Diagnostic]| {
        let it = all.iter().find(|it| it.severity() == Severity::Error)?;
        Some(format!("{} at line {}: {}", it.code.text(), lines.line(it.span().start), it.message))
    };
    if let Some(it) = refused(&grammar::verify(program)) {
        return it;
    }
    match hir_plan::build(program, lines, hir_plan::smallest_world(program)) {
        Ok(plans) => run(&plans),
        Err(faults) => refused(&faults).unwrap_or_default(),
    }
}

/// Returns the plans of a program that is small enough to run often.
pub fn plans_if_small(program: &Program, lines: &LineIndex) -> Option<World> {
    let ranks = Some(hir_plan::smallest_world(program)).filter(|it| *it <= RANKS)?;
    let plans = hir_plan::build(program, lines, ranks).ok()?;
    let computes = plans.iter().flat_map(|it| &it.buffers).all(|it| Data::zeros(it.dtype, 0).is_ok());
    let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
    (computes && instructions <= INSTRUCTIONS && footprint(&plans).bytes <= MEMORY).then_some(plans)
}

/// Returns the statements that only order other statements, in textual order.
pub fn synchronisations(program: &Program) -> Vec<(StmtId, Op)> {
    let mut found = Vec::new();
    let Some(body) = program.body else { return found };
    for (stmt, it) in program.ops_in(body) {
        let orders = match it.op.def().class {
            OpClass::Stream => it.outs.is_empty(),
            OpClass::Wait | OpClass::Coalescing | OpClass::ShareHandles => true,
            OpClass::Allocate
            | OpClass::Deallocate
            | OpClass::Compute
            | OpClass::Elementwise
            | OpClass::View
            | OpClass::HostUnit
            | OpClass::Communicate
            | OpClass::Condition
            | OpClass::Opaque => false,
        };
        if orders {
            found.push((stmt, it.op));
        }
    }
    found
}

/// Returns the row if the static deadlock check and the simulator report the same text; else a row that shows
/// both.
fn checked_prediction(simulated: Option<String>, plans: &World, row: &str) -> String {
    let predicted = plans.deadlock().map(|it| it.to_string());
    if simulated == predicted {
        row.to_owned()
    } else {
        format!("{row}\nSIMULATED {simulated:?}\nPREDICTED {predicted:?}")
    }
}

/// Returns the checker's first finding in a program that runs to its end. Empty if there is none.
fn checker_findings(plans: &World) -> String {
    let report = check::check(plans, check::Checks::ALL_FAULTS);
    let found = report.findings.iter().map(|it| it.diagnostic(plans, &[]).1);
    // The order of communicators does not make a result wrong, so other findings come first.
    let first = found.min_by_key(|it| (it.severity() != Severity::Error, it.code == Code::CommunicatorOrder));
    first.map_or(String::new(), |it| format!("; check: {} {}", it.code.text(), it.message))
}

/// Returns the checker's finding in a program that the simulator finds wrong. The checker must find all
/// failures that an order can repair.
fn confirming_findings(mishap: &RunFailure, plans: &World) -> String {
    match mishap.kind {
        FailureKind::WrongOutput | FailureKind::UnwrittenOutput => match checker_findings(plans) {
            found if found.is_empty() => format!("; check: {MISSED}"),
            found => found,
        },
        FailureKind::NeverCompletes
        | FailureKind::SelfWait
        | FailureKind::CyclicWait
        | FailureKind::ReplicasDiffer
        | FailureKind::ProgramError => String::new(),
    }
}

/// Describes the failure and its location.
fn describe_failure(mishap: &RunFailure, plans: &World) -> String {
    let row = row(mishap, plans);
    checked_prediction(mishap.deadlock.as_ref().map(|it| it.to_string()), plans, &row)
}

fn row(mishap: &RunFailure, plans: &World) -> String {
    let place = mishap.inst_ref.map_or(String::new(), |at| {
        format!(" at {}", plans[at.rank].location(&plans[at.rank].code[at.inst]))
    });
    format!("{}: {:?}{place}: {}", mishap.schedule, mishap.kind, mishap.message)
}
