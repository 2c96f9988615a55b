//! Verifies the result of each pass in a second thread while the next pass runs.
//!
//! If a check fails, the passes that have run meanwhile count for nothing: the failure is that of the first pass that fails, as without
//! a second thread.

use std::{
    cell::OnceCell,
    sync::Arc,
    thread::{self, Scope, ScopedJoinHandle},
    time::Duration,
};

use grammar::ir::Program;

use super::{PassChange, PassEvent, check_structure, execute, now, since};
use crate::{
    error::{PassError, PipelineError},
    pass::{Change, Remarks},
    pipeline::PassCall,
    second_thread,
};

/// Runs the passes in order, as `super::run` with `Verify::Concurrent`.
pub(super) fn run(
    program: &mut Program,
    calls: &[PassCall],
    observe: &mut dyn FnMut(PassEvent<'_>),
) -> Result<(), Box<PipelineError>> {
    let mut before = Arc::new(program.clone());
    thread::scope(|scope| {
        let mut pending: Option<Pending<'_, '_>> = None;
        for call in calls {
            observe(PassEvent::Before { call, program });
            let mut remarks = Remarks::default();
            let result = execute(program, call, &mut remarks);
            // The first pass is checked even if it has changed nothing.
            let is_verified = pending.is_some();
            if let Some(earlier) = pending.take() {
                earlier.finish(program, observe)?;
            }
            let (reported, time) = result.map_err(|error| {
                observe(PassEvent::Failed { call, program, error: &error });
                Box::new(PipelineError { pass: Some(call.pass.name), error })
            })?;
            let copied = now();
            let is_equal = *before == *program;
            let after = if is_equal { Arc::clone(&before) } else { Arc::new(program.clone()) };
            let preparation = since(copied);
            let checks = match is_equal && is_verified {
                true => Checks::Done(Ok(()), Duration::ZERO),
                false => Checks::start(scope, before, &after, reported),
            };
            let reported = if is_equal { Change::Unchanged } else { reported };
            before = Arc::clone(&after);
            pending = Some(Pending { call, reported, after, remarks, time, preparation, checks });
        }
        pending.map_or(Ok(()), |last| last.finish(program, observe))
    })
}

/// A pass that has run, while its result is checked.
struct Pending<'s, 'c> {
    call: &'c PassCall,
    reported: Change,
    /// The program after the pass.
    after: Arc<Program>,
    remarks: Remarks,
    time: Duration,
    /// The duration of the copy for the checks.
    preparation: Duration,
    checks: Checks<'s>,
}

impl Pending<'_, '_> {
    /// Waits for the checks and reports the pass. If they have failed, `program` becomes the one after this pass.
    fn finish(
        self,
        program: &mut Program,
        observe: &mut dyn FnMut(PassEvent<'_>),
    ) -> Result<(), Box<PipelineError>> {
        let Self { call, reported, after, remarks, time, preparation, checks } = self;
        let (result, checks) = checks.wait();
        if let Err(error) = result {
            program.clone_from(&after);
            observe(PassEvent::Failed { call, program, error: &error });
            return Err(Box::new(PipelineError { pass: Some(call.pass.name), error }));
        }
        let change = PassChange { reported, programs: None, of_text: &OnceCell::new() };
        let (program, checks, remarks) = (&*after, preparation + checks, remarks.all());
        observe(PassEvent::After { call, program, change, time, checks, remarks });
        Ok(())
    }
}

/// The result of checks and their duration.
type Checked = (Result<(), PassError>, Duration);

/// The checks of one result.
enum Checks<'s> {
    Running(ScopedJoinHandle<'s, Checked>),
    Done(Result<(), PassError>, Duration),
}

impl<'s> Checks<'s> {
    /// Starts the checks, or makes them at once if the system refuses a thread. The thread drops `before`.
    fn start<'e>(
        scope: &'s Scope<'s, 'e>,
        before: Arc<Program>,
        after: &Arc<Program>,
        reported: Change,
    ) -> Self {
        let (first, second) = (Arc::clone(&before), Arc::clone(after));
        let work = move || timed_checks(first, &second, reported);
        match second_thread::builder("hir-verify").spawn_scoped(scope, work) {
            Ok(thread) => Self::Running(thread),
            Err(_) => {
                let (result, time) = timed_checks(before, after, reported);
                Self::Done(result, time)
            }
        }
    }

    fn wait(self) -> Checked {
        match self {
            Self::Running(thread) => thread.join().unwrap_or_else(|_| {
                let reason = "while its result was dropped".to_owned();
                (Err(PassError::Panicked(reason)), Duration::ZERO)
            }),
            Self::Done(result, time) => (result, time),
        }
    }
}

fn timed_checks(before: Arc<Program>, after: &Program, reported: Change) -> Checked {
    let started = now();
    let result = check_structure(&before, after, reported);
    drop(before);
    (result, since(started))
}
