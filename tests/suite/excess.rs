//! Checks what the checker reports as removable in random programs: the program without one such statement
//! has no faults, and gives the same outputs under several schedules.
//!
//! A run tries a part of them (`part`). `HIR_EXCESS=5000` tries more programs, `HIR_SEED=7` others. A failure prints the program and the line.

use grammar::{
    attr,
    ir::{Program, Stmt, StmtId},
    ops::OpClass,
    span::LineIndex,
};
use hir_check::{Checks, Excess, ExcessKind, Finding, check};
use hir_driver::run::oracle::SimulationOracle;
use hir_plan::Plan;
use hir_plan::limits::Limits;
use hir_sim::WorkBudget;
use libtest_mimic::{Failed, Trial};
use passes::{SemanticOracle, Settings};

use crate::{generator, lowered, part, programs, rng::Rng, setting::number_or};

/// Default number of programs per trial, in all parts.
const PROGRAMS: usize = 800;

/// Numbers of findings: redundant waits, unnecessary waits, and writes that nothing reads.
type FindingCounts = [usize; 3];

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let (count, seed) = (number_or("HIR_EXCESS", PROGRAMS), number_or("HIR_SEED", 0) * 1_000_000);
    let all = move |of: fn(u64) -> Option<(String, Program)>, least: FindingCounts, count: usize| {
        let (mut sum, mut tried) = (FindingCounts::default(), 0);
        let (first, step) = part::stride(1);
        for seed in (first..count).step_by(step).map(|at| (seed + at) as u64) {
            tried += 1;
            let Some((text, program)) = of(seed) else { continue };
            let found =
                check_findings(&text, &program).map_err(|fault| format!("seed {seed}: {fault}\n{text}"))?;
            sum.iter_mut().zip(found).for_each(|(sum, it)| *sum += it);
        }
        // A trial without findings would prove nothing: `least` of 100 programs.
        if sum.iter().zip(least).all(|(sum, least)| *sum * 100 >= least * tried) {
            Ok(())
        } else {
            Err(Failed::from(format!("only {sum:?} findings in {tried} programs")))
        }
    };
    vec![
        Trial::test("excess_of_random_streams", move || all(random_stream_program, [25, 25, 25], count)),
        Trial::test("excess_of_random_lowered_programs", move || {
            // Few lowered programs have unnecessary waits: a part may have none.
            all(random_lowered_program, [1, usize::from(part::includes_all()), 0], count)
        }),
    ]
}

/// Returns a random program of streams and communications.
fn random_stream_program(seed: u64) -> Option<(String, Program)> {
    let text = lowered::program(seed);
    let program = grammar::read(&text).0.pop()?;
    Some((text, program))
}

/// Returns the result of a random pipeline on a random program, if the pipeline accepts it.
fn random_lowered_program(seed: u64) -> Option<(String, Program)> {
    let mut rng = Rng(seed ^ 0xe8c5);
    let pipeline = generator::pipeline(&mut rng);
    let mut program = grammar::read(&programs::program(seed, 1 + rng.below(4))).0.pop()?;
    let calls = passes::parse(&pipeline).ok()?;
    passes::run(&mut program, &calls, Settings::default(), &mut |_| ()).ok()?;
    let text = grammar::print(&program);
    let program = grammar::read(&text).0.pop()?;
    Some((text, program))
}

/// Returns the number of findings of each kind, after checking that each of them can be removed.
fn check_findings(text: &str, program: &Program) -> Result<FindingCounts, String> {
    let lines = LineIndex::new(text);
    let ranks = hir_plan::smallest_world(program);
    let Ok(plans) = hir_plan::build(program, &lines, ranks) else { return Ok(FindingCounts::default()) };
    let report = check(&plans, Checks::DEFAULT);
    let excess: Vec<&Excess> = report
        .findings
        .iter()
        .filter_map(|it| if let Finding::Excess(it) = it { Some(it.as_ref()) } else { None })
        .collect();
    let faults = check(&plans, Checks::ALL_FAULTS).findings.len();
    if faults + excess.len() != report.findings.len() {
        return Err("the search for removable statements changes the other findings".to_owned());
    }
    if faults > 0 {
        // A program that reads unwritten elements has no unique result.
        return Ok(FindingCounts::default());
    }
    let oracle = SimulationOracle {
        lines: &lines,
        ranks: Some(ranks),
        limits: Limits::default(),
        work: &WorkBudget::default(),
    };
    let mut found = FindingCounts::default();
    let mut meaning = None;
    for it in excess {
        let kind = match &it.kind {
            ExcessKind::ImpliedWait => 0,
            ExcessKind::UnneededWait { .. } => 1,
            ExcessKind::UnreadWrite { is_allocation: false, .. } => 2,
            ExcessKind::UnreadWrite { .. }
            | ExcessKind::AllocatesOnce { .. }
            | ExcessKind::NotDeallocated { .. } => {
                continue;
            }
        };
        let (line, without) = without(program, &plans, it);
        let fault = |what: String| format!("without line {line}, {what}");
        let after = match hir_plan::build(&without, &lines, ranks) {
            Ok(after) => after,
            // The name of a tensor has lost its storage, or a communication its other side.
            Err(_) if kind == 2 => continue,
            Err(faults) => return Err(fault(format!("no plan: {}", faults[0].message))),
        };
        let report = check(&after, Checks::ALL_FAULTS);
        if let Some(first) = report.findings.first() {
            if matches!(it.kind, ExcessKind::UnreadWrite { communicates: true, .. }) {
                // The Waits of the removed statement have ordered other accesses, or its other side is a
                // separate statement.
                continue;
            }
            return Err(fault(format!("a fault: {}", first.diagnostic(&after, &[]).1.message)));
        }
        if meaning.is_none() {
            meaning = Some(oracle.reference(program).map_err(|it| fault(it[0].message.clone()))?);
        }
        if let Some(meaning) = &meaning {
            meaning.check_equivalent(&without, program).map_err(|it| fault(it.message))?;
        }
        found[kind] += 1;
    }
    Ok(found)
}

/// Returns the program without a statement and, if it is a communication, without its Waits; and its line.
fn without(program: &Program, plans: &[Plan], it: &Excess) -> (u32, Program) {
    let mut program = program.clone();
    let origin = plans[it.stmt.0].origins[it.stmt.1 as usize];
    let number = origin.stmt.and_then(|stmt| match &program.stmts[stmt] {
        Stmt::Op(it) if it.op.def().class == OpClass::Communicate => it.number,
        _ => None,
    });
    let is_removed = |stmt: StmtId| {
        Some(stmt) == origin.stmt
            || number.is_some()
                && matches!(&program.stmts[stmt], Stmt::Op(it) if it.get(attr::WORK) == number)
    };
    let blocks: Vec<_> = program.blocks.ids().collect();
    let kept: Vec<Vec<StmtId>> = blocks
        .iter()
        .map(|it| program.blocks[*it].iter().copied().filter(|it| !is_removed(*it)).collect())
        .collect();
    for (block, kept) in blocks.into_iter().zip(kept) {
        program.blocks[block] = kept;
    }
    (origin.line, program)
}
