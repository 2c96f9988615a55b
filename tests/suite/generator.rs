//! Runs random programs through the lowering passes. The lowered program must verify, read back and contain
//! no resharding operator. Under twenty schedules it must give exactly the result of the original program or,
//! if sums are rounded, the same f64 shadow. The original program must give the same result on whole tensors,
//! with all shardings removed. The checker must find no fault in the lowered program. Other trials run the same
//! programs without the shardings of random results, which propagate-shardings has to determine.
//!
//! `HIR_PROGRAMS=20000` tries more programs, `HIR_SEED=7` others. A failure prints the smallest failing
//! program of its seed, and the command line that runs it.

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
};

use grammar::{diagnostic::Diagnostic, diagnostic::has_errors, ir::Program, span::LineIndex};
use hir_check::{Checks, check};
use hir_driver::run::{
    inputs::InputSpec,
    results, unsharded,
    verdict::{Criteria, Expectation, ExpectationSource, expectations, judge_outputs, simulate},
};
use hir_plan::{InstKind, Plan, World};
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};
use passes::{Settings, Verify};

use crate::{part, pipelines::lowering_pipelines, programs, rng::Rng, setting::number_or};

/// Default number of programs per trial.
const PROGRAMS: usize = 500;
/// Number of trials that share the programs.
const SHARDS: usize = part::PARTS;
/// Maximum number of operators per program.
const OPERATORS: usize = 4;
/// Pipelines that lower a program, besides the named ones.
const LOWERINGS: &[&str] = &[
    "propagate-shardings,decompose-resharding,lower-to-communication",
    "propagate-shardings,decompose-resharding{reshard=result},lower-to-communication",
    "propagate-shardings,decompose-resharding,lower-to-communication{backend=cuda}",
    "propagate-shardings,decompose-resharding{reshard=result},lower-to-communication{backend=ucc}",
    "propagate-shardings,decompose-resharding,lower-to-communication,@default",
    "canonicalize,propagate-shardings,decompose-resharding{reshard=result},lower-to-communication,\
     remove-dead-code",
    SINGLE_STEP_PASS,
];
/// A pass that leaves, or refuses, operators that need more than one step.
const SINGLE_STEP_PASS: &str = "lower-to-communication";
/// Lowering pipelines that may be followed by other passes.
const BASES: &[&str] = &[
    "@lower",
    "propagate-shardings,decompose-resharding,stream-parallel,lower-to-communication,allocate-and-deallocate",
    "propagate-shardings,decompose-resharding,chunk,stream-parallel{style=shard},lower-to-communication,allocate-and-deallocate,\
     assign-streams{dependent=keep}",
    "propagate-shardings,decompose-resharding,chunk,stream-parallel{offset-by-rank=false},lower-to-communication,\
     allocate-and-deallocate,assign-streams{count=2,dependent=keep}",
    "propagate-shardings,decompose-resharding,chunk,stream-parallel{allgather=p2p-ring},lower-to-communication,\
     allocate-and-deallocate,assign-streams{count=numberOfStreams,dependent=keep}",
];
/// Passes that may follow, in this order.
const FOLLOWING: &[&str] = &[
    "hoist-share-mem-handles",
    "use-local-shard-in-place",
    "common-subexpression",
    "select-algorithms",
    "fuse-collective-epilogue",
    "unroll",
    "double-buffer",
    "sink-waits",
    "defer-waits",
    "hoist-communication",
    "remove-redundant-sync",
    "canonicalize",
    "remove-dead-code",
    "inline-definitions",
    "renumber",
];

/// Returns a random pipeline that leaves no resharding operator.
pub fn pipeline(rng: &mut Rng) -> String {
    match rng.below(10) {
        0..=3 => rng.choose_cloned(LOWERINGS).to_owned(),
        4..=6 => {
            let named: Vec<&str> = lowering_pipelines().collect();
            rng.choose_cloned(&named).to_owned()
        }
        _ => {
            let base = rng.choose_cloned(BASES);
            let mut following = FOLLOWING.to_vec();
            following.retain(|_| rng.chance(25));
            std::iter::once(base).chain(following).collect::<Vec<_>>().join(",")
        }
    }
}

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let count = number_or("HIR_PROGRAMS", PROGRAMS * SHARDS) / SHARDS;
    let seed = number_or("HIR_SEED", 0) * 1_000_000;
    let shard = |name: &str, shard: usize, program: Generator| {
        Trial::test(format!("{name}_{shard}"), move || {
            let seeds = (0..count).map(|at| (seed + at * SHARDS + shard) as u64);
            let results: Vec<Result<bool, String>> = seeds.map(|seed| attempt(seed, program)).collect();
            verdict(&results)
        })
        .with_ignored_flag(!part::includes(shard))
    };
    let all = (0..SHARDS).map(|at| shard("lowering_keeps_the_meaning", at, programs::program));
    let inferred = programs::program_without_some_shardings;
    all.chain((0..SHARDS).map(|at| shard("lowering_keeps_inferred_shardings", at, inferred))).collect()
}

/// Returns the program of a seed with a number of operators.
type Generator = fn(u64, usize) -> String;

/// Fails with all faults, each kind once, and if too few programs were compared exactly.
fn verdict(results: &[Result<bool, String>]) -> Result<(), Failed> {
    let mut kinds: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for fault in results.iter().filter_map(|it| it.as_ref().err()) {
        kinds.entry(fault.lines().next().unwrap_or_default()).or_insert((0, fault)).0 += 1;
    }
    let inexact = results.iter().filter(|it| **it == Ok(false)).count();
    if kinds.is_empty() && inexact * 20 <= results.len() {
        return Ok(());
    }
    let faults: String = kinds.values().map(|(count, fault)| format!("({count} times) {fault}\n")).collect();
    Err(format!("{faults}{inexact} of {} programs round", results.len()).into())
}

/// Tries one program, and after a failure finds the smallest failing program of the seed. Returns true if its
/// sums were exact.
fn attempt(seed: u64, program: Generator) -> Result<bool, String> {
    let mut rng = Rng(seed ^ 0x5eed);
    let operators = 1 + rng.below(OPERATORS);
    let pipeline = pipeline(&mut rng);
    let check = |operators| {
        let text = program(seed, operators);
        let outcome = catch_unwind(AssertUnwindSafe(|| check_meaning(&text, &pipeline)));
        outcome.unwrap_or_else(|_| Err("panicked, see above".to_owned())).map_err(|fault| (fault, text))
    };
    let mut failure = match check(operators) {
        Ok(is_exact) => return Ok(is_exact),
        Err(failure) => failure,
    };
    for fewer in 1..operators {
        if let Err(smaller) = check(fewer) {
            failure = smaller;
            break;
        }
    }
    let (fault, text) = failure;
    let file = std::env::temp_dir().join(format!("hir-program-{seed}.hir"));
    let _ = fs::write(&file, &text);
    let file = file.display();
    Err(format!(
        "{fault}\n{text}hir-run {file} --passes '{pipeline}' --reference {file} --schedule=seed:0..20\n"
    ))
}

/// Checks that a pipeline preserves the meaning of a program. Returns false if the program's own sums are
/// rounded, so that f64 shadows were compared.
pub fn check_meaning(text: &str, pipeline: &str) -> Result<bool, String> {
    let (mut programs, diagnostics) = grammar::read(text);
    let lines = LineIndex::new(text);
    fail_on_errors("does not read", &diagnostics)?;
    let Some(mut program) = programs.pop() else { return Err("no program".to_owned()) };
    fail_on_errors("does not verify", &grammar::verify(&program))?;
    let ranks = hir_plan::smallest_world(&program);
    let before = build_plans("cannot be planned", &program, &lines, ranks)?;
    let mut filling = InputSpec::new(InputKind::Exact, 0, &before);
    let inputs = filling.fill(&before).map_err(|it| it.to_string())?;
    let outcome =
        simulate(&before, inputs, &Schedule::Program, DEFAULT_MEMORY_LIMIT).map_err(|it| it.to_string())?;
    let is_exact = outcome.notes.exactness.is_exact();
    let outputs = results::outputs(&before, &outcome).map_err(|it| it.to_string())?;
    if let Some(fault) = outputs.iter().find_map(|it| it.fault.as_ref()) {
        return Err(format!("the original program has a fault: {fault}"));
    }
    let whole = whole_tensors(&program, &lines, &mut filling)?;
    if let Some(wanted) = whole {
        let criteria = Criteria { exact: Some(is_exact), ..Criteria::default() };
        let verdict = judge_outputs(&before, &outcome, &wanted, &criteria).map_err(|it| it.to_string())?;
        if !verdict.is_right() {
            return Err(format!("differs from its result on whole tensors: {}", verdict.line));
        }
    }
    let expected = expectations(outputs, "the program", ExpectationSource::Reference { exact: is_exact });

    let calls = passes::parse(pipeline).map_err(|it| it.message)?;
    let settings = Settings { verify: Verify::Structural, roundtrip: true };
    match passes::run(&mut program, &calls, settings, &mut |_| ()) {
        // The program leaves a choice between shardings.
        Err(failure) if failure.pass == Some("propagate-shardings") && !failure.error.is_bug() => {
            return Ok(true);
        }
        // Overlap pipelines do not apply to every program.
        Err(failure)
            if failure.error.is_bug() || LOWERINGS.contains(&pipeline) && pipeline != SINGLE_STEP_PASS =>
        {
            let why: Vec<&str> = failure.error.diagnostics().iter().map(|it| it.message.as_str()).collect();
            return Err(format!("{failure}: {}", why.join("; ")));
        }
        // A pipeline that cannot overlap a communication must lower it without overlap.
        Err(failure) if pipeline.starts_with('@') && !pipeline.contains(',') && can_lower(text) => {
            return Err(format!("{pipeline} refuses what @lower lowers: {failure}"));
        }
        Err(_) => return Ok(true),
        Ok(()) => (),
    }
    let after = build_plans("cannot be planned after the pipeline", &program, &lines, ranks)?;
    let found = |world: &World| -> Vec<Diagnostic> {
        let findings = check(world, Checks::ALL_FAULTS).findings;
        findings.iter().map(|it| it.diagnostic(world, &[]).1).collect()
    };
    // The program may mean to write to a copy.
    let own = found(&before);
    let is_own = |it: &Diagnostic| !it.is_error() && own.iter().any(|other| other.code == it.code);
    if let Some(it) = found(&after).iter().find(|it| !is_own(it)) {
        return Err(format!("the checker finds: {}", it.message));
    }
    let reshards = |plan: &Plan| plan.code.iter().any(|it| matches!(it.kind, InstKind::Reshard(_)));
    if pipeline != SINGLE_STEP_PASS && after.iter().any(reshards) {
        return Err("a resharding operator is left".to_owned());
    }
    let inputs = filling.fill(&after).map_err(|it| it.to_string())?;
    let seeds = (0..18).map(Schedule::Seed);
    for schedule in [Schedule::Program, Schedule::Adversarial].into_iter().chain(seeds) {
        let fault = |it: &dyn std::fmt::Display| format!("{it}, schedule {schedule}");
        let outcome =
            simulate(&after, inputs.clone(), &schedule, DEFAULT_MEMORY_LIMIT).map_err(|it| fault(&it))?;
        let criteria = Criteria { exact: Some(outcome.notes.exactness.is_exact()), ..Criteria::default() };
        let verdict = judge_outputs(&after, &outcome, &expected, &criteria);
        let verdict = verdict.map_err(|it| fault(&it))?;
        if !verdict.is_right() {
            return Err(fault(&verdict.line.to_string()));
        }
    }
    Ok(is_exact)
}

/// Returns the program's outputs with all shardings removed. `None` if the program reads a view of what it has written again, or
/// depends on the rank.
fn whole_tensors(
    program: &Program,
    lines: &LineIndex,
    filling: &mut InputSpec,
) -> Result<Option<Vec<Expectation>>, String> {
    let erased = match unsharded::plan_unsharded(program, lines) {
        Ok(plan) => plan,
        Err(fault)
            if ["if it is a view of", "depends on the rank"].iter().any(|it| fault.message.contains(it)) =>
        {
            return Ok(None);
        }
        Err(fault) => return Err(format!("cannot run on whole tensors: {}", fault.message)),
    };
    let inputs = filling.fill(&erased).map_err(|it| it.to_string())?;
    let outcome =
        simulate(&erased, inputs, &Schedule::Program, DEFAULT_MEMORY_LIMIT).map_err(|it| it.to_string())?;
    let outputs = results::outputs(&erased, &outcome).map_err(|it| it.to_string())?;
    let exact = outcome.notes.exactness.is_exact();
    let outputs =
        expectations(outputs, "the program without shardings", ExpectationSource::Reference { exact });
    Ok(Some(outputs))
}

/// Returns true if `@lower` lowers a program.
fn can_lower(text: &str) -> bool {
    let (mut programs, _) = grammar::read(text);
    let calls = passes::parse("@lower").unwrap_or_default();
    programs.iter_mut().all(|it| passes::run(it, &calls, Settings::default(), &mut |_| ()).is_ok())
}

fn build_plans(what: &str, program: &Program, lines: &LineIndex, ranks: usize) -> Result<World, String> {
    hir_plan::build(program, lines, ranks).map_err(|faults| match fail_on_errors(what, &faults) {
        Ok(()) => what.to_owned(),
        Err(fault) => fault,
    })
}

fn fail_on_errors(what: &str, diagnostics: &[Diagnostic]) -> Result<(), String> {
    let Some(first) = diagnostics.first().filter(|_| has_errors(diagnostics)) else { return Ok(()) };
    Err(format!("{what}: {}", first.message))
}
