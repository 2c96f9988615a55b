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
    ir::{Program, Stmt, StmtId},
    mentions, verify,
};
use passes::{Fault, PassCall, Settings, Verify};

use super::{Candidate, Goal, Running, order};
use crate::{
    check::{Checks, Finding, check},
    io::{data::Data, generate::Kind},
    plan::{self, Plan, limits::Limits},
    run::{
        inputs::Filling,
        job::{self, Basis, Expectation, expectations},
        prepare::{Failure, Setup, too_much},
        trial::{Mishap, Trouble, trial},
    },
    sim::Schedule,
    source::Binding,
};

/// What a program is tested for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
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

impl FromStr for Test {
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
pub struct Examiner<'a> {
    /// What for.
    pub test: &'a Test,
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
    pub running: &'a Running,
}

/// Symptoms of the kind that is looked for, and of others that a race may come with.
pub type Symptoms = BTreeSet<String>;

/// To fail as a program did.
pub struct Same<'a> {
    /// How programs are tested.
    pub examiner: Examiner<'a>,
    /// How that program failed.
    pub symptoms: Symptoms,
}

impl Goal for Same<'_> {
    fn allows(&self, before: &Candidate, after: &Program) -> bool {
        let plan = |program: &Program| self.examiner.plan(program, before);
        match self.examiner.test {
            // What cannot be planned fails in its own way, or not at all.
            Test::Race | Test::WrongResult => match (plan(&before.program), plan(after)) {
                (Ok(before), Ok(after)) => order::is_kept(&before, &after),
                (Ok(_), Err(_)) => false,
                (Err(_), _) => true,
            },
            Test::Deadlock | Test::Crash | Test::Command(_) => true,
        }
    }

    fn fails(&self, candidate: &Candidate) -> bool {
        self.examiner.running.fault().is_none()
            && self.examiner.examine(candidate).is_ok_and(|found| found.is_subset(&self.symptoms))
    }
}

thread_local! {
    /// Whether this thread tests a candidate: a panic is then an answer.
    static EXAMINING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of candidates from being reported: they are what is looked for. All others are, as before.
pub fn expect_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !EXAMINING.get() {
            report(info);
        }
    }));
}

impl Examiner<'_> {
    /// How a program fails.
    ///
    /// # Errors
    /// What it does instead.
    pub fn examine(&self, candidate: &Candidate) -> Result<Symptoms, String> {
        let examine = || match self.test {
            Test::Command(command) => self.command(command, candidate),
            Test::Race | Test::Deadlock | Test::WrongResult | Test::Crash => {
                let faults = verify(&candidate.program);
                match faults.first().filter(|_| has_errors(&faults)) {
                    Some(fault) => Err(format!("the verifier rejects it: {}", fault.message)),
                    None if *self.test == Test::Crash => self.crash(candidate),
                    None => self.run(candidate),
                }
            }
        };
        EXAMINING.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(examine));
        EXAMINING.set(false);
        outcome.unwrap_or_else(|_| Err("testing it panics".to_owned()))
    }

    fn command(&self, command: &str, candidate: &Candidate) -> Result<Symptoms, String> {
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
            Ok(status) if status.success() => Ok(Symptoms::from(["the command ends with 0".to_owned()])),
            Ok(status) => Err(format!("`{command}` ends with {status}")),
            Err(fault) => {
                let fault = format!("`{command}` does not run: {fault}");
                self.running.give_up(fault.clone());
                Err(fault)
            }
        }
    }

    fn crash(&self, candidate: &Candidate) -> Result<Symptoms, String> {
        let settings = Settings { verify: Verify::Structural, roundtrip: true };
        let failure = match passes::run(&mut candidate.program.clone(), self.calls, settings, &mut |_| ()) {
            Ok(()) => return Err("the passes run to their end".to_owned()),
            Err(failure) if !failure.fault.is_bug() => return Err(failure.to_string()),
            Err(failure) => failure,
        };
        // Indices in a panic's message, and the lines in others, change with the program.
        let detail = match &failure.fault {
            Fault::Panicked(message) => message.chars().filter(|it| !it.is_ascii_digit()).collect(),
            Fault::Broken(all) => all.first().map_or(String::new(), |it| it.code.text().to_owned()),
            Fault::Lossy(..) => "does not read back".to_owned(),
            Fault::Rejected(_) | Fault::Undeclared | Fault::Unjudged(_) | Fault::Miscompiled(_) => {
                failure.to_string()
            }
        };
        Ok(Symptoms::from([format!("{}: {detail}", failure.pass.unwrap_or("as read"))]))
    }

    fn run(&self, candidate: &Candidate) -> Result<Symptoms, String> {
        let mut program = candidate.program.clone();
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        passes::run(&mut program, self.calls, settings, &mut |_| ()).map_err(|it| it.to_string())?;
        let plans = self.plan(&program, candidate)?;
        if self.checks_races && *self.test == Test::Race {
            return races(&program, &plans);
        }
        let filling = Filling::new(Kind::Exact, 0, Vec::new(), &plans);
        let inputs = fill(&filling, &plans)?;
        let expected = match self.test {
            Test::Race => {
                let ran = trial(&plans, &inputs, Schedule::Program, &[]);
                let ran = ran.map_err(|it| format!("it fails under schedule program: {}", it.message))?;
                expectations(ran.outputs, "schedule program", Basis::Simulated { exact: ran.exact })
            }
            Test::WrongResult => self.expected(candidate, &plans, &filling)?,
            Test::Deadlock | Test::Crash | Test::Command(_) => Vec::new(),
        };
        let mut symptoms = Symptoms::new();
        let (mut found, mut instead) = (false, None);
        for schedule in self.schedules {
            let Err(mishap) = trial(&plans, &inputs, *schedule, &expected) else { continue };
            match self.judge(&mishap) {
                Verdict::Looked => {
                    found = true;
                    symptoms.insert(gist(&mishap, &program, &plans));
                }
                Verdict::Other => symptoms.extend([gist(&mishap, &program, &plans)]),
                Verdict::Ignored => (),
            }
            instead.get_or_insert(format!("under schedule {schedule}: {}", mishap.message));
        }
        let none = || match self.schedules {
            [only] => format!("nothing goes wrong under schedule {only}"),
            many => format!("nothing goes wrong under {} schedules", many.len()),
        };
        if found { Ok(symptoms) } else { Err(instead.unwrap_or_else(none)) }
    }

    fn judge(&self, mishap: &Mishap) -> Verdict {
        let (is_deadlock, is_wrong) = match mishap.trouble {
            Trouble::Starved | Trouble::SelfLocked | Trouble::Interlocked => (true, false),
            Trouble::Different | Trouble::Unwritten | Trouble::Conflict => (false, mishap.output.is_some()),
            Trouble::Stopped => (false, false),
        };
        match self.test {
            Test::Race | Test::WrongResult if is_wrong => Verdict::Looked,
            Test::Deadlock if is_deadlock => Verdict::Looked,
            // A program that loses what it does besides deadlocking is the smaller one.
            Test::Deadlock if is_wrong => Verdict::Ignored,
            Test::Race | Test::WrongResult | Test::Deadlock | Test::Crash | Test::Command(_) => {
                Verdict::Other
            }
        }
    }

    /// What the results have to be.
    fn expected(
        &self,
        candidate: &Candidate,
        plans: &[Plan],
        filling: &Filling,
    ) -> Result<Vec<Expectation>, String> {
        if let Some(path) = self.reference {
            let setup = Setup {
                limits: self.limits,
                ranks: self.ranks,
                container: None,
                bindings: self.bindings,
                reference: true,
                inputs: &[],
                passes: &|_, _| Ok(()),
            };
            return job::reference(path, &setup, self.limits.memory, filling, plans).map_err(|failure| {
                match failure {
                    Failure::Rejected(_, faults) => {
                        faults.first().map_or(String::new(), |it| format!("`{path}`: {}", it.message))
                    }
                    Failure::Other(_, message) => message.lines().next().unwrap_or_default().to_owned(),
                }
            });
        }
        let plans = self.plan(&candidate.program, candidate)?;
        let ran = trial(&plans, &fill(filling, &plans)?, Schedule::Program, &[]);
        let ran = ran.map_err(|it| format!("it fails before the passes: {}", it.message))?;
        let basis = Basis::Reference { exact: ran.exact };
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
        let plans = plan::build_within(program, &candidate.lines, ranks, &self.limits)
            .map_err(|faults| cannot(faults.first()))?;
        match too_much(program.spans.header, &plans, self.limits.memory) {
            Some(fault) => Err(cannot(Some(&fault))),
            None => Ok(plans),
        }
    }
}

fn fill(filling: &Filling, plans: &[Plan]) -> Result<Vec<Vec<Data>>, String> {
    filling.clone().fill(plans).map_err(|it| it.to_string())
}

/// The races that the checker finds: the tensor, and both statements by operator and tensors.
fn races(program: &Program, plans: &[Plan]) -> Result<Symptoms, String> {
    let report = check(plans, Checks { comm: false, memory: false, ..Checks::ALL });
    if report.is_stuck() {
        return Err("it deadlocks".to_owned());
    }
    let mut symptoms = Symptoms::new();
    for finding in &report.findings {
        let Finding::Race { race, .. } = finding else { continue };
        let buffer = &plans[race.rank].buffers[race.buffer as usize];
        let mut sides: Vec<String> =
            finding.places(plans).into_iter().map(|(_, stmt, _)| essence(program, stmt)).collect();
        sides.sort_unstable();
        symptoms.insert(format!("race on {}: {}", buffer.name, sides.join(" / ")));
    }
    match symptoms.is_empty() {
        true => Err("the check finds no race".to_owned()),
        false => Ok(symptoms),
    }
}

/// What a mishap is to a test.
enum Verdict {
    /// What is looked for.
    Looked,
    /// Something else, that a smaller program must not add.
    Other,
    /// Something else, that does not matter.
    Ignored,
}

/// What went wrong, without numbers: the kind, the output, and the statement by its operator and tensors.
fn gist(mishap: &Mishap, program: &Program, plans: &[Plan]) -> String {
    let mut words = vec![match mishap.trouble {
        Trouble::Starved => "a rank waits for what never happens".to_owned(),
        Trouble::SelfLocked => "a rank waits for itself".to_owned(),
        Trouble::Interlocked => "ranks wait for each other".to_owned(),
        Trouble::Different => "wrong".to_owned(),
        Trouble::Unwritten => "not written".to_owned(),
        Trouble::Conflict => "other on other ranks".to_owned(),
        Trouble::Stopped => "stops".to_owned(),
    }];
    let output = mishap.output.and_then(|at| program.outputs.get(at)).and_then(|it| it.tensor());
    words.extend(output.map(|it| program.tensor_name(it)));
    words.extend(mishap.stmt(plans).map(|(_, stmt)| format!("at {}", essence(program, stmt))));
    words.join(" ")
}

/// A statement's operator, kind and tensors.
fn essence(program: &Program, stmt: StmtId) -> String {
    match &program.stmts[stmt] {
        Stmt::Op(it) => {
            let mut words = vec![it.op.name().to_owned()];
            words.extend(it.get(attr::TYPE).map(|it| it.to_string()));
            words.extend(it.get(attr::P2P_TYPE).map(|it| it.to_string()));
            mentions(program, it, &mut |tensor, _| words.push(program.tensor_name(tensor)));
            words.join(" ")
        }
        Stmt::Let(..) => "a definition".to_owned(),
        Stmt::For(_) => "FOR".to_owned(),
        Stmt::If(_) => "IF".to_owned(),
    }
}
