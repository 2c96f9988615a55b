//! Runs a pipeline over a program, and checks what every pass left behind.
//!
//! Invariant: a fault names the pass that caused it, and a fault of a pass (`Fault::is_bug`) is told from a program
//! that a pass cannot rewrite.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use grammar::{
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    print, verify,
};

use crate::{
    error::{PassError, PipelineError},
    oracle::{Reference, SemanticOracle},
    pass::{Change, Remarks},
    pipeline::PassCall,
};

/// What is checked after every pass.
#[derive(Clone, Copy, Default)]
pub enum Verify<'o> {
    /// Nothing.
    Off,
    /// The verifier accepts the program, and the pass told the truth about changing it.
    #[default]
    Structural,
    /// That, and the program means what it meant before the first pass.
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
pub enum PassEvent<'e> {
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
        /// What the pass reports about statements.
        remarks: &'e [Diagnostic],
    },
    /// A pass has failed.
    Failed {
        /// The pass.
        call: &'e PassCall,
        /// What it left.
        program: &'e Program,
        /// What is wrong; after a panic, the program cannot be relied on.
        error: &'e PassError,
    },
}

/// Runs the passes one after the other; `observe` sees the program before and after each.
///
/// # Errors
/// The first pass that fails, or that leaves what a check rejects.
pub fn run(
    program: &mut Program,
    calls: &[PassCall],
    settings: Settings<'_>,
    observe: &mut dyn FnMut(PassEvent<'_>),
) -> Result<(), Box<PipelineError>> {
    if settings.roundtrip {
        let text = print(program);
        check_round_trip(&text).map_err(|fault| Box::new(PipelineError { pass: None, error: fault }))?;
    }
    let meaning = match (settings.verify, calls.first()) {
        (Verify::Semantic(oracle), Some(first)) => {
            let pass = Some(first.pass.name);
            let unjudged =
                |faults| Box::new(PipelineError { pass, error: PassError::InvalidReference(faults) });
            Some(oracle.reference(program).map_err(unjudged)?)
        }
        (Verify::Off | Verify::Structural | Verify::Semantic(_), _) => None,
    };
    // The text behind one pass is that before the next.
    let mut text: Option<String> = None;
    for call in calls {
        observe(PassEvent::Before { call, program });
        let mut remarks = Remarks::default();
        match run_pass(program, call, settings, meaning.as_deref(), &mut text, &mut remarks) {
            Ok((change, time, checks)) => {
                let remarks = remarks.all();
                observe(PassEvent::After { call, program, change, time, checks, remarks });
            }
            Err(fault) => {
                observe(PassEvent::Failed { call, program, error: &fault });
                return Err(Box::new(PipelineError { pass: Some(call.pass.name), error: fault }));
            }
        }
    }
    Ok(())
}

/// Runs and checks one pass. Says whether the program changed, and how long pass and checks took.
fn run_pass(
    program: &mut Program,
    call: &PassCall,
    settings: Settings<'_>,
    meaning: Option<&dyn Reference>,
    text: &mut Option<String>,
    remarks: &mut Remarks,
) -> Result<(Change, Duration, Duration), PassError> {
    let prepared = Instant::now();
    let checked = !matches!(settings.verify, Verify::Off);
    let before = checked.then(|| text.take().unwrap_or_else(|| print(program)));
    let started = Instant::now();
    let declared =
        catch_panic(|| (call.pass.run)(program, &call.arguments, remarks))?.map_err(PassError::Rejected)?;
    let time = started.elapsed();
    let mut change = declared;
    // What a pass left may be such that printing or verifying it panics.
    catch_panic(|| {
        if let Some(before) = before {
            let after = print(program);
            change = Change::from_flag(before != after);
            if (declared, change) == (Change::Unchanged, Change::Changed) {
                return Err(PassError::UnreportedChange);
            }
            let diagnostics = verify(program);
            if has_errors(&diagnostics) {
                return Err(PassError::VerificationFailed(diagnostics));
            }
            *text = Some(after);
        }
        if let Some(meaning) = meaning.filter(|_| change == Change::Changed) {
            meaning.check_equivalent(program).map_err(PassError::Miscompiled)?;
        }
        match (settings.roundtrip, &text) {
            (true, Some(text)) => check_round_trip(text),
            (true, None) => check_round_trip(&print(program)),
            (false, _) => Ok(()),
        }
    })??;
    Ok((change, time, prepared.elapsed().saturating_sub(time)))
}

/// Makes a panic a fault.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, PassError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload: Box<dyn Any + Send>| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        PassError::Panicked(text.unwrap_or("without a message").to_owned())
    })
}

/// Reads canonical text and prints it again.
fn check_round_trip(text: &str) -> Result<(), PassError> {
    let (programs, diagnostics) = grammar::read(text);
    if let Some(it) = diagnostics.first() {
        return Err(PassError::RoundTripMismatch(it.span().text(text).to_owned(), it.message.clone()));
    }
    let again: String = programs.iter().map(print).collect();
    if again == text {
        return Ok(());
    }
    let lines = || text.lines().zip(again.lines());
    let (printed, read) = lines().find(|(a, b)| a != b).unwrap_or(("", ""));
    Err(PassError::RoundTripMismatch(printed.to_owned(), read.to_owned()))
}
