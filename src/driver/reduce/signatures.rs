//! The signatures of failures: how a program fails, without the numbers that change while it shrinks.

use std::collections::BTreeSet;

use grammar::{Program, Stmt, StmtId, attr};

use crate::run::trial::{FailureKind, RunFailure};
use hir_check::{Checks, Finding, check};
use hir_plan::{Plan, World};

/// Why a program does not show the failure that is tested for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoSignature {
    /// What the program does instead.
    #[error("{0}")]
    Otherwise(String),
    /// Why no program can be tested, which ends the reduction: a limit of the tool, or a command that does not run.
    #[error("{0}")]
    Untestable(String),
}

impl<T: Into<String>> From<T> for NoSignature {
    fn from(what: T) -> Self {
        Self::Otherwise(what.into())
    }
}

/// Signatures of the failure that is tested for, and of other failures that come with it.
pub type FailureSignatures = BTreeSet<String>;

/// Returns the signatures of the races that the checker finds: the tensor, and both statements by operator
/// and tensors.
pub(super) fn race_signatures(program: &Program, world: &World) -> Result<FailureSignatures, NoSignature> {
    let report = check(world, Checks { comm: false, memory: false, ..Checks::ALL_FAULTS });
    if report.has_deadlock() {
        return Err(
            "the program deadlocks, so it cannot be checked for races: use `--oracle deadlock`".into()
        );
    }
    let mut signatures = FailureSignatures::new();
    for finding in &report.findings {
        let Finding::Race { race, .. } = finding else { continue };
        let buffer = &world[race.rank].buffers[race.buffer as usize];
        let mut sides: Vec<String> = finding
            .labeled_statements(world)
            .into_iter()
            .map(|(_, stmt, _)| stmt_summary(program, stmt))
            .collect();
        sides.sort_unstable();
        signatures.insert(format!("race on {}: {}", buffer.name, sides.join(" / ")));
    }
    if signatures.is_empty() { Err("the checker finds no race".into()) } else { Ok(signatures) }
}

/// Returns the signature of a failure, without numbers: its kind, the output, and the statement by operator
/// and tensors.
pub(super) fn failure_signature(failure: &RunFailure, program: &Program, plans: &[Plan]) -> String {
    let mut words = vec![match failure.kind {
        FailureKind::NeverCompletes => "a rank waits for something that never happens".to_owned(),
        FailureKind::SelfWait => "a rank waits for itself".to_owned(),
        FailureKind::CyclicWait => "ranks wait for each other".to_owned(),
        FailureKind::WrongOutput => "wrong result".to_owned(),
        FailureKind::UnwrittenOutput => "unwritten result".to_owned(),
        FailureKind::ReplicasDiffer => "different results across ranks".to_owned(),
        FailureKind::ProgramError => "the run stops".to_owned(),
    }];
    let output = failure.output.and_then(|at| program.outputs.get(at)).and_then(|it| it.tensor());
    words.extend(output.map(|it| program.tensor_name(it)));
    words.extend(failure.stmt(plans).map(|(_, stmt)| format!("at {}", stmt_summary(program, stmt))));
    words.join(" ")
}

/// Returns the operator, type and tensors of a statement.
fn stmt_summary(program: &Program, stmt: StmtId) -> String {
    match &program.stmts[stmt] {
        Stmt::Op(it) => {
            let mut words = vec![it.op.name().to_owned()];
            words.extend(it.get(attr::TYPE).map(|it| it.to_string()));
            words.extend(it.get(attr::P2P_TYPE).map(|it| it.to_string()));
            words.extend(it.mentions(program).map(|it| program.tensor_name(it)));
            words.join(" ")
        }
        Stmt::Let(..) => "a definition".to_owned(),
        Stmt::For(_) => "FOR".to_owned(),
        Stmt::If(_) => "IF".to_owned(),
    }
}
