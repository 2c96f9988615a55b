//! What any text has to survive, for the mutations of the suite and for the fuzz targets in `fuzz/`: reading, verifying,
//! printing and reading again; planning and running. The answer is a result or diagnostics, never a panic.

#![allow(dead_code, reason = "every user takes one of the two ways")]

use std::{collections::HashSet, io};

use grammar::{
    diagnostic::{Diagnostic, Severity, has_errors},
    ir::{Expr, Program, Stmt, SymbolId},
    render::{Format, render},
    span::LineIndex,
};
use hir::{
    io::generate::Kind,
    plan,
    run::inputs::Filling,
    sim::{self, Fault, Schedule},
};

/// The largest world that is planned.
const RANKS: usize = 8;
/// Programs that hold more, or do more, are not run.
const BYTES: usize = 1 << 22;
const INSTRUCTIONS: usize = 4_000;

/// Reads and verifies a text; what has no error prints, reads back without a warning, and prints the same.
pub fn read(text: &str) -> Result<(), String> {
    let (programs, diagnostics) = grammar::read(text);
    bounded(&programs, text)?;
    render(&diagnostics, "text", text, Format::Human, false, &mut io::sink()).map_err(|it| it.to_string())?;
    if has_errors(&diagnostics) {
        return Ok(());
    }
    if programs.iter().all(|it| !has_errors(&grammar::verify(it))) {
        fixed(text, &programs)?;
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
                "canonical text is no fixed point:\n{printed}\nbecomes\n{}",
                reprinted.join("\n")
            ));
        }
    }
    Ok(())
}

/// What `--fix` writes means the same, and leaves no guess open.
pub fn fixed(text: &str, programs: &[Program]) -> Result<(), String> {
    let fixed = grammar::fix(text);
    let (again, diagnostics) = grammar::read(&fixed);
    let guessed = |it: &&Diagnostic| it.code.text().starts_with("lossy");
    if let Some(it) = diagnostics.iter().find(|it| it.severity() == Severity::Error || guessed(it)) {
        return Err(format!("fixed text gives {}: {}\n{fixed}", it.code.text(), it.message));
    }
    match programs.iter().map(grammar::print).eq(again.iter().map(grammar::print)) {
        true => Ok(()),
        false => Err(format!("the fix changes the program:\n{fixed}")),
    }
}

/// Arenas grow with the text, not faster.
fn bounded(programs: &[Program], text: &str) -> Result<(), String> {
    let nodes = |it: &Program| {
        [it.tensors.len(), it.axes.len(), it.exprs.len(), it.symbols.len(), it.stmts.len(), it.blocks.len()]
            .iter()
            .sum::<usize>()
    };
    let nodes: usize = programs.iter().map(nodes).sum();
    match nodes <= 64 + text.len() {
        true => Ok(()),
        false => Err(format!("{nodes} nodes out of {} bytes", text.len())),
    }
}

/// Plans what has no error, on a world of at most `RANKS`, and runs what is small enough.
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
        // Extents divide and indices are in range for one of the two, if for any.
        let mut other = program.clone();
        let open = supply(&mut program, 8);
        simulate(&program, &lines)?;
        if open {
            supply(&mut other, 0);
            simulate(&other, &lines)?;
        }
    }
    Ok(())
}

/// Gives a value to every symbol that the text leaves open; whether there are any.
fn supply(program: &mut Program, value: i64) -> bool {
    let mut bound: HashSet<SymbolId> = HashSet::new();
    bound.extend(program.find_symbol("rank"));
    for (_, stmt) in program.stmts.iter() {
        match stmt {
            Stmt::Let(symbol, _) => bound.insert(*symbol),
            Stmt::For(it) => bound.insert(it.index),
            Stmt::Op(_) | Stmt::If(_) => false,
        };
    }
    let value = program.expr(Expr::Int(value));
    let defined = program.definitions.len();
    for symbol in program.symbols.ids().filter(|it| !bound.contains(it)) {
        program.definitions.entry(symbol).or_insert(value);
    }
    program.definitions.len() > defined
}

fn simulate(program: &Program, lines: &LineIndex) -> Result<(), String> {
    // Beyond `RANKS` this is an error, and the rest of the planner never sees such a program.
    let ranks = plan::smallest_world(program).min(RANKS);
    let Ok(plans) = plan::build(program, lines, ranks) else { return Ok(()) };
    if sim::footprint(&plans).bytes > BYTES || plans.iter().any(|plan| plan.code.len() > INSTRUCTIONS) {
        return Ok(());
    }
    plans.iter().for_each(|plan| drop(plan::show(plan)));
    let Ok(inputs) = Filling::new(Kind::Rank, 0, Vec::new(), &plans).fill(&plans) else { return Ok(()) };
    match sim::run(&plans, inputs, Schedule::Program, &sim::Options::default()) {
        Ok(_) | Err(Fault::Deadlock(_) | Fault::Program { .. } | Fault::Unsupported { .. }) => Ok(()),
        Err(fault @ Fault::Internal(_)) => Err(fault.to_string()),
    }
}
