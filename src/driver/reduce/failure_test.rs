//! Determines how a program fails, as signatures that stay the same while the program shrinks.
//!
//! A smaller program is only interesting if it fails as the original did: all its signatures must be among
//! those of the original. This prevents the reduction from replacing a race by one that a removed wait
//! caused, or a deadlock by one that a removed send caused.

use std::{
    io,
    process::{Command, Stdio},
    sync::Arc,
};

use grammar::{Binding, Code, Diagnostic, Program, verify};
use passes::{PassCall, PassError, Settings, Verify};

pub use super::failure_oracle::FailureOracle;
use super::{
    Candidate, CommandRunner, InterestingnessTest, order,
    signatures::{FailureSignatures, NoSignature, failure_signature, race_signatures},
};
use crate::{
    run::{
        failure::JobFailure,
        inputs::InputSpec,
        memory_limit::memory_limit_diagnostic,
        oracle::schedules,
        prepare::PrepareOptions,
        trial::{FailureKind, RunFailure, run_trial},
        verdict::{self, Expectation, ExpectationSource, expectations},
    },
    session::Session,
};
use hir_plan::{CallerUses, Plan, World, limits::Limits};
use hir_process::expected_panic::catch_expected;
use hir_sim::{Schedule, SimLimits, WorkBudget};
use hir_tensor::{data::Data, generate::InputKind};

/// Tests programs for a failure.
pub struct FailureTest<'a> {
    /// The session that reads the reference.
    pub session: &'a Session,
    /// The failure to test for.
    pub oracle: &'a FailureOracle,
    /// Passes that run first.
    pub calls: &'a [PassCall],
    /// Path of the program that defines the expected results.
    pub reference: Option<&'a str>,
    /// Files with the fusions of the reference's kernels. Those of the tested program are part of its text.
    pub fusions: &'a [String],
    /// Bindings of the reference's symbols. Bindings of the tested program are part of its text.
    pub bindings: &'a [Binding],
    /// Whether the scalars that the reference does not define get the values that the report about them proposes.
    pub assume: bool,
    /// Number of ranks; `None` selects the smallest world that contains every mesh.
    pub ranks: Option<usize>,
    /// Limits of the number of ranks and of the memory of plans and simulated ranks.
    pub limits: Limits,
    /// The work of all simulated runs.
    pub work: WorkBudget,
    /// Schedules to run under.
    pub schedules: Vec<Schedule>,
    /// True to find races with the checker, which needs no schedule.
    pub checks_races: bool,
    /// Runs the command.
    pub running: &'a CommandRunner,
}

impl<'a> FailureTest<'a> {
    /// Creates a test without passes, in the smallest world and with the usual limits, that finds races with the checker.
    pub fn new(session: &'a Session, oracle: &'a FailureOracle, running: &'a CommandRunner) -> Self {
        Self {
            session,
            oracle,
            calls: &[],
            reference: None,
            fusions: &[],
            bindings: &[],
            assume: false,
            ranks: None,
            limits: Limits::default(),
            work: WorkBudget::default(),
            schedules: schedules(),
            checks_races: true,
            running,
        }
    }
}

/// Accepts programs that fail as the original program did.
pub struct SameFailure<'a> {
    /// The test.
    pub test: FailureTest<'a>,
    /// Signatures of the original program's failure.
    pub signatures: FailureSignatures,
}

impl InterestingnessTest for SameFailure<'_> {
    fn is_worth_testing(&self, before: &Candidate, after: &Program) -> bool {
        match self.test.oracle {
            // A program that cannot be planned has no order to preserve.
            FailureOracle::Race | FailureOracle::WrongResult => {
                match (self.test.plans_of(before), self.test.plan(after, before)) {
                    (Ok(before), Ok(after)) => order::preserves_order(before, &after),
                    (Ok(_), Err(_)) => false,
                    (Err(_), _) => true,
                }
            }
            FailureOracle::Deadlock | FailureOracle::Crash | FailureOracle::Command(_) => true,
        }
    }

    fn is_interesting(&self, candidate: &Candidate) -> bool {
        self.test.running.fault().is_none()
            && self.test.failure_signatures(candidate).is_ok_and(|found| found.is_subset(&self.signatures))
    }
}

impl FailureTest<'_> {
    /// Returns how a program fails.
    ///
    /// # Errors
    /// The program does not fail in that way.
    pub fn failure_signatures(&self, candidate: &Candidate) -> Result<FailureSignatures, NoSignature> {
        let observe = || match self.oracle {
            FailureOracle::Command(command) => self.command(command, candidate),
            FailureOracle::Race
            | FailureOracle::Deadlock
            | FailureOracle::WrongResult
            | FailureOracle::Crash => {
                let faults = verify(&candidate.program);
                match faults.iter().find(|it| it.is_error()) {
                    Some(fault) => Err(format!("the verifier rejects the program: {}", fault.message).into()),
                    None if *self.oracle == FailureOracle::Crash => self.crash(candidate),
                    None => self.run(candidate),
                }
            }
        };
        // A panic of a pass can be the failure that the test looks for.
        let outcome = catch_expected(observe).unwrap_or_else(|_| Err("the test panicked".into()));
        if let Err(NoSignature::Untestable(why)) = &outcome {
            self.running.record_fault(why.clone());
        }
        outcome
    }

    fn command(&self, command: &str, candidate: &Candidate) -> Result<FailureSignatures, NoSignature> {
        let file = self.running.file().display().to_string();
        let line =
            if command.contains("%s") { command.replace("%s", &file) } else { format!("{command} {file}") };
        let run = || -> io::Result<_> {
            std::fs::write(self.running.file(), grammar::encode(&candidate.text))?;
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            self.running.run(&mut shell)
        };
        match run() {
            Ok(status) if status.success() => {
                Ok(FailureSignatures::from(["the command exits with 0".to_owned()]))
            }
            // A POSIX shell exits with these codes if it cannot execute the command.
            Ok(status) if matches!(status.code(), Some(126 | 127)) => {
                let fault = format!("the shell cannot execute the command `{command}`");
                Err(NoSignature::Untestable(fault))
            }
            Ok(status) => {
                Err(format!("the command `{command}` does not exit with 0 for the program: {status}").into())
            }
            Err(fault) => Err(NoSignature::Untestable(format!("cannot run `{command}`: {fault}"))),
        }
    }

    fn crash(&self, candidate: &Candidate) -> Result<FailureSignatures, NoSignature> {
        let settings = Settings { verify: Verify::Structural, roundtrip: true };
        let failure = match passes::run(&mut candidate.program.clone(), self.calls, settings, &mut |_| ()) {
            Ok(()) => return Err("the passes do not fail".into()),
            Err(failure) if !failure.error.is_bug() => return Err(failure.to_string().into()),
            Err(failure) => failure,
        };
        // Indices in panic messages and lines in other messages change while the program shrinks.
        let detail = match &failure.error {
            PassError::Panicked(message) => message.chars().filter(|it| !it.is_ascii_digit()).collect(),
            PassError::VerificationFailed(all) => {
                all.first().map_or(String::new(), |it| it.code.text().to_owned())
            }
            PassError::RoundTripMismatch(..) => "does not read back".to_owned(),
            PassError::Rejected(_)
            | PassError::BadOption(_)
            | PassError::UnreportedChange
            | PassError::InvalidReference(_)
            | PassError::Unverified(_)
            | PassError::Miscompiled(_) => failure.to_string(),
        };
        Ok(FailureSignatures::from([format!("{}: {detail}", failure.pass.unwrap_or("as read"))]))
    }

    fn run(&self, candidate: &Candidate) -> Result<FailureSignatures, NoSignature> {
        let (rewritten, planned);
        let (program, plans) = if self.calls.is_empty() {
            (&candidate.program, self.plans_of(candidate).as_ref().map_err(Clone::clone)?)
        } else {
            let mut program = candidate.program.clone();
            let settings = Settings { verify: Verify::Structural, roundtrip: false };
            passes::run(&mut program, self.calls, settings, &mut |_| ()).map_err(|it| it.to_string())?;
            planned = self.plan(&program, candidate)?;
            rewritten = program;
            (&rewritten, &planned)
        };
        if self.checks_races && *self.oracle == FailureOracle::Race {
            return race_signatures(program, plans);
        }
        let input_spec = InputSpec::new(InputKind::Exact, 0, plans);
        let inputs = fill(&input_spec, plans)?;
        // One more run computes what the results are compared with.
        let work = hir_sim::work(plans, self.schedules.len() + 1);
        self.work.take(work).map_err(|it| cannot_run(Some(&it.diagnostic(program.spans.header))))?;
        let expected = match self.oracle {
            FailureOracle::Race => {
                let ran = run_trial(plans, &inputs, &Schedule::Program, &[], self.limits.memory);
                let ran =
                    ran.map_err(|it| format!("the program fails under schedule program: {}", it.message))?;
                expectations(
                    ran.outputs,
                    "schedule program",
                    ExpectationSource::Simulated { exact: ran.exact },
                )
            }
            FailureOracle::WrongResult => self.expected_outputs(candidate, plans, &input_spec)?,
            FailureOracle::Deadlock | FailureOracle::Crash | FailureOracle::Command(_) => Vec::new(),
        };
        let mut signatures = FailureSignatures::new();
        let (mut found, mut other) = (false, None);
        for schedule in &self.schedules {
            let Err(failure) = run_trial(plans, &inputs, schedule, &expected, self.limits.memory) else {
                continue;
            };
            match self.classify(&failure) {
                Relevance::Target => {
                    found = true;
                    signatures.insert(failure_signature(&failure, program, plans));
                }
                Relevance::Other => signatures.extend([failure_signature(&failure, program, plans)]),
                Relevance::Ignored => (),
            }
            other.get_or_insert(format!(
                "the program fails in another way under schedule {schedule}: {}",
                failure.message
            ));
        }
        let none = || match self.schedules.as_slice() {
            [only] => format!("the program does not fail under schedule {only}"),
            many => format!("the program does not fail under {} schedules", many.len()),
        };
        if found { Ok(signatures) } else { Err(other.unwrap_or_else(none).into()) }
    }

    fn classify(&self, failure: &RunFailure) -> Relevance {
        let (is_deadlock, is_wrong) = match failure.kind {
            FailureKind::NeverCompletes | FailureKind::SelfWait | FailureKind::CyclicWait => (true, false),
            FailureKind::WrongOutput | FailureKind::UnwrittenOutput | FailureKind::ReplicasDiffer => {
                (false, failure.output.is_some())
            }
            FailureKind::ProgramError => (false, false),
        };
        match self.oracle {
            FailureOracle::Race | FailureOracle::WrongResult if is_wrong => Relevance::Target,
            FailureOracle::Deadlock if is_deadlock => Relevance::Target,
            // A deadlocking program that no longer computes wrong results is a smaller reproducer, so wrong
            // results do not count.
            FailureOracle::Deadlock if is_wrong => Relevance::Ignored,
            FailureOracle::Race
            | FailureOracle::WrongResult
            | FailureOracle::Deadlock
            | FailureOracle::Crash
            | FailureOracle::Command(_) => Relevance::Other,
        }
    }

    /// Returns the expected results.
    fn expected_outputs(
        &self,
        candidate: &Candidate,
        plans: &[Plan],
        input_spec: &InputSpec,
    ) -> Result<Vec<Expectation>, NoSignature> {
        if let Some(path) = self.reference {
            let setup = PrepareOptions {
                session: self.session,
                limits: self.limits,
                ranks: self.ranks,
                container: None,
                fusions: self.fusions,
                bindings: self.bindings,
                assume: self.assume,
                is_reference: true,
                inputs: &[],
                uses: CallerUses::default(),
                passes: &|_, _| Ok(()),
            };
            let limits = SimLimits { memory: self.limits.memory, work: &self.work };
            let refused = |failure| match failure {
                JobFailure::Rejected(_, faults) => {
                    let error = faults.iter().find(|it| it.is_error()).or(faults.first());
                    error.map_or(String::new(), |it| format!("`{path}`: {}", it.message))
                }
                JobFailure::BadOption(_, fault) => fault.message,
                other => other.summary(),
            };
            let known = verdict::reference_expectations(path, &setup, limits, input_spec, plans);
            return known.map_err(|it| refused(it).into());
        }
        let plans = self.plans_of(candidate).as_ref().map_err(Clone::clone)?;
        let ran = run_trial(plans, &fill(input_spec, plans)?, &Schedule::Program, &[], self.limits.memory);
        let ran = ran.map_err(|it| format!("the program fails before the passes: {}", it.message))?;
        let basis = ExpectationSource::Reference { exact: ran.exact };
        Ok(expectations(ran.outputs, "the program before the passes", basis))
    }

    /// Returns the plans of a program before the passes.
    fn plans_of<'c>(&self, candidate: &'c Candidate) -> &'c Result<World, NoSignature> {
        candidate.plans.get_or_init(|| self.plan(&candidate.program, candidate))
    }

    fn plan(&self, program: &Program, candidate: &Candidate) -> Result<World, NoSignature> {
        let smallest = hir_plan::smallest_world(program);
        let ranks = self.ranks.unwrap_or(smallest);
        if ranks < smallest {
            return Err(hir_plan::limits::too_few_ranks_text("the program", smallest, ranks).into());
        }
        let plans = hir_plan::build_with_limits(program, &candidate.lines, ranks, &self.limits)
            .map_err(|faults| cannot_run(faults.first()))?;
        match memory_limit_diagnostic(program.spans.header, &plans, self.limits.memory) {
            Some(fault) => Err(cannot_run(Some(&fault))),
            None => Ok(plans),
        }
    }
}

/// Returns the error of a program that is not planned or simulated. A limit of the tool ends the reduction.
fn cannot_run(fault: Option<&Diagnostic>) -> NoSignature {
    let help = fault.and_then(|it| it.help.as_ref()).map(|it| format!(" ({it})")).unwrap_or_default();
    let message = fault.map_or("", |it| &it.message);
    let text = format!("the program cannot run: {message}{help}");
    match fault {
        Some(it) if it.code == Code::OverBudget => NoSignature::Untestable(text),
        _ => NoSignature::Otherwise(text),
    }
}

fn fill(input_spec: &InputSpec, plans: &[Plan]) -> Result<Vec<Vec<Arc<Data>>>, NoSignature> {
    input_spec.clone().fill(plans).map_err(|it| it.to_string().into())
}

/// How a failure relates to the one that is tested for.
enum Relevance {
    /// It is the failure that is tested for.
    Target,
    /// It is another failure, which a smaller program must not add.
    Other,
    /// It is another failure, which is irrelevant.
    Ignored,
}
