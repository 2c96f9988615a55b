//! How a program fails, in words that stay the same while it shrinks.
//!
//! A smaller program is only of interest if it fails as the first one did: with some of its symptoms and no others. So a
//! race is not traded for another one that removing a wait has made, nor a deadlock for one that removing a send has.

use std::{
    cell::Cell,
    collections::BTreeSet,
    io,
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Command, Stdio},
    str::FromStr,
};

use grammar::{
    attr,
    diagnostic::{Diagnostic, has_errors},
    for_each_tensor_use,
    ir::{Program, Stmt, StmtId},
    verify,
};
use passes::{PassCall, PassError, Settings, Verify};

use super::{Candidate, CommandRunner, InterestingnessTest, order};
use crate::{
    check::{Checks, Finding, check},
    io::{data::Data, generate::InputKind},
    plan::{self, Plan, limits::Limits},
    run::{
        inputs::InputSpec,
        prepare::{JobFailure, PrepareOptions, memory_limit_diagnostic},
        trial::{FailureKind, RunFailure, run_trial},
        verdict::{self, Expectation, ExpectationSource, expectations},
    },
    sim::Schedule,
    source::Binding,
};

/// What a program is tested for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureOracle {
    /// Accesses that nothing orders, or results that depend on the schedule.
    Race,
    /// A deadlock under some schedule.
    Deadlock,
    /// Results that are not those of a reference, or of the program before the passes.
    WrongResult,
    /// Passes that panic or leave what a check rejects.
    Crash,
    /// A shell command that ends with 0; `%s` in it, or its last argument, is the file.
    Command(String),
}

impl FromStr for FailureOracle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "race" => Ok(Self::Race),
            "deadlock" => Ok(Self::Deadlock),
            "wrong-result" => Ok(Self::WrongResult),
            "crash" => Ok(Self::Crash),
            _ => match text.strip_prefix("cmd:").map(str::trim) {
                Some(command) if !command.is_empty() => Ok(Self::Command(command.to_owned())),
                Some(_) | None => {
                    Err("expected `race`, `deadlock`, `wrong-result`, `crash` or `cmd:COMMAND`".to_owned())
                }
            },
        }
    }
}

/// How programs are tested.
pub struct FailureTest<'a> {
    /// What for.
    pub oracle: &'a FailureOracle,
    /// Passes that run first.
    pub calls: &'a [PassCall],
    /// The program whose results are expected.
    pub reference: Option<&'a str>,
    /// Bindings of its symbols; those of the program under test are part of it.
    pub bindings: &'a [Binding],
    /// Number of ranks; `None`: the smallest world that holds every mesh.
    pub ranks: Option<usize>,
    /// Most ranks, and most memory of plans and of simulated ranks.
    pub limits: Limits,
    /// Schedules to run under.
    pub schedules: &'a [Schedule],
    /// Whether races are looked for by the checker, which needs no schedule.
    pub checks_races: bool,
    /// Where a command finds the program.
    pub file: &'a Path,
    /// The command that runs.
    pub running: &'a CommandRunner,
}

/// Symptoms of the kind that is looked for, and of others that a race may come with.
pub type FailureSignatures = BTreeSet<String>;

/// To fail as a program did.
pub struct SameFailure<'a> {
    /// How programs are tested.
    pub test: FailureTest<'a>,
    /// How that program failed.
    pub signatures: FailureSignatures,
}

impl InterestingnessTest for SameFailure<'_> {
    fn is_worth_testing(&self, before: &Candidate, after: &Program) -> bool {
        let plan = |program: &Program| self.test.plan(program, before);
        match self.test.oracle {
            // What cannot be planned fails in its own way, or not at all.
            FailureOracle::Race | FailureOracle::WrongResult => match (plan(&before.program), plan(after)) {
                (Ok(before), Ok(after)) => order::preserves_order(&before, &after),
                (Ok(_), Err(_)) => false,
                (Err(_), _) => true,
            },
            FailureOracle::Deadlock | FailureOracle::Crash | FailureOracle::Command(_) => true,
        }
    }

    fn is_interesting(&self, candidate: &Candidate) -> bool {
        self.test.running.fault().is_none()
            && self.test.failure_signatures(candidate).is_ok_and(|found| found.is_subset(&self.signatures))
    }
}

thread_local! {
    /// Whether this thread tests a candidate: a panic is then an answer.
    static IS_TESTING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of candidates from being reported: they are what is looked for. All others are, as before.
pub fn silence_candidate_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !IS_TESTING.get() {
            report(info);
        }
    }));
}

impl FailureTest<'_> {
    /// How a program fails.
    ///
    /// # Errors
    /// What it does instead.
    pub fn failure_signatures(&self, candidate: &Candidate) -> Result<FailureSignatures, String> {
        let examine = || match self.oracle {
            FailureOracle::Command(command) => self.command(command, candidate),
            FailureOracle::Race
            | FailureOracle::Deadlock
            | FailureOracle::WrongResult
            | FailureOracle::Crash => {
                let faults = verify(&candidate.program);
                match faults.first().filter(|_| has_errors(&faults)) {
                    Some(fault) => Err(format!("the verifier rejects it: {}", fault.message)),
                    None if *self.oracle == FailureOracle::Crash => self.crash(candidate),
                    None => self.run(candidate),
                }
            }
        };
        IS_TESTING.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(examine));
        IS_TESTING.set(false);
        outcome.unwrap_or_else(|_| Err("testing it panics".to_owned()))
    }

    fn command(&self, command: &str, candidate: &Candidate) -> Result<FailureSignatures, String> {
        let file = self.file.display().to_string();
        let line = match command.contains("%s") {
            true => command.replace("%s", &file),
            false => format!("{command} {file}"),
        };
        let run = || -> io::Result<_> {
            std::fs::write(self.file, &candidate.text)?;
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            self.running.run(&mut shell)
        };
        match run() {
            Ok(status) if status.success() => {
                Ok(FailureSignatures::from(["the command ends with 0".to_owned()]))
            }
            Ok(status) => Err(format!("`{command}` ends with {status}")),
            Err(fault) => {
                let fault = format!("`{command}` does not run: {fault}");
                self.running.record_fault(fault.clone());
                Err(fault)
            }
        }
    }

    fn crash(&self, candidate: &Candidate) -> Result<FailureSignatures, String> {
        let settings = Settings { verify: Verify::Structural, roundtrip: true };
        let failure = match passes::run(&mut candidate.program.clone(), self.calls, settings, &mut |_| ()) {
            Ok(()) => return Err("the passes run to their end".to_owned()),
            Err(failure) if !failure.error.is_bug() => return Err(failure.to_string()),
            Err(failure) => failure,
        };
        // Indices in a panic's message, and the lines in others, change with the program.
        let detail = match &failure.error {
            PassError::Panicked(message) => message.chars().filter(|it| !it.is_ascii_digit()).collect(),
            PassError::VerificationFailed(all) => {
                all.first().map_or(String::new(), |it| it.code.text().to_owned())
            }
            PassError::RoundTripMismatch(..) => "does not read back".to_owned(),
            PassError::Rejected(_)
            | PassError::UnreportedChange
            | PassError::InvalidReference(_)
            | PassError::Miscompiled(_) => failure.to_string(),
        };
        Ok(FailureSignatures::from([format!("{}: {detail}", failure.pass.unwrap_or("as read"))]))
    }

    fn run(&self, candidate: &Candidate) -> Result<FailureSignatures, String> {
        let mut program = candidate.program.clone();
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        passes::run(&mut program, self.calls, settings, &mut |_| ()).map_err(|it| it.to_string())?;
        let plans = self.plan(&program, candidate)?;
        if self.checks_races && *self.oracle == FailureOracle::Race {
            return race_signatures(&program, &plans);
        }
        let filling = InputSpec::new(InputKind::Exact, 0, Vec::new(), &plans);
        let inputs = fill(&filling, &plans)?;
        let expected = match self.oracle {
            FailureOracle::Race => {
                let ran = run_trial(&plans, &inputs, &Schedule::Program, &[]);
                let ran = ran.map_err(|it| format!("it fails under schedule program: {}", it.message))?;
                expectations(
                    ran.outputs,
                    "schedule program",
                    ExpectationSource::Simulated { exact: ran.exact },
                )
            }
            FailureOracle::WrongResult => self.expected_outputs(candidate, &plans, &filling)?,
            FailureOracle::Deadlock | FailureOracle::Crash | FailureOracle::Command(_) => Vec::new(),
        };
        let mut symptoms = FailureSignatures::new();
        let (mut found, mut instead) = (false, None);
        for schedule in self.schedules {
            let Err(mishap) = run_trial(&plans, &inputs, schedule, &expected) else { continue };
            match self.classify(&mishap) {
                Relevance::Target => {
                    found = true;
                    symptoms.insert(failure_signature(&mishap, &program, &plans));
                }
                Relevance::Other => symptoms.extend([failure_signature(&mishap, &program, &plans)]),
                Relevance::Ignored => (),
            }
            instead.get_or_insert(format!("under schedule {schedule}: {}", mishap.message));
        }
        let none = || match self.schedules {
            [only] => format!("nothing goes wrong under schedule {only}"),
            many => format!("nothing goes wrong under {} schedules", many.len()),
        };
        if found { Ok(symptoms) } else { Err(instead.unwrap_or_else(none)) }
    }

    fn classify(&self, mishap: &RunFailure) -> Relevance {
        let (is_deadlock, is_wrong) = match mishap.kind {
            FailureKind::NeverCompletes | FailureKind::SelfWait | FailureKind::CyclicWait => (true, false),
            FailureKind::WrongOutput | FailureKind::UnwrittenOutput | FailureKind::ReplicasDiffer => {
                (false, mishap.output.is_some())
            }
            FailureKind::ProgramError => (false, false),
        };
        match self.oracle {
            FailureOracle::Race | FailureOracle::WrongResult if is_wrong => Relevance::Target,
            FailureOracle::Deadlock if is_deadlock => Relevance::Target,
            // A program that loses what it does besides deadlocking is the smaller one.
            FailureOracle::Deadlock if is_wrong => Relevance::Ignored,
            FailureOracle::Race
            | FailureOracle::WrongResult
            | FailureOracle::Deadlock
            | FailureOracle::Crash
            | FailureOracle::Command(_) => Relevance::Other,
        }
    }

    /// What the results have to be.
    fn expected_outputs(
        &self,
        candidate: &Candidate,
        plans: &[Plan],
        filling: &InputSpec,
    ) -> Result<Vec<Expectation>, String> {
        if let Some(path) = self.reference {
            let setup = PrepareOptions {
                limits: self.limits,
                ranks: self.ranks,
                container: None,
                bindings: self.bindings,
                is_reference: true,
                inputs: &[],
                passes: &|_, _| Ok(()),
            };
            return verdict::reference_expectations(path, &setup, self.limits.memory, filling, plans)
                .map_err(|failure| match failure {
                    JobFailure::Rejected(_, faults) => {
                        faults.first().map_or(String::new(), |it| format!("`{path}`: {}", it.message))
                    }
                    JobFailure::Other(_, message) => message.lines().next().unwrap_or_default().to_owned(),
                });
        }
        let plans = self.plan(&candidate.program, candidate)?;
        let ran = run_trial(&plans, &fill(filling, &plans)?, &Schedule::Program, &[]);
        let ran = ran.map_err(|it| format!("it fails before the passes: {}", it.message))?;
        let basis = ExpectationSource::Reference { exact: ran.exact };
        Ok(expectations(ran.outputs, "the program before the passes", basis))
    }

    fn plan(&self, program: &Program, candidate: &Candidate) -> Result<Vec<Plan>, String> {
        let smallest = plan::smallest_world(program);
        let ranks = self.ranks.unwrap_or(smallest);
        if ranks < smallest {
            return Err(format!("it needs {smallest} ranks; there are {ranks}"));
        }
        let cannot = |fault: Option<&Diagnostic>| {
            let help = |it: &Diagnostic| it.help.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
            format!("it cannot run: {}", fault.map(|it| it.message.clone() + &help(it)).unwrap_or_default())
        };
        let plans = plan::build_with_limits(program, &candidate.lines, ranks, &self.limits)
            .map_err(|faults| cannot(faults.first()))?;
        match memory_limit_diagnostic(program.spans.header, &plans, self.limits.memory) {
            Some(fault) => Err(cannot(Some(&fault))),
            None => Ok(plans),
        }
    }
}

fn fill(filling: &InputSpec, plans: &[Plan]) -> Result<Vec<Vec<Data>>, String> {
    filling.clone().fill(plans).map_err(|it| it.to_string())
}

/// The races that the checker finds: the tensor, and both statements by operator and tensors.
fn race_signatures(program: &Program, plans: &[Plan]) -> Result<FailureSignatures, String> {
    let report = check(plans, Checks { comm: false, memory: false, ..Checks::ALL_FAULTS });
    if report.has_deadlock() {
        return Err("it deadlocks".to_owned());
    }
    let mut symptoms = FailureSignatures::new();
    for finding in &report.findings {
        let Finding::Race { race, .. } = finding else { continue };
        let buffer = &plans[race.rank].buffers[race.buffer as usize];
        let mut sides: Vec<String> = finding
            .labeled_statements(plans)
            .into_iter()
            .map(|(_, stmt, _)| stmt_summary(program, stmt))
            .collect();
        sides.sort_unstable();
        symptoms.insert(format!("race on {}: {}", buffer.name, sides.join(" / ")));
    }
    match symptoms.is_empty() {
        true => Err("the check finds no race".to_owned()),
        false => Ok(symptoms),
    }
}

/// What a mishap is to a test.
enum Relevance {
    /// What is looked for.
    Target,
    /// Something else, that a smaller program must not add.
    Other,
    /// Something else, that does not matter.
    Ignored,
}

/// What went wrong, without numbers: the kind, the output, and the statement by its operator and tensors.
fn failure_signature(mishap: &RunFailure, program: &Program, plans: &[Plan]) -> String {
    let mut words = vec![match mishap.kind {
        FailureKind::NeverCompletes => "a rank waits for what never happens".to_owned(),
        FailureKind::SelfWait => "a rank waits for itself".to_owned(),
        FailureKind::CyclicWait => "ranks wait for each other".to_owned(),
        FailureKind::WrongOutput => "wrong".to_owned(),
        FailureKind::UnwrittenOutput => "not written".to_owned(),
        FailureKind::ReplicasDiffer => "other on other ranks".to_owned(),
        FailureKind::ProgramError => "stops".to_owned(),
    }];
    let output = mishap.output.and_then(|at| program.outputs.get(at)).and_then(|it| it.tensor());
    words.extend(output.map(|it| program.tensor_name(it)));
    words.extend(mishap.stmt(plans).map(|(_, stmt)| format!("at {}", stmt_summary(program, stmt))));
    words.join(" ")
}

/// A statement's operator, kind and tensors.
fn stmt_summary(program: &Program, stmt: StmtId) -> String {
    match &program.stmts[stmt] {
        Stmt::Op(it) => {
            let mut words = vec![it.op.name().to_owned()];
            words.extend(it.get(attr::TYPE).map(|it| it.to_string()));
            words.extend(it.get(attr::P2P_TYPE).map(|it| it.to_string()));
            for_each_tensor_use(program, it, &mut |tensor, _| words.push(program.tensor_name(tensor)));
            words.join(" ")
        }
        Stmt::Let(..) => "a definition".to_owned(),
        Stmt::For(_) => "FOR".to_owned(),
        Stmt::If(_) => "IF".to_owned(),
    }
}
