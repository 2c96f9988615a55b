//! Measures how the time of whole tools grows with the program: hir-opt, hir-run and hir reduce on programs that grow
//! along one axis.
//!
//! `cargo bench --bench tools [-- AXIS...]` prints a line for every command of an axis (`programs::AXES`): the best
//! time of three runs at a size, at twice and at four times the size, and the exponent of the growth, 1 for linear
//! time. A run that ends with another exit code than expected, or that prints less than expected, is an error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on the terminal")]

#[path = "../programs/mod.rs"]
mod programs;

use std::{
    fs,
    io::Error,
    path::Path,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use programs::{AXES, Axis, Tool};

const RUNS: usize = 3;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let file = std::env::temp_dir().join(format!("hir-tools-{}.hir", std::process::id()));
    println!(
        "{:18} {:48} {:>7} {:>8} {:>8} {:>8} {:>8}",
        "axis", "command", "n", "n (s)", "2n (s)", "4n (s)", "exponent"
    );
    let mut exit = ExitCode::SUCCESS;
    for axis in AXES.iter().filter(|it| wanted.is_empty() || wanted.iter().any(|word| it.name == word)) {
        for tool in axis.tools {
            if let Err(fault) = curve(axis, tool, &file) {
                eprintln!("tools: {}, {}: {fault}", axis.name, tool.command.join(" "));
                exit = ExitCode::FAILURE;
            }
        }
    }
    _ = fs::remove_file(file);
    exit
}

/// Measures a tool at three sizes.
fn curve(axis: &Axis, tool: &Tool, file: &Path) -> Result<(), String> {
    let sizes = [1, 2, 4].map(|factor| factor * tool.size);
    let mut points = Vec::new();
    for size in sizes {
        fs::write(file, (axis.program)(size)).map_err(|it| it.to_string())?;
        points.push(measure(tool, file, size)?);
    }
    let (times, lengths): (Vec<f64>, Vec<usize>) = points.iter().map(|it| (it.0.as_secs_f64(), it.1)).unzip();
    // hir-opt prints the whole program.
    if tool.command[0] == "hir-opt" && tool.exit == 0 && lengths[2] < 3 * lengths[0] {
        return Err(format!("{} bytes at {}, {} at {}", lengths[0], sizes[0], lengths[2], sizes[2]));
    }
    let exponent = (times[2] / times[0]).log2() / 2.0;
    println!(
        "{:18} {:48} {:7} {:8.3} {:8.3} {:8.3} {exponent:8.2}",
        axis.name,
        tool.command.join(" "),
        sizes[0],
        times[0],
        times[1],
        times[2]
    );
    Ok(())
}

/// Returns the best time of a tool, and the length of its output.
fn measure(tool: &Tool, file: &Path, size: usize) -> Result<(Duration, usize), String> {
    let program = match tool.command[0] {
        "hir-opt" => env!("CARGO_BIN_EXE_hir-opt"),
        "hir-run" => env!("CARGO_BIN_EXE_hir-run"),
        _ => env!("CARGO_BIN_EXE_hir"),
    };
    let expected = tool.prints.replace("{n}", &size.to_string()).replace("{n-1}", &(size - 1).to_string());
    let (mut best, mut length) = (Duration::MAX, 0);
    for _ in 0..RUNS {
        let start = Instant::now();
        let output = Command::new(program).args(&tool.command[1..]).arg(file).output();
        let output = output.map_err(|it: Error| it.to_string())?;
        best = best.min(start.elapsed());
        let [text, reports] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        let text = format!("{text}{reports}");
        if output.status.code() != Some(tool.exit) || !text.contains(&expected) {
            let end = text.lines().last().unwrap_or_default();
            return Err(format!(
                "{} at {size}, expected {} and `{expected}`: {end}",
                output.status, tool.exit
            ));
        }
        length = text.len();
    }
    Ok((best, length))
}
