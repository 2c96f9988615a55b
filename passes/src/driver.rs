//! Runs a pipeline over a program, and checks what every pass left behind.
//!
//! Invariant: a fault names the pass that caused it, and a fault of a pass (`Fault::is_bug`) is told from a program
//! that a pass cannot rewrite.

use std::{
    fmt::{self, Display},
    time::{Duration, Instant},
};

use grammar::{
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    print, verify,
};

use crate::{pass::Change, pipeline::PassCall};

/// Decides questions that need plans or runs, which this crate knows nothing of.
pub trait SemanticOracle {
    /// Whether `after` gives what `before` gives, under every schedule.
    ///
    /// # Errors
    /// Where they differ, at a place in `after`.
    fn same_meaning(&self, before: &Program, after: &Program) -> Result<(), Diagnostic>;
}

/// What is checked after every pass.
#[derive(Clone, Copy, Default)]
pub enum Verify<'o> {
    /// Nothing.
    Off,
    /// The verifier accepts the program, and the pass told the truth about changing it.
    #[default]
    Structural,
    /// That, and the program means what it meant.
    Semantic(&'o dyn SemanticOracle),
}

/// How a pipeline is run.
#[derive(Clone, Copy, Default)]
pub struct Settings<'o> {
    /// What is checked after every pass.
    pub verify: Verify<'o>,
    /// Whether the printed program must read back as itself, before the first pass and after each.
    pub roundtrip: bool,
}

/// What happens while a pipeline runs.
#[derive(Clone, Copy)]
pub enum Event<'e> {
    /// A pass is about to run.
    Before {
        /// The pass.
        call: &'e PassCall,
        /// What it will get.
        program: &'e Program,
    },
    /// A pass has run, and passed the checks.
    After {
        /// The pass.
        call: &'e PassCall,
        /// What it left.
        program: &'e Program,
        /// Whether the text differs, or what the pass says where nothing is checked.
        change: Change,
        /// Time in the pass.
        time: Duration,
        /// Time in the checks.
        checks: Duration,
    },
    /// A pass has failed.
    Failed {
        /// The pass.
        call: &'e PassCall,
        /// What it left.
        program: &'e Program,
    },
}

/// A pipeline that did not come to its end.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The pass; `None`: the program that the pipeline was given.
    pub pass: Option<&'static str>,
    /// What is wrong.
    pub fault: Fault,
}

/// What a pipeline stops at.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The pass cannot rewrite this program.
    Rejected(Diagnostic),
    /// The verifier rejects what the pass left.
    Broken(Vec<Diagnostic>),
    /// The pass said that it changed nothing, and the text differs.
    Undeclared,
    /// The printed program does not read back as itself: the first line that differs, as printed and as read back.
    Lossy(String, String),
    /// The program does not mean what it meant.
    Miscompiled(Diagnostic),
}

impl Fault {
    /// Whether the pass or the printer is to blame, and not the program.
    pub fn is_bug(&self) -> bool {
        match self {
            Self::Rejected(_) => false,
            Self::Broken(_) | Self::Undeclared | Self::Lossy(..) | Self::Miscompiled(_) => true,
        }
    }

    /// What is wrong where, in the text that the program was read from.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            Self::Rejected(it) | Self::Miscompiled(it) => std::slice::from_ref(it),
            Self::Broken(all) => all,
            Self::Undeclared | Self::Lossy(..) => &[],
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pass {
            Some(pass) => write!(f, "pass `{pass}` ")?,
            None => f.write_str("the program as read ")?,
        }
        match &self.fault {
            Fault::Rejected(_) => f.write_str("cannot rewrite this program"),
            Fault::Broken(_) => f.write_str("left a program that the verifier rejects"),
            Fault::Undeclared => f.write_str("changed the program and said that it did not"),
            Fault::Lossy(printed, read) => {
                write!(f, "does not read back as it is printed: `{printed}` became `{read}`")
            }
            Fault::Miscompiled(_) => f.write_str("changed what the program means"),
        }
    }
}

impl std::error::Error for Failure {}

/// Runs the passes one after the other; `observe` sees the program before and after each.
///
/// # Errors
/// The first pass that fails, or that leaves what a check rejects.
pub fn run(
    program: &mut Program,
    calls: &[PassCall],
    settings: Settings<'_>,
    observe: &mut dyn FnMut(Event<'_>),
) -> Result<(), Box<Failure>> {
    if settings.roundtrip {
        let text = print(program);
        roundtrip(&text).map_err(|fault| Box::new(Failure { pass: None, fault }))?;
    }
    // The text behind one pass is that before the next.
    let mut text: Option<String> = None;
    for call in calls {
        observe(Event::Before { call, program });
        match step(program, call, settings, &mut text) {
            Ok((change, time, checks)) => {
                observe(Event::After { call, program, change, time, checks });
            }
            Err(fault) => {
                observe(Event::Failed { call, program });
                return Err(Box::new(Failure { pass: Some(call.pass.name), fault }));
            }
        }
    }
    Ok(())
}

/// Runs and checks one pass. Says whether the program changed, and how long pass and checks took.
fn step(
    program: &mut Program,
    call: &PassCall,
    settings: Settings<'_>,
    text: &mut Option<String>,
) -> Result<(Change, Duration, Duration), Fault> {
    let prepared = Instant::now();
    let checked = !matches!(settings.verify, Verify::Off);
    let before = checked.then(|| text.take().unwrap_or_else(|| print(program)));
    let original = match settings.verify {
        Verify::Semantic(oracle) => Some((oracle, program.clone())),
        Verify::Off | Verify::Structural => None,
    };
    let started = Instant::now();
    let declared = (call.pass.run)(program, &call.arguments).map_err(Fault::Rejected)?;
    let time = started.elapsed();
    let mut change = declared;
    if let Some(before) = before {
        let after = print(program);
        change = Change::from_flag(before != after);
        if (declared, change) == (Change::Unchanged, Change::Changed) {
            return Err(Fault::Undeclared);
        }
        let diagnostics = verify(program);
        if has_errors(&diagnostics) {
            return Err(Fault::Broken(diagnostics));
        }
        *text = Some(after);
    }
    if let Some((oracle, original)) = original {
        oracle.same_meaning(&original, program).map_err(Fault::Miscompiled)?;
    }
    if settings.roundtrip {
        match text {
            Some(text) => roundtrip(text)?,
            None => roundtrip(&print(program))?,
        }
    }
    Ok((change, time, prepared.elapsed().saturating_sub(time)))
}

/// Reads canonical text and prints it again.
fn roundtrip(text: &str) -> Result<(), Fault> {
    let (programs, diagnostics) = grammar::read(text);
    if let Some(it) = diagnostics.first() {
        return Err(Fault::Lossy(it.span().text(text).to_owned(), it.message.clone()));
    }
    let again: String = programs.iter().map(print).collect();
    if again == text {
        return Ok(());
    }
    let lines = || text.lines().zip(again.lines());
    let (printed, read) = lines().find(|(a, b)| a != b).unwrap_or(("", ""));
    Err(Fault::Lossy(printed.to_owned(), read.to_owned()))
}
