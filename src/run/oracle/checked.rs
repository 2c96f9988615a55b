//! Judges passes by checking programs: the oracle of `--verify-each=check`.

use grammar::{
    codes::{Code, Severity},
    diagnostic::Diagnostic,
    ir::Program,
    span::Span,
};
use passes::{Meaning, SemanticOracle};

use super::{Oracle, runs_on, unplanned};
use crate::{
    check::{Checks, Model, check},
    plan::Plan,
};

/// Checks programs instead of running them: what passes make of a program without faults is free of races, deadlocks and unwritten
/// outputs on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    /// What plans the programs.
    pub oracle: Oracle<'a>,
    /// Whose rules give an order.
    pub model: Model,
}

/// A program without faults.
struct Clean<'a> {
    judge: Checked<'a>,
    program: Program,
}

impl SemanticOracle for Checked<'_> {
    fn meaning(&self, program: &Program) -> Result<Box<dyn Meaning + '_>, Vec<Diagnostic>> {
        let plans = self.oracle.plan(program, program)?;
        match fault(&plans, self.model, Code::Unjudged, &|_| program) {
            Some(it) => Err(vec![it]),
            None => Ok(Box::new(Clean { judge: *self, program: program.clone() })),
        }
    }
}

impl Meaning for Clean<'_> {
    fn is_kept(&self, program: &Program) -> Result<(), Diagnostic> {
        let Checked { oracle, model } = self.judge;
        let plans = oracle.plan(program, &self.program).map_err(|faults| unplanned(program, &faults))?;
        let programs = |rank| runs_on(program, &self.program, rank);
        fault(&plans, model, Code::Miscompiled, &programs).map_or(Ok(()), Err)
    }
}

/// The first fault that the checker finds.
fn fault<'p>(
    plans: &[Plan],
    model: Model,
    code: Code,
    program: &dyn Fn(usize) -> &'p Program,
) -> Option<Diagnostic> {
    let report = check(plans, Checks { model, ..Checks::FAULTS });
    report.findings.iter().find_map(|finding| {
        let found = finding.diagnostic(plans, &[]).1;
        if found.severity() != Severity::Error {
            return None;
        }
        let places = finding.places(plans).into_iter();
        let mut labels: Vec<(Span, String)> =
            places.map(|(rank, stmt, label)| (program(rank).stmt_span(stmt), label)).collect();
        if labels.is_empty() {
            labels.push((program(0).spans.header, "this program".to_owned()));
        }
        Some(Diagnostic { code, labels, ..found })
    })
}
