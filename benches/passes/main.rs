//! Measures how the time of the passes grows with the program: with its statements, its loops, their depth,
//! and its ranks.
//!
//! `cargo bench --bench passes [-- AXIS] [SIZES...]` prints a line for every size and pass of an axis
//! (`programs::AXES`): the time in the pass, the time in the checks after it (verifying and printing), and
//! both per unit of the size. If these grow faster than a logarithm, a pass is worse than n log n. It uses
//! the best of three runs.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on the terminal")]

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
        "axis                  size  pass                       time(ms) checks(ms)    time(us) checks(us)"
    );
    for axis in
        AXES.iter().filter(|it| wanted.is_empty() || wanted.iter().any(|word| it.name == word.as_str()))
    {
        let usual: &[usize] = match axis.name {
            "depth" => &[10, 30, 90],
            "ranks" => &[8, 64, 512],
            _ => &[1_000, 3_000, 10_000],
        };
        for size in if given.is_empty() { usual } else { &given } {
            if let Err(fault) = measure(axis, *size) {
                eprintln!("passes: {}, {size}: {fault}", axis.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn measure(axis: &Axis, size: usize) -> Result<(), String> {
    let text = (axis.program)(size);
    let (programs, diagnostics) = grammar::read(&text);
    let program = programs.first().ok_or("no program")?;
    if let Some(it) = diagnostics.iter().find(|it| it.code.severity() == grammar::codes::Severity::Error) {
        return Err(it.message.clone());
    }
    let calls = passes::parse(axis.passes).map_err(|it| it.message)?;
    // The best time in the pass and the best time in the checks, by position in the pipeline.
    let mut best: BTreeMap<usize, (&str, Duration, Duration)> = BTreeMap::new();
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
    let total = best.values().fold((Duration::ZERO, Duration::ZERO), |sum, it| (sum.0 + it.1, sum.1 + it.2));
    let row = |name: &str, time: Duration, checks: Duration| {
        let milli = |it: Duration| it.as_secs_f64() * 1e3;
        let micro = |it: Duration| it.as_secs_f64() * 1e6 / size as f64;
        println!(
            "{:18} {size:7}  {name:24} {:10.1} {:10.1} {:11.2} {:10.2}",
            axis.name,
            milli(time),
            milli(checks),
            micro(time),
            micro(checks)
        );
    };
    best.values().for_each(|(name, time, checks)| row(name, *time, *checks));
    row("total", total.0, total.1);
    Ok(())
}
