//! Runs a pipeline on a program and checks the result of every pass.
//!
//! Invariant: an error names the pass that caused it. `PassError::is_bug` distinguishes a bug in a pass from
//! a program that the pass cannot rewrite.

mod concurrent;

use std::{
    any::Any,
    cell::OnceCell,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use grammar::{Code, Diagnostic, Dialect, Program, has_errors, keep_get_protocol, print, print_as, verify};

use crate::{
    error::{PassError, PipelineError},
    list::order_of,
    oracle::{AllRanks, Reference, SemanticOracle},
    pass::{Change, Remarks},
    pipeline::PassCall,
    rewrite::communicator_order::{CommunicatorOrder, PassOrder},
    second_thread,
};

/// Checks that run after every pass.
#[derive(Clone, Copy, Default)]
pub enum Verify<'o> {
    /// No checks.
    Off,
    /// The verifier accepts the program, and the pass reported correctly whether it changed it.
    #[default]
    Structural,
    /// The structural checks, for an observer that looks at no programs: a large program is checked in a second thread while the next
    /// passes run. The event after a pass then comes behind those before the next passes, and has only whether the pass reported a
    /// change.
    Concurrent,
    /// The structural checks, and a check that the program is equivalent to the one before the first pass.
    Semantic(&'o dyn SemanticOracle),
}

/// Settings for running a pipeline.
#[derive(Clone, Copy, Default)]
pub struct Settings<'o> {
    /// Checks that run after every pass.
    pub verify: Verify<'o>,
    /// True to check that the printed program reads back as itself, before the first pass and after each
    /// pass.
    pub roundtrip: bool,
}

/// An event during a pipeline.
#[derive(Clone, Copy)]
pub enum PassEvent<'e> {
    /// A pass is about to run.
    Before {
        /// The pass.
        call: &'e PassCall,
        /// The program before the pass.
        program: &'e Program,
    },
    /// A pass has run and its result has passed the checks.
    After {
        /// The pass.
        call: &'e PassCall,
        /// The program after the pass.
        program: &'e Program,
        /// Whether the pass changed the program.
        change: PassChange<'e>,
        /// Duration of the pass; zero where there is no clock.
        time: Duration,
        /// Duration of the checks.
        checks: Duration,
        /// Remarks of the pass on statements.
        remarks: &'e [Diagnostic],
    },
    /// A pass has failed.
    Failed {
        /// The pass.
        call: &'e PassCall,
        /// The program after the pass.
        program: &'e Program,
        /// What is wrong. After a panic, the program may be inconsistent.
        error: &'e PassError,
    },
}

/// Tells whether a pass changed a program.
#[derive(Clone, Copy)]
pub struct PassChange<'e> {
    /// What the pass reported. `Unchanged` has been checked unless checks are off.
    reported: Change,
    /// The program before the pass and after it; `None` if checks are off.
    programs: Option<(&'e Program, &'e Program)>,
    /// Whether their texts differ, once that is known.
    of_text: &'e OnceCell<Change>,
}

impl PassChange<'_> {
    /// Returns whether the text changed, or what the pass reported if checks are off. Prints both programs, the first time, if only their
    /// texts can tell.
    pub fn get(&self) -> Change {
        match (self.reported, self.programs) {
            (Change::Changed, Some((before, after))) => {
                *self.of_text.get_or_init(|| change_of_text(before, after))
            }
            (reported, _) => reported,
        }
    }
}

/// Runs the passes in order and calls `observe` before and after each one.
///
/// # Errors
/// Returns the error of the first pass that fails or whose result fails a check.
pub fn run(
    program: &mut Program,
    calls: &[PassCall],
    settings: Settings<'_>,
    observe: &mut dyn FnMut(PassEvent<'_>),
) -> Result<(), Box<PipelineError>> {
    if matches!(settings.verify, Verify::Concurrent)
        && !settings.roundtrip
        && second_thread::is_worthwhile(program)
    {
        return concurrent::run(program, calls, observe);
    }
    if settings.roundtrip {
        let text = print(program);
        check_round_trip(&text).map_err(|fault| Box::new(PipelineError { pass: None, error: fault }))?;
    }
    let reference = match (settings.verify, calls.first()) {
        (Verify::Semantic(oracle), Some(first)) => {
            let pass = Some(first.pass.name);
            let invalid =
                |faults| Box::new(PipelineError { pass, error: PassError::InvalidReference(faults) });
            Some(oracle.reference(program).map_err(invalid)?)
        }
        (Verify::Off | Verify::Structural | Verify::Concurrent | Verify::Semantic(_), _) => None,
    };
    let mut all_ranks = AllRanks::default();
    let mut order = order_before(program, calls);
    let checked = !matches!(settings.verify, Verify::Off);
    let mut is_verified = false;
    for call in calls {
        observe(PassEvent::Before { call, program });
        let mut remarks = Remarks::default();
        let reference = reference.as_deref().map(|it| (it, all_ranks.at(program, call.pass)));
        let prepared = now();
        let before = checked.then(|| program.clone());
        let preparation = since(prepared);
        let before = before.as_ref();
        let of_text = OnceCell::new();
        let facts = (before, is_verified, &of_text);
        match run_pass(program, call, settings, &mut order, facts, reference, &mut remarks) {
            Ok((reported, time, checks)) => {
                is_verified = checked;
                let remarks = remarks.all();
                let programs = before.map(|it| (it, &*program));
                let change = PassChange { reported, programs, of_text: &of_text };
                let checks = preparation + checks;
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

/// Returns the order of communicators before a list of passes.
fn order_before(program: &Program, calls: &[PassCall]) -> CommunicatorOrder {
    CommunicatorOrder::of(program, calls.iter().filter(|it| order_of(it.pass) == PassOrder::Makes).count())
}

/// Runs and checks one pass. `before` is the program before it, if the pass is checked, and whether the verifier has accepted that
/// program. `of_text` keeps whether the text changed. Returns what the pass reported, and the durations of the pass and of the checks.
fn run_pass(
    program: &mut Program,
    call: &PassCall,
    settings: Settings<'_>,
    order: &mut CommunicatorOrder,
    (before, is_verified, of_text): (Option<&Program>, bool, &OnceCell<Change>),
    reference: Option<(&dyn Reference, Option<&Program>)>,
    remarks: &mut Remarks,
) -> Result<(Change, Duration, Duration), PassError> {
    let started = now();
    let (reported, time) = execute(program, call, order, remarks)?;
    // Equal programs print the same, and the verifier accepts both or neither.
    if let Some(before) = before.filter(|before| !is_verified || *before != program) {
        check_structure(before, program, reported)?;
    }
    catch_panic(|| {
        if let (Some((reference, all_ranks)), Some(before)) = (reference, before)
            && *of_text.get_or_init(|| change_of_text(before, program)) == Change::Changed
        {
            let all_ranks = all_ranks.unwrap_or(program);
            reference.check_equivalent(program, all_ranks).map_err(PassError::of_comparison)?;
        }
        if settings.roundtrip { check_round_trip(&print(program)) } else { Ok(()) }
    })??;
    Ok((reported, time, since(started).saturating_sub(time)))
}

/// Runs one pass without checks, and keeps the order of communicators. Returns what the pass reported, and its duration.
fn execute(
    program: &mut Program,
    call: &PassCall,
    order: &mut CommunicatorOrder,
    remarks: &mut Remarks,
) -> Result<(Change, Duration), PassError> {
    let known = call.pass.check_ranks(program).and_then(|()| call.pass.check_loops(program));
    known.map_err(|fault| PassError::Rejected(vec![fault]))?;
    let started = now();
    let result = catch_panic(|| (call.pass.run)(program, &call.arguments, remarks))?;
    let reported = result.map_err(|fault| match fault.code {
        Code::BadOption => PassError::BadOption(fault),
        _ => PassError::Rejected([&[fault], remarks.rejections()].concat()),
    })?;
    let time = since(started);
    if reported == Change::Changed {
        catch_panic(|| keep_get_protocol(program))?;
    }
    let of_pass = order_of(call.pass);
    if reported == Change::Changed || of_pass == PassOrder::Makes {
        catch_panic(|| order.keep(program, of_pass))?;
    }
    Ok((reported, time))
}

/// Checks what a pass reported and the program after it. Printing or verifying a broken program may panic.
fn check_structure(before: &Program, program: &Program, reported: Change) -> Result<(), PassError> {
    catch_panic(|| {
        if reported == Change::Unchanged && change_of_text(before, program) == Change::Changed {
            return Err(PassError::UnreportedChange);
        }
        let diagnostics = verify(program);
        if has_errors(&diagnostics) {
            return Err(PassError::VerificationFailed(diagnostics));
        }
        Ok(())
    })?
}

/// Returns whether two programs have different texts. It compares the short form, which is equal if and only if the canonical text is: that
/// one repeats the mesh of a tensor at each use, so that it grows with the square of the number of ranks.
fn change_of_text(before: &Program, after: &Program) -> Change {
    let text = |program| print_as(program, Dialect::Short).0;
    Change::from_flag(before != after && text(before) != text(after))
}

/// Returns the time; `None` on WebAssembly, where reading the clock panics.
fn now() -> Option<Instant> {
    (!cfg!(target_family = "wasm")).then(Instant::now)
}

fn since(time: Option<Instant>) -> Duration {
    time.map_or(Duration::ZERO, |it| it.elapsed())
}

/// Converts a panic into an error.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, PassError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload: Box<dyn Any + Send>| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        PassError::Panicked(text.unwrap_or("without a message").to_owned())
    })
}

/// Checks that canonical text reads back and prints as itself.
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
