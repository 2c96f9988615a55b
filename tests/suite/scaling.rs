//! Checks that no pass takes quadratic time in the size of the program.

use std::{sync::Arc, time::Duration};

use grammar::span::LineIndex;
use hir::{plan, sim::footprint};
use libtest_mimic::{Failed, Trial};
use passes::{PassEvent, Settings, Verify};

#[path = "../../benches/passes/programs.rs"]
mod programs;

use programs::{AXES, Axis};

/// Maximum growth of the time when the size grows by a factor of four, for times that are not too short to
/// measure: n log n takes about five times as long, and n² sixteen times.
const GROWTH: u32 = 9;
const SHORT: Duration = Duration::from_millis(40);
/// Maximum number of measurements of a growth, since other processes use the machine too.
const TRIES: usize = 4;

/// Returns one trial for each axis.
pub fn trials() -> Vec<Trial> {
    AXES.iter()
        .map(|axis| {
            let size = match axis.name {
                // The reader limits the nesting of loops to 200.
                "depth" => 24,
                "ranks" => 512,
                "loops" => 750,
                "merged loops" => 1_500,
                _ => 5_000,
            };
            let name = format!("scaling::{}", axis.name.replace(' ', "_"));
            Trial::test(name, move || grows_slowly(axis, size))
        })
        .chain([Trial::test("scaling::many_ranks", many_ranks)])
        .collect()
}

fn grows_slowly(axis: &Axis, size: usize) -> Result<(), Failed> {
    let [small, large] = [size, 4 * size].map(|it| (axis.program)(it));
    let (mut one, mut four) = (time(&small, axis.passes)?, time(&large, axis.passes)?);
    let mut told = String::new();
    for _ in 1..TRIES {
        best(&mut one, time(&small, axis.passes)?);
        best(&mut four, time(&large, axis.passes)?);
        let wrong = four.iter().zip(&one).find(|((_, four), (_, one))| *four > *one * GROWTH + SHORT);
        let Some(((call, four), (_, one))) = wrong else { return Ok(()) };
        told = format!("`{call}` takes {one:?} at {size}, {four:?} at {}\n", 4 * size);
    }
    Err(told.into())
}

/// Keeps the shorter times of two runs.
fn best(times: &mut [(String, Duration)], again: Vec<(String, Duration)>) {
    times.iter_mut().zip(again).for_each(|(it, again)| it.1 = it.1.min(again.1));
}

/// The plans of a ring of 256 ranks must take little memory, since the ranks share most of it.
fn many_ranks() -> Result<(), Failed> {
    const RANKS: usize = 256;
    const BYTES: usize = 200 << 20;
    let text = column_parallel(RANKS);
    let (mut programs, _) = grammar::read(&text);
    let program = programs.first_mut().ok_or("no program")?;
    let calls = passes::parse("@overlap-allgather-linear").map_err(|it| it.message)?;
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    passes::run(program, &calls, settings, &mut |_| ()).map_err(|it| it.to_string())?;
    let plans = plan::build(program, &LineIndex::new(&text), RANKS).map_err(|it| format!("{it:?}"))?;
    let bytes = footprint(&plans).bytes;
    let shared = plans.iter().all(|it| Arc::ptr_eq(&it.origins, &plans[0].origins));
    match bytes < BYTES && shared {
        true => Ok(()),
        false => Err(format!("{RANKS} ranks take {bytes} bytes; origins are shared: {shared}").into()),
    }
}

/// Returns a linear layer whose operand is sharded by rows and whose result is not:
/// `samples/column-parallel.hir` on more ranks.
fn column_parallel(ranks: usize) -> String {
    let members: Vec<String> = (0..ranks).map(|it| it.to_string()).collect();
    let mesh = format!("(DeviceMesh{{{}}})", members.join(" "));
    let rows = format!("T0_g_float[ideviceIdx.x0{{{ranks}}}, iS1{{1}}, iS2{{4}}] {mesh}");
    let (weight, bias) =
        (format!("T1_g_float[iS3{{4}}, iS4{{4}}] {mesh}"), format!("T2_g_float[iS5{{4}}] {mesh}"));
    let out = format!("T3_g_float[istreamIdx6{{{ranks}}}, iS7{{1}}, iS8{{4}}, rS9{{4}}] {mesh}");
    format!(
        "%HostIrContainer {{ ({rows}, {weight}, {bias}) -> ({out}) :\n  {out}\n     = linear({rows},\n              \
         {weight},\n              {bias})\n}} // %HostIrContainer\n"
    )
}

/// Returns the time of each pass of a pipeline.
fn time(text: &str, pipeline: &str) -> Result<Vec<(String, Duration)>, Failed> {
    let (mut programs, diagnostics) = grammar::read(text);
    let program = programs.first_mut().filter(|_| !grammar::diagnostic::has_errors(&diagnostics));
    let program = program.ok_or_else(|| format!("{:?}", diagnostics.first()))?;
    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let mut times = Vec::new();
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    let mut observe = |event: PassEvent<'_>| {
        if let PassEvent::After { call, time, .. } = event {
            times.push((call.to_string(), time));
        }
    };
    passes::run(program, &calls, settings, &mut observe).map_err(|it| it.to_string())?;
    Ok(times)
}
