//! Checks that no pass, and no stage of the tools, takes quadratic time in the size of the program.
//!
//! Times depend on caches and on the allocator, so the work is counted too: the number of statements, tensors, axes and scalars that
//! are looked up, iterated over or copied (`grammar::arena::visits`). Work on texts and on plans is not counted.

use std::{sync::Arc, time::Duration};

use grammar::{Dialect, arena, span::LineIndex};
use hir_driver::run::inputs::InputSpec;
use hir_sim::{Schedule, SimOptions, footprint};
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};
use passes::{PassEvent, Settings, Verify};

#[path = "../../benches/programs/mod.rs"]
mod programs;

use programs::{AXES, Axis};

use crate::cpu_time::cpu_time;

/// Maximum growth of the time when the size grows by a factor of four, for times that are not too short to
/// measure: n log n takes about five times as long, and n² sixteen times.
const GROWTH: u32 = 9;
const SHORT: Duration = Duration::from_millis(40);
/// Maximum growth of the counted work, besides `FEW` visits.
const GROWTH_OF_WORK: u64 = 6;
const FEW: u64 = 20_000;
/// The axes on which the work grows with the square: each loop counts what is nested in it, and the nesting is limited;
/// each rank of a pipeline plans all statements, and each attempt of `overlap` copies them, until its limit.
const GROW_FASTER: &[&str] = &["depth", "meshes"];
/// Maximum number of measurements of a growth, since other processes use the caches too.
const TRIES: usize = 4;

/// Returns a trial of the passes and one of the stages for each axis.
pub fn trials() -> Vec<Trial> {
    let name = |axis: &Axis| axis.name.replace(' ', "_");
    let passes = AXES.iter().filter(|it| !it.passes.is_empty());
    let passes =
        passes.map(|axis| Trial::test(format!("scaling::{}", name(axis)), || grows_slowly(axis, axis.size)));
    let stages = AXES.iter().filter(|it| !GROW_FASTER.contains(&it.name));
    let stages =
        stages.map(|axis| Trial::test(format!("scaling::stages::{}", name(axis)), || stages_of(axis)));
    passes
        .chain(stages)
        .chain([
            Trial::test("scaling::many_ranks", many_ranks),
            Trial::test("scaling::replicas_share_memory", replicas_share_memory),
        ])
        .collect()
}

/// A pass or a stage, with its time and the counted work.
type Cost = (String, Duration, u64);

/// Returns an error if the counted work grows faster than n log n.
fn work_grows_slowly(size: usize, one: &[Cost], four: &[Cost]) -> Result<(), Failed> {
    let wrong = four.iter().zip(one).find(|(four, one)| four.2 > one.2 * GROWTH_OF_WORK + FEW);
    match wrong {
        None => Ok(()),
        Some((four, one)) => {
            Err(format!("`{}` visits {} elements at {size}, {} at {}", one.0, one.2, four.2, 4 * size).into())
        }
    }
}

/// Reading, verifying, printing in each dialect, and planning.
fn stages_of(axis: &Axis) -> Result<(), Failed> {
    let [one, four] = [axis.size, 4 * axis.size].map(|size| stage_costs(&(axis.program)(size)));
    work_grows_slowly(axis.size, &one?, &four?)
}

fn stage_costs(text: &str) -> Result<Vec<Cost>, Failed> {
    let mut costs: Vec<Cost> = Vec::new();
    let (mut start, mut visits) = (cpu_time(), arena::visits());
    let mut end = |name: &str| {
        costs.push((name.to_owned(), cpu_time() - start, arena::visits() - visits));
        (start, visits) = (cpu_time(), arena::visits());
    };
    let (programs, diagnostics) = grammar::read(text);
    end("reading");
    if grammar::diagnostic::has_errors(&diagnostics) {
        return Ok(costs);
    }
    let faults: Vec<_> = programs.iter().flat_map(grammar::verify).collect();
    end("verifying");
    for dialect in [Dialect::Canonical, Dialect::Short, Dialect::Y2025] {
        programs.iter().for_each(|it| _ = grammar::print_as(it, dialect));
        end(&format!("printing: {dialect:?}"));
    }
    let lines = LineIndex::new(text);
    for program in &programs {
        hir_plan::build(program, &lines, hir_plan::smallest_world(program))
            .map_err(|it| format!("{it:?}"))?;
    }
    end("planning");
    if faults.is_empty() { Ok(costs) } else { Err(format!("{faults:?}").into()) }
}

fn grows_slowly(axis: &Axis, size: usize) -> Result<(), Failed> {
    let [small, large] = [size, 4 * size].map(|it| (axis.program)(it));
    let (mut one, mut four) = (costs(&small, axis.passes)?, costs(&large, axis.passes)?);
    if !GROW_FASTER.contains(&axis.name) {
        work_grows_slowly(size, &one, &four)?;
    }
    let mut slow = String::new();
    for _ in 1..TRIES {
        best(&mut one, costs(&small, axis.passes)?);
        best(&mut four, costs(&large, axis.passes)?);
        let wrong = four.iter().zip(&one).find(|((_, four, _), (_, one, _))| *four > *one * GROWTH + SHORT);
        let Some(((call, four, _), (_, one, _))) = wrong else { return Ok(()) };
        slow = format!("`{call}` takes {one:?} at {size}, {four:?} at {}\n", 4 * size);
    }
    Err(slow.into())
}

/// Keeps the shorter times of two runs.
fn best(times: &mut [Cost], again: Vec<Cost>) {
    times.iter_mut().zip(again).for_each(|(it, again)| it.1 = it.1.min(again.1));
}

/// The plans of a ring of 256 ranks must take little memory, since the ranks share most of it.
fn many_ranks() -> Result<(), Failed> {
    const RANKS: usize = 256;
    const BYTES: usize = 200 << 20;
    let text = column_parallel(RANKS);
    let (mut programs, _) = grammar::read(&text);
    let program = programs.first_mut().ok_or("no program")?;
    let calls =
        passes::parse("@overlap-allgather-linear{overlap.most-steps=256}").map_err(|it| it.message)?;
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    passes::run(program, &calls, settings, &mut |_| ()).map_err(|it| it.to_string())?;
    let plans = hir_plan::build(program, &LineIndex::new(&text), RANKS).map_err(|it| format!("{it:?}"))?;
    let bytes = footprint(&plans).bytes;
    let shared = plans.iter().all(|it| Arc::ptr_eq(&it.origins, &plans[0].origins));
    if bytes < BYTES && shared {
        Ok(())
    } else {
        Err(format!("{RANKS} ranks take {bytes} bytes; origins are shared: {shared}").into())
    }
}

/// Ranks that hold the same part of an input, or of the result of a resharding operator, share it: the memory of a run grows
/// with the ranks and with the whole tensors, not with their product.
fn replicas_share_memory() -> Result<(), Failed> {
    const RANKS: usize = 256;
    let text = column_parallel(RANKS);
    let program = grammar::read(&text).0.pop().ok_or("no program")?;
    let world = hir_plan::build(&program, &LineIndex::new(&text), RANKS).map_err(|it| format!("{it:?}"))?;
    let plans: usize = world.iter().map(hir_plan::Plan::bytes).sum();
    let bytes = footprint(&world).bytes;
    // The result has 4 elements for each rank, which are 4 MiB of memory if each rank has its own.
    if bytes > plans + (1 << 20) {
        return Err(format!("{bytes} bytes, of which the plans are {plans}").into());
    }
    let inputs = InputSpec::new(InputKind::Exact, 0, &world).fill(&world).map_err(|it| it.to_string())?;
    if !inputs.iter().all(|it| Arc::ptr_eq(&it[1], &inputs[0][1])) {
        return Err("ranks have copies of a replicated input".into());
    }
    let outcome = hir_sim::run(&world, inputs, &Schedule::Program, &SimOptions::default())?;
    let first = outcome.outputs[0][0].as_ref().ok_or("rank 0 has no output")?;
    let is_shared = |it: &Vec<Option<Arc<_>>>| it[0].as_ref().is_some_and(|it| Arc::ptr_eq(it, first));
    if !first.written.is_full() || !outcome.outputs.iter().all(is_shared) {
        return Err("ranks have copies of a replicated output".into());
    }
    Ok(())
}

/// Returns a linear layer whose operand is sharded by rows and whose result is not:
/// `tests/cases/overlap/column-parallel.hir` on more ranks.
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

/// Returns the costs of each pass of a pipeline.
fn costs(text: &str, pipeline: &str) -> Result<Vec<Cost>, Failed> {
    let (mut programs, diagnostics) = grammar::read(text);
    let program = programs.first_mut().filter(|_| !grammar::diagnostic::has_errors(&diagnostics));
    let program = program.ok_or_else(|| format!("{:?}", diagnostics.first()))?;
    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let (mut costs, mut start, mut visits) = (Vec::new(), Duration::ZERO, 0);
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    let mut observe = |event: PassEvent<'_>| match event {
        PassEvent::Before { .. } => (start, visits) = (cpu_time(), arena::visits()),
        PassEvent::After { call, .. } => {
            costs.push((call.to_string(), cpu_time() - start, arena::visits() - visits));
        }
        PassEvent::Failed { .. } => (),
    };
    passes::run(program, &calls, settings, &mut observe).map_err(|it| it.to_string())?;
    Ok(costs)
}
