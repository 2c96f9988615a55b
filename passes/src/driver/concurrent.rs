//! Verifies the result of each pass in a second thread while the next passes run.
//!
//! If a check fails, the passes that have run meanwhile count for nothing: the failure is that of the first pass that fails, as without
//! a second thread.

use std::{
    cell::OnceCell,
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::{self, Scope},
    time::Duration,
};

use grammar::Program;

use super::{PassChange, PassEvent, check_structure, execute, now, order_before, since};
use crate::{
    error::{PassError, PipelineError},
    pass::{Change, Remarks},
    pipeline::PassCall,
    second_thread,
};

/// The largest number of results that wait for their checks while a pass runs: each is a copy of the program.
const MOST_PENDING: usize = 4;

/// Runs the passes in order, as `super::run` with `Verify::Concurrent`.
pub(super) fn run(
    program: &mut Program,
    calls: &[PassCall],
    observe: &mut dyn FnMut(PassEvent<'_>),
) -> Result<(), Box<PipelineError>> {
    let mut before = Arc::new(program.clone());
    thread::scope(|scope| {
        let mut queue = Queue { checker: Checker::start(scope), pending: VecDeque::new() };
        // The first pass is checked even if it has changed nothing.
        let mut is_verified = false;
        let mut order = order_before(program, calls);
        for call in calls {
            observe(PassEvent::Before { call, program });
            let mut remarks = Remarks::default();
            let result = execute(program, call, &mut order, &mut remarks);
            let most = if result.is_ok() { MOST_PENDING } else { 0 };
            queue.report(most, program, observe)?;
            let (reported, time) = result.map_err(|error| {
                observe(PassEvent::Failed { call, program, error: &error });
                Box::new(PipelineError { pass: Some(call.pass.name), error })
            })?;
            let copied = now();
            let is_equal = *before == *program;
            let after = if is_equal { Arc::clone(&before) } else { Arc::new(program.clone()) };
            let preparation = since(copied);
            let checked = if is_equal && is_verified {
                Some((Ok(()), Duration::ZERO))
            } else {
                queue.check(Job { before, after: Arc::clone(&after), reported })
            };
            is_verified = true;
            let reported = if is_equal { Change::Unchanged } else { reported };
            before = Arc::clone(&after);
            queue.pending.push_back(Pending { call, reported, after, remarks, time, preparation, checked });
        }
        queue.report(0, program, observe)
    })
}

/// The passes that have run and are not reported yet, in their order.
struct Queue<'c> {
    /// `None` if the system refuses a thread.
    checker: Option<Checker>,
    pending: VecDeque<Pending<'c>>,
}

/// A pass that has run, while its result is checked.
struct Pending<'c> {
    call: &'c PassCall,
    reported: Change,
    /// The program after the pass.
    after: Arc<Program>,
    remarks: Remarks,
    time: Duration,
    /// The duration of the copy for the checks.
    preparation: Duration,
    /// `None` if the second thread has the result or will have it.
    checked: Option<Checked>,
}

impl Queue<'_> {
    /// Starts the checks of a result, or makes them at once.
    fn check(&self, job: Job) -> Option<Checked> {
        match &self.checker {
            // If the second thread has ended, `Checker::result` says so.
            Some(checker) => {
                let _ = checker.jobs.send(job);
                None
            }
            None => Some(job.run()),
        }
    }

    /// Reports the passes whose checks have ended, in order, and waits for those of the first ones if more than `most` are pending.
    /// If checks have failed, `program` becomes the one after this pass.
    fn report(
        &mut self,
        most: usize,
        program: &mut Program,
        observe: &mut dyn FnMut(PassEvent<'_>),
    ) -> Result<(), Box<PipelineError>> {
        while let Some(mut first) = self.pending.pop_front() {
            let may_wait = self.pending.len() >= most;
            let in_thread = || self.checker.as_ref().and_then(|it| it.result(may_wait));
            let Some((result, checks)) = first.checked.take().or_else(in_thread) else {
                self.pending.push_front(first);
                break;
            };
            let Pending { call, reported, after, remarks, time, preparation, checked: _ } = first;
            if let Err(error) = result {
                program.clone_from(&after);
                observe(PassEvent::Failed { call, program, error: &error });
                return Err(Box::new(PipelineError { pass: Some(call.pass.name), error }));
            }
            let change = PassChange { reported, programs: None, of_text: &OnceCell::new() };
            let (program, checks, remarks) = (&*after, preparation + checks, remarks.all());
            observe(PassEvent::After { call, program, change, time, checks, remarks });
        }
        Ok(())
    }
}

/// The result of checks and their duration.
type Checked = (Result<(), PassError>, Duration);

/// The second thread, which makes the checks one after the other.
struct Checker {
    jobs: Sender<Job>,
    results: Receiver<Checked>,
}

impl Checker {
    /// Starts the thread, unless the system refuses it. It ends when the checker is dropped.
    fn start<'s>(scope: &'s Scope<'s, '_>) -> Option<Self> {
        let (jobs, received) = channel::<Job>();
        let (sender, results) = channel();
        let work = move || {
            for job in received {
                if sender.send(job.run()).is_err() {
                    break;
                }
            }
        };
        second_thread::builder("hir-verify").spawn_scoped(scope, work).ok()?;
        Some(Self { jobs, results })
    }

    /// Returns the next result; `None` if it may not wait and there is none yet.
    fn result(&self, may_wait: bool) -> Option<Checked> {
        let found = if may_wait {
            self.results.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            self.results.try_recv()
        };
        match found {
            Ok(checked) => Some(checked),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let reason = "while its result was checked".to_owned();
                Some((Err(PassError::Panicked(reason)), Duration::ZERO))
            }
        }
    }
}

/// The checks of one result. They drop the program before it.
struct Job {
    before: Arc<Program>,
    after: Arc<Program>,
    reported: Change,
}

impl Job {
    fn run(self) -> Checked {
        let Self { before, after, reported } = self;
        let started = now();
        let result = check_structure(&before, &after, reported);
        drop(before);
        (result, since(started))
    }
}
