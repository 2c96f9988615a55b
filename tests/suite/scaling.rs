//! No pass takes quadratic time: on programs of these sizes it would not end before its limit.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use grammar::span::LineIndex;
use hir::{plan, sim::footprint};
use libtest_mimic::{Failed, Trial};
use passes::{Settings, Verify};

#[path = "../../benches/passes/programs.rs"]
mod programs;

use programs::AXES;

/// For all passes of an axis, on a machine that is busy: linear ones take less than a tenth of it.
const LIMIT: Duration = Duration::from_secs(100);

/// One trial for each axis.
pub fn trials() -> Vec<Trial> {
    AXES.iter()
        .map(|axis| {
            let size = match axis.name {
                "depth" => 60,
                "ranks" => 512,
                "loops" | "merged loops" => 3_000,
                _ => 20_000,
            };
            let name = format!("scaling::{}", axis.name.replace(' ', "_"));
            Trial::test(name, move || runs_in_time(&(axis.program)(size), axis.passes))
        })
        .chain([Trial::test("scaling::many_ranks", many_ranks)])
        .collect()
}

/// The plans of a ring of 256 ranks take little memory: most of it would be what ranks have in common.
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
        false => Err(format!("{RANKS} ranks take {bytes} bytes; one list of origins: {shared}").into()),
    }
}

/// A linear layer whose operand is sharded by rows, and whose result is not: `samples/column-parallel.hir` on more ranks.
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

fn runs_in_time(text: &str, pipeline: &str) -> Result<(), Failed> {
    let (mut programs, diagnostics) = grammar::read(text);
    let program = programs.first_mut().filter(|_| !grammar::diagnostic::has_errors(&diagnostics));
    let program = program.ok_or_else(|| format!("{:?}", diagnostics.first()))?;
    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let start = Instant::now();
    for call in &calls {
        let settings = Settings { verify: Verify::Off, roundtrip: false };
        passes::run(program, std::slice::from_ref(call), settings, &mut |_| ())
            .map_err(|it| it.to_string())?;
        if start.elapsed() > LIMIT {
            return Err(format!("`{call}` ended after {:?}", start.elapsed()).into());
        }
    }
    Ok(())
}
