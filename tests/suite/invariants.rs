//! Invariants that hold for any text, for the mutations of the suite and for the fuzz targets in `fuzz/`:
//! reading, verifying, printing and reading again; planning and running; passes. Each returns a result or
//! diagnostics and never panics.

#![allow(dead_code, reason = "every user takes some of the ways")]

use std::{collections::HashSet, io, sync::Arc};

use grammar::{
    Dialect,
    codes::{Code, Severity},
    diagnostic::{Diagnostic, has_errors},
    ir::{Expr, Program, Stmt, StmtId, SymbolId},
    ops::OpClass,
    render::{Format, Style, render},
    span::LineIndex,
};
use hir_check::{Checks, check};
use hir_driver::run::{inputs::InputSpec, oracle::SimulationOracle};
use hir_plan::limits::Limits;
use hir_sim::{Schedule, SimError, WorkBudget};
use hir_tensor::{dense::DenseTensor, generate::InputKind};
use passes::{Settings, Verify};

/// Maximum number of ranks that are planned.
const RANKS: usize = 8;
/// Limits on bytes and instructions beyond which a program is not run.
const BYTES: usize = 1 << 22;
const INSTRUCTIONS: usize = 4_000;
/// Limits on bytes and instructions beyond which a program is not run after every pass.
const LOWERED_BYTES: usize = 1 << 20;
const LOWERED_INSTRUCTIONS: usize = 600;

/// Reads and verifies a text. A program without errors must print, read back without a warning, and print the
/// same text again.
pub fn read(text: &str) -> Result<(), String> {
    let (programs, diagnostics) = grammar::read(text);
    check_arena_sizes(&programs, text)?;
    render(&diagnostics, "text", text, Format::Human, Style::default(), &mut io::sink())
        .map_err(|it| it.to_string())?;
    if has_errors(&diagnostics) {
        return Ok(());
    }
    if programs.iter().all(|it| !has_errors(&grammar::verify(it))) {
        check_fix(text, &programs)?;
    }
    for program in &programs {
        let rejected = has_errors(&grammar::verify(program));
        let printed = grammar::print(program);
        let (again, mut diagnostics) = grammar::read(&printed);
        diagnostics.retain(|it| it.severity() == Severity::Error || it.code.text().starts_with("lossy"));
        if let Some(it) = diagnostics.first().filter(|_| !rejected) {
            return Err(format!("canonical text gives {}: {}\n{printed}", it.code.text(), it.message));
        }
        let reprinted: Vec<String> = again.iter().map(grammar::print).collect();
        if !rejected && reprinted != [printed.as_str()] {
            return Err(format!(
                "canonical text is not a fixed point:\n{printed}\nbecomes\n{}",
                reprinted.join("\n")
            ));
        }
    }
    Ok(())
}

/// Checks that the output of `--fix` has the same meaning and contains nothing ambiguous.
pub fn check_fix(text: &str, programs: &[Program]) -> Result<(), String> {
    let fixed = grammar::fix(text);
    let (again, diagnostics) = grammar::read(&fixed);
    // Only the user can decide whether text outside of a container belongs to the program.
    let guessed = |it: &&Diagnostic| it.code.text().starts_with("lossy") && it.code != Code::LossyText;
    if let Some(it) = diagnostics.iter().find(|it| it.severity() == Severity::Error || guessed(it)) {
        return Err(format!("fixed text gives {}: {}\n{fixed}", it.code.text(), it.message));
    }
    if programs.iter().map(grammar::print).eq(again.iter().map(grammar::print)) {
        Ok(())
    } else {
        Err(format!("the fix changes the program:\n{fixed}"))
    }
}

/// Checks that the arenas grow at most linearly with the text.
fn check_arena_sizes(programs: &[Program], text: &str) -> Result<(), String> {
    let nodes = |it: &Program| {
        [it.tensors.len(), it.axes.len(), it.exprs.len(), it.symbols.len(), it.stmts.len(), it.blocks.len()]
            .iter()
            .sum::<usize>()
    };
    let nodes: usize = programs.iter().map(nodes).sum();
    if nodes <= 64 + text.len() {
        Ok(())
    } else {
        Err(format!("{nodes} nodes for {} bytes of text", text.len()))
    }
}

/// The forms in which a program is printed. Each has to be planned as the program is.
const FORMS: [Dialect; 2] = [Dialect::Canonical, Dialect::Short];

/// Checks that the plans of a program are those of its printed text, or that neither has any. Returns whether
/// it has plans.
pub fn plans_of_printed(text: &str) -> Result<bool, String> {
    let (programs, diagnostics) = grammar::read(text);
    if has_errors(&diagnostics) || programs.iter().any(|it| has_errors(&grammar::verify(it))) {
        return Ok(false);
    }
    let mut is_planned = false;
    for program in &programs {
        let own = plan_texts(program, text);
        is_planned |= own.is_ok();
        for form in FORMS {
            let printed = grammar::print_as(program, form).0;
            let again = grammar::read(&printed).0.pop().ok_or("the printed text has no program")?;
            let theirs = plan_texts(&again, &printed);
            if own != theirs {
                let [own, theirs] = [own, theirs].map(|it| it.unwrap_or_else(|fault| vec![fault]));
                let differing = own.iter().zip(&theirs).find(|(own, theirs)| own != theirs);
                return Err(format!("{form:?} text has other plans: {differing:?}\n{printed}"));
            }
        }
    }
    Ok(is_planned)
}

/// Returns the instructions of all plans without their lines, or the code of the first fault.
fn plan_texts(program: &Program, text: &str) -> Result<Vec<String>, String> {
    let mut program = program.clone();
    bind_unbound_symbols(&mut program, 8);
    let ranks = hir_plan::smallest_world(&program).min(RANKS);
    let plans = hir_plan::build(&program, &LineIndex::new(text), ranks)
        .map_err(|all| all.first().map_or("no fault", |it| it.code.text()).to_owned())?;
    // The text of a large plan takes long.
    if plans.iter().any(|plan| plan.code.len() > INSTRUCTIONS) {
        return Ok(plans.iter().map(|it| it.code.len().to_string()).collect());
    }
    let without_line = |line: &str| line.split("  ; ").next().unwrap_or_default().trim_end().to_owned();
    Ok(plans
        .iter()
        .flat_map(|it| hir_plan::plan_text(it).lines().map(without_line).collect::<Vec<_>>())
        .collect())
}

/// Plans a program without errors on at most `RANKS` ranks, and runs it if it is small enough.
pub fn run(text: &str) -> Result<(), String> {
    let (programs, diagnostics) = grammar::read(text);
    if has_errors(&diagnostics) {
        return Ok(());
    }
    let lines = LineIndex::new(text);
    for mut program in programs {
        if has_errors(&grammar::verify(&program)) {
            continue;
        }
        // If there is a value for which extents divide and indices are in range, it is usually one of these
        // two.
        let mut other = program.clone();
        let open = bind_unbound_symbols(&mut program, 8);
        simulate(&program, &lines)?;
        if open {
            bind_unbound_symbols(&mut other, 0);
            simulate(&other, &lines)?;
        }
    }
    Ok(())
}

/// Binds every symbol that the text does not define to `value`. Returns true if there are any.
fn bind_unbound_symbols(program: &mut Program, value: i64) -> bool {
    let mut bound: HashSet<SymbolId> = HashSet::new();
    bound.extend(program.find_symbol("rank"));
    for (_, stmt) in program.stmts.iter() {
        match stmt {
            Stmt::Let(symbol, _) => bound.insert(*symbol),
            Stmt::For(it) => bound.insert(it.index),
            Stmt::Op(_) | Stmt::If(_) => false,
        };
    }
    let value = program.intern_expr(Expr::Int(value));
    let defined = program.definitions.len();
    for symbol in program.symbols.ids().filter(|it| !bound.contains(it)) {
        program.definitions.entry(symbol).or_insert(value);
    }
    program.definitions.len() > defined
}

fn simulate(program: &Program, lines: &LineIndex) -> Result<(), String> {
    // A program that needs more than `RANKS` ranks cannot be planned here, so the rest of the planner never
    // sees it.
    let ranks = hir_plan::smallest_world(program).min(RANKS);
    let Ok(plans) = hir_plan::build(program, lines, ranks) else { return Ok(()) };
    if hir_sim::footprint(&plans).bytes > BYTES || plans.iter().any(|plan| plan.code.len() > INSTRUCTIONS) {
        return Ok(());
    }
    plans.iter().for_each(|plan| drop(hir_plan::plan_text(plan)));
    let Ok(inputs) = InputSpec::new(InputKind::Rank, 0, &plans).fill(&plans) else {
        return Ok(());
    };
    let run = |schedule: &Schedule| match hir_sim::run(
        &plans,
        inputs.clone(),
        schedule,
        &hir_sim::SimOptions::default(),
    ) {
        Ok(outcome) => Ok(Some(outcome)),
        Err(SimError::Deadlock(_) | SimError::Program { .. } | SimError::Unsupported { .. }) => Ok(None),
        Err(fault @ (SimError::SemaphoreLost { .. } | SimError::Internal(_) | SimError::StepNotReady(_))) => {
            Err(fault.to_string())
        }
    };
    let first = run(&Schedule::Program)?;
    let report = check(&plans, Checks::ALL_FAULTS);
    report.findings.iter().for_each(|it| drop(it.diagnostic(&plans, &[])));
    let Some(first) = first.filter(|_| report.findings.is_empty() && report.not_checked.is_empty()) else {
        return Ok(());
    };
    // A program without a finding has one result, whatever the order.
    for schedule in [Schedule::Program, Schedule::Adversarial, Schedule::Seed(0)] {
        let Some(other) = run(&schedule)? else {
            return Err(format!(
                "the checker finds nothing, but schedule {schedule} does not run to the end"
            ));
        };
        let is_same = |(a, b): (&Option<Arc<DenseTensor>>, &Option<Arc<DenseTensor>>)| match (a, b) {
            // Two NaNs have the same text but are not equal.
            (Some(a), Some(b)) => {
                a.written == b.written
                    && (a.data == b.data || format!("{:?}", a.data) == format!("{:?}", b.data))
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !first.outputs.iter().flatten().zip(other.outputs.iter().flatten()).all(is_same) {
            return Err(format!("the checker finds nothing, but schedule {schedule} gives another result"));
        }
        if !other.notes.unwritten.is_empty() {
            return Err(format!(
                "the checker finds nothing, but schedule {schedule} reads unwritten elements"
            ));
        }
    }
    Ok(())
}

/// Runs passes over a program. A pass may refuse the program with a reason. It must not produce a program
/// that the verifier rejects or that does not read back, or change the meaning of a program whose result does
/// not depend on the order.
pub fn lower(text: &str, pipeline: &str) -> Result<(), String> {
    let (mut programs, diagnostics) = grammar::read(text);
    let sound = |it: &Program| !has_errors(&diagnostics) && !has_errors(&grammar::verify(it));
    let Some(mut program) = programs.pop().filter(sound) else { return Ok(()) };
    let lines = LineIndex::new(text);
    let oracle = SimulationOracle {
        lines: &lines,
        ranks: None,
        limits: Limits::default(),
        work: &WorkBudget::default(),
    };
    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let verify =
        if is_deterministic(&program, &lines) { Verify::Semantic(&oracle) } else { Verify::Structural };
    let settings = Settings { verify, roundtrip: true };
    match passes::run(&mut program, &calls, settings, &mut |_| ()) {
        Err(failure) if failure.error.is_bug() => {
            let why: Vec<&str> = failure.error.diagnostics().iter().map(|it| it.message.as_str()).collect();
            Err(format!("{failure}: {}", why.join("; ")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns true if a program is small and its result does not depend on the order.
fn is_deterministic(program: &Program, lines: &LineIndex) -> bool {
    let is_plain = |(_, stmt): (StmtId, &Stmt)| match stmt {
        Stmt::Op(it) => matches!(
            it.op.def().class,
            OpClass::Compute | OpClass::Elementwise | OpClass::View | OpClass::Allocate | OpClass::Deallocate
        ),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => true,
    };
    let ranks = hir_plan::smallest_world(program);
    ranks <= RANKS
        && program.stmts.iter().all(is_plain)
        && hir_plan::build(program, lines, ranks).is_ok_and(|plans| {
            hir_sim::footprint(&plans).bytes <= LOWERED_BYTES
                && plans.iter().map(|plan| plan.code.len()).sum::<usize>() <= LOWERED_INSTRUCTIONS
        })
}
