//! How the time of the passes grows with the program.
//!
//! `cargo bench --bench passes [-- OPERATORS...]`, 1,000 to 30,000 operators unless told: a chain of linear layers whose
//! operands are spread over four devices in turn by rows, by columns and not at all. A line a size and pass: the time in
//! the pass, the time in the checks behind it (verifying and printing), and both per operator of the program as read,
//! which stay the same where everything is linear. The best of three runs counts.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark reports on the terminal")]

use std::{collections::BTreeMap, fmt::Write as _, process::ExitCode, time::Duration};

use passes::{Event, Settings, Verify};

const SIZES: [usize; 4] = [1_000, 3_000, 10_000, 30_000];
const RUNS: usize = 3;
const PIPELINE: &str = "decompose-resharding,lower-to-communication,@default";

fn main() -> ExitCode {
    let sizes: Vec<usize> = std::env::args().filter_map(|it| it.parse().ok()).collect();
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    println!("operators  pass                       time(ms) checks(ms)  time(us/op) checks(us/op)");
    for size in sizes {
        if let Err(fault) = measure(size) {
            eprintln!("passes: {fault}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(operators: usize) -> Result<(), String> {
    let text = chain(operators);
    let (programs, diagnostics) = grammar::read(&text);
    let program = programs.first().ok_or("no program")?;
    if let Some(it) = diagnostics.first() {
        return Err(it.message.clone());
    }
    let calls = passes::parse(PIPELINE).map_err(|it| it.message)?;
    // By place in the pipeline: the best time in the pass, and in the checks.
    let mut best: BTreeMap<usize, (&str, Duration, Duration)> = BTreeMap::new();
    for _ in 0..RUNS {
        let mut at = 0;
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        let mut observe = |event: Event<'_>| {
            if let Event::After { call, time, checks, .. } = event {
                let it = best.entry(at).or_insert((call.pass.name, time, checks));
                (it.1, it.2) = (it.1.min(time), it.2.min(checks));
                at += 1;
            }
        };
        passes::run(&mut program.clone(), &calls, settings, &mut observe).map_err(|it| it.to_string())?;
    }
    let total = best.values().fold((Duration::ZERO, Duration::ZERO), |sum, it| (sum.0 + it.1, sum.1 + it.2));
    let row = |name: &str, time: Duration, checks: Duration| {
        let (milli, micro) =
            (|it: Duration| it.as_secs_f64() * 1e3, |it: Duration| it.as_secs_f64() * 1e6 / operators as f64);
        println!(
            "{operators:9}  {name:24} {:10.1} {:10.1} {:12.2} {:13.2}",
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

/// A chain of operators; every one of them reshards.
fn chain(operators: usize) -> String {
    const MESH: &str = "(DeviceMesh{0 1 2 3})";
    let (mut axis, mut domains, mut body) = (0, String::new(), String::new());
    // Dimension 0 or 1 on the devices, or none.
    let mut tensor = |number: usize, spread: Option<usize>| {
        axis += 4;
        let [a, b, outer, inner] = [axis - 4, axis - 3, axis - 2, axis - 1];
        let Some(dim) = spread else { return format!("T{number}_g_float[iS{a}{{8}}, iS{b}{{8}}] {MESH}") };
        let (split, kept) = if dim == 0 { (a, b) } else { (b, a) };
        let _ = writeln!(
            domains,
            "  T{number}: logical(iS{a}{{8}}, iS{b}{{8}}), outer_split(iS{split}{{8}}, 4) -> \
             (ideviceIdx.x{outer}{{4}}, iS{inner}{{2}})"
        );
        let (first, second) = match dim {
            0 => (format!("iS{inner}{{2}}"), format!("iS{kept}{{8}}")),
            _ => (format!("iS{kept}{{8}}"), format!("iS{inner}{{2}}")),
        };
        format!("T{number}_g_float[ideviceIdx.x{outer}{{4}}, {first}, {second}] {MESH}")
    };
    let (input, weight, columns) = (tensor(0, Some(0)), tensor(1, None), tensor(2, Some(1)));
    let mut last = input.clone();
    for at in 0..operators {
        let number = at + 3;
        let out = tensor(number, [None, Some(1), Some(0)][at % 3]);
        let value = match at % 3 {
            // Rows come together.
            0 => format!("linear({last},\n              {weight})"),
            // Columns go apart.
            1 => format!("Set( {last} )"),
            // Partial sums, which are added and scattered by rows.
            _ => format!("linear({last},\n              {columns})"),
        };
        let _ = writeln!(body, "  {out}\n     = {value}");
        last = out;
    }
    format!(
        "%HostIrContainer {{ ({input}, {weight}, {columns}) -> ({last}) :\n{body}}} // %HostIrContainer\n\nDomains:\n{domains}"
    )
}
