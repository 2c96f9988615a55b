//! Verifies passes with the checker: the oracle of `--verify-each=check`.

use grammar::{Code, Diagnostic, Program, Span};
use passes::{Reference, SemanticOracle};

use super::{SimulationOracle, planning_diagnostic, program_of_rank};
use hir_check::{Checks, check};
use hir_plan::World;

/// Checks programs instead of running them. If the original program has no fault, the passes must not
/// introduce a race, a deadlock or an unwritten output on any rank.
#[derive(Clone, Copy, Debug)]
pub struct CheckerOracle<'a> {
    /// Plans the programs.
    pub planner: SimulationOracle<'a>,
    /// What is checked, and by which rules.
    pub checks: Checks,
}

/// A program without faults.
struct CheckedReference<'a> {
    checker: CheckerOracle<'a>,
}

impl SemanticOracle for CheckerOracle<'_> {
    fn reference(&self, program: &Program) -> Result<Box<dyn Reference + '_>, Vec<Diagnostic>> {
        let plans = self.planner.plan(program, program)?;
        match first_fault(&plans, self.checks, Code::InvalidReference, &|_| program) {
            Some(it) => Err(vec![it]),
            None => {
                let planner = SimulationOracle { ranks: Some(plans.len()), ..self.planner };
                Ok(Box::new(CheckedReference { checker: Self { planner, ..*self } }))
            }
        }
    }
}

impl Reference for CheckedReference<'_> {
    fn check_equivalent(&self, program: &Program, all_ranks: &Program) -> Result<(), Diagnostic> {
        let CheckerOracle { planner: oracle, checks } = self.checker;
        let plans =
            oracle.plan(program, all_ranks).map_err(|faults| planning_diagnostic(program, &faults))?;
        let programs = |rank| program_of_rank(program, all_ranks, rank);
        first_fault(&plans, checks, Code::Miscompiled, &programs).map_or(Ok(()), Err)
    }
}

/// Returns the first fault that the checker finds.
pub(super) fn first_fault<'p>(
    world: &World,
    checks: Checks,
    code: Code,
    program: &dyn Fn(usize) -> &'p Program,
) -> Option<Diagnostic> {
    let report = check(world, checks);
    report.findings.iter().find_map(|finding| {
        let found = finding.diagnostic(world, &[]).1;
        if !found.is_error() {
            return None;
        }
        let places = finding.labeled_statements(world).into_iter();
        let mut labels: Vec<(Span, String)> =
            places.map(|(rank, stmt, label)| (program(rank).stmt_span(stmt), label)).collect();
        if labels.is_empty() {
            labels.push((program(0).spans.header, "this program".to_owned()));
        }
        // A fault of the program before the passes keeps its own code.
        let code = if code == Code::InvalidReference { found.code } else { code };
        Some(Diagnostic { code, labels, ..found })
    })
}
