//! Measures how the time of the passes grows with the program: with its statements, its loops, their depth, its
//! axes, operands, streams, scalars, and its ranks.
//!
//! `cargo bench --bench passes [-- AXIS] [SIZES...]` prints a line for every size and pass of an axis
//! (`programs::AXES`): the time in the pass, the time in the checks after it (verifying and printing), and
//! both per unit of the size. The lines of the largest size have the exponent of the growth since the smallest
//! size, 1 for linear time. It uses the best of three runs.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on the terminal")]

#[path = "../programs/mod.rs"]
mod programs;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use passes::{PassEvent, Settings, Verify};
use programs::{AXES, Axis};

const RUNS: usize = 3;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let given: Vec<usize> = words.iter().filter_map(|it| it.parse().ok()).collect();
    let wanted: Vec<&String> = words.iter().filter(|it| it.parse::<usize>().is_err()).collect();
    println!(
        "axis                  size  pass                       time(ms) checks(ms)    time(us) checks(us)  exponent"
    );
    for axis in
        AXES.iter().filter(|it| wanted.is_empty() || wanted.iter().any(|word| it.name == word.as_str()))
    {
        if axis.passes.is_empty() {
            continue;
        }
        let usual = [1, 2, 4].map(|factor| factor * axis.size);
        let sizes = if given.is_empty() { &usual[..] } else { &given };
        let mut first: Option<(usize, Vec<Row>)> = None;
        for (at, size) in sizes.iter().enumerate() {
            let rows = match measure(axis, *size) {
                Ok(it) => it,
                Err(fault) => {
                    eprintln!("passes: {}, {size}: {fault}", axis.name);
                    return ExitCode::FAILURE;
                }
            };
            let since = first.as_ref().filter(|_| at + 1 == sizes.len());
            print(axis, *size, &rows, since);
            first.get_or_insert((*size, rows));
        }
    }
    ExitCode::SUCCESS
}

/// A pass, its best time, and the best time of the checks after it.
type Row = (&'static str, Duration, Duration);

/// Returns a row for each pass, and their sum.
fn measure(axis: &Axis, size: usize) -> Result<Vec<Row>, String> {
    let text = (axis.program)(size);
    let (programs, diagnostics) = grammar::read(&text);
    let program = programs.first().ok_or("no program")?;
    if let Some(it) = diagnostics.iter().find(|it| it.code.severity() == grammar::codes::Severity::Error) {
        return Err(it.message.clone());
    }
    let calls = passes::parse(axis.passes).map_err(|it| it.message)?;
    // By position in the pipeline.
    let mut best: BTreeMap<usize, Row> = BTreeMap::new();
    for _ in 0..RUNS {
        let mut at = 0;
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        let mut observe = |event: PassEvent<'_>| {
            if let PassEvent::After { call, time, checks, .. } = event {
                let it = best.entry(at).or_insert((call.pass.name, time, checks));
                (it.1, it.2) = (it.1.min(time), it.2.min(checks));
                at += 1;
            }
        };
        passes::run(&mut program.clone(), &calls, settings, &mut observe).map_err(|it| it.to_string())?;
    }
    let mut rows: Vec<Row> = best.into_values().collect();
    let total = rows.iter().fold((Duration::ZERO, Duration::ZERO), |sum, it| (sum.0 + it.1, sum.1 + it.2));
    rows.push(("total", total.0, total.1));
    Ok(rows)
}

/// Prints the rows of a size, with the growth since a smaller size.
fn print(axis: &Axis, size: usize, rows: &[Row], since: Option<&(usize, Vec<Row>)>) {
    let milli = |it: Duration| it.as_secs_f64() * 1e3;
    let micro = |it: Duration| it.as_secs_f64() * 1e6 / size as f64;
    for (at, (name, time, checks)) in rows.iter().enumerate() {
        let exponent = since.map_or(String::new(), |(small, before)| {
            let grown = time.as_secs_f64() / before[at].1.as_secs_f64();
            format!("{:9.2}", grown.ln() / (size as f64 / *small as f64).ln())
        });
        println!(
            "{:18} {size:7}  {name:24} {:10.1} {:10.1} {:11.2} {:10.2} {exponent}",
            axis.name,
            milli(*time),
            milli(*checks),
            micro(*time),
            micro(*checks)
        );
    }
}
