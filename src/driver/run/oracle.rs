//! Verifies passes by running programs on the simulator: the oracle of `--verify-each=semantic` and
//! `--bisect`.
//!
//! The reference is the output of the original program on `exact` inputs, which must be the same under all
//! schedules that are tried. Inputs and outputs correspond by position and are compared as whole tensors, so
//! a pass may change the sharding. Inexact results are compared by their f64 shadows: a pass may reorder a
//! sum, but must not drop a term.
//!
//! A program with `%options rank=R` runs only on rank R. The other ranks run the last program that is not of
//! one rank.

mod checker;

use std::sync::Arc;

use grammar::{Code, Diagnostic, LineIndex, Operand, Program};
use passes::{Reference, SemanticOracle};

pub use checker::CheckerOracle;

use super::{
    inputs::InputSpec,
    memory_limit::memory_limit_diagnostic,
    trial::{FailureKind, RunFailure, run_trial},
    verdict::{Expectation, ExpectationSource, expectations, input_mismatch},
};
use hir_check::Checks;
use hir_plan::{Plan, World, limits::Limits, opaque_call_diagnostic};
use hir_sim::{Schedule, WorkBudget};
use hir_tensor::{data::Data, generate::InputKind};

/// Number of seeded schedules that are tried, in addition to `program` and `adversarial`.
const SEED_COUNT: u64 = 8;

/// Returns all schedules that are tried.
pub fn schedules() -> Vec<Schedule> {
    let plain = [Schedule::Program, Schedule::Adversarial];
    plain.into_iter().chain((0..SEED_COUNT).map(Schedule::Seed)).collect()
}

/// Runs programs on simulated ranks.
#[derive(Clone, Copy, Debug)]
pub struct SimulationOracle<'a> {
    /// Line index of the text that the programs come from.
    pub lines: &'a LineIndex,
    /// Number of ranks; `None`: the smallest world that contains all meshes of the first program.
    pub ranks: Option<usize>,
    /// Limits on the number of ranks, and on the memory of plans and of simulated ranks.
    pub limits: Limits,
    /// The work of all runs together.
    pub work: &'a WorkBudget,
}

/// The outputs of the original program, which are the same under all schedules.
struct SimulatedReference<'a> {
    oracle: SimulationOracle<'a>,
    program: Program,
    plans: World,
    input_spec: InputSpec,
    outputs: Vec<Expectation>,
}

impl SemanticOracle for SimulationOracle<'_> {
    fn reference(&self, program: &Program) -> Result<Box<dyn Reference + '_>, Vec<Diagnostic>> {
        let plans = self.plan(program, program)?;
        if let Some(call) = plans.iter().find_map(|it| opaque_call_diagnostic(program, it)) {
            return Err(vec![call]);
        }
        let input_spec = InputSpec::new(InputKind::Exact, 0, &plans);
        let refuse = |message: String| {
            vec![Diagnostic::new(Code::InvalidReference, program.spans.header, message, "this program")]
        };
        let inputs = input_spec.clone().fill(&plans).map_err(|it| refuse(it.to_string()))?;
        let all = schedules();
        // The reference is of no use if no pass can be compared with it.
        let work = hir_sim::work(&plans, all.len());
        let taken = self.work.check(work.saturating_mul(2)).and_then(|()| self.work.take(work));
        taken.map_err(|it| vec![it.diagnostic(program.spans.header)])?;
        let mut outputs = Vec::new();
        for schedule in all {
            let ran = run_trial(&plans, &inputs, &schedule, &outputs, self.limits.memory)
                .map_err(|it| vec![failure_diagnostic(Code::InvalidReference, &it, &plans, &|_| program)])?;
            if outputs.is_empty() {
                let basis = ExpectationSource::Simulated { exact: ran.exact };
                outputs = expectations(ran.outputs, &format!("schedule {schedule}"), basis);
            }
        }
        let oracle = Self { ranks: Some(plans.len()), ..*self };
        Ok(Box::new(SimulatedReference { oracle, program: program.clone(), plans, input_spec, outputs }))
    }
}

/// Returns the diagnostic for a program that a pass has made impossible to plan.
fn planning_diagnostic(program: &Program, faults: &[Diagnostic]) -> Diagnostic {
    let first = |it: &Diagnostic| {
        if it.code == Code::OverBudget {
            return it.clone();
        }
        let message = format!("it can no longer be planned: {}", it.message);
        let label = it.labels.first().map_or("here", |(_, label)| label);
        Diagnostic::new(Code::Miscompiled, it.span(), message, label)
    };
    let header = program.spans.header;
    faults.first().map_or_else(
        || Diagnostic::new(Code::Miscompiled, header, "it can no longer be planned", "this program"),
        first,
    )
}

impl SimulationOracle<'_> {
    /// Plans all ranks. If `program` belongs to one rank, the other ranks run `others`.
    fn plan(&self, program: &Program, others: &Program) -> Result<World, Vec<Diagnostic>> {
        let smallest = hir_plan::smallest_world(program).max(hir_plan::smallest_world(others));
        let ranks = self.ranks.unwrap_or(smallest);
        if ranks < smallest {
            let message = hir_plan::limits::too_few_ranks_text("the program", smallest, ranks);
            let header = program.spans.header;
            return Err(vec![Diagnostic::new(Code::WorldTooSmall, header, message, "this program")]);
        }
        self.limits.check_world(program, ranks).map_err(|fault| vec![fault])?;
        let runs = |rank: usize| program_of_rank(program, others, rank);
        let world: Vec<_> = (0..ranks).map(|rank| (runs(rank), self.lines)).collect();
        let plans = hir_plan::build_per_rank(&world, &self.limits, &hir_plan::CallerUses::default())
            .map_err(|all| all.into_iter().map(|(_, it)| it).collect::<Vec<_>>())?;
        match memory_limit_diagnostic(program.spans.header, &plans, self.limits.memory) {
            Some(fault) => Err(vec![fault]),
            None => Ok(plans),
        }
    }
}

/// Returns the program that `rank` runs.
fn program_of_rank<'p>(program: &'p Program, others: &'p Program, rank: usize) -> &'p Program {
    if program.own_rank().is_none_or(|own| own == rank as i64) { program } else { others }
}

impl Reference for SimulatedReference<'_> {
    fn check_equivalent(&self, program: &Program, all_ranks: &Program) -> Result<(), Diagnostic> {
        let fault = |message: String| {
            Diagnostic::new(Code::Miscompiled, program.spans.header, message, "this program")
        };
        let plans =
            self.oracle.plan(program, all_ranks).map_err(|faults| planning_diagnostic(program, &faults))?;
        if let Some(message) = input_mismatch(&self.plans, &plans) {
            return Err(fault(format!("it {message}")));
        }
        let dtypes = |plans: &[Plan]| -> Vec<String> {
            plans.first().iter().flat_map(|plan| &plan.outputs).map(|port| port.dtype.to_string()).collect()
        };
        let (found, wanted) = (dtypes(&plans).join(", "), dtypes(&self.plans).join(", "));
        if found != wanted {
            return Err(fault(format!("its outputs have element types {found}; they had {wanted}")));
        }
        let inputs = self.input_spec.clone().fill(&plans).map_err(|it| fault(it.to_string()))?;
        let all = schedules();
        let work = hir_sim::work(&plans, all.len());
        self.oracle.work.take(work).map_err(|it| it.diagnostic(program.spans.header))?;
        all.into_iter()
            .try_for_each(|schedule| self.check_schedule(program, all_ranks, &plans, &inputs, schedule))
            .map_err(|difference| self.own_fault().unwrap_or(difference))
    }
}

impl SimulatedReference<'_> {
    /// Returns the fault of the original program that the schedules did not show: a pass may change what a program with a
    /// race computes.
    fn own_fault(&self) -> Option<Diagnostic> {
        let checks = Checks::ALL_FAULTS;
        checker::first_fault(&self.plans, checks, Code::InvalidReference, &|_| &self.program)
    }

    fn check_schedule(
        &self,
        program: &Program,
        all_ranks: &Program,
        plans: &World,
        inputs: &[Vec<Arc<Data>>],
        schedule: Schedule,
    ) -> Result<(), Diagnostic> {
        let limit = self.oracle.limits.memory;
        run_trial(plans, inputs, &schedule, &self.outputs, limit).map(|_| ()).map_err(|failure| {
            let programs = |rank| program_of_rank(program, all_ranks, rank);
            failure_diagnostic(Code::Miscompiled, &failure, plans, &programs)
        })
    }
}

/// Returns the diagnostic of a failed run, with a label at the statement or output to inspect.
fn failure_diagnostic<'p>(
    code: Code,
    failure: &RunFailure,
    plans: &[Plan],
    program: &dyn Fn(usize) -> &'p Program,
) -> Diagnostic {
    let output = failure.output.and_then(|at| program(0).outputs.get(at).copied().and_then(Operand::tensor));
    let span = match (failure.stmt(plans), output) {
        (Some((rank, stmt)), _) => program(rank).stmt_span(stmt),
        (None, Some(tensor)) => program(0).tensor_span(tensor),
        (None, None) => program(0).spans.header,
    };
    let label = match failure.kind {
        FailureKind::NeverCompletes | FailureKind::SelfWait | FailureKind::CyclicWait => "waits here",
        FailureKind::WrongOutput | FailureKind::UnwrittenOutput | FailureKind::ReplicasDiffer
            if failure.inst_ref.is_some() =>
        {
            "nothing orders this with what it depends on"
        }
        FailureKind::WrongOutput | FailureKind::UnwrittenOutput | FailureKind::ReplicasDiffer => {
            "this output"
        }
        FailureKind::ProgramError => "stops",
    };
    let it = Diagnostic::new(code, span, &failure.message, label);
    let help = failure.deadlock.as_ref().map(|it| it.help());
    let is_unordered = code == Code::InvalidReference && failure.inst_ref.is_some();
    let help =
        help.or(is_unordered.then(|| "`hir-opt --check` without passes reports what is not ordered".into()));
    let it = help.into_iter().fold(it, Diagnostic::help);
    let notes = failure.deadlock.as_ref().map_or(Vec::new(), |it| it.notes());
    let it = if notes.is_empty() { it } else { it.note(notes.join("\n")) };
    it.note(format!("seen under `--schedule={}`", failure.schedule))
}
