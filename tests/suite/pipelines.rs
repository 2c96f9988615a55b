//! Runs every named pipeline on every program that is not lowered: the samples, and of the cases a part (`part`), another one
//! for each pipeline.
//!
//! The result must have the meaning of the program under twenty schedules. Every pipeline must lower what
//! `@lower` lowers, because a pipeline that cannot overlap a communication lowers it without overlap. A loop
//! that an overlap pipeline creates must overlap.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use grammar::{
    bindings::{Binding, apply_bindings},
    codes::Code,
    diagnostic::has_errors,
    ir::{Program, Stmt},
    ops::OpClass,
    span::LineIndex,
};
use hir_driver::{auto::machine::default_estimator, run::inputs::InputSpec};
use hir_plan::{
    self, InstKind, Plan, World,
    sync::happens_before::{Occurrence, walk},
};
use hir_sim::footprint;
use hir_tensor::{data::Data, generate::InputKind};
use libtest_mimic::{Failed, Trial};
use passes::{PIPELINES, PassEvent, Settings, Verify};

use crate::{generator::check_meaning, is_sample, part, shown};

/// Maximum size of a program, in bytes. Larger programs take too long in a debug build.
pub const BYTES: usize = 20_000;
/// Maximum number of bytes that all ranks hold together.
const MEMORY: usize = 1 << 24;
/// Maximum number of simulated ranks.
const RANKS: usize = 8;

/// Returns a trial for each pipeline.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let programs = programs(cases);
    let trial = |(at, pipeline): (usize, &'static str)| {
        let mine = programs.iter().enumerate();
        let mine = mine.filter(|(number, it)| is_sample(&it.0) || part::includes(number + at));
        let programs: Vec<_> = mine.map(|it| it.1.clone()).collect();
        Trial::test(format!("pipelines::{pipeline}"), move || check_programs(pipeline, &programs))
    };
    let mut trials: Vec<Trial> = PIPELINES.iter().map(|it| it.name).enumerate().map(trial).collect();
    trials.push(Trial::test("pipelines::samples_overlap", samples_overlap));
    trials
}

/// Checks what overlaps in the samples, and what does not, and that it is estimated to take less time.
fn samples_overlap() -> Result<(), Failed> {
    let root = Path::new(crate::ROOT).join("samples");
    let of = |file: &str, pipeline| lowered_plans(&root.join(file), pipeline);
    for (file, pipeline, longest) in [
        ("column-parallel.hir", "@overlap-allgather-linear", 0.75),
        ("sequence-parallel-mlp.hir", "@overlap", 0.85),
        ("../docs/examples/serial.hir", "schedule-communication", 0.95),
        ("pipeline-stages.hir", "@overlap-pipeline-stages", f64::INFINITY),
    ] {
        let (whole, cut) = (of(file, "@lower")?, of(file, pipeline)?);
        let time = |plans: &World| default_estimator().timeline(plans, None).map(|it| it.end());
        let part =
            time(&cut).and_then(|it| Ok(it / time(&whole)?)).map_err(|it| format!("{file}: {it:?}"))?;
        let counts = (overlaps(&whole)?, overlaps(&cut)?);
        if counts.0 != 0 || counts.1 == 0 || part > longest {
            return Err(
                format!("{file}: {counts:?} overlaps and {part:.2} of the time under {pipeline}").into()
            );
        }
    }
    // The all-reduce of each chunk overlaps with the matmuls of other chunks.
    let sizes = "decompose-resharding,chunk{axis=T2.0,sizes=4,4,4,2,1,1},stream-parallel{style=shard},\
                 lower-to-communication,assign-streams,allocate-and-deallocate,canonicalize,remove-dead-code";
    let file = Path::new(crate::ROOT).join("tests/cases/overlap/chunk-sizes.hir");
    let plans = lowered_plans(&file, sizes)?;
    // The last all-reduce of a rank has no matmul left to overlap with.
    match concurrent_matmuls(&plans)?.iter().filter(|count| **count == 0).count() {
        exposed if exposed <= plans.len() => Ok(()),
        exposed => Err(format!("{exposed} all-reduces overlap with nothing").into()),
    }
}

/// Returns the texts without communications, streams, loops or storage, for which the pipelines are made. The
/// RUN lines of the cases contain the bindings.
fn programs(cases: &[PathBuf]) -> Vec<(PathBuf, String)> {
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        let (mut programs, diagnostics) = grammar::read(&text);
        let mut program = programs.pop().filter(|_| programs.is_empty() && !has_errors(&diagnostics))?;
        let bindings = bindings(&text);
        apply_bindings(&mut program, &bindings).ok()?;
        let is_plain =
            is_unlowered(&program) && text.len() < BYTES && !has_errors(&grammar::verify(&program));
        let is_small = hir_plan::smallest_world(&program) <= RANKS;
        (is_plain && is_small).then(|| (path.clone(), grammar::print(&program)))
    };
    cases.iter().filter_map(read).collect()
}

/// Returns the bindings of the `--set` options on the first line.
pub fn bindings(text: &str) -> Vec<Binding> {
    let line = text.lines().next().unwrap_or_default();
    line.split("--set ")
        .skip(1)
        .filter_map(|it| it.split(' ').next()?.trim_matches('\'').parse().ok())
        .collect()
}

pub fn is_unlowered(program: &Program) -> bool {
    program.body().iter().all(|stmt| match &program.stmts[*stmt] {
        Stmt::Op(it) => matches!(it.op.def().class, OpClass::Compute | OpClass::Elementwise),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    })
}

fn check_programs(pipeline: &str, programs: &[(PathBuf, String)]) -> Result<(), Failed> {
    if programs.len() < 8 {
        return Err(format!("found only {} programs", programs.len()).into());
    }
    let mut faults = String::new();
    for (path, text) in programs {
        let outcome = catch_unwind(AssertUnwindSafe(|| check_program(pipeline, text)));
        let outcome = outcome.unwrap_or_else(|_| Err("panicked, see above".to_owned()));
        if let Err(fault) = outcome {
            faults += &format!("{}: {fault}\n", shown(path));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}

/// Returns the names of the pipelines that lower resharding operators to communications.
pub fn lowering_pipelines() -> impl Iterator<Item = &'static str> {
    PIPELINES.iter().filter(|it| it.passes.contains("lower-to-communication")).map(|it| it.name)
}

fn check_program(pipeline: &str, text: &str) -> Result<(), String> {
    let Some(whole) = lowered("@lower", text)? else { return Ok(()) };
    // A program that fails without a pipeline cannot serve as a reference.
    let own = grammar::read(text).0.pop().ok_or("no program")?;
    let fits = |it: &Program| {
        plans(it, text).is_ok_and(|it| {
            let fill = || InputSpec::new(InputKind::Exact, 0, &it).fill(&it);
            // The simulator must support every element type of the program.
            let computes = |plan: &Plan| plan.buffers.iter().all(|it| Data::zeros(it.dtype, 0).is_ok());
            it.iter().all(computes) && footprint(&it).bytes < MEMORY && fill().is_ok()
        })
    };
    if !fits(&own) || !fits(&whole.0) || lowering_pipelines().all(|it| it != pipeline) {
        return Ok(());
    }
    let Some((program, remarks)) = lowered(pipeline, text)? else {
        return Err(format!("{pipeline} refuses what @lower lowers"));
    };
    check_meaning(text, pipeline)?;
    let loops = loops(&program);
    if pipeline == "@lower" || loops == 0 {
        return Ok(());
    }
    let passed = remarks.contains(&Code::Overlapped);
    let plans = plans(&program, text)?;
    match passed && plans.iter().any(|it| it.code.iter().any(|inst| communicates(&inst.kind, it.rank))) {
        true if overlaps(&plans)? == 0 => Err("nothing overlaps".to_owned()),
        true | false => Ok(()),
    }
}

/// Returns the program that a pipeline makes of a text, and the codes of its remarks; `None` if it refuses
/// the program.
pub fn lowered(pipeline: &str, text: &str) -> Result<Option<(Program, Vec<Code>)>, String> {
    let mut program = grammar::read(text).0.pop().ok_or("no program")?;
    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    let mut codes = Vec::new();
    let observe = &mut |event: PassEvent<'_>| {
        if let PassEvent::After { remarks, .. } = event {
            codes.extend(remarks.iter().map(|it| it.code));
        }
    };
    match passes::run(&mut program, &calls, settings, observe) {
        Ok(()) => Ok(Some((program, codes))),
        Err(failure) if failure.error.is_bug() => Err(failure.to_string()),
        Err(_) => Ok(None),
    }
}

fn plans(program: &Program, text: &str) -> Result<World, String> {
    let plans = hir_plan::build(program, &LineIndex::new(text), hir_plan::smallest_world(program));
    plans.map_err(|faults| faults.first().map_or("no plan".to_owned(), |it| it.message.clone()))
}

fn loops(program: &Program) -> usize {
    program.body().iter().filter(|stmt| matches!(&program.stmts[**stmt], Stmt::For(_))).count()
}

/// Returns true if an instruction moves data between ranks.
fn communicates(kind: &InstKind, rank: usize) -> bool {
    kind.communication().is_some() || kind.accesses(rank).iter().any(|it| it.rank != rank)
}

/// Returns, for each communication, the number of matmuls of its rank that may run at the same time: neither
/// ends before the other begins.
fn concurrent_matmuls(plans: &World) -> Result<Vec<usize>, String> {
    let (mut moves, mut products): (Vec<Occurrence>, Vec<Occurrence>) = Default::default();
    walk(plans, &mut |moment| match &plans[moment.rank].code[moment.inst].kind {
        InstKind::Gemm(_) => products.push(moment),
        kind if communicates(kind, moment.rank) => moves.push(moment),
        _ => (),
    })
    .map_err(|it| format!("{it:?}"))?;
    let meet =
        |a: &Occurrence, b: &Occurrence| a.rank == b.rank && !a.happens_before(b) && !b.happens_before(a);
    Ok(moves.iter().map(|a| products.iter().filter(|b| meet(a, b)).count()).collect())
}

/// Returns the number of pairs of a communication and a matmul of one rank that may run at the same time.
fn overlaps(plans: &World) -> Result<usize, String> {
    Ok(concurrent_matmuls(plans)?.into_iter().sum())
}

/// Returns the plans of a file that a pipeline lowers.
fn lowered_plans(path: &Path, pipeline: &str) -> Result<World, String> {
    let text = fs::read_to_string(path).map_err(|it| it.to_string())?;
    let (program, _) = lowered(pipeline, &text)?.ok_or("refused")?;
    plans(&program, &text)
}
